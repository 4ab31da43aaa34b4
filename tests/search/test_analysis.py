"""One position, searched for as long as requested."""

from pathlib import Path

import numpy as np
import pytest

from keima.config.sections.search import SearchSettings
from keima.games import Game, load_game
from keima.games.chess.notation import action_of_uci, position_from_fen
from keima.games.game import Floats, Planes
from keima.search.analysis import (
    Analysis,
    AnalysisTrees,
    make_analysis_settings,
    run_side_by_side,
    simulations_that_fit,
)
from keima.search.move_search import Search
from tests.own_game import EXAMPLES
from tests.search.naive_search import StubEvaluator
from tests.search.test_chance import DICE

CHESS, CONNECT_FOUR, TIC_TAC_TOE = load_game("chess"), load_game("connect_four"), load_game("tic_tac_toe")


def analysis_of(game: Game, *, leaves: int = 1, most: int = 5000) -> Analysis:
    return Analysis(
        AnalysisTrees(
            game,
            StubEvaluator(game),
            SearchSettings(forced_playouts=False, leaves_per_tree=leaves),
            max_simulations=most,
        )
    )


def think(analysis: Analysis, simulations: int, *, at_once: int = 1) -> Analysis:
    """Continue until the tree has this many simulations or is full."""
    while analysis.visits < simulations and not analysis.is_finished:
        analysis.run_simulations(min(at_once, simulations - analysis.visits))
    return analysis


def test_lookahead_finds_a_result_sooner_where_nobody_counts_plies() -> None:
    visits = []
    for lookahead in (False, True):
        settings = make_analysis_settings(SearchSettings(match_lookahead_plies=2), leaves=1, lookahead=lookahead)
        analysis = Analysis(AnalysisTrees(CONNECT_FOUR, StubEvaluator(CONNECT_FOUR), settings, max_simulations=5000))
        for action in (2, 2, 3, 3):  # the first player makes three in a row, open at both ends
            analysis.play(action)
        best = think(analysis, 5000).best_moves()[0]
        assert (best.action in (1, 4), best.value, best.plies) == (True, 1.0, None if lookahead else 3)
        visits.append(analysis.visits)
    assert visits[1] < 20 < visits[0]


def test_where_lookahead_finds_all_moves_lost_the_policy_chooses() -> None:
    def evaluate(observations: Planes) -> tuple[Floats, Floats]:
        logits = np.tile(np.array([5, 0, 0, 0, 0, 0, -5], np.float32), (len(observations), 1))
        return logits, np.zeros(len(observations), np.float32)

    settings = make_analysis_settings(SearchSettings(match_lookahead_plies=3), leaves=1, lookahead=True)
    analysis = Analysis(AnalysisTrees(CONNECT_FOUR, evaluate, settings, max_simulations=500))
    for action in (3, 3, 4, 4, 0, 6, 0, 6, 0):  # the first player threatens column 0, and in two rows more
        analysis.play(action)
    found = think(analysis, 500).best_moves(7)
    assert [line.value for line in found] == [-1.0] * 7, "all are lost"
    assert found[0].action == 0, "the block lasts longer"


def test_a_principal_line_ends_where_chance_is_to_move() -> None:
    pig = load_game(str(EXAMPLES / "pig.py"), goal=20, max_plies=200)
    lines = think(analysis_of(pig), 200).best_moves(10)
    assert {line.action for line in lines} == {0, 1}
    assert all(len(line.actions) == 1 for line in lines if line.action == 0), "a roll of the die follows"
    assert all(0 <= action < pig.num_actions for line in lines for action in line.actions)


def test_an_analysis_ends_when_chained_chance_events_have_filled_its_tree(tmp_path: Path) -> None:
    (tmp_path / "dice.py").write_text(DICE)
    analysis = think(analysis_of(load_game(str(tmp_path / "dice.py")), most=64), 64)
    assert analysis.is_finished and 32 < analysis.visits < 64


def test_a_small_win_is_not_taken_for_the_best(tmp_path: Path) -> None:
    """The first move in the order of numbers ends the game with a tenth of a win, the last one with a whole one."""
    file = tmp_path / "shares.py"
    file.write_text(SHARES)
    game = load_game(str(file))
    analysis = think(analysis_of(game), 60)
    best = analysis.best_moves()[0]
    assert best.action == 4 and best.value == pytest.approx(1.0)


