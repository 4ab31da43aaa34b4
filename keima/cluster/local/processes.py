"""Workers as processes of this machine, each with a worker folder: the cluster's protocol without a network."""

import logging
import os
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from keima.base.system.limits import count_usable_cores
from keima.base.system.logs import set_log_handler
from keima.base.system.priority import WORKER_PRIORITY
from keima.base.system.processes import Process, start_process
from keima.base.system.signals import ignore_terminal_signals
from keima.cluster.local.worker_devices import CUDA_VISIBLE_DEVICES, Spread, spread_local_workers
from keima.coach.backends.backend import FolderBackend
from keima.coach.backends.pending_batch import PendingBatch
from keima.config.schema import Settings
from keima.games import Game
from keima.networks.inference.evaluator import use_threads
from keima.self_play.compile_ahead import is_compiled
from keima.worker.spool import salvage_games_if_idle
from keima.worker.worker_class import load_worker_class
from keima.worker.worker_folder import Heartbeat

log = logging.getLogger(__name__)

PRELOAD = "keima.cluster.local.preload"  # by the server of processes
STOP_SECONDS = 20.0  # for a worker to deliver its games
FIRST_TIME = "The search is compiled for this machine: once, in about a minute; from then on it starts in seconds."
RESTARTS, RESTART_WINDOW = 5, 600.0  # a worker that restarts more often in this many seconds is in a crash loop
TAIL_BYTES = 4096  # of a log, in which its last line is searched
READY = ("playing", "waiting")


