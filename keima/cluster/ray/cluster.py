"""The connection to a Ray cluster: its access control, its free resources, and its slots."""

import ipaddress
import logging
import math
import os
import socket
import subprocess
from contextlib import suppress
from typing import Any

import ray
from ray import exceptions
from ray._private import worker
from ray._private.state import available_resources_per_node
from ray._raylet import GcsClient
from ray.actor import ActorHandle

from keima.cluster.agent.commands import printable_start
from keima.cluster.agent.packing import remote_program
from keima.cluster.machines.release import WorkerRequirements, pack_code
from keima.cluster.ray import actor
from keima.cluster.ray.errors import as_cluster_error, ray_error_text
from keima.cluster.ray.token_probe import REFUSED
from keima.cluster.ssh.errors import ClusterError, Refused, Unreachable
from keima.config.sections.ray import RaySettings
from keima.paths import program_of, with_code_on_path

log = logging.getLogger(__name__)

NAME = "ray"  # of the cluster, in messages
START = "start Ray on this machine (ray start), or name the head node in distributed.ray.address"
CONNECT_SECONDS = 5.0
TOLERANCE = 1e-6  # Ray counts resources in ten-thousandths


class RayCluster:
    """The cluster that this process belongs to.

    Args:
        settings: the settings of its slots.
        required: the code that runs on its nodes.

    Raises:
        Unreachable: there is no cluster at the address.
        Refused: it is another version of Ray or Python, or does not accept our token, or accepts anybody.
    """

    def __init__(self, settings: RaySettings, required: WorkerRequirements) -> None:
        self._settings, self._required = settings, required
        self._asks_for_token: bool | None = None  # once that has been tried
        check_head_node(settings.address)
        logging.getLogger("ray").setLevel(logging.ERROR)  # it warns of what is meant to be so
        worker.print_to_stdstream = log_first_line  # else the end of a node fills the terminal
        try:
            ray.init(address=settings.address, log_to_driver=False, configure_logging=False, logging_level="ERROR")
        except ConnectionError as error:
            raise join_error(settings.address, error) from error
        except (RuntimeError, exceptions.RayError) as error:
            raise Refused(NAME, f"the cluster at {settings.address} cannot be used: {ray_error_text(error)}") from error
        try:
            self.refuse_open_cluster()
            ray.cloudpickle.register_pickle_by_value(actor)  # no file of ours need be on a node
            self._code = ray.put(pack_code(required))
        except BaseException:
            self.disconnect()
            raise

    def refuse_open_cluster(self) -> None:
        """Check that nobody but the owner of the token can use the cluster.

        Raises:
            Refused: it has nodes beyond this machine, and does not ask for a token.
        """
        addresses = {node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"]}
        beyond = sorted(address for address in addresses if not ipaddress.ip_address(address).is_loopback)
        if beyond and self._asks_for_token is None:
            self._asks_for_token = requires_token(ray.get_runtime_context().gcs_address)
        if beyond and not self._asks_for_token:
            what = f"anyone who reaches {beyond[0]} can run programs on the cluster: it requires no token"
            raise Refused(NAME, what, "start Ray on all nodes with RAY_AUTH_MODE=token (docs/ray.md)")

    def count_free_slots(self) -> int:
        """Return how many more slots fit into the free resources of the nodes."""
        return sum(self._count_free_slots_of_node(free) for free in available_resources_per_node().values())

    def _count_free_slots_of_node(self, free: dict[str, float]) -> int:
        wanted = {"CPU": self._settings.num_cpus, "GPU": self._settings.num_gpus}
        fits = [math.floor(free.get(name, 0.0) / amount + TOLERANCE) for name, amount in wanted.items() if amount > 0]
        return max(0, min(fits))

    def request_slot(self) -> ActorHandle:
        """Ask for a slot, which starts when a node has free resources."""
        program, name = remote_program()
        release = (self._required.code_hash, self._required.extra)
        # Ray neither restarts slots nor repeats operations: both are ours, since ours may be repeated.
        options = {"scheduling_strategy": "SPREAD", "max_restarts": 0, "max_task_retries": 0}
        made = ray.remote(actor.SlotActor).options(
            num_cpus=self._settings.num_cpus, num_gpus=self._settings.num_gpus, **options
        )
        return made.remote(self._settings.directory, (name, program), release, self._code)

    def disconnect(self) -> None:
        """Disconnect from the cluster, which ends the slots."""
        ray.shutdown()


def log_first_line(message: dict[str, Any], *_: object, **__: object) -> None:
    """Log Ray's first line about its nodes."""
    log.info("Ray: %s", printable_start(str(message.get("lines", [""])[0]).partition("\n")[0]))


def check_head_node(address: str) -> None:
    """Check that the head node answers: Ray would wait for minutes.

    Raises:
        Unreachable: it does not.
    """
    if address == "auto":
        return
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise Unreachable(NAME, f"no head node answers at {address}: {error}", START) from error


def join_error(address: str, error: ConnectionError) -> ClusterError:
    """Return why the cluster cannot be joined: Ray says the same about a wrong token and about no cluster."""
    if address != "auto":
        with suppress(exceptions.RpcError):
            try:
                GcsClient(address=address)
            except exceptions.AuthenticationError as refusal:
                return as_cluster_error(NAME, "joining", refusal)
    return Unreachable(NAME, f"there is no Ray cluster at {address}: {ray_error_text(error)}", START)


def requires_token(address: str) -> bool:
    """Try whether the cluster rejects a client without a token.

    Raises:
        Unreachable: it does not answer.
    """
    command = [*program_of("keima.cluster.ray.token_probe"), address]
    done = subprocess.run(
        command,
        env=with_code_on_path({**os.environ, "RAY_AUTH_MODE": "disabled"}),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    if done.returncode not in (0, REFUSED):
        raise Unreachable(NAME, f"the head node at {address} does not answer")
    return done.returncode == REFUSED
