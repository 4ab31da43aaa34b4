"""Prepare the node of a slot, and start and stop its worker: as over SSH, through the slot."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

import ray

from keima.cluster.agent.commands import Probe
from keima.cluster.agent.packing import install_remote_program
from keima.cluster.machines.bootstrap import send_code, send_compiled_code
from keima.cluster.machines.check import Finding, refuse_unfit
from keima.cluster.machines.machine import WorkerSlot
from keima.cluster.machines.process_manager import RemoteProcessManager, Report
from keima.cluster.machines.release import WorkerRequirements
from keima.cluster.ray.node_facts import NodeFacts, assigned_gpu, check_versions
from keima.cluster.ssh.errors import RemoteFailure
from keima.cluster.ssh.transport import Transport
from keima.config.sections.workers import WorkerSettings
from keima.paths import SOURCE


class RayProcessManager(RemoteProcessManager):
    """The worker of a slot.

    Args:
        machine: the slot's settings.
        slot: returns where the slot is now, and whether a worker plays there; else finished games are fetched there.
        gpu: whether the worker plays on a GPU.
        required: the code and packages that the node must have.
        coach: the Coach that the worker plays for.
    """

    def __init__(
        self,
        machine: WorkerSettings,
        *,
        slot: Callable[[], tuple[NodeFacts, bool]],
        gpu: bool,
        required: WorkerRequirements,
        coach: str,
    ) -> None:
        super().__init__(machine, required=required, coach=coach)
        self._slot, self._gpu = slot, gpu

    def prepare(
        self, transport: Transport, report: Report, should_continue: Callable[[], bool]
    ) -> tuple[WorkerSlot, ...]:
        """See ``ProcessManager``; code that is missing is sent, and so is what is compiled here."""
        node, plays = self._slot()
        check_versions(transport.worker, node, ray=ray.__version__)
        gpu = assigned_gpu(transport.worker, node) if self._gpu and plays else None
        own = {"python": node.python, "gpu_id": None} | ({} if gpu is None else {"gpu_ids": (gpu,)})
        self._machine = self._machine.model_copy(update=own)
        report("checking the node")
        install_remote_program(transport)
        found, wrong = self._probe_and_check(transport)
        if {finding.what for finding in wrong} == {"code"} and should_continue():
            report("Keima's code is being sent")
            send_code(transport, self._machine, self._required, SOURCE)
            found, wrong = self._probe_and_check(transport)
        refuse_unfit(transport.worker, [self._with_ray_remedy(finding, node) for finding in wrong])
        self._probe = found
        if not plays:
            return ()
        self._send_compiled_code(transport, found, report)
        return (WorkerSlot(transport.worker, gpu),)

    def _with_ray_remedy(self, finding: Finding, node: NodeFacts) -> Finding:
        """Return the finding with a remedy for cases that bootstrap cannot fix."""
        if finding.what != "packages":
            return finding
        pins = " ".join(self._required.pins)
        return replace(finding, remedy=f"in the environment of Ray on {node.host}: {node.python} -m pip install {pins}")

    def _send_compiled_code(self, transport: Transport, found: Probe, report: Report) -> None:
        """Send code compiled here to a node that has not had it, once for each version of the code."""
        mark = f"compiled-{self._required.code_hash}"
        if mark in {entry.name for entry in transport.list_files(".remote")}:
            return
        with suppress(RemoteFailure):  # another slot of the node may be doing the same; without it, the node compiles
            for line in send_compiled_code(transport, self._machine, found):
                report(line)
            transport.put(b"", f".remote/{mark}")
