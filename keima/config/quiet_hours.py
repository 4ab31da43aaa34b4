"""Quiet hours: ``22:00-07:00``, ``mon-fri 09:00-18:00``; several are separated by commas."""

import re
from dataclasses import dataclass
from datetime import datetime, time, timedelta
from functools import cache

DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
EXAMPLE = "such as 22:00-07:00 or mon-fri 09:00-18:00, sat 10:00-14:00"
SPAN = re.compile(
    r"(?:(?P<first>[a-z]{3})(?:-(?P<last>[a-z]{3}))? +)?(?P<begin>\d\d?:\d\d) *- *(?P<end>\d\d?:\d\d)", re.IGNORECASE
)


@dataclass(frozen=True)
class QuietSpan:
    """One span of time on some days of the week; if it ends before it begins, it ends on the next day."""

    days: frozenset[int]  # on which it begins; 0: Monday
    begin: time
    end: time

    def end_around(self, now: datetime) -> datetime | None:
        """Return when the span that ``now`` is in ends; None: it is in none."""
        for day in (now.date() - timedelta(days=1), now.date()):
            begin, end = datetime.combine(day, self.begin), datetime.combine(day, self.end)
            end += timedelta(days=self.end <= self.begin)
            if day.weekday() in self.days and begin <= now < end:
                return end
        return None


@cache  # a machine's are asked for at every poll
def parse_quiet_hours(text: str) -> tuple[QuietSpan, ...]:
    """Return the spans that a text names.

    Raises:
        ValueError: it cannot be understood.
    """
    return tuple(_parse_span(part.strip()) for part in text.split(",")) if text.strip() else ()


def quiet_until(text: str, now: datetime) -> datetime | None:
    """Return when the quiet hours that ``now`` is in end; None: it is in none. Spans that touch count as one."""
    spans, end = parse_quiet_hours(text), None
    at: datetime | None = now
    while at is not None and at < now + timedelta(days=7):
        at = max((found for span in spans if (found := span.end_around(at))), default=None)
        end = at or end
    return end


def _parse_span(text: str) -> QuietSpan:
    found = SPAN.fullmatch(text)
    try:
        if found is None:
            raise ValueError
        begin, end = (_parse_time(found[key]) for key in ("begin", "end"))
        return QuietSpan(_parse_days(found["first"], found["last"]), begin, end)
    except ValueError:
        raise ValueError(f"expected quiet hours {EXAMPLE}, found {text!r}") from None


def _parse_time(text: str) -> time:
    hours, _, minutes = text.partition(":")
    return time() if (hours, minutes) == ("24", "00") else time(int(hours), int(minutes))


def _parse_days(first: str | None, last: str | None) -> frozenset[int]:
    if first is None:
        return frozenset(range(7))
    begin = DAYS.index(first.lower())
    end = DAYS.index((last or first).lower())
    return frozenset((begin + number) % 7 for number in range((end - begin) % 7 + 1))
