"""The archive: games begin from the most surprising positions of earlier ones, and a seed gives the same games."""

import dataclasses
from typing import Any

import numpy as np
import pytest

from configs.schema import SearchSettings
from games import load_game
from games.game import Game
from tests.training.search.naive_search import StubEvaluator
from tests.training.self_play.test_self_play import CONNECT_FOUR, TIC_TAC_TOE, play_on, same
from training.data.records import CHANCE_OUTCOME, FULL_SEARCH, RANDOM_MOVE, GameRecord
from training.self_play.archive import NO_MOVES, Archive
from training.self_play.self_play import SelfPlay

SETTINGS = SearchSettings(num_simulations=16, cheap_simulations=6, archive_share=0.5, opening_random_moves=3.0)
MOVES = [3, 3, 2, 4, 1, 0, 0]


def record(
    *, seed: int = 1, moves: list[int] = MOVES, flags: Any = FULL_SEARCH, surprise: Any = 0.0, values: Any = 0.0
) -> GameRecord:
    """Return a game that the first player has won; flags, surprises and root values are one for all plies or a list."""
    plies = len(moves)
    return GameRecord(
        returns=np.array([1.0, -1.0], np.float32),
        first_model=1,
        last_model=1,
        seed=seed,
        resigned=0,
        actions=np.array(moves, np.int32),
        root_values=np.broadcast_to(np.array(values, np.float32), plies).copy(),
        flags=np.broadcast_to(np.array(flags, np.uint8), plies).copy(),
        surprise=np.broadcast_to(np.array(surprise, np.float32), plies).copy(),
        policy_sizes=np.zeros(plies, np.int32),
        policy_actions=np.empty(0, np.int32),
        policy_weights=np.empty(0, np.uint16),
    )


def archived(*records: GameRecord, game: Game = CONNECT_FOUR) -> list[tuple[int, ...]]:
    """Return the positions from which games begin once these have been played."""
    archive = Archive(game, share=1.0, capacity=100)
    for each in records:
        archive.add(each)
    archive.renew()
    return sorted({tuple(moves.tolist()) for moves in archive.openings(range(100))}, key=len)


def test_the_position_is_kept_where_search_changed_the_policy_most() -> None:
    assert archived(record(surprise=[0.9, 0.1, 0.1, 0.5, 0.1, 0.1, 0.1], values=[1, -1, 1, -1, 1, -1, 1])) == [
        tuple(MOVES[:3])
    ]  # never the start, where games begin anyway


def test_the_position_is_kept_whose_value_the_outcome_contradicts() -> None:
    values = [0, 0.2, 0.3, 0.9, 0.8, -0.9, 0.9]  # for the player to move: the second player thought to be winning
    assert archived(record(values=values)) == [tuple(MOVES[:3])]


def test_what_no_full_search_has_seen_is_not_kept() -> None:
    flags = [FULL_SEARCH, 0, 0, 0, FULL_SEARCH, 0, 0]
    assert archived(record(flags=flags, values=[0, 1, 1, 1, 0.5, 1, 1])) == [tuple(MOVES[:4])]
    assert archived(record(flags=0, values=1)) == [()]


def test_positions_before_a_random_move_are_not_kept_since_it_may_have_decided_the_game() -> None:
    flags = [FULL_SEARCH] * 3 + [FULL_SEARCH | RANDOM_MOVE] + [FULL_SEARCH] * 3
    assert archived(record(flags=flags, values=[0, 1, -1, 1, 0, -1, 1])) == [tuple(MOVES[:4])]


def test_points_tell_no_surprise_but_the_policy_does() -> None:
    game = load_game("twenty48")
    state, actions, flags = game.initial_state(), [], []
    for _ in range(6):
        chance = game.current_player(state) < 0
        actions.append(int((game.chance_outcomes(state)[0] if chance else game.legal_actions(state))[0]))
        flags.append(CHANCE_OUTCOME if chance else FULL_SEARCH)
        game.play(state, actions[-1])
    surprise = [0.0] * 6
    surprise[max(i for i in range(6) if flags[i] == FULL_SEARCH)] = 0.1
    points = record(moves=actions, flags=flags, surprise=surprise, values=50.0)
    points = dataclasses.replace(points, returns=np.array([1000.0], np.float32))
    assert archived(points, game=game) == [tuple(actions[: surprise.index(0.1)])]


