"""All that a search of B trees works on, made once: every search of this program is ``search_on(*prepared, *answers)``."""

from typing import NamedTuple

import numpy as np

from configs.schema import SearchSettings
from games.game import Game, Rules, States
from training.common.random import Streams
from training.search.cache import PositionCache, make_cache
from training.search.gumbel import halving_schedule
from training.search.handover import handed_over
from training.search.puct import Integers, SearchParams, search_params
from training.search.simulate import Leaves, make_leaves
from training.search.tree import Floats, Trees, make_trees


class Prepared(NamedTuple):
    """What ``search_on`` takes beside the network's answers, in its order."""

    rules: Rules
    params: SearchParams
    trees: Trees
    states: States  # [B, S] at the roots
    streams: Streams  # [B]
    schedules: Integers  # [2, considered actions + 1, simulations] of cheap and full Gumbel searches
    leaves: Leaves
    cache: PositionCache

    @property
    def max_nodes(self) -> int:
        """How many nodes a tree may have."""
        return int(self.trees.nodes.shape[1])

    @property
    def no_answers(self) -> tuple[Floats, Floats]:
        """What the network has answered to nothing."""
        return np.zeros((0, self.trees.root_priors.shape[1]), np.float32), np.zeros(0, np.float32)


def prepare(
    game: Game,
    settings: SearchSettings,
    *,
    num_trees: int,
    simulations: int,
    cheap_simulations: int | None = None,
    cache_positions: int = 0,
) -> Prepared:
    """Space for ``num_trees`` trees.

    Args:
        game: what is searched.
        settings: how.
        num_trees: how many are searched side by side.
        simulations: of a full search, at most.
        cheap_simulations: of a cheap one; None: as many.
        cache_positions: how many evaluations are remembered, 0 for none.
    """
    counts = (simulations if cheap_simulations is None else cheap_simulations, simulations)
    nodes = nodes_for(game, max(counts), settings.leaves_per_tree)
    return Prepared(
        rules=handed_over(game.rules),
        params=search_params(settings, game, max_visits=nodes),
        trees=make_trees(
            num_trees, max_nodes=nodes, num_actions=game.num_actions, most_legal_actions=game.most_legal_actions
        ),
        states=game.initial_states(num_trees),
        streams=np.zeros(num_trees, np.uint64),
        schedules=schedules_for(settings, counts),
        leaves=make_leaves(game, num_trees, settings),
        cache=make_cache(cache_positions, game.num_actions),
    )


def nodes_for(game: Game, num_simulations: int, leaves_per_tree: int) -> int:
    """How many nodes a tree may need: with chance, each simulation can make an afterstate beside its leaf."""
    return (2 if game.num_outcomes else 1) * (num_simulations + leaves_per_tree) + 2


def schedules_for(settings: SearchSettings, counts: tuple[int, int]) -> Integers:
    """The sequential halving of Gumbel searches of so many simulations; of other searches nothing."""
    if settings.algorithm != "gumbel":
        return np.zeros((2, 1, 1), np.int32)
    considered = settings.gumbel.considered_actions
    return np.stack([halving_schedule(considered, count, columns=max(counts)) for count in counts])
