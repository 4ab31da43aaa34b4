"""The rules of 2048: known lines, largest tiles, and many random games against another implementation."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray

from keima.base.random import Streams, random_below, uniform
from keima.compilation.decorators import compiled, inlined
from keima.games import CHANCE, Game, IllegalAction, load_game
from keima.games.game import Actions, Rules, States
from keima.games.twenty48.rules import DOWN, DUE, LEFT, RIGHT, ROWS, SCORE, UP, GameRules
from tests.games.twenty48.regex_2048 import Boards, slid_to

BLOCK = 25_000  # moves compared at a time
SIZES = [(height, width) for height in range(2, 6) for width in range(2, 6)]


class Played(NamedTuple):
    """Moves of random games in sequence, each followed by its chance outcome."""

    before: States  # [M, S]
    legal: Actions  # [M, 4] 1 where the action is legal
    actions: Actions  # [M]
    after: States  # [M, S] afterstates
    likely: NDArray[np.float32]  # [M, O]
    outcomes: Actions  # [M]
    spawned: States  # [M, S]
    over: Actions  # [M] whether the game has ended


@inlined
def draw(likely: NDArray[np.float32], count: int, streams: Streams) -> int:
    """Return an index below ``count``, with the array's probabilities."""
    drawn, rest = 0, uniform(streams, 0) - likely[0]
    while rest >= 0 and drawn < count - 1:
        drawn += 1
        rest -= likely[drawn]
    return drawn


@compiled
def play(rules: Rules, start: States, state: States, streams: Streams, played: Played) -> None:
    """Fill ``played`` with random moves from ``state`` on, and start again from ``start`` after each game."""
    legal_actions, step, terminal, chance_outcomes = (
        rules.legal_actions,
        rules.step,
        rules.terminal,
        rules.chance_outcomes,
    )
    legal, outcomes = np.empty(4, np.int32), np.empty(played.likely.shape[1], np.int32)
    likely = np.empty(len(outcomes), np.float32)
    for move in range(len(played.actions)):
        if terminal(state):
            state[:] = start
        while state[DUE] > 0:
            count = chance_outcomes(state, outcomes, likely)
            step(state, np.int64(outcomes[draw(likely, count, streams)]))
        played.before[move] = state
        for i in range(legal_actions(state, legal)):
            played.legal[move, legal[i]] = 1
        action = legal[random_below(streams, 0, played.legal[move].sum())]
        step(state, np.int64(action))
        played.actions[move], played.after[move] = action, state
        count = chance_outcomes(state, outcomes, likely)
        for i in range(count):
            played.likely[move, outcomes[i]] = likely[i]
        outcome = outcomes[draw(likely, count, streams)]
        step(state, np.int64(outcome))
        played.outcomes[move], played.spawned[move], played.over[move] = outcome, state, terminal(state)


def random_moves(game: Game, *, moves: int, seed: int) -> Iterator[Played]:
    """Moves of random games, in blocks."""
    streams, state = np.array([seed], np.uint64), game.initial_state()
    for first in range(0, moves, BLOCK):
        size = min(BLOCK, moves - first)
        rows = [np.zeros((size, len(state)), np.int64) for _ in range(3)]
        actions, outcomes, over = (np.zeros(size, np.int32) for _ in range(3))
        legal, likely = np.zeros((size, 4), np.int32), np.zeros((size, game.num_outcomes), np.float32)
        played = Played(rows[0], legal, actions, rows[1], likely, outcomes, rows[2], over)
        play(game.rules, game.start, state, streams, played)
        yield played


def boards(game: Game, states: States) -> Boards:
    """Return the exponents ``[N, H, W]`` of states ``[N, S]``."""
    _, height, width = game.observation_shape
    return (states[:, ROWS : ROWS + height, None] >> 8 * np.arange(width)) & 0xFF


def with_board(game: Game, exponents: Any) -> States:
    """Return the state ``[S]`` with this board ``[H, W]`` and the player to move. One tile must be a 2 or a 4: chance
    puts it there.
    """
    board = np.array(exponents, np.int64)
    cell = int(np.flatnonzero((board == 1) | (board == 2))[0])
    outcome = 2 * cell + int(board.flat[cell]) - 1
    board.flat[cell] = 0
    state = game.initial_state()
    state[ROWS : ROWS + len(board)] = (board << 8 * np.arange(board.shape[1])).sum(axis=1)
    state[DUE] = 1
    game.play(state, outcome)
    return state


def after(game: Game, exponents: Any, action: int) -> tuple[list[list[int]], int]:
    """Return the board after an action, and its reward."""
    state = with_board(game, exponents)
    game.play(state, action)
    return boards(game, state[None])[0].tolist(), int(game.returns(state)[0])