def test_more_surprising_positions_are_drawn_more_often() -> None:
    archive = Archive(CONNECT_FOUR, share=1.0, capacity=10)
    archive.add(record(seed=1, surprise=[0, 3, 0, 0, 0, 0, 0], values=[1, -1] * 3 + [1]))
    archive.add(record(seed=2, surprise=[0, 0, 0, 0, 1, 0, 0], values=[1, -1] * 3 + [1]))
    archive.renew()
    lengths = np.array([len(moves) for moves in archive.openings(range(2000))])
    assert set(lengths) == {1, 4} and abs((lengths == 1).mean() - 0.75) < 0.04


def test_a_share_of_the_games_begins_from_the_archive_once_a_new_model_plays() -> None:
    archive = Archive(CONNECT_FOUR, share=0.3, capacity=10)
    archive.add(record(surprise=1.0))
    assert len(archive) == 0 and not any(len(moves) for moves in archive.openings(range(100)))
    archive.renew()
    assert abs(np.mean([len(moves) > 0 for moves in archive.openings(range(2000))]) - 0.3) < 0.04


def test_the_archive_holds_the_newest_games_whatever_the_order_in_which_games_of_a_model_end() -> None:
    def filled(seeds: list[int]) -> list[bytes]:
        archive = Archive(CONNECT_FOUR, share=1.0, capacity=5)
        for model in range(2):
            for seed in seeds if model else range(100, 120):
                ply = 1 + seed % 6
                archive.add(record(seed=seed, surprise=[float(i == ply) for i in range(7)], values=[1, -1] * 3 + [1]))
            archive.renew()
        assert len(archive) == 5
        return [moves.tobytes() for moves in archive.openings(range(100))]

    assert filled([1, 2, 3]) == filled([3, 1, 2]) != filled([1, 2, 10])
    assert filled(list(range(30))) == filled(list(range(30))[::-1])


def played(game: Game, *, parallel_games: int, settings: SearchSettings = SETTINGS) -> list[GameRecord]:
    """Return the games of three models, 40 each."""
    records = list[GameRecord]()
    self_play = SelfPlay(game, StubEvaluator(game), settings, parallel_games=parallel_games, cache_positions=1000)
    for model in range(3):
        self_play.change_model(model)
        records += play_on(self_play, list(range(40 * model, 40 * model + 40)))
    return records


@pytest.mark.medium
@pytest.mark.parametrize("name", ["tic_tac_toe", "connect_four", "twenty48"])
def test_games_from_the_archive_repeat_an_earlier_one_and_go_on_with_a_full_search(name: str) -> None:
    game = load_game(name)
    settings = SETTINGS.model_copy(update={"opening_random_moves": 0.0})
    records = played(game, parallel_games=16, settings=settings)
    begun = [number for number, each in enumerate(records) if (each.flags & RANDOM_MOVE).any()]
    assert 20 < len(begun) < 60 and min(begun) >= 40  # half of those of the second model and the third
    for number in begun:
        each, opening = records[number], 1 + int(np.flatnonzero(records[number].flags & RANDOM_MOVE)[-1])
        while each.flags[opening] & CHANCE_OUTCOME:
            opening += 1
        assert not each.policy_sizes[:opening].any() and each.flags[opening] & FULL_SEARCH
        earlier = [other.actions[:opening].tolist() for other in records[: number // 40 * 40]]
        assert each.actions[:opening].tolist() in earlier


@pytest.mark.medium
def test_the_games_of_a_seed_do_not_depend_on_how_many_are_played_side_by_side() -> None:
    few, many = (played(CONNECT_FOUR, parallel_games=count) for count in (3, 40))
    assert same(few, many)


def test_given_openings_come_before_the_archive_and_a_share_of_zero_changes_nothing() -> None:
    self_play = SelfPlay(TIC_TAC_TOE, StubEvaluator(TIC_TAC_TOE), SETTINGS, parallel_games=40)
    play_on(self_play, list(range(40)))
    self_play.change_model(1)
    self_play.begin(range(100, 110), [NO_MOVES] * 10)
    records = play_on(self_play, [])
    without = SelfPlay(
        TIC_TAC_TOE,
        StubEvaluator(TIC_TAC_TOE),
        SETTINGS.model_copy(update={"archive_share": 0.0}),
        parallel_games=40,
    )
    without.change_model(1)
    assert same(records, play_on(without, list(range(100, 110))))
