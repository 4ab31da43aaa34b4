"""Ladders as files: which engines play a game, how each is started, and how strong it is."""

import math
from functools import cached_property
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from keima.config.load import load_section
from keima.config.own_modules import stem_of
from keima.config.sections.types import CountOrZero, Line, Name, NotNegative, Positive, Scalar, Section, as_tuple
from keima.evaluation.elo import PairResult, Rating
from keima.games import GAMES, Game
from keima.paths import SHIPPED
from keima.play.rating.scale import Scale, make_scale

LADDERS = SHIPPED / "ladders"
BUILT_IN = {"random": False, "greedy": False, "mcts": True, "alphabeta": True}  # by name: whether it has a level

Lines = Annotated[tuple[Line, ...], BeforeValidator(as_tuple)]


class RungSettings(Section):
    """One strength of an engine."""

    level: Annotated[int, Field(ge=-1_000_000_000, le=1_000_000_000)] | None = None
    """What replaces {level} in the engine's lines; part of the rung's name."""
    elo: float | None = None
    """Its strength on the ladder's scale; without, matches give it. A rung with neither says nothing of the network."""
    margin: NotNegative = 0.0
    """Half the width of the 95 % interval of elo, if it is independent of those of the others; 0 if elo defines the
    scale.
    """
    source: Line | None = None
    """Where elo is from."""


class LadderEngine(Section):
    """An engine, and the strengths at which it plays."""

    name: Name
    """Begins the names of its rungs. Built-in players are random, greedy (chess), mcts and alphabeta."""
    protocol: Literal["built-in", "gtp", "uci", "nboard"]
    """How it is spoken to."""
    programs: Annotated[tuple[Name, ...], BeforeValidator(as_tuple)] = ()
    """Names under which its program is looked for: on the PATH, and where Debian installs games."""
    path: Line | None = None
    """The program's path, instead."""
    arguments: Lines = ()
    """The program's arguments."""
    send: Lines = ()
    """Lines that it gets after the start; without any, a Go engine gets the size of the board and the komi."""
    files: Lines = ()
    """Files that it reads without being told, such as a network next to the program: games with other ones are played
    anew.
    """
    go: Line | None = None
    """The limit of a UCI engine's search: nodes 1000, depth {level}."""
    needs: dict[str, Scalar] = Field(default_factory=dict)
    """Options of the game without which it cannot play."""
    move_seconds: Positive = 120.0
    """The most for a move, on a busy machine."""
    install: Line | None = None
    """How to get it."""
    rungs: Annotated[tuple[RungSettings, ...], BeforeValidator(as_tuple), Field(min_length=1)]
    """Its strengths."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.protocol == "built-in":
            if self.name not in BUILT_IN:
                raise ValueError(f"there is no built-in player {self.name}; there are {', '.join(BUILT_IN)}")
            if any((rung.level is not None) != BUILT_IN[self.name] for rung in self.rungs):
                has = "needs a level in each rung" if BUILT_IN[self.name] else "has no levels"
                raise ValueError(f"the built-in player {self.name} {has}")
        elif bool(self.programs) == bool(self.path):
            raise ValueError("give either programs, the names to look for, or path")
        if (self.protocol == "uci") != (self.go is not None):
            raise ValueError("go limits the search of a UCI engine: each of them needs it, and no other has it")
        if len({rung.level for rung in self.rungs}) < len(self.rungs):
            raise ValueError("two of the rungs have the same level")
        has_level = any("{level}" in line for line in (*self.arguments, *self.send, self.go or ""))
        if self.protocol != "built-in" and len(self.rungs) > 1 and not has_level:
            raise ValueError("none of its lines has {level}, so all of its rungs would play alike")
        if any(rung.margin and rung.elo is None for rung in self.rungs):
            raise ValueError("a margin is that of an elo: give both, or let matches place the rung")
        return self


def rung_name(engine: LadderEngine, rung: RungSettings) -> str:
    """Return the name of a rung: that of its engine, with its level."""
    return engine.name if rung.level is None else f"{engine.name}:{rung.level}"


def engine_of(rung: str) -> str:
    """Return the name of the engine of a rung with this name."""
    return rung.partition(":")[0]


class PlayedMatch(Section):
    """Games between two rungs."""

    first: Line
    """The name of a rung, such as gnugo:10."""
    second: Line
    """Another one."""
    wins: CountOrZero
    """Games that the first won."""
    draws: CountOrZero = 0
    """Drawn games."""
    losses: CountOrZero
    """Games that the second won."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.first == self.second or not self.wins + self.draws + self.losses:
            raise ValueError("a match is at least one game between two rungs")
        return self


class Ladder(Section):
    """The engines that rate networks for a game."""

    game: Line
    """The game's name; that of a file without .py, if no shipped game has it."""
    options: dict[str, Scalar] = Field(default_factory=dict)
    """Only for games with these options."""
    scale: Line
    """What the numbers mean, as a sentence."""
    opening_plies: CountOrZero = 4
    """Random moves that begin each pair of games."""
    engines: Annotated[tuple[LadderEngine, ...], BeforeValidator(as_tuple), Field(min_length=1)]
    """The engines."""
    matches: Annotated[tuple[PlayedMatch, ...], BeforeValidator(as_tuple)] = ()
    """Games between the rungs (tools/measure_ladder.py)."""

    @cached_property
    def strengths(self) -> Scale:
        """What is known of the rungs' strengths."""
        known = {
            rung_name(engine, rung): Rating(elo=rung.elo, margin=rung.margin)
            for engine in self.engines
            for rung in engine.rungs
            if rung.elo is not None
        }
        matches = [PairResult(**match.model_dump()) for match in self.matches]
        return make_scale(known, matches)

    @model_validator(mode="after")
    def _check(self) -> Self:
        names = [engine.name for engine in self.engines]
        if len(set(names)) < len(names):
            raise ValueError("two of the engines have the same name")
        for engine in self.engines:
            only = {"uci": "chess", "nboard": "othello"}.get(engine.protocol, self.game)
            if only != self.game:
                raise ValueError(f"{engine.name}: by {engine.protocol}, engines play only {only} here")
        if all(rung.elo is None for engine in self.engines for rung in engine.rungs):
            raise ValueError("none of the rungs has an elo, and the scale needs one")
        rungs = {rung_name(engine, rung) for engine in self.engines for rung in engine.rungs}
        for name in (name for match in self.matches for name in (match.first, match.second)):
            if name not in rungs:
                raise ValueError(f"matches: there is no rung {name}; there are {', '.join(sorted(rungs))}")
            if not math.isfinite(self.strengths.rated[name].margin):
                raise ValueError(f"matches: none leads from {name} to a rung with an elo")
        return self

    def fits(self, game: Game) -> bool:
        """Return whether the ladder is for this game."""
        is_named = stem_of(game.name) == self.game and (self.game not in GAMES or self.game == game.name)
        return is_named and self.options.items() <= game.options.items()


def load_ladder(path: Path) -> Ladder:
    """Read the ladder in a file.

    Raises:
        ConfigError: it cannot be read, or is invalid; the text names the file, the line and the key.
    """
    return load_section(path, Ladder)


def find_shipped_ladder(game: Game) -> Ladder | None:
    """Return the shipped ladder for this game, the most specific one; None if there is none."""
    fitting = [ladder for path in sorted(LADDERS.glob("*.yaml")) if (ladder := load_ladder(path)).fits(game)]
    return max(fitting, key=lambda ladder: len(ladder.options), default=None)
