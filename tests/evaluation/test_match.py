import gc
import weakref
from collections.abc import Sequence

import numpy as np
import pytest

from keima.evaluation.match import (
    Fixture,
    MatchResult,
    MatchSession,
    RandomPlayer,
    draw_opening_moves,
    make_opening_states,
    play_match,
    play_match_from,
    play_opening_moves,
)
from keima.evaluation.strength import first_player_mean_return
from keima.games import load_game
from keima.games.game import Actions, Game, States
from tests.games.dice_race import dice_race
from tests.own_game import three_in_line

GAME = load_game("connect_four")


class FirstLegal:
    """Always plays the leftmost column, and records its requests."""

    def __init__(self, game: Game) -> None:
        self.game = game
        self.asked = 0

    def choose(self, states: States) -> Actions:
        self.asked += len(states)
        return np.array([self.game.legal_actions(state)[0] for state in states], np.int32)


def test_both_games_of_a_pair_begin_from_the_same_opening() -> None:
    player = FirstLegal(GAME)
    result = play_match(GAME, player, FirstLegal(GAME), pairs=40, opening_plies=4, seed=1)
    # The same player on both sides: what one wins in the first game of a pair, the other wins in the second.
    assert np.array_equal(result.scores.sum(1), np.ones(40))
    assert result.wins == result.losses
    assert result.wins + result.draws + result.losses == 80


def test_openings_differ_have_the_requested_length_and_never_end_the_game() -> None:
    states = make_opening_states(GAME, 200, 8, seed=2)
    assert all(state[2] == 8 for state in states)
    assert not any(GAME.terminal(state) for state in states)
    assert len({state.tobytes() for state in states}) > 150


def test_openings_are_shorter_where_games_end_earlier() -> None:
    short = load_game("tic_tac_toe")
    assert draw_opening_moves(short, 5, 9, seed=1).shape == (5, 8)
    assert not any(short.terminal(state) for state in make_opening_states(short, 5, 9, seed=1))


def test_a_seed_gives_the_same_openings_again() -> None:
    assert np.array_equal(make_opening_states(GAME, 20, 3, seed=5), make_opening_states(GAME, 20, 3, seed=5))
    assert not np.array_equal(make_opening_states(GAME, 20, 3, seed=5), make_opening_states(GAME, 20, 3, seed=6))


class Replaying(FirstLegal):
    """Checks the histories of games that it is given."""

    def choose_with_history(self, states: States, starts: States, moves: Sequence[Sequence[int]]) -> Actions:
        for state, start, played in zip(states, starts, moves, strict=True):
            replayed = start.copy()
            for action in played:
                self.game.play(replayed, action)
            assert np.array_equal(replayed, state)
            self.told = len(played)
        return self.choose(states)