def compare(game: Game, played: Played) -> None:
    """Compare every move of the game with the regular expressions."""
    before, moved, spawned = (boards(game, states) for states in (played.before, played.after, played.spawned))
    rewards = played.after[:, SCORE] - played.before[:, SCORE]
    for action in range(4):
        expected, made = slid_to(before, action)
        mine = played.actions == action
        assert np.array_equal(played.legal[:, action], (expected != before).any(axis=(1, 2)))
        assert np.array_equal(moved[mine], expected[mine])
        assert np.array_equal(rewards[mine], made[mine])
    tiles = moved.reshape(len(moved), -1).copy()
    likely = (tiles == 0)[:, :, None] * np.array([0.9, 0.1]) / (tiles == 0).sum(axis=1)[:, None, None]
    assert np.allclose(played.likely, likely.reshape(len(moved), -1), rtol=1e-6, atol=0)
    tiles[np.arange(len(tiles)), played.outcomes >> 1] = 1 + (played.outcomes & 1)
    assert np.array_equal(spawned.reshape(len(moved), -1), tiles)
    assert np.array_equal(played.spawned[:, SCORE], played.after[:, SCORE])
    stuck = np.logical_and.reduce([(slid_to(spawned, action)[0] == spawned).all(axis=(1, 2)) for action in range(4)])
    assert np.array_equal(played.over, stuck)


@pytest.fixture(scope="module")
def game() -> Game:
    return load_game("twenty48")


@pytest.mark.medium
@pytest.mark.parametrize(
    "moves",
    [100_000, pytest.param(1_000_000, marks=[pytest.mark.slow, pytest.mark.timeout(1200)])],
    ids=["fast", "million"],
)
def test_every_move_of_random_games_agrees_with_regular_expressions(game: Game, moves: int) -> None:
    for played in random_moves(game, moves=moves, seed=moves):
        compare(game, played)


@pytest.mark.parametrize(("height", "width"), SIZES)
def test_boards_of_all_sizes_agree_with_regular_expressions(height: int, width: int) -> None:
    game = load_game("twenty48", height=height, width=width)
    for played in random_moves(game, moves=2_000, seed=10 * height + width):
        compare(game, played)


@pytest.mark.medium
@pytest.mark.parametrize(("height", "width"), [(4, 4), (5, 5), (3, 4), (5, 2)])
def test_crowded_boards_with_the_largest_tiles_agree_with_regular_expressions(height: int, width: int) -> None:
    game, random = load_game("twenty48", height=height, width=width), np.random.default_rng(1)
    largest = height * width + 1
    boards = random.integers(largest - 3, largest + 1, (300, height, width)) * (
        random.random((300, height, width)) < 0.8
    )
    boards[:, 0, 0] = 1
    for action in range(4):
        moved, made = slid_to(boards, action)
        for board, expected, reward in zip(boards, moved, made, strict=True):
            state = with_board(game, board)
            assert (action in game.legal_actions(state)) == (expected != board).any()
            if action in game.legal_actions(state):
                assert after(game, board, action) == (expected.tolist(), np.float32(reward))


@pytest.mark.parametrize(
    ("line", "slid", "reward"),
    [
        ([1, 1, 1, 1], [2, 2, 0, 0], 8),  # two pairs, whose results do not merge again
        ([2, 1, 1, 0], [2, 2, 0, 0], 4),
        ([1, 1, 1, 0], [2, 1, 0, 0], 4),  # the pair nearest to the wall
        ([0, 1, 0, 1], [2, 0, 0, 0], 4),
        ([2, 2, 1, 1], [3, 2, 0, 0], 12),
        ([1, 0, 0, 2], [1, 2, 0, 0], 0),
        ([16, 16, 1, 1], [17, 2, 0, 0], 131072 + 4),
    ],
)
def test_known_lines_slide_correctly_in_all_directions(
    game: Game, line: list[int], slid: list[int], reward: int
) -> None:
    board, expected = np.zeros((2, 4, 4), np.int64)
    board[1], expected[1] = line, slid
    for turns, action in enumerate([LEFT, DOWN, RIGHT, UP]):
        assert after(game, np.rot90(board, turns), action) == (np.rot90(expected, turns).tolist(), reward)


def test_the_largest_possible_tile_is_exact(game: Game) -> None:
    board = [[16, 16, 15, 14], [10, 11, 12, 13], [9, 8, 7, 6], [2, 3, 4, 5]]
    state = with_board(game, board)
    assert game.render(state).startswith("4 65536 65536 32768 16384\n")
    game.play(state, LEFT)
    assert boards(game, state[None])[0, 0].tolist() == [17, 15, 14, 0]
    assert game.returns(state).tolist() == [131072]
    assert game.observe(state)[15, 0].tolist() == [1, 1, 0, 0]  # the last plane also shows it, next to 2**15
    assert game.observe(state)[14, 0].tolist() == [0, 0, 1, 0]


def test_the_last_plane_also_shows_all_larger_tiles() -> None:
    game = load_game("twenty48", height=2, width=2, planes=3)
    planes = game.observe(with_board(game, [[1, 2], [3, 0]]))
    assert planes.tolist() == [[[0, 0], [0, 1]], [[1, 0], [0, 0]], [[0, 1], [1, 0]]]


