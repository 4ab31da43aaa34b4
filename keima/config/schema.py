"""All settings of a run, composed of their sections.

``keima.config.load`` reads YAML into ``Settings``. "auto" is resolved when the run starts, on the machine where it
starts.
"""

from typing import Self

from pydantic import model_validator

from keima.config.own_modules import is_own
from keima.config.sections.cluster import DistributedSettings
from keima.config.sections.evaluation import EvaluationSettings
from keima.config.sections.game import GameSettings
from keima.config.sections.network import NetworkSettings
from keima.config.sections.run import RunSettings
from keima.config.sections.search import SearchSettings
from keima.config.sections.self_play import SelfPlaySettings
from keima.config.sections.training import TrainingSettings, check_seed_games
from keima.config.sections.types import Section

LEAST_KEPT_MODELS = 500  # in a run that others join: the newest half stay, and no honest game is older than these


class Settings(Section):
    """All settings of a run."""

    run: RunSettings
    """The run as a whole."""
    game: GameSettings
    """The game to play."""
    network: NetworkSettings = NetworkSettings()
    """The architecture."""
    search: SearchSettings = SearchSettings()
    """Search in self-play."""
    self_play: SelfPlaySettings = SelfPlaySettings()
    """Self-play on this machine."""
    training: TrainingSettings = TrainingSettings()
    """How the network is trained."""
    evaluation: EvaluationSettings = EvaluationSettings()
    """How the strength of the network is measured."""
    distributed: DistributedSettings = DistributedSettings()
    """Self-play on other machines: over SSH, with Slurm or with Ray."""

    @property
    def own_modules(self) -> tuple[str, ...]:
        """The names of the users' files that this run needs."""
        return tuple(name for name in (self.game.name, self.network.type) if is_own(name))

    @model_validator(mode="after")
    def _check(self) -> Self:
        endless = self.run.iterations is None and self.run.minutes is None
        if self.training.learning_rate_schedule == "cosine" and endless:
            raise ValueError(
                "training.learning_rate_schedule: cosine decays over the run, so it needs run.iterations or run.minutes"
            )
        if self.network.growth and endless:
            raise ValueError("network.growth: it is by shares of the run, so it needs run.iterations or run.minutes")
        if self.game.boards:
            self._check_smaller_boards(self.game.boards[-1].share)
        if self.distributed.crowd and 0 < self.run.keep_models < LEAST_KEPT_MODELS:
            raise ValueError(
                f"run.keep_models: games of machines that join are checked with the models that played them, so a run "
                f"with distributed.crowd keeps at least {LEAST_KEPT_MODELS}"
            )
        if self.training.window.seed_games:
            check_seed_games(self.training.window.seed_games, self.game.name)
        return self

    def _check_smaller_boards(self, share: float) -> None:
        """Check what else a run needs that has smaller boards up to this share of its time."""
        if self.run.minutes is None:
            raise ValueError("game.smaller: it is by shares of the run's time, so it needs run.minutes")
        if any(size.share < share for size in self.network.sizes[1:]):
            raise ValueError(
                f"network.growth: the network may grow when the game has its own board, from {share:g} of the run on "
                "(game.smaller)"
            )
