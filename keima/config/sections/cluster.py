"""The settings of self-play on other machines."""

from collections import Counter
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo, WrapValidator, model_validator

from keima.config.commands import cluster
from keima.config.sections.crowd import CROWD_WORKER, CrowdSettings
from keima.config.sections.ray import RAY_WORKER, RaySettings
from keima.config.sections.slurm import SLURM_NAME, SLURM_WORKER, SlurmSettings
from keima.config.sections.training import SEED_ACCOUNTS
from keima.config.sections.types import Count, Name, Positive, Section, as_tuple, listed, matching
from keima.config.sections.workers import (
    PipSettings,
    WorkerDefaults,
    WorkerSettings,
    could_be_confused,
    flatten_entries,
    machines_of,
)

ClassPath = Annotated[str, matching(r"[^\W\d]\w*(\.[^\W\d]\w*)+", "a class as module.Class"), Field(max_length=300)]


class DistributedSettings(Section):
    """Self-play on other machines: over SSH, in jobs of a Slurm cluster, or in a Ray cluster."""

    enabled: bool = False
    """true: the machines below play; false: this machine plays."""
    defaults: WorkerDefaults = WorkerDefaults()
    """What every worker has unless its entry says otherwise, such as {user: me, port: 22}."""
    groups: dict[Name, WorkerDefaults] = {}
    """Defaults for the workers of a group, such as {lab: {nice: 19, bandwidth: 2.0}}."""
    workers: Annotated[
        tuple[Annotated[WorkerSettings, WrapValidator(machines_of)], ...],
        BeforeValidator(as_tuple),
        AfterValidator(flatten_entries),
    ] = ()
    """Machines that play, reached over SSH with a key."""
    slurm: SlurmSettings | None = None
    """Workers in jobs of a Slurm cluster (docs/slurm.md)."""
    ray: RaySettings | None = None
    """Workers in a Ray cluster (docs/ray.md)."""
    crowd: CrowdSettings | None = None
    """Machines that join by a link, from anywhere (docs/crowd.md)."""
    compression: bool = True
    """Send models compressed and as deltas; false: send them whole, which saves CPU time."""
    batch_size: Annotated[int, Field(ge=1, le=10_000)] = 100
    """Games per transfer."""
    sync_interval: Count = 50
    """Games between checks for a newer model."""
    load_balancing: bool = True
    """Share games by weight and measured speed; false: equally."""
    worker_weights: dict[str, Positive] = {}
    """Weights by name, such as {worker2: 2.0}: twice the games of a machine of weight 1, the default."""
    worker_class: ClassPath = "keima.worker.Worker"
    """Class of the workers, also local ones: module.Class, this one or a subclass."""
    host_key_policy: Literal["strict", "accept-new"] = "strict"
    """strict: only keys in known_hosts; accept-new: also save a host's first key."""
    bootstrap: bool = False
    """true: install this code and its requirements on workers that lack them."""
    pip: PipSettings = PipSettings()
    """Package sources of bootstrap; all optional."""
    login_seconds: Annotated[float, Field(ge=1, le=600)] = 30.0
    """Timeout in seconds for each reply during login."""
    heartbeat_seconds: Annotated[float, Field(ge=0.1, le=60)] = 2.0
    """Seconds between checks of a worker."""
    offline_seconds: Annotated[float, Field(ge=1, le=3600)] = 10.0
    """Seconds of silence after which a worker is Offline."""
    retry_seconds: Annotated[float, Field(ge=1, le=3600)] = 60.0
    """Seconds between two attempts to reconnect, at most."""
    lease_seconds: Annotated[float, Field(ge=10, le=86_400)] = 900.0
    """Seconds without contact after which a worker exits."""

    @model_validator(mode="after")
    def _check(self, info: ValidationInfo) -> Self:
        names = Counter(worker.name for worker in self.workers)
        twice = sorted(name for name, count in names.items() if count > 1)
        if twice:
            raise ValueError(
                f"workers: names must be unique, but several are called {listed(twice)}; give each a `name`"
            )
        used = {worker.group for worker in self.workers if worker.group}
        for group in sorted(self.groups.keys() - used):
            raise ValueError(f"groups: no worker is in {group}; give some `group: {group}`, or remove it")
        for group in sorted(name for name, defaults in self.groups.items() if defaults.group not in (None, name)):
            raise ValueError(f"groups: {group} may not put its workers into another group")
        for group in sorted(used & names.keys()):
            raise ValueError(f"workers: {group} is the name of a group and of a worker; rename one of them")
        for first, second in could_be_confused(self.workers):
            remedy = f"give one another `name`, or give {first} `processes: 1`"
            raise ValueError(f"workers: a process of {first} could have the name of machine {second}; {remedy}")
        for name in sorted(name for name in names if self.slurm and SLURM_WORKER.fullmatch(name)):
            raise ValueError(f"workers: {name} looks like a name of Slurm's workers; give it another `name`")
        for name in sorted(name for name in names if self.ray and RAY_WORKER.fullmatch(name)):
            raise ValueError(f"workers: {name} looks like a name of Ray's workers; give it another `name`")
        for name in sorted(name for name in names if CROWD_WORKER.fullmatch(name)):
            raise ValueError(f"workers: {name} looks like a name of workers from outside; give it another `name`")
        for account in names.keys() & SEED_ACCOUNTS.values():
            raise ValueError(f"workers: {account} is the ledger's account of games from files; choose another name")
        if self.offline_seconds <= self.heartbeat_seconds:
            raise ValueError(
                f"offline_seconds ({self.offline_seconds:g}) must exceed heartbeat_seconds ({self.heartbeat_seconds:g})"
            )
        if self.enabled and not self.has_machines:
            add = cluster("add HOST USER", (info.context or {}).get("config"))
            raise ValueError(f"workers: the list is empty, but enabled is true; add a machine with {add}")
        return self

    @property
    def has_machines(self) -> bool:
        """Whether any machine is named on which workers can play."""
        return bool(self.workers or self.slurm or self.ray or self.crowd)

    @property
    def machine_count(self) -> int | None:
        """How many machines play: one, where this one plays alone; None, where nobody knows beforehand."""
        if not self.enabled:
            return 1
        if self.crowd or (self.ray and self.ray.slots == "auto"):
            return None
        jobs, actors = self.slurm.count if self.slurm else 0, self.ray.slots if self.ray else 0
        return max(1, len(self.workers) + jobs + int(actors))

    @property
    def unused_weights(self) -> str:
        """A warning about names in ``worker_weights`` that no worker has; empty where there are none.

        Removed workers keep their weight for when they come back, so this is not an error.
        """
        names = {worker.name for worker in self.workers} | ({SLURM_NAME} if self.slurm else set())
        unused = ", ".join(
            sorted(name for name in self.worker_weights.keys() - names if not (self.ray and RAY_WORKER.fullmatch(name)))
        )
        known = listed(sorted(names))
        return unused and f"distributed.worker_weights: no worker is called {unused}; the workers are: {known}"