def test_new_tiles_are_as_frequent_as_their_probabilities_say(game: Game) -> None:
    """Chi-square over outcomes, pooled over the moves by the sum of their expectations; 99.9 % of fair draws pass."""
    expected, seen = np.zeros(game.num_outcomes), np.zeros(game.num_outcomes)
    for played in random_moves(game, moves=200_000, seed=5):
        expected += played.likely.sum(axis=0)
        seen += np.bincount(played.outcomes, minlength=game.num_outcomes)
    assert expected.sum() == pytest.approx(200_000, rel=1e-4)
    assert (((seen - expected) ** 2 / expected).sum()) < 61.1  # 31 degrees of freedom


def test_a_game_begins_with_two_new_tiles(game: Game) -> None:
    state = game.initial_state()
    for empty in (16, 15):
        assert game.current_player(state) == CHANCE
        outcomes, probabilities = game.chance_outcomes(state)
        assert len(outcomes) == 2 * empty
        assert probabilities.tolist() == pytest.approx([0.9 / empty, 0.1 / empty] * empty)
        assert game.legal_actions(state).tolist() == []
        game.play(state, int(outcomes[0]))
    assert game.current_player(state) == 0
    assert len(game.chance_outcomes(state)[0]) == 0


def test_impossible_outcomes_and_illegal_actions_are_refused(game: Game) -> None:
    state = game.initial_state()
    game.play(state, 7)
    with pytest.raises(IllegalAction, match="twenty48: outcome 6 is not possible here"):
        game.play(state, 6)
    game.play(state, 5)
    with pytest.raises(IllegalAction, match="twenty48: action 0 is not legal here"):
        game.play(state, UP)


def test_the_score_is_not_part_of_the_position_for_caches(game: Game) -> None:
    poor, rich = (with_board(game, np.eye(4, dtype=int)) for _ in range(2))
    rich[SCORE] = 1000
    assert game.hash(poor) == game.hash(rich)
    assert np.array_equal(game.observe(poor), game.observe(rich))


def test_a_full_board_without_pairs_ends_the_game(game: Game) -> None:
    state = with_board(game, [[1, 2, 1, 2], [2, 1, 2, 1], [1, 2, 1, 2], [2, 1, 2, 1]])
    assert game.terminal(state)
    assert game.legal_actions(state).tolist() == []
    state = with_board(game, [[1, 2, 1, 2], [2, 1, 2, 1], [1, 2, 1, 2], [2, 1, 2, 2]])
    assert game.legal_actions(state).tolist() == [UP, RIGHT, DOWN, LEFT]


@pytest.mark.medium
def test_openspiel_agrees() -> None:
    """Except that OpenSpiel calls some merging slides illegal (8 8 4 2 upwards, in one such game), and ends games that
    are not over.
    """
    pyspiel = pytest.importorskip("pyspiel")
    game, random = load_game("twenty48"), np.random.default_rng(2)
    for _ in range(20):
        state, twin = game.initial_state(), pyspiel.load_game("2048(max_tile=131072)").new_initial_state()
        while not twin.is_terminal():
            assert (game.current_player(state) == CHANCE) == twin.is_chance_node()
            if twin.is_chance_node():
                outcomes, probabilities = game.chance_outcomes(state)
                assert dict(zip(outcomes.tolist(), probabilities.tolist(), strict=True)) == pytest.approx(
                    dict(twin.chance_outcomes())
                )
            else:
                outcomes = game.legal_actions(state)
                assert {*outcomes.tolist()} >= {*twin.legal_actions()}
                outcomes = np.array(twin.legal_actions())
            step = int(random.choice(outcomes))
            game.play(state, step)
            twin.apply_action(step)
            tiles = boards(game, state[None]).ravel()
            assert np.where(tiles > 0, 1 << tiles, 0).tolist() == [int(word) for word in str(twin).split()]
            assert game.returns(state).tolist() == twin.returns()


def test_tiles_coordinates_and_outcomes_are_readable() -> None:
    game = GameRules(2, 3)
    state = game.initial_state()
    outcome = [game.outcome_name(outcome) for outcome in range(game.num_outcomes)].index("2@b1")
    game.play(state, outcome)
    game.play(state, 1)
    assert game.render(state) == "2    4    .    .\n1    .    2    .\n     a    b    c\nscore 0"
    assert [game.action_name(action) for action in range(4)] == ["up", "right", "down", "left"]
    assert [game.parse_action(text) for text in ("up", " R ", "Down", "l")] == [UP, RIGHT, DOWN, LEFT]
    with pytest.raises(ValueError, match="'north' is not a direction: type up, right, down or left"):
        game.parse_action("north")


def test_the_guide_builds_its_rules_by_position_or_by_name() -> None:
    assert (
        GameRules(4, 4).options
        == GameRules(height=4, width=4).options
        == GameRules().options
        == load_game("twenty48").options
    )
    assert GameRules(3, 5).observation_shape == (16, 3, 5)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"height": 1}, "height must be from 2 to 5, not 1"),
        ({"width": 6}, "width must be from 2 to 5, not 6"),
        ({"planes": 1}, "planes must be from 2 to 32, not 1"),
        ({"height": 4.0}, r"height must be a whole number, not 4\.0"),
        ({"size": 4}, "no option 'size'; it takes height, width, planes"),
    ],
)
def test_impossible_boards_are_refused(options: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        load_game("twenty48", **options)
