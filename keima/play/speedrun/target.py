"""Targets of races as files: what is trained, and how strong it must become."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, model_validator

from keima.base.named import TARGETS, find_experiment
from keima.config.load import load_section, load_settings
from keima.config.schema import Settings
from keima.config.sections.types import Count, Line, Name, Scalar, Section, Share


class ErrorsTarget(Section):
    """Few errors in positions whose exact values are known."""

    most: Share
    """The share of positions in which the chosen move throws away a win or a draw; the target is met when the whole
    95 % interval lies below."""


class MatchTarget(Section):
    """A score against an opponent, in varied openings and from both sides."""

    opponent: Name | Annotated[str, Field(pattern=r"^[a-z0-9-]+:-?\d+$")]
    """A rung of the game's ladder, such as gnugo:10, or mcts:1000."""
    least: Share
    """The share of the points; the target is met when the whole 95 % interval lies above."""
    games: Annotated[int, Field(ge=2, multiple_of=2)] = 100
    """Two from each opening, with colours swapped."""


class Target(Section):
    """A strength to be reached as soon as possible."""

    title: Line
    """What it is, for people."""
    config: Line
    """The experiment that is trained, unless another is given: a shipped one, or a file."""
    settings: Mapping[str, Scalar] = Field(default_factory=dict)
    """Settings of it that are changed, by dotted key."""
    simulations: Count
    """Simulations per move when the network is judged."""
    errors: ErrorsTarget | None = None
    """The target is a share of errors."""
    match: MatchTarget | None = None
    """Or a score in a match."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.errors is None) == (self.match is None):
            raise ValueError("give either errors or match")
        return self

    @property
    def games(self) -> int:
        """Of the match; 0 without one."""
        return self.match.games if self.match else 0

    def is_met(self, *, low: float, high: float) -> bool:
        """Return whether a share of errors, or of points, with this interval meets the target."""
        return high < self.errors.most if self.errors else self.match is not None and low > self.match.least


def twice_the_games(target: Target) -> Target:
    """Return a target whose match has twice the games."""
    if target.match is None:
        return target
    return target.model_copy(update={"match": target.match.model_copy(update={"games": 2 * target.match.games})})


def load_experiment(target: Target) -> Settings:
    """Return the settings of a target's own experiment.

    Raises:
        ValueError: it is not here, or invalid.
    """
    return load_settings(find_experiment(target.config), overrides=dict(target.settings))


def list_targets() -> dict[str, Target]:
    """Return the shipped targets, by name."""
    return {path.stem: load_target(path) for path in sorted(TARGETS.glob("*.yaml"))}


def load_target(path: Path) -> Target:
    """Read the target in a file.

    Raises:
        ConfigError: it cannot be read, or is invalid; the text names the file, the line and the key.
    """
    return load_section(path, Target)
