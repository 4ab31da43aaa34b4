"""The numbers of PUCT: how settings are translated, and how values are scaled, on roots made by hand."""

import math
from typing import Any

import numpy as np
import pytest

from keima.config.sections.search import GumbelSettings, SearchSettings
from keima.games import load_game
from keima.search.decide import write_move_weights
from keima.search.puct import make_exploration_table, search_params
from keima.search.tree import UNPROVEN, Trees
from tests.search.test_search_decide import FORCED, make_root, weights_of

BOARD, POINTS = load_game("tic_tac_toe"), load_game("twenty48", height=3, width=3)
GO = load_game("go", size=5)
GUMBEL: dict[str, Any] = {"algorithm": "gumbel", "gumbel": {"c_visit": 6.0, "c_scale": 0.1}}
VISITS, PRIORS = (80, 12, 8), (0.6, 0.25, 0.1)


def test_search_gets_the_parameters_of_the_settings() -> None:
    settings = SearchSettings(
        c_puct=1.5,
        fpu_reduction=0.3,
        root_fpu_reduction=0.1,
        dirichlet_alpha=0.7,
        dirichlet_fraction=0.2,
        root_policy_temperature=1.2,
        forced_playouts_k=3.0,
        virtual_loss=0.5,
        evaluate_afterstates=False,
        discount=0.9,
        gumbel=GumbelSettings(considered_actions=5, c_visit=7.0, c_scale=0.2, noise=0.4),
    )
    params = search_params(settings, BOARD, max_visits=9)
    same = (
        "fpu_reduction",
        "root_fpu_reduction",
        "dirichlet_alpha",
        "dirichlet_fraction",
        "root_policy_temperature",
        "forced_playouts_k",
        "virtual_loss",
        "evaluate_afterstates",
        "discount",
    )
    assert [getattr(params, name) for name in same] == pytest.approx([getattr(settings, name) for name in same])
    assert (params.considered_actions, params.c_visit) == (5, 7.0)
    assert (params.c_scale, params.gumbel_noise) == pytest.approx((0.2, 0.4))
    assert params.exploration == pytest.approx(make_exploration_table(1.5, settings.c_puct_log_base, 9))
    assert (
        search_params(settings.model_copy(update={"dirichlet_alpha": "auto"}), BOARD, max_visits=9).dirichlet_alpha == 0
    )


def test_nodes_are_kept_spare_only_where_one_simulation_can_add_several() -> None:
    assert [search_params(SearchSettings(), game, max_visits=9).spare_nodes for game in (BOARD, POINTS)] == [0, 33]


@pytest.mark.parametrize("wanted", [True, False])
@pytest.mark.parametrize("algorithm", ["puct", "gumbel"])
def test_forced_playouts_tree_reuse_and_proofs_are_only_for_searches_that_support_them(
    algorithm: str, wanted: bool
) -> None:
    names = ("forced_playouts", "subtree_reuse", "proven_results")
    settings = SearchSettings.model_validate({"algorithm": algorithm, **dict.fromkeys(names, wanted)})
    board, points = (search_params(settings, game, max_visits=9) for game in (BOARD, POINTS))
    puct = algorithm == "puct"
    assert board.gumbel == points.gumbel == (not puct)
    assert (board.forced_playouts_k > 0) == (points.forced_playouts_k > 0) == (puct and wanted)
    assert board.subtree_reuse == points.subtree_reuse == (puct and wanted)
    assert (board.proven_results, points.proven_results) == (wanted, False)
    assert (board.has_rewards, points.has_rewards) == (False, True)


def test_exploration_grows_with_the_root_of_the_visits_and_slowly_with_their_logarithm() -> None:
    table = make_exploration_table(1.25, 100.0, 50)
    assert len(table) == 51
    assert table == pytest.approx([(1.25 + math.log((101 + n) / 100)) * math.sqrt(n + 0.01) for n in range(51)])


def scaled(points: tuple[float, ...]) -> tuple[float, ...]:
    """Return points as shares of their range, from -1 to 1; a range below a hundredth of the largest counts as that."""
    low, high = min(points), max(points)
    spread = max(high - low, 0.01 * max(abs(high), 1.0))
    return tuple((each - (low + high) / 2) * 2 / spread for each in points)


