"""What must hold during faults and at the end: no game lost or counted twice, no left-overs, everything reported and
recovered.
"""

import re
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from keima.cluster.agent.serve import IDLE_SECONDS
from keima.data.ledger import read_ledger
from tests.chaos.report import Health
from tests.chaos.scene import Scene, orphans
from tests.lab.driver import ACTIVE, Driver, in_time
from tests.lab.hosts import Host
from tests.trials.kill import RESUMED, SAVED

SHOWN_SECONDS = 15.0  # until a dead worker is shown, on an otherwise idle machine
ACTIVE_SECONDS = 30.0  # until a healed worker is Active again
SECOND_PROCESS_SECONDS = 45.0  # for a second worker to wait for a folder's lock
DRAIN_SECONDS = 120.0
GAP = re.compile(r"games \d+ to \d+ of worker \S+ are missing before batch ")


class Judge:
    """Checks a scene repeatedly and adds problems to it."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self._doubled: dict[str, float] = {}  # host -> time since when it has had two worker processes
        self._known: set[str] = set()  # batches in the ledger at the last check

    def check_processes(self, host: Host) -> None:
        """No folder has two workers for longer than the second one needs to notice the first."""
        if len(self._scene.driver.worker_processes(host)) < 2:
            self._doubled.pop(host.name, None)
        elif time.monotonic() - self._doubled.setdefault(host.name, time.monotonic()) > in_time(SECOND_PROCESS_SECONDS):
            self._say(f"{host.name} has had two worker processes for longer than {SECOND_PROCESS_SECONDS:.0f} s")
            self._doubled.pop(host.name)

    def audit_ledger(self) -> None:
        """Everything that was in the ledger stays there, once."""
        received = self._scene.driver.received()
        if len(set(received)) != len(received):
            twice = [each for each, times in Counter(received).items() if times > 1]
            self._say(f"these batches are in the ledger twice: {twice}")
        if gone := self._known - set(received):
            self._say(f"these batches were in the ledger, and are no longer: {sorted(gone)}")
        self._known = set(received)

    def health(self, at: float) -> Health | None:
        """Return the state of the Coach's process."""
        process = self._scene.driver.process
        if process is None or process.poll() is not None:
            return None
        place = Path(f"/proc/{process.pid}")
        try:
            status = dict(line.split(":", 1) for line in (place / "status").read_text().splitlines())
            files = len(list((place / "fd").iterdir()))
        except OSError:
            return None
        return Health(
            at=round(at, 1),
            memory_mb=int(status["VmRSS"].split()[0]) / 1024,
            files=files,
            threads=int(status["Threads"]),
            disk_mb=shutil.disk_usage(self._scene.main_disk).used / 2**20,
            games=self.games(),
        )

    def games(self) -> int:
        """Return the number of games in the ledger."""
        with read_ledger(self._scene.driver.run_dir) as ledger:
            return sum(row.games for row in ledger.received_batches())

    # The end.

    def end(self, tend: Callable[[], None]) -> dict[str, int]:
        """After all faults: wait until everything has arrived, stop, and count. ``tend`` restarts workers that were
        given up.
        """
        scene, driver = self._scene, self._scene.driver
        deadline = time.monotonic() + in_time(DRAIN_SECONDS)
        while time.monotonic() < deadline and not self._all_is_in():
            scene.poll()
            tend()
            time.sleep(0.2)
        scene.poll()
        if late := {host.name: scene.state_of(host) for host in scene.hosts if scene.state_of(host) != ACTIVE}:
            self._say(f"in the end not all are Active: {late}")
        code = driver.interrupt()
        if code != 128 + signal.SIGINT:
            self._say(f"the Coach ended with exit code {code} after Ctrl-C")
        driver.poll()
        deadline = time.monotonic() + in_time(IDLE_SECONDS)  # an agent whose connection was cut notices it so late
        while orphans(scene.hosts) and time.monotonic() < deadline:
            time.sleep(0.5)
        for left in orphans(scene.hosts):
            self._say(f"left over: {left}")
        if "\nTraceback" in driver.output.read_text(errors="replace"):  # otherwise it is quoted from a worker's log
            self._say(f"there is a traceback in {driver.output}")
        self._audit(driver, "audit")
        self._check_fingerprints()
        self._check_second_run()
        return self._count()

    def _all_is_in(self) -> bool:
        scene = self._scene
        if not all(scene.state_of(host) == ACTIVE for host in scene.hosts):
            return False
        return not self._lost()

    def _lost(self) -> list[str]:
        """Return the batches that were complete on some machine and are neither in the ledger nor excused."""
        with read_ledger(self._scene.driver.run_dir) as ledger:
            rows = {row.id: row for row in ledger.batches()}
        lost = []
        for batch in sorted(self._scene.seen_of(self._scene.driver) - self._scene.excused.keys()):
            row = rows.get(batch)
            robbed = (
                row is not None
                and row.state == "quarantined"
                and any(forged in row.reason for forged in self._scene.forged)
            )
            if robbed:
                self._scene.excused[batch] = "a forged batch had its place"
            elif row is None or row.state != "received":
                lost.append(f"{batch} ({row.reason if row else 'not in the ledger'})")
        return lost

    def _check_second_run(self) -> None:
        """Another run's games are in its ledger or waiting for it on a machine; none is in ours, and none of ours is in
        its ledger.
        """
        scene = self._scene
        if scene.second is None or not (scene.second.run_dir / "run.db").exists():
            return
        theirs = set(scene.second.received())
        waiting = {batch for host in scene.hosts for batch in scene.driver.spool(host)}
        for batch in sorted(scene.seen_of(scene.second) - theirs - waiting - scene.excused.keys()):
            self._say(f"lost to the second run: {batch}")
        for batch in sorted(
            (theirs - scene.seen_of(scene.second)) & scene.driver.seen | set(scene.driver.received()) & theirs
        ):
            self._say(f"in the other run's ledger: {batch}")
        self._audit(scene.second, "audit of the second run")

    def _audit(self, driver: Driver, what: str) -> None:
        for problem in driver.audit().problems:
            # A forged batch stated which games precede it.
            if not (GAP.search(problem) and any(forged in problem for forged in self._scene.forged)):
                self._say(f"{what}: {problem}")

    def _check_fingerprints(self) -> None:
        """Each session started with the learner and window of its checkpoint; a damaged batch is in no later window."""
        lines = (self._scene.driver.run_dir / "coach.log").read_text(errors="replace").splitlines()
        saved = {match[1]: match[2] for line in lines if (match := SAVED.search(line))}
        first = self._scene.damaged_session
        for number, match in enumerate(filter(None, map(RESUMED.search, lines))):
            had, has = saved.get(match[1], match[2]), match[2]
            if first is not None and number >= first:
                had, has = (text.partition(" window ")[0] for text in (had, has))
            if had != has:
                self._say(f"{match[1]} was saved as {had}, and resumed as {has}")

    def _count(self) -> dict[str, int]:
        scene = self._scene
        with read_ledger(scene.driver.run_dir) as ledger:
            rows, accounts = ledger.batches(), ledger.accounts().values()
        received = [row.id for row in rows if row.state == "received"]
        lost = self._lost()
        for batch in lost:
            self._say(f"lost: {batch}")
        for forged in sorted(scene.forged & set(received)):
            self._say(f"batch {forged}, which no worker has made, was received")
        return {
            "batches seen": len(scene.seen_of(scene.driver)),
            "received": len(received),
            "games received": sum(row.games for row in rows if row.state == "received"),
            "quarantined": len(rows) - len(received),
            "excused": len(scene.excused.keys() & scene.driver.seen - set(received)),
            "lost": len(lost),
            "twice": len(received) - len(set(received)),
            "missing": sum(account.missing for account in accounts),
            "discarded": sum(account.discarded for account in accounts),
        }

    def _say(self, problem: str) -> None:
        self._scene.problems.append(problem)