SHARES = """
import numpy as np
from keima.games.authoring.plain import plain_game


def game():
    def start():
        return np.zeros((1, 1), np.int8)

    def legal_moves(board, player):
        for move in range(5):
            yield move

    def play(board, player, move):
        board[0, 0] = move + 1
        return -player

    def result(board, player):
        if board[0, 0] == 0:
            return None
        return 1.0 if board[0, 0] == 5 else 0.1

    return plain_game(start=start, legal_moves=legal_moves, play=play, result=result, moves=5, max_plies=1)
"""


def test_slices_add_up_to_an_uninterrupted_search() -> None:
    settings = SearchSettings(forced_playouts=False)
    found = Search(CONNECT_FOUR, StubEvaluator(CONNECT_FOUR), settings, num_simulations=300, num_trees=1).find(
        CONNECT_FOUR.initial_states(1)
    )
    analysis = think(analysis_of(CONNECT_FOUR), 300)
    visits = np.zeros(CONNECT_FOUR.num_actions, np.int32)
    for line in analysis.best_moves(10):
        visits[line.action] = line.visits
    assert visits.tolist() == found.visits[0].tolist()
    assert analysis.best_moves()[0].action == found.actions[0]


def test_nothing_is_reported_before_the_first_evaluation() -> None:
    analysis = analysis_of(CONNECT_FOUR)
    assert (analysis.best_moves(), analysis.visits, analysis.is_evaluated) == ([], 0, False)
    analysis.run_simulations(1)
    assert analysis.is_evaluated
    assert analysis.best_moves()[0].visits == 0, "the network alone names a move"


def test_the_tree_follows_the_played_moves() -> None:
    analysis = think(analysis_of(CONNECT_FOUR, leaves=8), 1000, at_once=8)
    best = analysis.best_moves()[0]
    analysis.play(best.action)
    assert analysis.visits == best.visits - 1
    assert think(analysis, best.visits + 500, at_once=8).visits == best.visits + 500
    assert analysis.best_moves()[0].action == max(analysis.best_moves(10), key=lambda line: line.visits).action


def test_an_unvisited_move_starts_a_new_tree() -> None:
    analysis = analysis_of(CONNECT_FOUR)
    analysis.run_simulations(1)
    analysis.play(3)
    assert (analysis.visits, analysis.is_evaluated) == (0, False)
    assert think(analysis, 50).visits == 50


def test_a_full_tree_ends_the_search_and_keeps_its_results() -> None:
    analysis = think(analysis_of(CONNECT_FOUR, leaves=16, most=200), 10_000, at_once=16)
    assert (analysis.visits, analysis.is_finished) == (200, True)
    analysis.run_simulations(16)
    assert analysis.visits == 200
    analysis.play(analysis.best_moves()[0].action)
    assert think(analysis, 10_000, at_once=16).visits == 200, "and there is room again after a move"


def test_a_whole_game_is_played_in_one_small_tree() -> None:
    analysis = analysis_of(TIC_TAC_TOE, leaves=4, most=60)
    while not TIC_TAC_TOE.terminal(analysis.state):
        analysis.play(think(analysis, 60, at_once=4).best_moves()[0].action)
    assert analysis.is_finished
    assert analysis.best_moves() == []


@pytest.mark.medium
def test_the_search_can_be_limited_to_some_moves() -> None:
    analysis = think(analysis_of(CHESS, leaves=4), 50, at_once=4)
    wanted = [action_of_uci(analysis.state, move) for move in ("a2a3", "h2h4")]
    analysis.consider_only(wanted)
    assert {line.action for line in think(analysis, 100, at_once=4).best_moves(30)} == set(wanted)
    analysis.consider_only(wanted[::-1])
    assert analysis.visits == 100, "the same moves go on in the same tree"
    analysis.consider_only(None)
    assert {line.action for line in think(analysis, 100).best_moves(30)} > set(wanted)