@pytest.mark.parametrize("told", [False, True])
def test_a_player_that_needs_histories_gets_them(told: bool) -> None:
    opened = draw_opening_moves(GAME, 3, 4, seed=2)
    starts, player = play_opening_moves(GAME, opened), Replaying(GAME)
    assert np.array_equal(starts, make_opening_states(GAME, 3, 4, seed=2))
    result = play_match_from(GAME, starts, player, FirstLegal(GAME), opening_moves=opened if told else None)
    longest = max(map(len, result.moves))
    assert player.asked and player.told in {longest - 1 + 4 * told, longest - 2 + 4 * told}
    for number, moves in enumerate(result.moves):
        state = starts[number // 2].copy()
        for action in moves:
            GAME.play(state, action)
        assert GAME.terminal(state)


def test_random_players_are_as_strong_as_each_other() -> None:
    result = play_match(GAME, RandomPlayer(GAME, 1), RandomPlayer(GAME, 2), pairs=1_000, opening_plies=0, seed=3)
    assert abs(result.scores.mean() - 0.5) < 0.04
    assert result.scores[:, 0].mean() > 0.5  # beginning is an advantage


def test_the_first_player_of_a_match_begins_the_first_game_of_each_pair() -> None:
    game = load_game("tic_tac_toe")

    class Diagonal(FirstLegal):
        """Takes the middle, then corners: never loses to a player who fills cells from the left."""

        def choose(self, states: States) -> Actions:
            wishes = (4, 2, 6, 0, 8, 3, 5, 1, 7)
            return np.array([next(a for a in wishes if a in game.legal_actions(state)) for state in states], np.int32)

    result = play_match(game, Diagonal(game), FirstLegal(game), pairs=1, opening_plies=0, seed=1)
    assert result.scores[0, 0] == 1.0  # X in the middle, O at 1, X at 3, O at 2, X at 7: a diagonal


def test_a_watcher_is_called_between_moves() -> None:
    looks = []
    play_match(
        GAME,
        RandomPlayer(GAME, 1),
        RandomPlayer(GAME, 2),
        pairs=1,
        opening_plies=0,
        seed=1,
        poll=lambda: looks.append(1),
    )
    assert len(looks) >= 7


class Slow(FirstLegal):
    """Thinks for two calls about at most three positions at a time, and records how many it had in each."""

    def __init__(self, game: Game) -> None:
        super().__init__(game)
        self.waiting: list[tuple[int, States]] = []
        self.thinking: list[tuple[int, States]] = []
        self.batches: list[int] = []

    def submit(self, numbers: Sequence[int], states: States) -> None:
        self.waiting += zip(numbers, states.copy(), strict=True)

    def advance(self) -> tuple[Sequence[int], Actions]:
        found, self.thinking, self.waiting = self.thinking, self.waiting[:3], self.waiting[3:]
        self.batches.append(len(self.thinking))
        if not found:
            return [], np.empty(0, np.int32)
        return [number for number, _ in found], self.choose(np.stack([state for _, state in found]))


def test_matches_side_by_side_have_the_results_that_each_has_alone_and_share_a_player_s_batches() -> None:
    starts = make_opening_states(GAME, 6, 4, seed=2)
    alone = [play_match_from(GAME, part, FirstLegal(GAME), FirstLegal(GAME)) for part in (starts[:2], starts[2:])]
    table, slow, found = MatchSession(GAME), Slow(GAME), dict[str, MatchResult]()
    for name, part in (("a", starts[:2]), ("b", starts[2:])):
        table.begin(name, Fixture(first=slow, second=FirstLegal(GAME), starts=part))
    while len(found) < 2:
        table.advance()
        found |= table.take_results()
    assert [found[name].moves for name in ("a", "b")] == [result.moves for result in alone]
    assert slow.batches[:5] == [3] * 5


def test_a_dropped_match_leaves_the_others_as_they_are() -> None:
    starts, slow = make_opening_states(GAME, 4, 4, seed=2), Slow(GAME)
    table = MatchSession(GAME)
    for name in ("a", "b"):
        table.begin(name, Fixture(first=slow, second=RandomPlayer(GAME, 1), starts=starts))
    table.advance()
    table.drop("a")
    found = dict[str, MatchResult]()
    while not found:
        table.advance()
        found = table.take_results()
    assert list(found) == ["b"] and found["b"].scores.shape == (4, 2)


def test_the_players_of_ended_matches_are_let_go() -> None:
    table, player = MatchSession(GAME), Slow(GAME)
    last = weakref.ref(player)
    table.begin(
        "a", Fixture(first=player, second=RandomPlayer(GAME, 1), starts=make_opening_states(GAME, 1, 4, seed=2))
    )
    while not table.take_results():
        table.advance()
    del player
    gc.collect()
    assert last() is None


DICE_RACE = dice_race()


def test_chance_plays_between_the_players_and_its_outcomes_are_moves() -> None:
    starts = make_opening_states(DICE_RACE, 20, 3, seed=4)
    result = play_match_from(DICE_RACE, starts, FirstLegal(DICE_RACE), RandomPlayer(DICE_RACE, 1), seed=4)
    for number, moves in enumerate(result.moves):
        state = starts[number // 2].copy()
        for move in moves:
            DICE_RACE.play(state, move)  # raises for what is not possible
        assert DICE_RACE.terminal(state)
        assert (DICE_RACE.returns(state)[number % 2] + 1) / 2 == result.scores.ravel()[number]


def test_both_games_of_a_pair_have_the_same_luck() -> None:
    safe = FirstLegal(DICE_RACE)
    result = play_match(DICE_RACE, safe, safe, pairs=30, opening_plies=0, seed=2)
    assert all(first == second for first, second in zip(result.moves[::2], result.moves[1::2], strict=True))
    assert len(set(result.moves)) > 15


def test_chance_does_not_depend_on_how_a_match_is_cut_into_slices() -> None:
    starts, safe = make_opening_states(DICE_RACE, 6, 2, seed=3), FirstLegal(DICE_RACE)
    whole = play_match_from(DICE_RACE, starts, safe, safe, seed=3)
    later = play_match_from(DICE_RACE, starts[4:], safe, safe, seed=3, first_pair=4)
    assert whole.moves[8:] == later.moves
    assert play_match_from(DICE_RACE, starts, safe, safe, seed=4).moves != whole.moves


def test_openings_of_a_game_of_chance_are_possible_and_never_the_end() -> None:
    moves = draw_opening_moves(DICE_RACE, 50, 5, seed=1)
    for row in moves:
        state = DICE_RACE.initial_state()
        for move in row:
            DICE_RACE.play(state, int(move))
        assert not DICE_RACE.terminal(state)
    assert len(np.unique(moves, axis=0)) > 15


@pytest.fixture(scope="module")
def three_players() -> Game:
    return three_in_line()


@pytest.mark.medium
def test_among_three_players_the_first_has_each_seat_once_per_opening(three_players: Game) -> None:
    game, starts = three_players, make_opening_states(three_players, 8, 2, seed=1)
    result = play_match_from(game, starts, FirstLegal(game), RandomPlayer(game, 1), seed=1)
    assert result.scores.shape == (8, 3)
    assert result.wins + result.draws + result.losses == 24
    for number, moves in enumerate(result.moves):
        state = starts[number // 3].copy()
        for action in moves:
            if game.current_player(state) == number % 3:
                assert action == game.legal_actions(state)[0]
            game.play(state, action)
        assert (game.returns(state)[number % 3] + 1) / 2 == result.scores.ravel()[number]


@pytest.mark.medium
def test_the_mean_return_of_three_equal_players_is_their_share(three_players: Game) -> None:
    players = RandomPlayer(three_players, 1), RandomPlayer(three_players, 2)
    result = play_match(three_players, *players, pairs=300, opening_plies=0, seed=3)
    mean, margin = first_player_mean_return([result])
    assert margin is not None and abs(mean) < 2 * margin < 0.2  # 1 for the winner and -0.5 for the others
