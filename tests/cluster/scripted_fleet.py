"""A fleet without machines, which does what files say. It imports no more than the fleet's process needs."""

import json
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

from keima.base.reports.worker_status import ClusterNetwork, ClusterStatus, WorkerState, WorkerStatus
from keima.base.run_lock import RunLocked
from keima.cluster.fleet.process.messages import MachineInFleet, Opening
from keima.coach.backends.pending_batch import PendingBatch
from keima.config.sections.workers import WorkerSettings
from keima.evaluation.match_jobs import Contestant, EvaluationJob
from keima.worker.worker_folder import Heartbeat

log = logging.getLogger(__name__)

ERRORS = {"ValueError": ValueError("no such class"), "RunLocked": RunLocked("process 7"), "KeyError": KeyError("lost")}


class Matches:
    """Evaluation games of a scripted fleet."""

    def __init__(self, note: Callable[..., None]) -> None:
        self._note = note

    def deploy_models(self, players: Mapping[Contestant, bytes]) -> None:
        self._note("players", [player.version for player in players])

    def assign_jobs(self, worker: str, jobs: tuple[EvaluationJob, ...]) -> None:
        self._note("jobs", worker, [job.id for job in jobs])


class ScriptedFleet:
    """A fleet without machines. It writes what it is told to ``told``, and does what files in its folder say."""

    workers = ("a", "b")

    def __init__(
        self, opening: Opening, *, log_event: Callable[[str], None], arrived: Callable[[str, str], None]
    ) -> None:
        self.root, self._folder = opening.root, opening.root.parent
        self._log_event, self._arrived = log_event, arrived
        self._granted: dict[str, int] = {}
        self.states = {"a": WorkerState.ACTIVE, "b": WorkerState.ACTIVE}
        self._machines = opening.machines or tuple(
            MachineInFleet(machine=WorkerSettings(host=name)) for name in self.workers
        )
        self._note("opened", [each.machine.name for each in opening.machines or ()], opening.takeover)

    def _note(self, *what: Any) -> None:
        with (self._folder / "told").open("a") as file:
            file.write(json.dumps(what) + "\n")

    def step(self) -> None:
        if (self._folder / "hang").exists():
            (self._folder / "hang").unlink()
            time.sleep(600)
        for path in self._folder.glob("*.arrives"):
            path.rename(self.root / "a" / "outbox" / f"{path.stem}.games")
            self._arrived("a", f"{path.stem}.games")
        for path in self._folder.glob("*.event"):
            self._log_event(path.read_text())
            log.error("also logged: %s \udcff", path.read_text())
            path.unlink()

    def grant(self, worker: str, *, granted: int, delivered: int) -> None:
        self._granted[worker] = granted
        self._note("grant", worker, granted, delivered)

    def publish(self, version: int, model: bytes) -> None:
        self._note("model", version, model.decode())

    def release(self, batch: PendingBatch, *, delivered: int, refused: str = "") -> None:
        self._note("release", batch.batch_id, delivered, refused)
        (self.root / batch.worker / "outbox" / batch.file_name).unlink(missing_ok=True)

    def plan_grants(self, outstanding: Mapping[str, int], ahead: int) -> dict[str, int]:
        return {worker: max(0, ahead - self._granted.get(worker, 0)) for worker in self.workers}

    def withdrawn(self) -> dict[str, int]:
        return {"b": self._granted["b"] - 100} if self._granted.get("b", 0) > 100 else {}

    def heartbeats(self) -> dict[str, Heartbeat | None]:
        beat = Heartbeat(run_id="run", worker="a", beat=7, pid=1, state="playing")
        return {"a": beat, "b": None}

    def ready_workers(self) -> list[str]:
        return ["a"]

    def cluster(self) -> ClusterStatus:
        workers = tuple(WorkerStatus(name=name, state=WorkerState.ACTIVE) for name in self.workers)
        return ClusterStatus(
            workers=workers, network=ClusterNetwork(model_version=1, sync_seconds=None, network_mb_per_minute=0.0)
        )

    def export_machines(self) -> tuple[MachineInFleet, ...]:
        return self._machines

    def match_executors(self) -> Matches:
        return Matches(self._note)

    def close(self) -> None:
        self._note("closed")


def open_scripted(
    opening: Opening, *, log_event: Callable[[str], None], arrived: Callable[[str, str], None]
) -> ScriptedFleet:
    if "fails" in opening.options:
        raise ERRORS[opening.options["fails"]]
    return ScriptedFleet(opening, log_event=log_event, arrived=arrived)
