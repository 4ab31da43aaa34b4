"""The reports of PPO's rounds, and their observers."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:  # terminals and pages import no PyTorch
    from keima.ppo.rollout import Episode


@dataclass(frozen=True, kw_only=True)
class EpisodesReport:
    """The totals of some episodes."""

    count: int
    rewards: float
    steps: float
    metrics: dict[str, float]  # reported by the worlds

    def __add__(self, other: "EpisodesReport") -> "EpisodesReport":
        metrics = {name: value + other.metrics[name] for name, value in self.metrics.items()}
        return EpisodesReport(
            count=self.count + other.count,
            rewards=self.rewards + other.rewards,
            steps=self.steps + other.steps,
            metrics=metrics,
        )

    def mean(self, name: str = "") -> float:
        """Return the mean of a metric per episode; without a name, of the reward."""
        return (self.metrics[name] if name else self.rewards) / max(1, self.count)


@dataclass(frozen=True, kw_only=True)
class RoundReport:
    """One round: acting, and learning from it."""

    round: int
    steps: int  # of all worlds of all ranks
    total_steps: int  # since the run began
    episodes_over: int  # since the run began
    episodes_planned: int
    world_size: int
    seconds: float  # since the run began, without interruptions
    steps_per_second: float
    acting_share: float  # of the time
    explained_variance: float
    learning: dict[str, float]  # losses and other metrics
    episodes: EpisodesReport  # that ended in this round

    def scalars(self) -> dict[str, float]:
        """Return every number under the name ``section/name``."""
        run = ("total_steps", "episodes_over", "world_size", "seconds", "steps_per_second", "acting_share")
        metrics = {f"run/{name}": float(getattr(self, name)) for name in run}
        metrics |= {f"learning/{name}": value for name, value in self.learning.items()}
        metrics["learning/explained_variance"] = self.explained_variance
        if self.episodes.count:
            metrics["episodes/reward"] = self.episodes.mean()
            metrics["episodes/steps"] = self.episodes.steps / self.episodes.count
            metrics |= {f"episodes/{name}": self.episodes.mean(name) for name in self.episodes.metrics}
            if self.episodes.metrics.get("closed"):
                metrics["episodes/win_rate"] = self.episodes.metrics["won"] / self.episodes.metrics["closed"]
        return metrics


class PPOObserver(Protocol):
    """An observer of a run."""

    def round(self, report: RoundReport) -> None:
        """Take the report of a round; called after each."""

    def close(self) -> None:
        """End; called at the end of the session."""


def sum_episodes(episodes: "Sequence[Episode]", names: Sequence[str]) -> list[float]:
    """Return the totals of episodes, rewards, steps and each named metric."""
    totals = [
        [1.0, episode.reward, float(episode.steps), *(episode.metrics[name] for name in names)] for episode in episodes
    ]
    return [sum(column) for column in zip(*totals, strict=True)] if totals else [0.0] * (3 + len(names))
