"""The settings of measuring strength."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from keima.config.sections.types import Count, CountOrZero, Section


class SprtSettings(Section):
    """The sequential probability ratio test of gating: is the candidate stronger by elo1 rather than by elo0?"""

    elo0: Annotated[float, Field(ge=-1000, le=1000)] = 0.0
    """Reject a candidate that is only this much stronger."""
    elo1: Annotated[float, Field(ge=-1000, le=1000)] = 30.0
    """Accept a candidate that is this much stronger."""
    alpha: Annotated[float, Field(gt=0, lt=0.5)] = 0.05
    """Probability of accepting one that should be rejected."""
    beta: Annotated[float, Field(gt=0, lt=0.5)] = 0.05
    """Probability of rejecting one that should be accepted."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.elo0 >= self.elo1:
            raise ValueError(f"elo0 ({self.elo0}) must be below elo1 ({self.elo1})")
        return self


class EvaluationSettings(Section):
    """How and how often the strength of the network is measured."""

    every: CountOrZero = 1
    """Iterations between evaluations; 0: none."""
    num_simulations: Annotated[int, Field(ge=1, le=100_000)] = 128
    """Simulations per move."""
    perfect_play: bool = False
    """Count moves that throw away game value; only for games with an exact solver."""
    positions: Count = 1000
    """Solved positions for perfect_play."""
    rating_games: CountOrZero = 100
    """Games for the Elo rating, per evaluation; must be 0 in one-player games."""
    score_games: CountOrZero = 0
    """Games for the score, per evaluation; only in one-player games."""
    gating: Literal["none", "sprt"] = "none"
    """none: accept every new model; sprt: only one that tests stronger."""
    gating_games: Annotated[int, Field(ge=2)] = 200
    """Reject a candidate that is still undecided after this many games."""
    sprt: SprtSettings = SprtSettings()
    """Sequential test of gating: sprt."""
