"""The rungs of a ladder as players: those that this machine has, and why others are left out."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from string import Formatter

from keima.base.reports.formats import format_options
from keima.games import Game
from keima.play.arena.ladder import find_program
from keima.play.arena.match_benchmark import Entrant
from keima.play.arena.players import (
    AlphaBetaSpec,
    AnyPlayerSpec,
    GreedySpec,
    GtpSpec,
    MctsSpec,
    NboardSpec,
    RandomSpec,
    UciSpec,
)
from keima.play.rating.ladder_file import Ladder, LadderEngine, RungSettings, rung_name


@dataclass(frozen=True, kw_only=True)
class Rung:
    """An opponent with its strength, if that is known.

    Attributes:
        elo: on the ladder's scale; None if it is not known.
        margin: half the width of its 95 % interval.
    """

    entrant: Entrant
    elo: float | None
    margin: float

    @property
    def name(self) -> str:
        """Its name, such as gnugo:10."""
        return self.entrant.name


@dataclass(frozen=True, kw_only=True)
class SkippedEngine:
    """An opponent that does not play."""

    name: str
    reason: str
    install: str | None = None


def make_rungs(ladder: Ladder, game: Game) -> tuple[list[Rung], list[SkippedEngine]]:
    """Return the rungs that can play here, the weakest first, and the engines that cannot.

    Rungs of unknown strength come last.

    Raises:
        ValueError: a line of an engine has a placeholder that is neither {level} nor an option of the game.
    """
    rungs, skipped = list[Rung](), list[SkippedEngine]()
    for engine in ladder.engines:
        command = _find_command(engine)
        needs = {"size": 8, **engine.needs} if engine.protocol == "nboard" else engine.needs  # it knows no other board
        lacking = {key: value for key, value in needs.items() if game.options.get(key) != value}
        if lacking:
            reason = f"plays only games with {format_options(lacking)}"
            skipped.append(SkippedEngine(name=engine.name, reason=reason))
        elif command is None:
            looked = engine.path or " or ".join(engine.programs)
            reason = f"there is no program {looked} here"
            skipped.append(SkippedEngine(name=engine.name, reason=reason, install=engine.install))
        else:
            for rung in engine.rungs:
                spec = _make_spec(engine, rung, command, game)
                entrant = Entrant(name=rung_name(engine, rung), spec=spec)
                rated = ladder.strengths.rated.get(entrant.name)
                rungs.append(
                    Rung(entrant=entrant, elo=rated.elo if rated else None, margin=rated.margin if rated else 0.0)
                )
    return sorted(rungs, key=lambda rung: (rung.elo is None, rung.elo or 0.0)), skipped


def _find_command(engine: LadderEngine) -> str | None:
    """Return the program of an engine, "" for a built-in one; None if it is not here."""
    if engine.protocol == "built-in":
        return ""
    if engine.path is not None:
        path = Path(engine.path).expanduser()
        return str(path) if path.is_file() else None
    found = next(filter(None, map(find_program, engine.programs)), None)
    return None if found is None else str(found)


def _make_spec(engine: LadderEngine, rung: RungSettings, command: str, game: Game) -> AnyPlayerSpec:
    level = rung.level or 0
    values = {key: _as_text(value) for key, value in game.options.items()}
    values |= {} if rung.level is None else {"level": str(level)}
    words = (command, *(_fill(engine, "arguments", text, values) for text in engine.arguments))
    send = tuple(_fill(engine, "send", text, values) for text in engine.send)
    files = tuple(str(Path(command).resolve().parent / Path(name).expanduser()) for name in engine.files)
    match engine.protocol, engine.name:
        case "gtp", _:
            setup = None if not send and game.name == "go" else send
            return GtpSpec(command=words, setup=setup, move_seconds=engine.move_seconds, files=files)
        case "uci", _:
            go = _fill(engine, "go", engine.go or "", values)
            return UciSpec(command=words, setup=send, go=go, move_seconds=engine.move_seconds, files=files)
        case "nboard", _:
            return NboardSpec(command=words, setup=send, move_seconds=engine.move_seconds, files=files)
        case _, "mcts":
            return MctsSpec(playouts=level)
        case _, "alphabeta":
            return AlphaBetaSpec(depth=level)
        case _, "greedy":
            return GreedySpec()
        case _:
            return RandomSpec()


def _as_text(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value).lower() if isinstance(value, bool) else str(value)


def _fill(engine: LadderEngine, key: str, text: str, values: Mapping[str, str]) -> str:
    """Return a line of an engine with its placeholders replaced."""
    try:
        names = {name for _, name, _, _ in Formatter().parse(text) if name is not None}
        filled = text.format_map({name: values.get(name, "") for name in names})
    except (ValueError, LookupError) as error:
        raise ValueError(f"{engine.name}: {key}: {text}: {error}; write a brace twice if it is meant") from None
    if unknown := sorted(names - values.keys()):
        known = ", ".join(f"{{{name}}}" for name in values)
        raise ValueError(f"{engine.name}: {key}: {text}: there is no {{{unknown[0]}}}; there are {known}")
    return filled
