"""Lookahead of some plies from a position, compared with plain minimax."""

from typing import Literal

import numpy as np
import pytest

from keima.config.sections.search import SearchSettings
from keima.evaluation.match_worker import make_match_search_settings
from keima.games import Game, load_game
from keima.games.chess.notation import position_from_fen
from keima.games.exact import ILLEGAL, solve_all_positions
from keima.games.game import Planes, States
from keima.search.handover import pass_rules_by_address
from keima.search.lookahead import make_lookahead_scratch, prove_by_lookahead
from keima.search.move_search import Search
from keima.search.tree import DRAW, LOSS, UNPROVEN, WIN, Floats
from tests.search.test_search_proofs import minimax, value_of
from tests.self_play.test_self_play import play


def looked(game: Game, states: States, plies: int) -> list[int]:
    """Return the forced result of each of the states ``[N, S]``."""
    rules, lookahead = pass_rules_by_address(game.rules), make_lookahead_scratch(game, plies)
    return [int(prove_by_lookahead(rules, lookahead, state)) for state in states]


def bounds(game: Game, state: States, plies: int) -> tuple[int, int]:
    """Return the least and the most that the player to move can win, from a search of this many plies."""
    player = game.current_player(state)
    if game.terminal(state):
        value = round(float(game.returns(state)[player]))
        return value, value
    if plies == 0:
        return -1, 1
    below = [bounds(game, after(game, state, action), plies - 1) for action in game.legal_actions(state).tolist()]
    return max(-high for _, high in below), max(-low for low, _ in below)


def after(game: Game, state: States, action: int) -> States:
    """Return the position after a move."""
    following = state.copy()
    game.play(following, action)
    return following


def positions(game: Game, count: int, seed: int) -> States:
    """Return positions of random games that are not over."""
    random, found = np.random.default_rng(seed), list[States]()
    while len(found) < count:
        state = game.initial_state()
        for _ in range(random.integers(4, 40)):
            if game.terminal(state):
                break
            game.play(state, int(random.choice(game.legal_actions(state))))
        if not game.terminal(state):
            found.append(state)
    return np.stack(found)


@pytest.mark.medium
def test_a_search_to_the_end_knows_every_position_of_tic_tac_toe() -> None:
    game = load_game("tic_tac_toe")
    states, values = zip(*solve_all_positions(game), strict=True)
    truth = [DRAW + int(row[row != ILLEGAL].max()) for row in values]
    assert looked(game, np.stack(states), 9) == truth


@pytest.mark.medium
@pytest.mark.parametrize("plies", [1, 2, 3, pytest.param(4, marks=pytest.mark.slow)])
def test_it_agrees_with_plain_minimax_of_the_same_depth(plies: int) -> None:
    game = load_game("connect_four")
    states = positions(game, 40, plies)
    found = looked(game, states, plies)
    for state, proven in zip(states, found, strict=True):
        low, high = bounds(game, state, plies)
        assert proven == (DRAW + low if low == high else UNPROVEN)
    assert {WIN, UNPROVEN} <= set(found)


@pytest.mark.parametrize(
    ("fen", "plies", "proven"),
    [
        ("6k1/5ppp/8/8/8/8/8/R3K3 w - - 0 1", 1, WIN),  # a rook's mate
        ("k7/8/1K6/8/8/8/8/7R b - - 0 1", 2, LOSS),  # one move, and then mate
        ("k7/8/8/1K6/8/8/8/7R w - - 0 1", 1, UNPROVEN),
        ("k7/8/2K5/8/8/8/8/7R w - - 0 1", 3, WIN),  # the king approaches first
    ],
)
def test_it_mates(fen: str, plies: int, proven: int) -> None:
    game = load_game("chess")
    state = position_from_fen(game, fen)
    assert looked(game, state[None], plies) == [proven]


class Counting:
    """An untrained network that counts its calls."""

    def __init__(self, num_actions: int) -> None:
        self.asked, self._num_actions = 0, num_actions

    def __call__(self, observations: Planes) -> tuple[Floats, Floats]:
        """Return the same for every position."""
        self.asked += len(observations)
        return np.zeros((len(observations), self._num_actions), np.float32), np.zeros(len(observations), np.float32)


@pytest.mark.medium
@pytest.mark.parametrize("algorithm", ["puct", "gumbel"])
def test_self_play_continues_in_positions_that_were_decided_before_their_evaluation(
    algorithm: Literal["puct", "gumbel"],
) -> None:
    game = load_game("tic_tac_toe")
    settings = SearchSettings(algorithm=algorithm, num_simulations=16, full_search_probability=1.0, lookahead_plies=9)
    for record in play(game, settings, 20):
        state = game.initial_state()
        for action in record.actions.tolist():
            assert value_of(state, action) == minimax(state)  # with lookahead to the end, neither player errs
            game.play(state, action)
        assert game.terminal(state)


def test_a_search_does_not_ask_the_network_where_the_rules_decide() -> None:
    game = load_game("connect_four")
    state = game.initial_state()
    for action in (0, 6, 1, 6, 2, 6):  # 3 wins for the player to move; any other move loses to 6
        game.play(state, action)
    asked, actions = [], []
    for plies in (0, 2):
        network = Counting(game.num_actions)
        settings = SearchSettings(lookahead_plies=plies)
        found = Search(game, network, settings, num_simulations=50, num_trees=1).find(state[None])
        asked.append(network.asked)
        actions.append(int(found.actions[0]))
    assert actions == [3, 3]
    assert asked[1] < asked[0]


def test_matches_look_ahead_as_far_as_configured() -> None:
    assert make_match_search_settings(SearchSettings(lookahead_plies=2, match_lookahead_plies=3)).lookahead_plies == 3
