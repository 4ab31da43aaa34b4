"""The options of the chess engine, set through the Universal Chess Interface."""

from collections.abc import Iterator
from dataclasses import dataclass

from keima.play.uci.syntax import BrokenCommand, parse_whole_number


@dataclass(frozen=True, kw_only=True)
class SpinOption:
    """An option that is a whole number."""

    default: int
    minimum: int
    maximum: int

    def announcement(self) -> str:
        """Return the option's announcement."""
        return f"type spin default {self.default} min {self.minimum} max {self.maximum}"

    def parse_value(self, text: str) -> int | None:
        """Parse a value."""
        number = parse_whole_number(text)
        return number if number is not None and self.minimum <= number <= self.maximum else None


@dataclass(frozen=True, kw_only=True)
class CheckOption:
    """An option that is true (1) or false (0)."""

    default: int

    def announcement(self) -> str:
        """Return the option's announcement."""
        return f"type check default {'true' if self.default else 'false'}"

    def parse_value(self, text: str) -> int | None:
        """Parse a value."""
        return {"true": 1, "false": 0}.get(text.lower())


class Options:
    """The options and their values.

    Args:
        simulations: the default of the option of that name.
    """

    def __init__(self, *, simulations: int) -> None:
        self._kinds: dict[str, SpinOption | CheckOption] = {
            "Threads": SpinOption(default=1, minimum=1, maximum=512),
            "Hash": SpinOption(default=256, minimum=1, maximum=4096),
            "Move Overhead": SpinOption(default=10, minimum=0, maximum=10_000),
            "Simulations": SpinOption(default=simulations, minimum=1, maximum=10**9),
            "MultiPV": SpinOption(default=1, minimum=1, maximum=256),
            "Ponder": CheckOption(default=0),
        }
        self._values = {name: kind.default for name, kind in self._kinds.items()}

    def announcements(self) -> Iterator[str]:
        """Yield the announcements of all options."""
        for name, kind in self._kinds.items():
            yield f"option name {name} {kind.announcement()}"

    def set_option(self, given: str, text: str) -> None:
        """Set an option; its name is case-insensitive.

        Raises:
            BrokenCommand: there is no such option, or it cannot have that value.
        """
        name = next((name for name in self._kinds if name.lower() == given.lower()), None)
        if name is None:
            raise BrokenCommand(f"there is no option {given!r}; the options are {', '.join(self._kinds)}")
        value = self._kinds[name].parse_value(text)
        if value is None:
            raise BrokenCommand(f"option {name} cannot be {text!r}; it is of {self._kinds[name].announcement()}")
        self._values[name] = value

    @property
    def threads(self) -> int:
        """CPU threads of the network. More than there are idle cores make it many times slower."""
        return self._values["Threads"]

    @property
    def megabytes(self) -> int:
        """The largest size of the tree, in MiB."""
        return self._values["Hash"]

    @property
    def overhead(self) -> float:
        """Seconds of overhead per move, in addition to the measured one."""
        return self._values["Move Overhead"] / 1000

    @property
    def simulations(self) -> int:
        """Simulations of a ``go`` without limits."""
        return self._values["Simulations"]

    @property
    def multipv_lines(self) -> int:
        """The number of lines to report (MultiPV)."""
        return self._values["MultiPV"]


class UciHandshake:
    """Answers ``uci``, for which an engine needs no network.

    Args:
        name: of the engine.
        options: that it has.
    """

    def __init__(self, name: str, options: Options) -> None:
        self._lines = [f"id name {name}", "id author the authors of Keima", *options.announcements(), "uciok"]

    def answer_line(self, line: str) -> str | None:
        """Return the complete answer to a line; None if the line must wait for the engine."""
        if line == "uci":
            return "".join(f"{said}\n" for said in self._lines)
        return "" if not line or self.is_quit(line) else None

    def is_quit(self, line: str) -> bool:
        """Return whether a line ends the conversation."""
        return line == "quit"
