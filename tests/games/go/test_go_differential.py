"""Go and a naive implementation agree on every position of random games; so does OpenSpiel where it is installed."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from keima.games import Game, load_game
from keima.games.game import States
from keima.games.go.board import (
    BOARD,
    CELLS,
    COLOR,
    EMPTY,
    FOLLOWING,
    HASH,
    HEAD,
    LIBERTIES,
    STONES,
    TABLE,
    WALL,
    ZOBRIST,
)
from keima.games.go.rules import score_lead
from tests.games.go.naive_go import NaiveGo, Point

pytestmark = pytest.mark.medium


def choose(random: np.random.Generator, naive: NaiveGo, legal: list[int]) -> int:
    """Return a random action, rarely the pass, and often a capture: such games are long and have many kos."""
    plays = legal[:-1]
    if not plays or random.random() < 0.02:
        return legal[-1]
    captures = [action for action in plays if len(naive.plays()[action][1]) <= len(naive.board)]
    return int(random.choice(captures if captures and random.random() < 0.7 else plays))


def games(options: dict[str, Any], *, positions: int, seed: int) -> Iterator[tuple[Game, States, NaiveGo]]:
    """Yield at least this many positions of random games, each in both implementations; all games are played to the
    end.
    """
    random = np.random.default_rng(seed)
    game = load_game("go", **options)
    while positions > 0:
        state, naive = game.initial_state(), NaiveGo(**game.options)
        yield game, state, naive
        while not naive.is_terminal():
            action = choose(random, naive, naive.legal_actions())
            game.play(state, action)
            naive.apply_action(action)
            positions -= 1
            yield game, state, naive


def cells(state: States, array: int) -> NDArray[np.int16]:
    begin = int(state[BOARD] + array * state[CELLS])
    return state.view(np.int16)[begin : begin + int(state[CELLS])]


def cell(naive: NaiveGo, point: Point) -> int:
    return (point[0] + 1) * (naive.size + 1) + point[1] + 1


def agree(game: Game, state: States, naive: NaiveGo) -> None:
    assert game.terminal(state) == naive.is_terminal()
    assert game.legal_actions(state).tolist() == naive.legal_actions()
    assert score_lead(state) == naive.score()
    assert game.returns(state).tolist() == naive.returns()
    assert game.current_player(state) == naive.current_player()


def keeps_its_books(state: States, naive: NaiveGo) -> None:
    """Assert that the values that a state updates from play to play are those computed from the board."""
    color, head, following = cells(state, COLOR), cells(state, HEAD), cells(state, FOLLOWING)
    colors = np.full(len(color), WALL)
    for point in naive.around:
        colors[cell(naive, point)] = EMPTY if point not in naive.board else 1 + naive.board[point]
    assert color.tolist() == colors.tolist()
    assert not head[colors != 1][colors[colors != 1] != 2].any()
    assert cells(state, LIBERTIES)[0] == 0
    unseen = set(naive.board)
    while unseen:
        chain = naive.chain(naive.board, next(iter(unseen)))
        unseen -= chain
        numbers = {cell(naive, stone) for stone in chain}
        name = int(head[min(numbers)])
        assert numbers == set(np.flatnonzero(head == name).tolist()) == ring(following, name)
        assert cells(state, LIBERTIES)[name] == naive.liberties(naive.board, next(iter(chain)))
        assert cells(state, STONES)[name] == len(chain)


def ring(following: NDArray[np.int16], start: int) -> set[int]:
    found = [start]
    while following[found[-1]] != start:
        found.append(int(following[found[-1]]))
    return set(found)


def zobrist(naive: NaiveGo, board: frozenset[tuple[Point, int]]) -> int:
    keys = [ZOBRIST[1 + color, cell(naive, point)] for point, color in board]
    return int(np.bitwise_xor.reduce([ZOBRIST[EMPTY, 0], *keys]))


SIZES = [
    ({"size": 5, "komi": 0.5, "max_plies": 250}, 1500),
    ({"size": 5, "komi": -3, "max_plies": 250, "suicide": True}, 1500),
    ({"size": 6, "komi": 4}, 800),
    ({"size": 9, "komi": 7.5, "max_plies": 400}, 300),
    ({"size": 13, "komi": 0, "suicide": True, "max_plies": 150}, 100),
    ({"size": 19, "komi": 7, "max_plies": 60}, 60),
]


@pytest.mark.parametrize(("options", "positions"), SIZES)
def test_random_games_agree_to_the_end(options: dict[str, Any], positions: int) -> None:
    for game, state, naive in games(options, positions=positions, seed=1):
        agree(game, state, naive)


def test_superko_is_tested_and_not_only_by_simple_kos() -> None:
    kos, longer_cycles = 0, 0
    for _, _, naive in games({"size": 5, "max_plies": 250}, positions=2500, seed=1):
        repeated = [frozenset(board.items()) for verdict, board in naive.plays().values() if verdict == "repeats"]
        kos += sum(board == naive.positions[-2] for board in repeated)
        longer_cycles += sum(board != naive.positions[-2] for board in repeated)
    assert kos >= 25
    assert longer_cycles >= 5


@pytest.mark.parametrize(
    "options", [{"size": 5, "max_plies": 250, "suicide": True}, {"size": 7}, {"size": 9}, {"size": 19, "max_plies": 60}]
)
def test_chains_liberties_and_positions_are_kept_up_to_date(options: dict[str, Any]) -> None:
    for _, state, naive in games(options, positions=60, seed=2):
        keeps_its_books(state, naive)
        assert state[HASH] == zobrist(naive, naive.positions[-1])
        table = state[int(state[TABLE]) :]
        assert set(table[table != 0].tolist()) == {zobrist(naive, board) for board in naive.positions}


def planes_of(naive: NaiveGo) -> NDArray[np.float32]:
    """Return the planes that ``keima.games.go.rules`` documents for the player to move."""
    planes = np.zeros((14, naive.size, naive.size), np.float32)
    for point, color in naive.board.items():
        planes[(int(color != naive.current_player()), *point)] = 1
        if naive.liberties(naive.board, point) <= 3:
            planes[(1 + naive.liberties(naive.board, point), *point)] = 1
    for action, (verdict, _) in naive.plays().items():
        planes[(5, *naive.point(action))] = verdict == "repeats"
    for age, action in enumerate(naive.actions[:-6:-1]):
        if action < naive.size**2:
            planes[(6 + age, *naive.point(action))] = 1
    planes[11] = naive.actions[-1:] == [naive.size**2]
    planes[12] = naive.komi / 20 * (1 if naive.current_player() == 1 else -1)
    planes[13] = 1
    return planes


@pytest.mark.parametrize(
    "options", [{"size": 5, "max_plies": 250, "suicide": True}, {"size": 5, "max_plies": 250}, {"size": 9}]
)
def test_the_network_s_input_is_as_documented(options: dict[str, Any]) -> None:
    for game, state, naive in games(options, positions=200, seed=3):
        assert np.array_equal(game.observe(state), planes_of(naive))


@pytest.mark.parametrize("size", [5, 9, 19])
def test_openspiel_agrees_except_on_superko(size: int) -> None:
    """OpenSpiel only forbids recapturing a ko at once. A play that repeats an older position is legal there, and ends
    the game as a draw.
    """
    pyspiel = pytest.importorskip("pyspiel", exc_type=ImportError, reason="OpenSpiel is not installed")
    random = np.random.default_rng(size)
    game = load_game("go", size=size, komi=7.5)
    other = pyspiel.load_game("go", {"board_size": size, "komi": 7.5, "max_game_length": game.max_plies})
    upside_down = np.append(
        np.arange(size * size).reshape(size, size)[::-1].ravel(), size * size
    )  # its row 1 is the lowest
    for _ in range(40 if size == 5 else 5):
        state, twin = game.initial_state(), other.new_initial_state()
        while not twin.is_terminal():
            ours, theirs = (
                set(game.legal_actions(state).tolist()),
                {int(upside_down[action]) for action in twin.legal_actions()},
            )
            assert ours <= theirs
            for action in theirs - ours:
                repeated = twin.child(int(upside_down[action]))
                assert repeated.is_terminal()
                assert repeated.returns() == [0, 0]
            action = int(random.choice(sorted(ours)))
            game.play(state, action)
            twin.apply_action(int(upside_down[action]))
        assert game.terminal(state)
        assert game.returns(state).tolist() == twin.returns()