@pytest.mark.medium
@pytest.mark.parametrize(
    ("fen", "value", "plies", "most"),
    [
        ("6k1/5ppp/8/8/8/8/8/R3K3 w - - 0 1", 1, 1, 500),
        ("7k/8/8/8/8/8/6Q1/K5R1 w - - 0 1", 1, 1, 3000),
        ("k7/8/2K5/8/8/8/8/7R w - - 0 1", 1, 3, 20_000),
        ("k7/8/1K6/8/8/8/8/7R b - - 0 1", -1, 2, 500),
    ],
)
def test_a_mate_is_found_proven_and_counted(fen: str, value: int, plies: int, most: int) -> None:
    analysis = analysis_of(CHESS, leaves=4, most=most)
    analysis.begin(position_from_fen(CHESS, fen))
    best = think(analysis, most, at_once=4).best_moves()[0]
    assert (best.value, best.plies, analysis.visits < most) == (value, plies, True)
    for action in best.actions:
        CHESS.play(analysis.state, action)
    assert CHESS.terminal(analysis.state) and CHESS.returns(analysis.state).any()


@pytest.mark.medium
def test_a_proven_win_is_played_out_to_mate() -> None:
    analysis = analysis_of(CHESS, leaves=4, most=20_000)
    analysis.begin(position_from_fen(CHESS, "k7/8/2K5/8/8/8/8/7R w - - 0 1"))
    for left in (3, 2, 1):
        best = think(analysis, 20_000, at_once=4).best_moves()[0]
        assert best.plies is not None and best.plies <= left
        analysis.play(best.action)
    assert CHESS.returns(analysis.state).tolist() == [1, -1]


def test_positions_side_by_side_are_searched_as_if_each_were_alone() -> None:
    starts = [CONNECT_FOUR.initial_state() for _ in range(3)]
    CONNECT_FOUR.play(starts[1], 3)
    CONNECT_FOUR.play(starts[2], 0)
    trees = AnalysisTrees(
        CONNECT_FOUR,
        StubEvaluator(CONNECT_FOUR),
        SearchSettings(forced_playouts=False),
        max_simulations=99,
        num_trees=3,
    )
    together = [Analysis(trees, number) for number in range(3)]
    for analysis, start in zip(together, starts, strict=True):
        analysis.begin(start)
    together[2].consider_only([1, 2])
    while any(analysis.visits < 60 for analysis in together):
        run_side_by_side({analysis: min(1, 60 - analysis.visits) for analysis in together})
    for analysis, start, only in zip(together, starts, (None, None, [1, 2]), strict=True):
        alone = analysis_of(CONNECT_FOUR, most=99)
        alone.begin(start)
        alone.consider_only(only)
        assert analysis.best_moves(7) == think(alone, 60).best_moves(7)
        assert analysis.value == alone.value
    assert {line.action for line in together[2].best_moves(7)} == {1, 2}


def test_a_tree_that_begins_waits_until_it_is_asked_for() -> None:
    trees = AnalysisTrees(CONNECT_FOUR, StubEvaluator(CONNECT_FOUR), SearchSettings(), max_simulations=99, num_trees=2)
    first, second = Analysis(trees, 0), Analysis(trees, 1)
    run_side_by_side({first: 1})
    assert (first.is_evaluated, second.is_evaluated) == (True, False)


def test_the_policy_of_the_network_stays_known_during_the_search_and_when_moves_are_left_out() -> None:
    evaluate = StubEvaluator(CONNECT_FOUR)
    logits, values = evaluate(CONNECT_FOUR.observe(CONNECT_FOUR.initial_state())[None])
    wanted = np.exp(logits[0]) / np.exp(logits[0]).sum()
    analysis = analysis_of(CONNECT_FOUR)
    for only in (None, [3, 4]):
        analysis.consider_only(only)
        for simulations in (1, 5, 40):
            think(analysis, simulations)
            assert analysis.policy == pytest.approx(wanted, abs=1e-6)
            assert analysis.network_value == pytest.approx(values[0])


def test_memory_is_given_in_simulations() -> None:
    assert (
        1 <= simulations_that_fit(1) < simulations_that_fit(64) == pytest.approx(64 * simulations_that_fit(1), rel=0.01)
    )
