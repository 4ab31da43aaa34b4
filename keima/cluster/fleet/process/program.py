"""The fleet in a process of its own, so that connections to hundreds of workers do not slow down training.

    python -m keima.cluster.fleet.process.program RUN

``FleetClient`` starts it with a pipe at standard input and one at standard output. It ends when the Coach says so, or
when the Coach has ended; the workers then play on, as long as their lease lasts. It imports neither torch nor the
compiled rules of games.
"""

import logging
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from typing import Any, Protocol

from pydantic import BaseModel

from keima.base.system.processes import die_with_starter
from keima.base.system.signals import ignore_terminal_signals
from keima.cluster.fleet.backend import Fleet
from keima.cluster.fleet.process.messages import (
    MODELS,
    Channel,
    Close,
    Closed,
    Failed,
    FleetState,
    LogLine,
    MachineInFleet,
    News,
    Opened,
    Opening,
    Update,
)
from keima.coach.backends.pending_batch import batch_in

LOOP_SECONDS = 0.1  # between two steps of the fleet, at least ...
LOOP_SHARE = 10.0  # ... and this many times what a step takes ...
MOST_LOOP_SECONDS = 1.0  # ... but no more than this
STATE_SECONDS = 0.2  # between two states, at least ...
STATE_SHARE = 200.0  # ... and this many times what making it takes, and reading it takes about as long, ...
MOST_STATE_SECONDS = 2.0  # ... but no more than this, and ...
CHANGED_SHARE = 10.0  # ... this many times if states or workers have changed
CLOSED_SECONDS = 10.0  # for the Coach to read the last messages


class Factory(Protocol):
    """Builds the fleet, such as ``keima.cluster.control.cluster:open_cluster``."""

    def __call__(
        self, opening: Opening, *, log_event: Callable[[str], None], arrived: Callable[[str, str], None]
    ) -> Fleet:
        """Build the fleet.

        Args:
            opening: what the Coach has said.
            log_event: called with each line for the log.
            arrived: called with the worker and the file when games have arrived.

        Raises:
            Exception: the Coach raises it too, if it is one of ``fleet_client.RAISED``.
        """