class LocalProcesses(FolderBackend):
    """``count`` worker processes; one that dies is reported and restarted, unless it dies repeatedly.

    Games that a dead worker has delivered count. Its other games are withdrawn and reassigned; its successor is granted
    games once it is ready. If the search has never been compiled here, one process starts first and compiles it.

    Args:
        root: the folder of the worker folders.
        count: the number of workers.
        game: the game they play.
        settings: the run's settings.
        run_id: the run's id.
        devices: CUDA_VISIBLE_DEVICES of each worker (see ``keima.cluster.local.worker_devices``); by default that of
            this
            process.
        names: the workers' names, instead of local-1, local-2, ...
        restarts: how many times a worker is restarted within ten minutes.
        log_event: called with each line for the log.
        log_death: called with a worker's name and what happened when it has died; by default ``log_event`` is.
        target: what a process runs, given its folder.
        compiled: whether the search has been compiled; by default its compile cache is checked.
    """

    def __init__(
        self,
        root: Path,
        *,
        count: int,
        game: Game,
        settings: Settings,
        run_id: str,
        devices: Sequence[str] | None = None,
        names: Sequence[str] | None = None,
        restarts: int = RESTARTS,
        log_event: Callable[[str], None] = log.warning,
        log_death: Callable[[str, str], None] | None = None,
        target: Callable[[Path], None] | None = None,
        compiled: bool | None = None,
    ) -> None:
        named = names or [f"local-{number}" for number in range(1, count + 1)]
        super().__init__(root, named, game=game, settings=settings, run_id=run_id)
        self._log_event, self._restarts = log_event, restarts
        self._log_death = log_death or (lambda name, what: log_event(f"worker {name} {what}"))
        self._devices: dict[str, str] = dict(zip(named, devices, strict=True)) if devices is not None else {}
        load_worker_class(settings.distributed.worker_class)  # fails here, once, if the class cannot be loaded
        self._target, self._worker_class = target, settings.distributed.worker_class
        self._processes: dict[str, Process] = {}
        self._starts: dict[str, list[float]] = {name: [] for name in named}
        self._dead: set[str] = set()  # workers whose games must be withdrawn before they are restarted
        self._named: set[str] = set()  # those of them that ``withdrawn`` has listed
        self._returning: set[str] = set()  # workers that have been restarted and are not ready yet
        self._compiling = ""  # the last thing that the first worker reported to compile
        self._compiled = is_compiled("self_play") if compiled is None else compiled

    def publish(self, version: int, model: bytes) -> None:
        """See ``SelfPlayBackend``."""
        super().publish(version, model)
        if not self._processes and not self._compiled:
            self._log_event(FIRST_TIME)
        self._start_missing_workers()

    def collect(self) -> list[PendingBatch]:
        """See ``SelfPlayBackend``; also restarts workers that have died."""
        for name, process in list(self._processes.items()):
            if not process.is_alive():
                self._drop_dead_worker(name, process.exitcode)
        if self._returning or not self._compiled:
            self._note_ready_workers()
        return super().collect()

    def grant(self, worker: str, *, granted: int, delivered: int) -> None:
        """See ``SelfPlayBackend``; also restarts a dead worker whose games have been withdrawn."""
        super().grant(worker, granted=granted, delivered=delivered)
        if worker in self._named:
            self._replace_worker(worker)

    def withdrawn(self) -> dict[str, int]:
        """See ``SelfPlayBackend``; includes the games that died with their worker."""
        self._named = set(self._dead)
        return super().withdrawn() | {name: self._undelivered_games(name) for name in self._dead}

    def heartbeats(self) -> dict[str, Heartbeat | None]:
        """See ``SelfPlayBackend``; the heartbeat of a worker that was given up has the reason."""
        heartbeats = super().heartbeats()
        for name, reason in self.given_up.items():
            last = heartbeats[name] or Heartbeat(
                run_id=self.assignments.run_id, worker=name, beat=0, pid=0, state="error"
            )
            heartbeats[name] = last.model_copy(update={"state": "error", "error": reason, "games_per_second": 0.0})
        return heartbeats

    def close(self) -> None:
        """See ``SelfPlayBackend``."""
        self.assignments.stop()
        for name in self._processes:
            self.assign(name)
        for process in self._processes.values():
            process.terminate()  # whatever it is doing; it hands over its games first
        deadline = time.monotonic() + STOP_SECONDS
        for name, process in self._processes.items():
            process.join(max(0.0, deadline - time.monotonic()))
            if process.is_alive():
                log.warning("worker %s did not end within %.0f s and is killed", name, STOP_SECONDS)
                process.kill()
                process.join()
        self._processes.clear()

    def running_workers(self) -> list[str]:
        """Return the workers whose processes have been started and are not known to have ended."""
        return sorted(self._processes)

    def _start_missing_workers(self) -> None:
        missing = [
            name
            for name in self.folders
            if name not in self._processes and name not in self._dead | self.given_up.keys()
        ]
        room = len(missing) if self._compiled else max(0, 1 - len(self._processes))
        for name in missing[:room]:
            self._start_worker(name)

    def _start_worker(self, name: str) -> None:
        device = self._devices.get(name)
        play = partial(
            play_in_folder,
            worker_class=self._worker_class,
            device="cuda" if device else "auto",
            workers=len(self.folders),
        )
        arguments = (device, self._target or play, self.folders[name].root)
        self._processes[name] = start_process(run_on_device, arguments, preload=PRELOAD, name=name)
        self._starts[name].append(time.monotonic())

    def _drop_dead_worker(self, name: str, exit_code: int | None) -> None:
        """Report that a worker has died; its successor starts after its undelivered games have been withdrawn."""
        del self._processes[name]
        now = time.monotonic()
        recent = [start for start in self._starts[name] if now - start < RESTART_WINDOW]
        where = self.folders[name].root / "logs" / f"worker_{name}.log"
        line = last_log_line(where)
        see = f"its log ends: {line}; see {where}" if line else f"see {where}"
        if len(recent) > self._restarts:
            times = f"{len(recent)} times in {RESTART_WINDOW / 60:.0f} minutes"
            self.given_up[name] = what = f"ended {times}, last with exit code {exit_code}; {see}"
        else:
            what = f"ended with exit code {exit_code} and is started again; {see}"
        self._log_death(name, what)
        self._dead.add(name)
        salvage_games_if_idle(self.folders[name])
        if self._undelivered_games(name) == 0:
            self._replace_worker(name)

    def _undelivered_games(self, name: str) -> int:
        """Return how many of its granted games a worker has not delivered."""
        account = self.assignments.account(name)
        return account.granted - max(account.delivered, *self.folders[name].batch_ends(), 0)

    def _replace_worker(self, name: str) -> None:
        """Start a dead worker's successor, or if it was given up, workers that still wait for their start."""
        self._dead.remove(name)
        self._named.discard(name)
        if name not in self.given_up:
            self.folders[name].forget_heartbeat()
            self._returning.add(name)
            self._start_worker(name)
        self._update_grantable_workers()
        self._start_missing_workers()

    def _note_ready_workers(self) -> None:
        heartbeats = super().heartbeats()
        ready = {name for name, heartbeat in heartbeats.items() if heartbeat and heartbeat.state in READY}
        if self._returning & ready:
            self._returning -= ready
            self._update_grantable_workers()
        if not self._compiled:
            for heartbeat in heartbeats.values():
                if heartbeat and heartbeat.state == "compiling" and heartbeat.note not in ("", self._compiling):
                    self._compiling = heartbeat.note
                    self._log_event(heartbeat.note)
        if ready and not self._compiled:
            self._compiled = True
            self._start_missing_workers()

    def _update_grantable_workers(self) -> None:
        """Update which workers may be granted games: not those being restarted, as long as there are others."""
        left = tuple(name for name in self.folders if name not in self.given_up or name in self._dead)
        self.workers = (
            tuple(name for name in left if name not in self._returning or self._undelivered_games(name) > 0) or left
        )