def root_of(means: tuple[float, ...]) -> Trees:
    """Return a root whose moves have these mean values; the network's own value, used for unvisited moves, is the last
    move's.
    """
    moves = [(n, mean, prior, UNPROVEN) for n, mean, prior in zip(VISITS, means, PRIORS, strict=True)]
    return make_root([*moves, (0, 0.0, 0.05, UNPROVEN)], full=True, evaluation=means[-1])


@pytest.mark.parametrize("settings", [FORCED, GUMBEL], ids=["puct", "gumbel"])
@pytest.mark.parametrize(
    "points",
    [(131.0, 60.0, 124.0), (24.0, 10.0, 22.5), (0.003, 0.001, 0.002), (5000.0, 4981.0, 4997.0), (0.0, 0.0, 0.0)],
)
def test_points_are_compared_by_their_own_range(points: tuple[float, ...], settings: dict[str, Any]) -> None:
    found, expected = weights_of(root_of(points), POINTS, **settings), weights_of(root_of(scaled(points)), **settings)
    assert found == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize("value", [0.97, 0.6, -0.5, -0.95])
def test_a_lead_beyond_the_root_s_counts_the_more_the_more_the_game_is_decided(value: float) -> None:
    """``u * (|v| - 0.9) / 0.1 * d / (1 + |d|)``, where d is the difference of the leads in 0.75 sides of the board."""
    leads, lead_of_root, utility = (-3.0, 9.0, 2.0), 2.5, 0.4
    decided = max((abs(value) - 0.9) / 0.1, 0.0)
    differences = [(lead - lead_of_root) / (0.75 * GO.width) for lead in leads]
    gains = [utility * decided * each / (1 + abs(each)) for each in differences]
    counted, expected = (
        make_root([(n, value + gain, prior, UNPROVEN) for n, gain, prior in zip(VISITS, each, PRIORS, strict=True)])
        for each in ((0.0, 0.0, 0.0), gains)
    )
    for trees in (counted, expected):
        root = trees.nodes[0, 0]
        root.value_sum, root.evaluation = root.visits * value, value
    counted.nodes[0, 0].lead_sum = counted.nodes[0, 0].visits * lead_of_root
    for number, lead in enumerate(leads, start=1):
        counted.nodes[0, number].lead_sum = counted.nodes[0, number].visits * lead
    weights = np.zeros(3, np.float32)
    params = search_params(SearchSettings(**GUMBEL), GO, max_visits=1000, score_utility=utility)
    write_move_weights(params, counted, 0, weights)
    assert weights == pytest.approx(weights_of(expected, GO, **GUMBEL), rel=1e-3)
    assert (weights_of(counted, GO, **GUMBEL) == pytest.approx(weights, rel=1e-3)) == (decided == 0)


@pytest.mark.parametrize("pending", [0, 3, 12])
def test_a_pending_visit_counts_as_a_loss(pending: int) -> None:
    """For points, it is left out of the mean, from which a loss is then subtracted on the scale of the other moves."""
    means, loss = (0.4, -0.3, 0.1), 0.5
    # The same on the scale of the finished moves. One without finished visits is in the middle of the others.
    alike = (1.0, -1.0, 1 / 7) if pending < VISITS[1] else (1.0, 0.0, -1.0)
    board, points = root_of(means), root_of(tuple(100 * mean for mean in means))
    for trees, unit in ((board, 1.0), (points, 100.0)):
        child = trees.nodes[0, 2]
        child.pending = pending
        child.value_sum -= unit * pending * means[1]
    finished = VISITS[1] - pending
    lost = loss * pending / VISITS[1]
    expected = weights_of(root_of((means[0], means[1] * finished / VISITS[1] - lost, means[2])), **GUMBEL)
    assert weights_of(board, virtual_loss=loss, **GUMBEL) == pytest.approx(expected, rel=1e-3)
    expected = weights_of(root_of((alike[0], alike[1] - lost, alike[2])), **GUMBEL)
    found = weights_of(points, POINTS, virtual_loss=loss, **GUMBEL)
    assert found[:3] / np.sum(found[:3]) == pytest.approx(expected[:3] / np.sum(expected[:3]), rel=1e-3)
