"""Prepares the node of a seat, and starts and stops its worker: as over SSH, through the seat."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

import ray

from keima.cluster.agent.packing import install_remote
from keima.cluster.machines.bootstrap import hand_over_compiled, send_code
from keima.cluster.machines.check import Finding, refuse
from keima.cluster.machines.machine import Probe, WorkerSlot
from keima.cluster.machines.process_manager import RemoteProcessManager, Report
from keima.cluster.machines.release import WorkerRequirements
from keima.cluster.ray.place import Place, gpu_of, refuse_versions
from keima.cluster.ssh.errors import RemoteFailure
from keima.cluster.ssh.transport import Transport
from keima.config.sections.workers import WorkerSettings
from keima.paths import SOURCE


class RayProcessManager(RemoteProcessManager):
    """The worker of a seat.

    Args:
        machine: the seat's settings.
        seat: returns where the seat is now, and whether a worker plays there; else finished games are fetched there.
        gpu: whether the worker plays on a GPU.
        required: the code and packages that the node must have.
        coach: the Coach that the worker plays for.
    """

    def __init__(
        self,
        machine: WorkerSettings,
        *,
        seat: Callable[[], tuple[Place, bool]],
        gpu: bool,
        required: WorkerRequirements,
        coach: str,
    ) -> None:
        super().__init__(machine, required=required, coach=coach)
        self._seat, self._gpu = seat, gpu

    def prepare(self, transport: Transport, report: Report, go_on: Callable[[], bool]) -> tuple[WorkerSlot, ...]:
        """See ``ProcessManager``; code that is missing is sent, and so is what is compiled here."""
        place, plays = self._seat()
        refuse_versions(transport.worker, place, ray=ray.__version__)
        gpu = gpu_of(transport.worker, place) if self._gpu and plays else None
        own = {"python": place.python, "gpu_id": None} | ({} if gpu is None else {"gpu_ids": (gpu,)})
        self._machine = self._machine.model_copy(update=own)
        report("checking the node")
        install_remote(transport)
        found, wrong = self._inspect(transport)
        if {finding.what for finding in wrong} == {"code"} and go_on():
            report("our code is being sent")
            send_code(transport, self._machine, self._required, SOURCE)
            found, wrong = self._inspect(transport)
        refuse(transport.worker, [self._for_ray(finding, place) for finding in wrong])
        self._probe = found
        if not plays:
            return ()
        self._send_compiled(transport, found, report)
        return (WorkerSlot(transport.worker, gpu),)

    def _for_ray(self, finding: Finding, place: Place) -> Finding:
        """Return the finding with what helps where bootstrap does not reach."""
        if finding.what != "packages":
            return finding
        pins = " ".join(self._required.pins)
        return replace(
            finding, remedy=f"in the environment of Ray on {place.host}: {place.python} -m pip install {pins}"
        )

    def _send_compiled(self, transport: Transport, found: Probe, report: Report) -> None:
        """Send what is compiled here to a node that has not had it, once for each version of the code."""
        mark = f"compiled-{self._required.code_hash}"
        if mark in {entry.name for entry in transport.names(".remote")}:
            return
        with suppress(RemoteFailure):  # another seat of the node may be doing the same; without it, the node compiles
            for line in hand_over_compiled(transport, self._machine, found):
                report(line)
            transport.put(b"", f".remote/{mark}")
