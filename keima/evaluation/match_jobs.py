"""The messages of evaluation games: a job for part of a match, and its result (keima/evaluation/match.py).

A match is split into slices of a few pairs. Each slice is a job with a unique id. The openings depend on the seed of
the match, so they differ between slices and are the same wherever a slice is played.
"""

from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

MAX_PAIRS = 16  # in one job
MAX_MATCH_PAIRS = 100_000
MAX_JOBS = 8  # for one worker at a time
MAX_PLAYERS = 8
BESIDE_SHARE = 0.25  # of a worker's time, for jobs beside its self-play
MAX_RESULT_BYTES = 4 * 2**20
JOB_ID = r"[a-z0-9-]{1,60}"
RESULT_SUFFIX = ".match"

Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class _JobMessage(BaseModel):
    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, validate_by_name=True, serialize_by_alias=True
    )


class Contestant(_JobMessage):
    """A model that plays, identified by the SHA-256 of its file."""

    version: Annotated[int, Field(ge=0, le=2**53)]
    sha256: Digest

    @property
    def file_name(self) -> str:
        """Its file in a worker's inbox, separate from the models of self-play, which come and go independently."""
        return f"player-{self.version:06d}-{self.sha256[:16]}.model"


class EvaluationJob(_JobMessage):
    """Some pairs of a match between two players; None is the random player."""

    id: Annotated[str, Field(pattern=rf"^{JOB_ID}$")]
    first: Contestant | None
    second: Contestant | None
    seed: Annotated[int, Field(ge=0, lt=2**64)]  # of the match
    opening_plies: Annotated[int, Field(ge=0, le=10_000)]
    match_pairs: Annotated[int, Field(ge=1, le=MAX_MATCH_PAIRS)]  # of which this job has:
    first_pair: Annotated[int, Field(ge=0)]
    pairs: Annotated[int, Field(ge=1, le=MAX_PAIRS)]
    num_simulations: Annotated[int, Field(ge=1, le=100_000)]
    beside: bool = False  # self-play goes on meanwhile; see BESIDE_SHARE

    @model_validator(mode="after")
    def _lies_in_the_match(self) -> Self:
        if self.first_pair + self.pairs > self.match_pairs:
            raise ValueError(f"a match of {self.match_pairs} pairs has no pair {self.first_pair + self.pairs - 1}")
        return self

    @property
    def file_name(self) -> str:
        """The name of its result in the worker's outbox."""
        return f"{self.id}{RESULT_SUFFIX}"


class EvaluationJobResult(_JobMessage):
    """The result of a job: its games, pair by pair."""

    protocol: Literal[1] = 1
    worker: Annotated[str, Field(max_length=1000)]
    # Its key is that of all versions: others refuse unknown keys.
    job: Annotated[EvaluationJob, Field(validation_alias="order", serialization_alias="order")]
    refused: Annotated[str, Field(max_length=1000)] = ""  # why it was not played; empty if it was
    openings: Digest | None = None  # SHA-256 of the opening states
    moves: tuple[tuple[Annotated[int, Field(ge=0, lt=2**31)], ...], ...] = ()  # of each game, after its opening
    scores: tuple[float, ...] = ()  # of each game, for the first player: 1 won, 0.5 drawn, 0 lost, or between
