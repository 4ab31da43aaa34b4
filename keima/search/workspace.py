"""The memory of a search: everything that compiled search works on, allocated once for B trees."""

from typing import Any, NamedTuple

import numpy as np

from keima.base.random import Streams
from keima.config.sections.search import SearchSettings
from keima.games.game import Actions, Game, MoveScratch, Planes, Returns, Rules, States
from keima.search.cache import PositionCache, make_position_cache
from keima.search.gumbel import halving_schedule
from keima.search.handover import pass_rules_by_address
from keima.search.lookahead import LookaheadScratch, lookahead_depth, make_lookahead_scratch
from keima.search.puct import Integers, SearchParams, search_params, spare_nodes
from keima.search.tree import Floats, Trees, make_trees

LEAF = np.dtype(
    [
        ("hash", np.uint64),
        ("node", np.int32),
        ("counted_lead", np.float32),  # of the player to move, by the rules, in searches that count points
    ],
    align=True,
)


class Leaves(NamedTuple):
    """The nodes of B trees that await evaluation, at most L per tree, and scratch space."""

    rows: Any  # [B, L] of LEAF; the first SEARCH.waiting of each tree are in use
    observations: Planes  # [B * L, C, H, W]: the network's next batch, tree by tree
    state: States  # [S] scratch
    returns: Returns  # [players] scratch
    scratch: Floats  # [2, A]
    moves: MoveScratch
    ownership: Actions  # [H * W] scratch
    lookahead: LookaheadScratch  # scratch


class Workspace(NamedTuple):
    """All that a compiled search of B trees reads and writes."""

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
        """The most nodes that a tree can have."""
        return int(self.trees.nodes.shape[1])

    @property
    def num_values(self) -> int:
        """V, the values that the network gives for a position."""
        return int(self.cache.values.shape[1])

    @property
    def empty_answers(self) -> tuple[Floats, Floats]:
        """The logits and values of an empty batch."""
        return self.cache.logits[:0], self.cache.values[:0]


def make_workspace(
    game: Game,
    settings: SearchSettings,
    *,
    num_trees: int,
    simulations: int,
    cheap_simulations: int | None = None,
    cache_positions: int = 0,
    score_utility: float = 0.0,
    early_stop: bool = False,
) -> Workspace:
    """Allocate the memory to search ``num_trees`` positions of ``game`` at once.

    Args:
        game: the game to search.
        settings: how to search.
        num_trees: B.
        simulations: the most simulations of a full search.
        cheap_simulations: the most simulations of a cheap search; None: as many.
        cache_positions: the number of evaluations to cache, 0 for none.
        score_utility: the most that points count, as ``match_score_utility``, in a game for two with a score on the
            last board; the network must foresee the score, too.
        early_stop: whether a search stops once its most visited move is settled, as ``match_early_stop``.
    """
    counts = (simulations if cheap_simulations is None else cheap_simulations, simulations)
    nodes = max_nodes_needed(game, max(counts), settings.leaves_per_tree)
    params = search_params(settings, game, max_visits=nodes, score_utility=score_utility, early_stop=early_stop)
    return Workspace(
        rules=pass_rules_by_address(game.rules),
        params=params,
        trees=make_trees(
            num_trees, max_nodes=nodes, num_actions=game.num_actions, most_legal_actions=game.most_legal_actions
        ),
        states=game.initial_states(num_trees),
        streams=np.zeros(num_trees, np.uint64),
        schedules=make_halving_schedules(settings, counts),
        leaves=make_leaves(game, num_trees, settings, proven_results=params.proven_results),
        cache=make_position_cache(cache_positions, game.num_actions, 2 if score_utility > 0 else game.num_values),
    )


def make_leaves(game: Game, num_trees: int, settings: SearchSettings, *, proven_results: bool) -> Leaves:
    """Allocate ``settings.leaves_per_tree`` leaves for each of ``num_trees`` trees."""
    leaves_per_tree = settings.leaves_per_tree
    return Leaves(
        rows=np.zeros((num_trees, leaves_per_tree), LEAF).view(np.recarray),
        observations=np.zeros((num_trees * leaves_per_tree, *game.observation_shape), np.float32),
        state=game.initial_state(),
        returns=np.zeros(game.num_players, np.float32),
        scratch=np.zeros((2, game.num_actions), np.float32),
        moves=game.make_move_scratch(),
        ownership=np.zeros(game.height * game.width, np.int32),
        lookahead=make_lookahead_scratch(game, lookahead_depth(settings, game) if proven_results else 0),
    )


def max_nodes_needed(game: Game, num_simulations: int, leaves_per_tree: int) -> int:
    """Return the most nodes that a tree can have.

    With chance, a simulation can add an afterstate as well as a leaf. Where several outcomes follow each other, it adds
    as many nodes, and a tree that is nearly full is searched no further (``SearchParams.spare_nodes``).
    """
    return (2 if game.num_outcomes else 1) * (num_simulations + leaves_per_tree) + 2 + spare_nodes(game)


def make_halving_schedules(settings: SearchSettings, counts: tuple[int, int]) -> Integers:
    """Return the sequential-halving schedules of Gumbel searches of so many simulations; a dummy for PUCT."""
    if settings.algorithm != "gumbel":
        return np.zeros((2, 1, 1), np.int32)
    considered = settings.gumbel.considered_actions
    return np.stack([halving_schedule(considered, count, columns=max(counts)) for count in counts])