def spread_processes(
    root: Path,
    *,
    game: Game,
    settings: Settings,
    run_id: str,
    log_event: Callable[[str], None],
    spread: Spread | None = None,
) -> LocalProcesses:
    """Return the workers of this machine by its GPUs and the run's settings, or by ``spread``.

    Raises:
        ValueError: see ``spread_local_workers``.
    """
    spread = spread or spread_local_workers(settings)
    if spread.note:
        log_event(spread.note)
    return LocalProcesses(
        root,
        count=len(spread),
        game=game,
        settings=settings,
        run_id=run_id,
        devices=spread.devices,
        log_event=log_event,
    )


def last_log_line(log_file: Path) -> str:
    """Return the last line of a log that is not empty; empty if there is none."""
    try:
        with log_file.open("rb") as file:
            file.seek(max(0, log_file.stat().st_size - TAIL_BYTES))
            lines = file.read(TAIL_BYTES).decode(errors="replace").splitlines()
    except OSError:
        return ""
    return next((line.strip() for line in reversed(lines) if line.strip()), "")


def run_on_device(device: str | None, target: Callable[[Path], None], root: Path) -> None:
    """Run ``target`` on the GPU that ``device`` names.

    CUDA reads the environment when it is first used, which is later.
    """
    os.nice(WORKER_PRIORITY)
    if device is not None:
        os.environ[CUDA_VISIBLE_DEVICES] = device
    target(root)


def play_in_folder(root: Path, *, worker_class: str, device: str, workers: int) -> None:
    """Run a worker process: play in the worker folder ``root`` on one core, with networks on ``device``.

    If that is a GPU, it searches on its share of the cores, as one of ``workers`` on this machine.
    """
    ignore_terminal_signals()
    set_log_handler(logging.FileHandler(root / "logs" / f"worker_{root.name}.log", encoding="utf-8"))
    use_threads(1)  # one thread per process scales better than several threads in one
    try:
        worker = load_worker_class(worker_class)(root)
        worker.device = device
        worker.most_threads = max(1, count_usable_cores() // workers)
        worker.run()
    except Exception:
        log.exception("worker %s ends", root.name)
        raise
    logging.shutdown()
    os._exit(0)  # everything is on the disk; a regular exit of torch and the compiler would take seconds
