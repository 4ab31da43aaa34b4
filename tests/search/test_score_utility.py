"""Where points count, a search chooses the better score among moves that win or lose alike."""

from typing import Any

import numpy as np
import pytest

from keima.config.sections.search import SearchSettings
from keima.games import load_game
from keima.games.game import Planes, States
from keima.games.go.rules import score_lead
from keima.games.go.setup import make_position
from keima.search.analysis import Analysis, AnalysisTrees
from keima.search.move_search import Search
from keima.search.tree import find_child_by_action
from tests.search.forest import Forest

GO = load_game("go", size=5, komi=24.5)  # Black wins with the whole board alone
PASS = 25
BLACK, WHITE = 0, 1
# White has the right of the board, and one stone more that Black can capture on C3: Black loses in any case.
CAPTURE = {
    BLACK: "A2 B2 B3 B4 A4 C4 C2",
    WHITE: "C3 D2 D4 E3 D1 D5",
}
# Black lives with two eyes, A1 and C1, and White has the rest.
TWO_EYES = {
    BLACK: "B1 A2 B2 C2 D1 D2",
    WHITE: "A3 B3 C3 D3 E2 E1 A5 C5 E5 B4 D4",
}


def position(points: dict[int, str], *, player: int) -> States:
    return make_position(
        GO, *([GO.parse_action(point) for point in points[each].split()] for each in (BLACK, WHITE)), player=player
    )


def hopeless(observations: Planes) -> tuple[Any, Any]:
    """A network to which White has won, and which foresees the stones on the board as the score; its policy is even."""
    black = observations[:, 12, 0, 0] < 0  # the plane of komi
    values = np.where(black, -0.98, 0.98)
    leads = (observations[:, 0] - observations[:, 1]).sum((1, 2)) + 40 * observations[:, 12, 0, 0]
    return np.zeros((len(observations), GO.num_actions), np.float32), np.stack([values, leads], 1).astype(np.float32)


def without_leads(observations: Planes) -> tuple[Any, Any]:
    """The same network without the score."""
    logits, values = hopeless(observations)
    return logits, values[:, 0]


def visits_of(state: States, *, score_utility: float, algorithm: Any = "puct", simulations: int = 400) -> Any:
    """Return the best action, the value, and the visits of all actions."""
    found = Search(
        GO,
        hopeless if score_utility else without_leads,
        SearchSettings(algorithm=algorithm, forced_playouts=False),
        num_simulations=simulations,
        num_trees=1,
        score_utility=score_utility,
    ).find(state[None])
    return int(found.actions[0]), float(found.values[0]), found.visits[0]


@pytest.mark.parametrize("algorithm", ["puct", "gumbel"])
def test_of_moves_that_lose_alike_the_one_that_saves_most_points_is_played(algorithm: Any) -> None:
    state, capture = position(CAPTURE, player=BLACK), GO.parse_action("D3")
    action, value, visits = visits_of(state, score_utility=0.5, algorithm=algorithm)
    assert action == capture
    _, value_without, visits_without = visits_of(state, score_utility=0.0, algorithm=algorithm)
    assert visits[capture] > visits_without[capture]
    assert value == pytest.approx(value_without, abs=0.02)  # which stays the chance to win


def test_a_player_who_has_lost_passes_instead_of_filling_its_eyes() -> None:
    state, eyes = position(TWO_EYES, player=BLACK), [GO.parse_action(point) for point in ("A1", "C1")]
    assert set(GO.legal_actions(state)) >= {*eyes, PASS}
    assert visits_of(state, score_utility=0.5)[0] not in eyes


@pytest.mark.parametrize("player", [BLACK, WHITE])
def test_a_leaf_s_lead_is_the_mean_of_what_the_network_foresees_and_of_what_the_board_counts(player: int) -> None:
    state, sign = position(CAPTURE, player=player), 1 if player == BLACK else -1
    forest = Forest(GO, hopeless, SearchSettings(), state[None], num_simulations=1, score_utility=0.5)
    forest.step()
    foreseen = hopeless(GO.observe(state)[None])[1][0, 1]
    assert score_lead(state) != sign * foreseen
    assert forest.trees.nodes[0, 0].lead_sum == pytest.approx((foreseen + sign * score_lead(state)) / 2)


def test_while_the_game_is_open_points_do_not_count() -> None:
    def open_game(observations: Planes) -> tuple[Any, Any]:
        logits, answers = hopeless(observations)
        return logits, answers * (0.5, 1.0)

    state = position(CAPTURE, player=BLACK)
    settings = SearchSettings(forced_playouts=False, proven_results=False)
    found = [
        Search(GO, evaluate, settings, num_simulations=200, num_trees=1, score_utility=utility).find(state[None])
        for evaluate, utility in (
            (open_game, 0.5),
            (lambda planes: (open_game(planes)[0], open_game(planes)[1][:, 0]), 0.0),
        )
    ]
    assert (found[0].visits == found[1].visits).all()


@pytest.mark.parametrize("player", [BLACK, WHITE])
def test_the_end_of_the_game_counts_by_its_real_score(player: int) -> None:
    state, sign = position(CAPTURE, player=1 - player), 1 if player == BLACK else -1
    GO.play(state, PASS)
    forest = Forest(GO, hopeless, SearchSettings(), state[None], num_simulations=200, score_utility=0.5).run()
    ended = forest.trees.nodes[0, find_child_by_action(forest.trees, 0, 0, PASS)]
    assert ended.visits > 1  # several simulations ended there
    assert ended.lead_sum / ended.visits == pytest.approx(sign * score_lead(state))
    assert ended.value_sum / ended.visits == -sign  # White has won


def test_nothing_is_proven_where_points_count() -> None:
    state = position(CAPTURE, player=WHITE)
    GO.play(state, PASS)
    settings = SearchSettings(lookahead_plies=2)
    proven = Search(GO, without_leads, settings, num_simulations=100, num_trees=1).find(state[None])
    counted = Search(GO, hopeless, settings, num_simulations=100, num_trees=1, score_utility=0.5).find(state[None])
    assert counted.visits.sum() == 100
    assert proven.visits.sum() <= 100


def test_a_kept_subtree_keeps_its_leads_for_the_player_to_move() -> None:
    state = position(CAPTURE, player=BLACK)
    forest = Forest(GO, hopeless, SearchSettings(), state[None], num_simulations=300, score_utility=0.5).run()
    best = forest.busiest(0)
    child = forest.trees.nodes[0, best].copy()
    forest.play(0, int(child.action))
    root = forest.trees.nodes[0, 0]
    assert child.lead_sum != 0 and (root.visits, root.lead_sum) == (child.visits, -child.lead_sum)


def test_an_analysis_counts_points_and_reports_chances_to_win() -> None:
    analysis = Analysis(
        AnalysisTrees(GO, hopeless, SearchSettings(leaves_per_tree=4), max_simulations=400, score_utility=0.5)
    )
    analysis.begin(position(CAPTURE, player=BLACK))
    while not analysis.is_finished:
        analysis.run_simulations(4)
    best = analysis.best_moves(1)[0]
    assert GO.action_name(best.action) == "D3"
    assert best.value == pytest.approx(-0.98, abs=0.03)


def test_a_network_without_the_score_is_refused_where_points_count() -> None:
    with pytest.raises(ValueError, match="values"):
        Search(GO, without_leads, SearchSettings(), num_simulations=4, num_trees=1, score_utility=0.5).find(
            GO.initial_states(1)
        )
