"""Quiet hours, as people write them in the settings."""

from datetime import datetime

import pytest

from keima.config.quiet_hours import parse_quiet_hours, quiet_until


def moment(text: str) -> datetime:
    """Return a moment of the week that begins with Monday, 2 November 2026: ``fri 12:00``."""
    day, time = text.split()
    number = 2 + ("mon", "tue", "wed", "thu", "fri", "sat", "sun").index(day)
    return datetime.fromisoformat(f"2026-11-{number:02d}T{time}")


@pytest.mark.parametrize(
    ("hours", "now", "end"),
    [
        ("09:00-18:00", "mon 09:00", "mon 18:00"),
        ("9:00 - 18:00", "mon 18:00", None),
        ("22:00-07:00", "tue 23:30", "wed 07:00"),
        ("22:00-07:00", "wed 06:59", "wed 07:00"),
        ("22:00-07:00", "wed 12:00", None),
        ("mon-fri 09:00-18:00", "fri 12:00", "fri 18:00"),
        ("Mon-Fri 09:00-18:00", "sat 12:00", None),
        ("fri-mon 00:00-24:00", "thu 12:00", None),
        ("fri 22:00-07:00", "sat 06:00", "sat 07:00"),
        ("fri 22:00-07:00", "fri 06:00", None),
        ("mon-fri 09:00-18:00, sat 10:00-14:00", "sat 11:00", "sat 14:00"),
        ("09:00-12:00, 12:00-13:00", "mon 10:00", "mon 13:00"),
        ("", "mon 10:00", None),
    ],
)
def test_quiet_hours_end_when_their_last_span_does(hours: str, now: str, end: str | None) -> None:
    assert quiet_until(hours, moment(now)) == (moment(end) if end else None)


def test_a_machine_that_never_plays_is_quiet_for_at_least_a_week() -> None:
    end = quiet_until("00:00-24:00", moment("mon 10:00"))
    assert end is not None and (end - moment("mon 10:00")).days >= 6


@pytest.mark.parametrize("text", ["night", "25:00-26:00", "9-18", "mon-xyz 09:00-18:00", "09:00-18:00;10:00-11:00"])
def test_hours_that_cannot_be_understood_are_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match=r"expected quiet hours such as 22:00-07:00 .*, found"):
        parse_quiet_hours(text)
