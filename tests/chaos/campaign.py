"""A campaign of faults: drawn at random, combined while a cluster trains, and tracked until they are over."""

import os
import time
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager
from dataclasses import dataclass

from keima.cluster.control.requests import NoCoach, NotAnswered, Request, ask_coach
from tests.chaos.faults import KINDS, MACHINE, MAIN, WORKER, Kind
from tests.chaos.judge import ACTIVE_SECONDS, SHOWN_SECONDS, Judge
from tests.chaos.report import Event, Report, line
from tests.chaos.scene import Scene, Sign
from tests.lab.driver import ACTIVE, SYNCING, in_time
from tests.lab.hosts import Host

TICK = 0.1
SETTLED_SECONDS = (
    2.5  # a worker must be Active this long before it counts as recovered: the status is up to a second old
)
SYNC_SECONDS = 5.0  # a worker that keeps receiving models is fine if it is Active this often
SHORT, LONG_MORE = (0.5, 4.0), 2.0  # seconds: a fault that need not be noticed; how long one lasts once noticed
LONG_SHARE = 0.5  # of the lasting faults that must be noticed
BUSY_SHARE = {MACHINE: 0.6, WORKER: 0.8, MAIN: 0.12}  # of the moments at which a fault could begin
AUDIT_SECONDS, HEALTH_SECONDS = 10.0, 20.0
POLL_SHARE = 10.0  # multiple of a check's duration that passes until the next check
GIVEN_UP = "put it right and --restart it"  # the status of a worker whose process has ended repeatedly


@dataclass
class Fault:
    """A fault that is not over yet."""

    event: Event
    kind: Kind
    host: Host  # for those of the main node, any
    held: AbstractContextManager[Sign | None]
    sign: Sign | None
    began: float
    until: float | None  # when it is undone; None: as soon as it is noticed
    undone: bool = False
    poll_at: float = 0.0  # when its sign is checked again


