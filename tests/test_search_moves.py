"""The figures of benchmarks/strength/search_moves.py."""

import numpy as np

from benchmarks.strength.search_moves import Judge, Remembering, row_of, undecided_positions
from keima.config.sections.search import SearchSettings
from keima.games import load_game
from keima.search.move_search import Search
from tests.search.naive_search import StubEvaluator

TIC_TAC_TOE = load_game("tic_tac_toe")


def search(evaluate: StubEvaluator | Remembering) -> Search:
    return Search(TIC_TAC_TOE, evaluate, SearchSettings(forced_playouts=False), num_simulations=200, num_trees=4)


def test_a_position_is_evaluated_once() -> None:
    network = StubEvaluator(TIC_TAC_TOE)
    remembering, states = Remembering(network), TIC_TAC_TOE.initial_states(2)
    TIC_TAC_TOE.play(states[1], 4)
    observations = np.stack([TIC_TAC_TOE.observe(state) for state in states])
    remembering(observations[:1])
    logits, values = remembering(observations[[1, 0, 1]])
    assert network.positions == 2
    expected = StubEvaluator(TIC_TAC_TOE)(observations[[1, 0, 1]])
    assert (logits == expected[0]).all() and (values == expected[1]).all()


def test_a_move_is_worth_what_its_player_gets() -> None:
    state = TIC_TAC_TOE.initial_state()
    for action in (0, 3, 1, 4):  # the first player wins with 2; with 8 the second wins with 5
        TIC_TAC_TOE.play(state, action)
    judge = Judge(search(StubEvaluator(TIC_TAC_TOE)), TIC_TAC_TOE, np.stack([state]))
    assert judge.values(np.array([0, 0, 0]), np.array([2, 8, 2], np.int32)).tolist() == [1, -1, 1]


def test_positions_are_undecided_ones() -> None:
    network = StubEvaluator(TIC_TAC_TOE, value_scale=0.0)
    states = undecided_positions(search(network), TIC_TAC_TOE, 3, 1)
    assert len(states) == 3
    assert not any(TIC_TAC_TOE.terminal(state) for state in states)


def test_the_gain_is_a_mean_over_all_positions_in_thousandths() -> None:
    gains = np.array([0.0, 0.02, 0.0, 0.0])
    assert row_of("c_puct=2", gains, gains != 0) == "| c_puct=2 | 4 | 25.0% | +5.0 ± 15.8 |"
