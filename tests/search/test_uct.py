"""Monte-Carlo tree search with random playouts: what it finds, by rules alone."""

from functools import cache

import numpy as np
import pytest

from keima.evaluation.match import play_match
from keima.games import Game, load_game
from keima.games.exact import ActionValues, solve_all_positions
from keima.games.game import Actions, States
from keima.search.baselines.uct import UctPlayer
from tests.games.dice_race import BOLD, GOAL, MOVER, SAFE, dice_race
from tests.games.dots_and_boxes import dots_and_boxes

TIC_TAC_TOE, CONNECT_FOUR = load_game("tic_tac_toe"), load_game("connect_four")
DICE_RACE, DOTS_AND_BOXES = dice_race(), dots_and_boxes()


@cache
def tic_tac_toe_values() -> dict[bytes, ActionValues]:
    """The value of each action in every position."""
    return {state.tobytes(): values for state, values in solve_all_positions(TIC_TAC_TOE)}


class PerfectPlayer:
    """Plays any of the best moves of tic-tac-toe."""

    def __init__(self, seed: int) -> None:
        self._random = np.random.default_rng(seed)

    def choose(self, states: States) -> Actions:
        values = [tic_tac_toe_values()[state.tobytes()] for state in states]
        return np.array([self._random.choice(np.flatnonzero(row == row.max())) for row in values], np.int32)


def after(game: Game, *moves: int) -> States:
    """The position after these moves from the start."""
    state = game.initial_state()
    for move in moves:
        game.play(state, move)
    return state


def choice(game: Game, state: States, *, playouts: int, seed: int = 1) -> int:
    """The move of a new player."""
    return int(UctPlayer(game, playouts=playouts, seed=seed).choose(state[None])[0])


@pytest.mark.medium
@pytest.mark.parametrize("seed", range(3))
def test_a_thousand_playouts_never_lose_tic_tac_toe_against_perfect_play(seed: int) -> None:
    player, perfect = UctPlayer(TIC_TAC_TOE, playouts=1000, seed=seed), PerfectPlayer(seed)
    result = play_match(TIC_TAC_TOE, player, perfect, pairs=20, opening_plies=0, seed=seed)
    assert result.losses == result.wins == 0 and result.draws == 40


LEFT_RISING = (0, 1, 1, 2, 6, 2, 2, 3, 3, 3)  # the first player's stones rise from the left, and lack the fourth


@pytest.mark.medium
@pytest.mark.parametrize(
    ("moves", "winning"),
    [((3, 0, 3, 0, 3, 0), 3), ((0, 6, 1, 6, 2, 5), 3), (LEFT_RISING, 3), ((6, 0, 5, 0, 6, 0, 5), 0)],
)
@pytest.mark.parametrize("seed", range(3))
def test_a_win_in_one_is_found_and_played(moves: tuple[int, ...], winning: int, seed: int) -> None:
    state = after(CONNECT_FOUR, *moves)
    assert choice(CONNECT_FOUR, state, playouts=300, seed=seed) == winning
    CONNECT_FOUR.play(state, winning)
    assert CONNECT_FOUR.terminal(state)


@pytest.mark.medium
@pytest.mark.parametrize(("moves", "blocking"), [((3, 0, 3, 0, 3), 3), ((0, 6, 0, 6, 3, 6), 6), ((2, 2, 1, 1, 0), 3)])
@pytest.mark.parametrize("seed", range(3))
def test_a_loss_in_one_is_blocked(moves: tuple[int, ...], blocking: int, seed: int) -> None:
    assert choice(CONNECT_FOUR, after(CONNECT_FOUR, *moves), playouts=1000, seed=seed) == blocking


@pytest.mark.medium
def test_the_same_seed_plays_the_same_match() -> None:
    first, again, other = (
        play_match(
            CONNECT_FOUR,
            UctPlayer(CONNECT_FOUR, playouts=20, seed=seed),
            UctPlayer(CONNECT_FOUR, playouts=10, seed=seed + 1),
            pairs=4,
            opening_plies=2,
            seed=5,
        )
        for seed in (1, 1, 2)
    )
    assert first.moves == again.moves != other.moves


@pytest.mark.medium
def test_more_playouts_are_stronger() -> None:
    few, many = (UctPlayer(CONNECT_FOUR, playouts=playouts, seed=3) for playouts in (20, 400))
    assert play_match(CONNECT_FOUR, many, few, pairs=15, opening_plies=2, seed=3).scores.mean() > 0.8


@pytest.mark.medium
def test_who_moves_again_after_a_box_is_no_opponent() -> None:
    values = {state.tobytes(): row for state, row in solve_all_positions(DOTS_AND_BOXES)}
    states = [np.frombuffer(key, np.int64).copy() for key in values]
    late = np.stack([state for state in states if len(DOTS_AND_BOXES.legal_actions(state)) <= 5])
    chosen = UctPlayer(DOTS_AND_BOXES, playouts=1000, seed=1).choose(late)
    wrong = [
        (state, action)
        for state, action in zip(late, chosen, strict=True)
        if values[state.tobytes()][action] < values[state.tobytes()].max()
    ]
    assert not wrong


@pytest.mark.medium
def test_chance_is_weighed_by_what_it_may_bring() -> None:
    lookahead, behind = DICE_RACE.initial_state(), DICE_RACE.initial_state()
    DICE_RACE.play(lookahead, 1)
    behind[:] = lookahead
    lookahead[:2], behind[:2] = (GOAL - 1, GOAL - 1), (GOAL - 3, GOAL - 1)
    assert lookahead[MOVER] == behind[MOVER] == 0
    # One step is enough, and the safe die always takes it; three are wanted at once, which only the bold die shows.
    for seed in range(5):
        assert choice(DICE_RACE, lookahead, playouts=200, seed=seed) == SAFE
        assert choice(DICE_RACE, behind, playouts=200, seed=seed) == BOLD


def test_a_game_for_one_is_refused() -> None:
    with pytest.raises(ValueError, match="twenty48 is a game for one player"):
        UctPlayer(load_game("twenty48"), playouts=10, seed=1)
