"""Make the learner of a run, and let its network grow; every rank does."""

from collections.abc import Mapping
from typing import Any, TypeVar

from keima.base.random import seed_stream
from keima.config.schema import Settings
from keima.games import Game
from keima.learning.learner import Learner
from keima.networks.files.model import Model, describe_model
from keima.networks.network import build_network, seed_weights

AnyLearner = TypeVar("AnyLearner", bound=Learner)


def make_learner(
    game: Game,
    settings: Settings,
    *,
    steps: int = 0,
    weights: Mapping[str, Any] | None = None,
    kind: type[Learner] = Learner,
    **sharing: Any,
) -> Learner:
    """Return a learner with a new network, with these weights or random ones from the run's seed.

    Args:
        steps: of the network's growth.
        kind: of learner. sharing: of the learner's options, those that say how a batch is shared out: ``ranks``,
        ``norm_batch``, ``micro_batch``.

    Raises:
        CorruptModel: the weights are of another network.
    """
    seed_weights(seed_stream(settings.run.seed, "network"))
    described = settings.network.arguments(steps)
    if weights:
        network = Model(description=describe_model(game, described, 0), weights=weights).build(game)
    else:
        network = build_network(game, **described)
    return kind(network, settings.training, **sharing)


def grow_learner(learner: AnyLearner, game: Game, settings: Settings, steps: int) -> AnyLearner:
    """Return a learner that continues with the network after so many steps of its growth."""
    seed_weights(seed_stream(settings.run.seed, "network", steps))  # the same new weights on every rank
    return learner.grow(build_network(game, **settings.network.arguments(steps)))
