"""When a volunteer's machine plays: not in quiet hours, on battery, or while its owner works."""

import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

from keima.config.quiet_hours import quiet_until

POWER = Path("/sys/class/power_supply")
PROCESSOR = Path("/proc/stat")
BUSY_SHARE = 0.25  # of all cores, used by programs of usual priority, above which somebody works here
LOOK_SECONDS = 10.0  # over which that is measured
CALM_LOOKS = 3  # in a row, until play goes on


class Conditions:
    """Whether to play now.

    Args:
        quiet_hours: see ``keima.config.quiet_hours``; empty: none.
        on_battery: whether to play without mains.
        beside_work: whether to play while the owner's programs need the processor.
        clock: a monotonic clock in seconds.
        now: returns the local time.
        power: the system's folder of power supplies.
        processor: the system's file of processor times.
    """

    def __init__(
        self,
        *,
        quiet_hours: str = "",
        on_battery: bool = False,
        beside_work: bool = False,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = datetime.now,
        power: Path = POWER,
        processor: Path = PROCESSOR,
    ) -> None:
        self._quiet_hours, self._on_battery, self._beside_work = quiet_hours, on_battery, beside_work
        self._clock, self._now, self._power, self._processor = clock, now, power, processor
        self._times, self._looked = _read_processor_times(processor), clock()
        self._calm = CALM_LOOKS

    def reason_to_pause(self) -> str:
        """Return why not to play now; empty: play."""
        if end := quiet_until(self._quiet_hours, self._now()):
            return f"quiet hours until {end:%a %H:%M}"
        if not self._on_battery and runs_on_battery(self._power):
            return "the machine runs on battery"
        if not self._beside_work and self._is_owner_at_work():
            return "somebody works here"
        return ""

    def _is_owner_at_work(self) -> bool:
        """Return whether programs of usual priority need more than a share of the cores; ours have the lowest."""
        if self._clock() - self._looked >= LOOK_SECONDS:
            times = _read_processor_times(self._processor)
            spans = [now - before for now, before in zip(times, self._times, strict=False)]
            self._times, self._looked = times, self._clock()
            if len(spans) >= 4 and sum(spans) > 0:
                busy = (spans[0] + spans[2]) / sum(spans)  # user and system; nice, the second, is ours
                self._calm = 0 if busy > BUSY_SHARE else self._calm + 1
        return self._calm < CALM_LOOKS


def runs_on_battery(power: Path = POWER) -> bool:
    """Return whether the machine has a battery that discharges, and no mains; False where that is unknown."""
    try:
        supplies = list(power.iterdir())
    except OSError:
        return False
    if any(_read_word(each / "online") == "1" for each in supplies if _read_word(each / "type") in ("Mains", "USB")):
        return False
    batteries = [each for each in supplies if _read_word(each / "type") == "Battery"]
    return any(_read_word(each / "status") == "Discharging" for each in batteries)


def _read_word(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def _read_processor_times(path: Path) -> list[int]:
    """Return the times of all cores since the start, in ticks: user, nice, system, idle, and others (proc(5))."""
    try:
        first = path.read_text().split("\n", 1)[0].split()
        return [int(each) for each in first[1:9]]  # guests are counted in user
    except (OSError, ValueError):
        return []