class Campaign:
    """Faults on a scene.

    Args:
        scene: the scene, with all workers Active.
        report: where events are recorded.
        kinds: the kinds of faults; all by default.
        most_faults: the campaign ends after this many faults ...
        seconds: ... or after this time.
        log_event: called with each fault that is over.
    """

    def __init__(
        self,
        scene: Scene,
        report: Report,
        *,
        most_faults: int,
        seconds: float,
        log_event: Callable[[str], None],
        kinds: Collection[str] = (),
    ) -> None:
        self.scene, self.report, self.judge = scene, report, Judge(scene)
        self._kinds = [kind for name, kind in KINDS.items() if not kinds or name in kinds]
        self._most_faults, self._seconds, self._log_event = most_faults, seconds, log_event
        self._began = time.monotonic()
        self._faults: list[Fault] = []
        self._quiet_since = {host.name: self._began for host in scene.hosts}
        self._last_bad = dict(self._quiet_since)
        # When it was last seen that way, with nothing wrong since.
        self._active_at = dict.fromkeys(self._quiet_since, -SYNC_SECONDS)
        self._bad_since = dict.fromkeys(self._quiet_since, self._began)
        self._recovered_in: dict[str, float | None] = dict.fromkeys(self._quiet_since, 0.0)  # None: not yet
        self._blamed: set[str] = set()  # hosts that are late and have been reported
        self._audit_at = self._health_at = self._began

    def run(self) -> None:
        """Inject faults until the limit, then undo them all and wait until they are over."""
        while not self._is_over():
            self._tick(draw=True)
        for fault in self._faults:
            if fault.until is None or fault.kind.lasts:
                fault.until = 0.0
        deadline = time.monotonic() + in_time(ACTIVE_SECONDS) * 2
        while self._faults and time.monotonic() < deadline:
            self._tick(draw=False)
        for fault in self._faults:
            self.scene.problems.append(f"{fault.event.fault} of {fault.host.name} was not over in the end")
        self.report.totals = self.judge.end(self._watch_all)
        self.report.seconds = time.monotonic() - self._began
        self.report.problems = self.scene.problems

    def _is_over(self) -> bool:
        return len(self.report.events) >= self._most_faults or time.monotonic() - self._began >= self._seconds

    def _tick(self, *, draw: bool) -> None:
        self.scene.poll()
        self._see_to_the_coach()
        for fault in list(self._faults):
            self._advance(fault)
        self._watch_all()
        if draw:
            self._draw()
        self._poll_now_and_then()
        time.sleep(TICK)

    # Beginning.

    def _draw(self) -> None:
        """Start one more fault if the draw says so and there is room; after one of the main node, first let all workers
        recover.
        """
        if any(fault.kind.of == MAIN and fault.undone for fault in self._faults):
            return
        chance = self.scene.chance
        kind = chance.choices(self._kinds, [kind.weight for kind in self._kinds])[0]
        host = chance.choice(self.scene.hosts)
        taken = [
            fault for fault in self._faults if fault.kind.of == kind.of and (kind.of == MAIN or fault.host is host)
        ]
        if taken or chance.random() > BUSY_SHARE[kind.of] or not self._has_rested(host, kind):
            return
        self._begin(kind, host)

    def _has_rested(self, host: Host, kind: Kind) -> bool:
        """Return whether a worker has been Active for a moment; this is sometimes skipped."""
        name, now = host.name, time.monotonic()
        return now - self._last_bad[name] > SETTLED_SECONDS or (kind.of != MAIN and self.scene.chance.random() < 0.02)

    def _begin(self, kind: Kind, host: Host) -> None:
        now, chance = time.monotonic(), self.scene.chance
        event = Event(
            number=len(self.report.events) + 1,
            fault=kind.name,
            host="" if kind.of == MAIN else host.name,
            at=round(now - self._began, 2),
            load=round(os.getloadavg()[0], 1),
        )
        self.report.events.append(event)
        held = kind.act(self.scene, host)
        sign = held.__enter__()
        long = sign is not None and (not kind.lasts or chance.random() < LONG_SHARE)
        until = None if long else time.monotonic() + chance.uniform(*SHORT)
        fault = Fault(event=event, kind=kind, host=host, held=held, sign=sign, began=now, until=until)
        for other in self._faults:
            if MAIN in (kind.of, other.kind.of) or other.host is host:
                other.event.beside.append(kind.name)
                event.beside.append(other.kind.name)
        self._faults.append(fault)

    # Going on.

    def _advance(self, fault: Fault) -> None:
        """Check whether a fault is noticed, must be undone, or is over."""
        now, event = time.monotonic(), fault.event
        if (
            fault.sign
            and event.noticed is None
            and not fault.undone
            and now >= fault.poll_at
            and self._sees(fault, fault.sign)
        ):
            event.noticed = round(now - fault.began, 2)
            if fault.until is None:
                fault.until = now + (self.scene.chance.uniform(0.0, LONG_MORE) if fault.kind.lasts else 0.0)
        if fault.until is None and now - fault.began > in_time(SHOWN_SECONDS):
            fault.until = now
            if not event.beside:
                self.scene.problems.append(
                    f"{event.fault} of {fault.host.name} was not noticed in {now - fault.began:.0f} s"
                )
        if not fault.undone and fault.until is not None and now >= fault.until:
            fault.held.__exit__(None, None, None)
            fault.undone = True
            event.lasted = round(time.monotonic() - fault.began, 2)
        if fault.undone and self._is_quiet(fault):
            seconds = {name: self._recovered_in[name] for name in self._concerned(fault)}
            late = {name for name, taken in seconds.items() if taken is None}
            if late <= self._blamed:  # an overdue fault has been reported, and the campaign continues
                self._finish(fault, None if late else max(taken for taken in seconds.values() if taken is not None))

    def _is_quiet(self, fault: Fault) -> bool:
        """Return whether nothing keeps the worker (for the main node: any worker) from being Active."""
        return not any(not other.undone for other in self._touching(fault))

    def _touching(self, fault: Fault) -> list[Fault]:
        return [other for other in self._faults if MAIN in (fault.kind.of, other.kind.of) or other.host is fault.host]

    def _concerned(self, fault: Fault) -> list[str]:
        return [host.name for host in self.scene.hosts] if fault.kind.of == MAIN else [fault.host.name]

    def _finish(self, fault: Fault, seconds: float | None) -> None:
        fault.event.recovered = seconds if seconds is None else round(seconds, 2)
        self._faults.remove(fault)
        self._log_event(line(fault.event, fault.kind))

    def _sees(self, fault: Fault, sign: Sign) -> bool:
        """Return whether the sign is present; a sign that takes long to check is checked rarely."""
        began = time.monotonic()
        seen = sign()
        fault.poll_at = time.monotonic() + POLL_SHARE * (time.monotonic() - began)
        return seen

    # Watching.

    def _watch_all(self) -> None:
        for host in self.scene.hosts:
            self._watch(host)

    def _watch(self, host: Host) -> None:
        """Track whether a worker without a fault is Active, and for how long it has not been; a model transfer
        counts as not.
        """
        now, name = time.monotonic(), host.name
        if any(not fault.undone and (fault.kind.of == MAIN or fault.host is host) for fault in self._faults):
            self._quiet_since[name] = self._last_bad[name] = self._bad_since[name] = now
            self._recovered_in[name], self._active_at[name] = None, -SYNC_SECONDS
            return
        state = self.scene.state_of(host)
        if state == ACTIVE:
            self._active_at[name] = now
        if state != ACTIVE and not (state == SYNCING and now - self._active_at[name] < SYNC_SECONDS):
            if self._recovered_in[name] is not None and now - self._last_bad[name] > SETTLED_SECONDS:
                self._bad_since[name] = now
            self._last_bad[name] = now
            if now - self._bad_since[name] > in_time(ACTIVE_SECONDS) and name not in self._blamed:
                self._blame(host, now - self._bad_since[name])
        elif now - self._last_bad[name] >= SETTLED_SECONDS:
            self._blamed.discard(name)
            if self._recovered_in[name] is None:
                self._recovered_in[name] = self._last_bad[name] - self._quiet_since[name]

    def _blame(self, host: Host, seconds: float) -> None:
        """Report a worker that takes too long to become Active again; restart a worker that was given up."""
        worker = self.scene.driver.workers().get(host.name, {})
        if GIVEN_UP in str(worker.get("reason")):
            self._restart(host)
            return
        self._blamed.add(host.name)
        text = f"{host.name} is not Active {seconds:.0f} s after all was well (load {os.getloadavg()[0]:.1f})"
        problem = f"{time.monotonic() - self._began:.0f} s: {text}: {worker.get('state')}, {worker.get('reason')}"
        self.scene.problems.append(problem)
        self._log_event(problem)

    def _restart(self, host: Host) -> None:
        """Do what the status asks for a worker whose process was killed too often."""
        try:
            ask_coach(
                Request(command="restart", worker=host.name),
                self.scene.driver.checkout / "distributed" / "control",
                seconds=15.0,
            )
        except (NoCoach, NotAnswered, OSError) as error:
            self.report.notes.append(f"{host.name} could not be restarted: {error}")
        self.report.notes.append(
            f"{host.name} had been killed too often, was given up as promised, and restarted by hand"
        )
        self._quiet_since[host.name] = self._bad_since[host.name] = time.monotonic()

    def _see_to_the_coach(self) -> None:
        """Report and restart the Coach if it has stopped: no fault may stop it."""
        scene = self.scene
        if scene.driver.runs or scene.coach_is_down:
            return
        ends = scene.driver.output.read_text(errors="replace").splitlines()[-3:]
        names = [fault.event.fault for fault in self._faults]
        scene.problems.append(
            f"{time.monotonic() - self._began:.0f} s: the Coach has ended, during {names}: {' | '.join(ends)}"
        )
        if scene.driver.runs is False and not any(
            fault.kind.name == "fill_main_disk" and not fault.undone for fault in self._faults
        ):
            scene.driver.start()

    def _poll_now_and_then(self) -> None:
        now = time.monotonic()
        for host in self.scene.hosts:
            self.judge.check_processes(host)
        if now - self._audit_at >= AUDIT_SECONDS:
            self._audit_at = now
            self.judge.audit_ledger()
        if now - self._health_at >= HEALTH_SECONDS:
            self._health_at = now
            if health := self.judge.health(now - self._began):
                self.report.health.append(health)