class FleetHost:
    """Hosts a fleet for the Coach at the other end of a channel.

    Args:
        channel: to the Coach.
        clock: a monotonic clock in seconds.
    """

    def __init__(self, channel: Channel, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._channel, self._clock = channel, clock
        self._lines: list[LogLine] = []
        self._arrived: list[tuple[str, str]] = []
        self._heard, self._ahead = 0, -1  # -1: the Coach has not asked for decisions
        self._step_at = self._state_at = self._changed_at = 0.0
        self._states: object = None  # in the last state
        self._machines: tuple[MachineInFleet, ...] = ()  # likewise

    def run(self) -> int:
        """Host the fleet to its end; return the process's exit code."""
        logging.basicConfig(level=logging.INFO, format="%(message)s", handlers=[_Forwarder(self._lines)])
        try:
            return self._run_fleet()
        except Exception as error:
            logging.getLogger(__name__).exception("the fleet's process ends")
            self._send_news()
            self._channel.send(_failure_message(error))
            self._wait_until_read()
            return 1

    def _run_fleet(self) -> int:
        opening = self._receive_opening()
        if opening is None:
            return 0
        factory: Factory = _import_function(opening.factory)
        fleet = factory(opening, log_event=self._log_event, arrived=self._note_arrival)
        self._channel.send(Opened())
        while not self._channel.has_ended:
            for message in self._channel.receive_messages():
                if isinstance(message, Close):
                    return self._close_fleet(fleet)
                assert isinstance(message, Update)
                self._apply_update(message, fleet)
            if self._clock() >= self._step_at:
                self._step_fleet(fleet)
            self._channel.flush()
            self._channel.wait(self._step_at - self._clock())
        return 0

    def _receive_opening(self) -> Opening | None:
        """Wait for the first message; None: the Coach has ended."""
        while not self._channel.has_ended:
            for message in self._channel.receive_messages():
                assert isinstance(message, Opening)
                return message
            self._channel.wait(1.0)
        return None

    def _step_fleet(self, fleet: Fleet) -> None:
        began = self._clock()
        fleet.step()
        self._send_news()
        if not self._channel.unsent_bytes and self._is_state_due(fleet):
            self._send_state(fleet)
        now = self._clock()
        self._step_at = now + min(max(LOOP_SECONDS, LOOP_SHARE * (now - began)), MOST_LOOP_SECONDS)

    def _close_fleet(self, fleet: Fleet) -> int:
        """End the run and the workers."""
        fleet.close()
        self._send_news()
        self._send_state(fleet)
        self._channel.send(Closed())
        self._wait_until_read()
        return 0

    # What the Coach says.

    def _apply_update(self, update: Update, fleet: Fleet) -> None:
        """Apply an update, in an order that gives no worker an assignment without its account."""
        for worker, (granted, delivered) in update.accounts.items():
            fleet.grant(worker, granted=granted, delivered=delivered)
        with suppress(FileNotFoundError):  # the Coach has published a newer one meanwhile
            if update.model:
                fleet.publish(update.model.version, (fleet.root / MODELS / update.model.name).read_bytes())
        with suppress(FileNotFoundError):  # those matches are over
            if update.players is not None:
                files = {player: (fleet.root / MODELS / player.file_name).read_bytes() for player in update.players}
                fleet.match_executors().deploy_models(files)
        for worker, jobs in update.jobs.items():
            fleet.match_executors().assign_jobs(worker, jobs)
        for release in update.releases:
            batch = batch_in(fleet.root, release.worker, release.batch_id)
            fleet.release(batch, delivered=release.delivered, refused=release.refused)
        self._ahead = self._ahead if update.ahead is None else update.ahead
        self._heard = update.number

    # What it is told.

    def _is_state_due(self, fleet: Fleet) -> bool:
        changed = (fleet.workers, fleet.states) != self._states
        return self._clock() >= (self._changed_at if changed else self._state_at)

    def _send_state(self, fleet: Fleet) -> None:
        began = self._clock()
        granted = fleet.plan_grants({}, self._ahead) if self._ahead >= 0 else {}
        machines = fleet.export_machines()
        state = FleetState(
            heard=self._heard,
            workers=tuple(fleet.workers),
            ready_workers=tuple(fleet.ready_workers()),
            heartbeats=fleet.heartbeats(),
            cluster=fleet.cluster(),
            decisions={worker: games for worker, games in granted.items() if games > 0},
            withdrawn=fleet.withdrawn(),
            machines=None if machines == self._machines else machines,
        )
        self._channel.send(state)
        self._states, self._machines = (fleet.workers, fleet.states), machines
        now = self._clock()
        self._state_at = now + min(max(STATE_SECONDS, STATE_SHARE * (now - began)), MOST_STATE_SECONDS)
        self._changed_at = now + min(CHANGED_SHARE * (now - began), MOST_STATE_SECONDS)

    def _send_news(self) -> None:
        if self._lines or self._arrived:
            lines, arrived = tuple(self._lines), tuple(self._arrived)
            del self._lines[: len(lines)], self._arrived[: len(arrived)]  # threads may have added some
            self._channel.send(News(lines=lines, arrived=arrived))

    def _log_event(self, text: str) -> None:
        self._lines.append(LogLine(text=_encodable_text(text)))

    def _note_arrival(self, worker: str, file: str) -> None:
        self._arrived.append((worker, file))

    def _wait_until_read(self) -> None:
        """Wait until the Coach has read everything."""
        until = self._clock() + CLOSED_SECONDS
        while self._channel.unsent_bytes and not self._channel.has_ended and self._clock() < until:
            self._channel.wait(LOOP_SECONDS)
            self._channel.flush()


class _Forwarder(logging.Handler):
    """Adds every record to a list."""

    def __init__(self, lines: list[LogLine]) -> None:
        super().__init__()
        self._lines = lines

    def emit(self, record: logging.LogRecord) -> None:
        """Add a record."""
        text = _encodable_text(self.format(record))
        self._lines.append(LogLine(logger=record.name, level=record.levelno, time=record.created, text=text))


def _failure_message(error: Exception) -> BaseModel:
    return Failed(errors=tuple(each.__name__ for each in type(error).__mro__), text=_encodable_text(str(error)))


def _encodable_text(text: str) -> str:
    """Return the text without characters that JSON cannot encode, such as bytes of a file name that are not UTF-8."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _import_function(name: str) -> Any:
    """Return the function that is named "module:function"."""
    module, _, function = name.partition(":")
    return getattr(import_module(module), function)


def main() -> int:
    """Run the process."""
    die_with_starter(signal.SIGKILL)  # at once, as a thread of the Coach would; the end of the channel is noticed later
    ignore_terminal_signals()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a system service signals all its processes: the Coach decides
    channel = Channel(os.dup(sys.stdin.fileno()), os.dup(sys.stdout.fileno()))
    nowhere = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nowhere, sys.stdin.fileno())
    os.close(nowhere)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # nothing that prints disturbs the messages
    code = FleetHost(channel).run()
    channel.close()
    return code


if __name__ == "__main__":
    sys.exit(main())
