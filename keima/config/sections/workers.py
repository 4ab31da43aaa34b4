"""The settings of machines that are reached over SSH."""

import ipaddress
import re
from collections.abc import Callable, Iterator
from typing import Annotated, Any, Self

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo, model_validator

from keima.config.hosts import EXAMPLE, hosts_of
from keima.config.quiet_hours import parse_quiet_hours
from keima.config.sections.types import (
    Auto,
    Count,
    CountOrZero,
    Line,
    Name,
    Section,
    as_tuple,
    matching,
)

Host = Annotated[str, matching(r"[A-Za-z0-9_:][A-Za-z0-9_.:%-]{0,252}", "a host name or an IP address")]


User = Annotated[str, matching(r"[A-Za-z0-9_][A-Za-z0-9_.@+\\-]{0,127}", "a user name")]  # also in a domain: CORP\alice


Variable = Annotated[str, matching(r"[A-Za-z_][A-Za-z0-9_]{0,254}", "the name of an environment variable")]


def first_label(host: str) -> str:
    """Return the default name of a worker: the first label of its host name, or its whole IP address."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return host.split(".")[0]
    return re.sub("[:%]", "-", host).strip("-")  # fe80::1%eth0: an address with its link


def check_quiet_hours(text: str) -> str:
    """Check that quiet hours can be understood.

    Raises:
        ValueError: they cannot.
    """
    parse_quiet_hours(text)
    return text


class WorkerDefaults(Section):
    """Defaults for what a worker's entry leaves out. None means: as in ``~/.ssh/config`` and the agent."""

    user: User | None = None
    """Login name; default: as in ~/.ssh/config, else your own."""
    key_path: Line | None = None
    """Private key on this machine; default: the agent's and ~/.ssh/config's."""
    gpu_id: CountOrZero | None = 0
    """GPU to play on; a machine without GPUs uses its CPU; null: use the CPU."""
    gpu_ids: Annotated[tuple[CountOrZero, ...], Field(min_length=1), BeforeValidator(as_tuple)] | None = None
    """Several GPUs instead of gpu_id: worker2-1 and worker2-2."""
    processes: Auto | Annotated[int, Field(ge=1, le=1024)] = "auto"
    """Processes per GPU; auto: one. Without a GPU: of the machine; auto: one per core."""
    port: Annotated[int, Field(ge=1, le=65_535)] | None = None
    """SSH port; default: as in ~/.ssh/config, else 22."""
    directory: Line = "~/keima"
    """Folder on the worker for code, models and games."""
    python: Line = "python3"
    """Interpreter on the worker, with the requirements or for bootstrap."""
    proxy_jump: Line | None = None
    """Jump host, as for ssh."""
    parallel_games: Auto | Count = "auto"
    """Concurrent games per process; replaces self_play.parallel_games."""
    env: dict[Variable, Line] = {}
    """Environment variables of its processes."""
    nice: Annotated[int, Field(ge=0, le=19)] = 0
    """Niceness of its processes: 19 leaves the machine to all others."""
    bandwidth: Annotated[float, Field(ge=0.1)] | None = None
    """Limit in MB/s for models and games together; null: none."""
    quiet_hours: Annotated[Line, AfterValidator(check_quiet_hours)] | None = None
    """Hours in which it does not play, by the main node's clock, such as mon-fri 09:00-18:00."""
    group: Name | None = None
    """A name for several workers, in commands: keima cluster check lab."""


class WorkerSettings(WorkerDefaults):
    """One machine that plays games, reached over SSH with a key; passwords are not supported.

    In a list of workers, ``hosts`` instead of ``host`` stands for one such machine per host; see ``machines_of``.
    """

    host: Host
    """Host name or address, as for ssh; its first label names the machine: worker1."""
    hosts: Annotated[None, Field(exclude=True)] = None
    """Instead of host: forty machines, node01 to node40; node[1-3,7] is four."""
    name: Name = ""
    """Name in the status and in worker_weights; default: the host's first label."""

    @model_validator(mode="before")
    @classmethod
    def _name(cls, values: Any) -> Any:
        if isinstance(values, dict) and "name" not in values and isinstance(values.get("host"), str):
            return {**values, "name": first_label(values["host"])}
        return values

    def over(self, defaults: WorkerDefaults) -> Self:
        """Return this machine as an entry of a list with these defaults."""
        return self.model_validate(with_defaults(self.model_dump(exclude_unset=True), defaults))


def with_defaults(values: dict[str, Any], defaults: WorkerDefaults) -> dict[str, Any]:
    """Return an entry's values, and the defaults of those that it leaves out; ``gpu_id`` also replaces ``gpu_ids``."""
    given = defaults.model_dump(exclude_unset=True)
    if "gpu_id" in values:
        given.pop("gpu_ids", None)
    return {**given, **values}


def machines_of(
    entry: Any, validate: Callable[[Any], WorkerSettings], info: ValidationInfo
) -> tuple[WorkerSettings, ...]:
    """Return the machines of an entry in a list of workers: one, or one for each of its ``hosts``.

    Raises:
        ValueError: the entry has no valid hosts.
    """
    if not isinstance(entry, dict):
        return (validate(entry),)
    defaults, groups = info.data.get("defaults", WorkerDefaults()), info.data.get("groups", {})
    group = entry.get("group", defaults.group)
    values = with_defaults(entry, groups[group]) if isinstance(group, str) and group in groups else entry
    values = with_defaults(values, defaults)
    hosts = values.pop("hosts", None)
    if hosts is None:
        host = values.get("host")
        if isinstance(host, str) and "[" in host:
            raise ValueError(f"a range is written as `hosts`, not `host`: hosts: {host}")
        return (validate(values),)
    if not isinstance(hosts, str):
        raise ValueError(f"expected hosts {EXAMPLE}, found {hosts!r}")
    for key in ("host", "name"):
        if values.get(key):
            raise ValueError(f"`{key}` does not go with `hosts`: each machine is named after its host")
    return tuple(validate({**values, "host": host}) for host in hosts_of(hosts))


def flatten_entries(several: Any) -> tuple[WorkerSettings, ...]:
    """Return the machines of all entries, one after the other."""
    return tuple(machine for machines in several for machine in machines)


def could_be_confused(workers: tuple[WorkerSettings, ...]) -> Iterator[tuple[str, str]]:
    """Yield the machines whose numbered processes could have the name of another machine, with that machine."""
    several = {worker.name for worker in workers if len(worker.gpu_ids or ()) > 1 or worker.processes != 1}
    for worker in workers:
        numbered = re.fullmatch(r"(.+)-[1-9][0-9]*", worker.name)
        if numbered and numbered[1] in several:
            yield numbered[1], worker.name


class PipSettings(Section):
    """Package sources of bootstrap, for machines without direct access to the Python Package Index."""

    index_url: Line | None = None
    """Replaces the Python Package Index."""
    extra_index_url: Line | None = None
    """Additional index."""
    proxy: Line | None = None
    """scheme://[user:password@]host:port."""
    torch_index: Line | None = None
    """For torch only; without a GPU, https://download.pytorch.org/whl/cpu is small."""
    wheels: Line | None = None
    """Local folder filled by pip download; workers then download nothing."""

    @property
    def variables(self) -> dict[str, str]:
        """The environment variables for pip and setup.sh."""
        named = {
            "PIP_INDEX_URL": self.index_url,
            "PIP_EXTRA_INDEX_URL": self.extra_index_url,
            "PIP_PROXY": self.proxy,
            "TORCH_INDEX": self.torch_index,
        }
        return {name: value for name, value in named.items() if value}
