"""The slots of self-play: games begin, request evaluations, get answers, and make room."""

from typing import Any

import numpy as np
import pytest

from keima.data.records import RANDOM_MOVE
from keima.games.game import Planes
from keima.self_play.parallel_games import SelfPlay
from tests.search.naive_search import Floats, StubEvaluator
from tests.self_play.test_self_play import CONNECT_FOUR, QUICK, TIC_TAC_TOE, play, play_on, same


@pytest.mark.parametrize("leaves_per_tree", [1, 3])
def test_every_game_requests_something_in_every_step(leaves_per_tree: int) -> None:
    plain, sizes = StubEvaluator(TIC_TAC_TOE), []

    def evaluate(observations: Planes) -> tuple[Floats, Floats]:
        sizes.append(len(observations))
        return plain(observations)

    settings = QUICK.model_copy(update={"leaves_per_tree": leaves_per_tree})
    self_play = SelfPlay(TIC_TAC_TOE, evaluate, settings, parallel_games=20)
    self_play.begin(range(20))
    while playing := self_play.num_playing:
        self_play.advance()
        assert playing <= sizes[-1] <= playing * leaves_per_tree


def test_a_slot_is_free_again_when_its_game_is_over() -> None:
    self_play = SelfPlay(TIC_TAC_TOE, StubEvaluator(TIC_TAC_TOE), QUICK, parallel_games=3)
    assert (self_play.num_idle(), self_play.num_playing) == (3, 0)
    self_play.begin([1, 2])
    assert (self_play.num_idle(), self_play.num_playing) == (1, 2)
    records = play_on(self_play, list(range(3, 12)))
    assert [record.seed for record in records] == list(range(1, 12))
    assert (self_play.num_idle(), self_play.num_playing) == (3, 0)
    assert self_play.advance() == []


def test_more_games_than_slots_are_refused() -> None:
    self_play = SelfPlay(TIC_TAC_TOE, StubEvaluator(TIC_TAC_TOE), QUICK, parallel_games=2)
    with pytest.raises(ValueError):
        self_play.begin([1, 2, 3])


def test_games_may_begin_with_given_moves() -> None:
    openings = [np.array(moves, np.int32) for moves in ([4, 0, 8], [], [0])]
    self_play = SelfPlay(TIC_TAC_TOE, StubEvaluator(TIC_TAC_TOE), QUICK, parallel_games=3)
    self_play.begin([1, 2, 3], openings)
    records = sorted(play_on(self_play, []), key=lambda record: record.seed)
    for record, opening in zip(records, openings, strict=True):
        given = len(opening)
        assert record.actions[:given].tolist() == opening.tolist() and len(record.actions) > given
        assert (record.flags[:given] == RANDOM_MOVE).all() and not record.policy_sizes[:given].any()
        replayed = TIC_TAC_TOE.initial_state()
        for action in record.actions.tolist():
            TIC_TAC_TOE.play(replayed, action)
        assert TIC_TAC_TOE.terminal(replayed) and record.returns.tolist() == TIC_TAC_TOE.returns(replayed).tolist()
    assert same([records[1]], play(TIC_TAC_TOE, QUICK, 1, first_seed=2))  # without an opening, a game is unchanged


@pytest.mark.parametrize(
    ("logits", "values"),
    [
        (np.full((1, 9), np.nan), np.zeros(1)),
        (np.zeros((1, 9)), np.full(1, np.inf)),
        (np.zeros((1, 8)), np.zeros(1)),
        (np.zeros((1, 9)), np.zeros((1, 1))),
        (np.zeros((2, 9)), np.zeros(2)),
    ],
)
def test_answers_that_compiled_code_could_not_trust_are_refused(logits: Any, values: Any) -> None:
    self_play = SelfPlay(TIC_TAC_TOE, lambda planes: (logits, values), QUICK, parallel_games=1)
    self_play.begin([1])
    with pytest.raises(ValueError, match="the network returned"):
        self_play.advance()


def test_games_continue_after_refused_answers() -> None:
    broken = False

    def evaluate(observations: Planes) -> tuple[Floats, Floats]:
        logits, values = StubEvaluator(CONNECT_FOUR)(observations)
        return (logits * np.nan if broken else logits), values

    self_play = SelfPlay(CONNECT_FOUR, evaluate, QUICK, parallel_games=5)
    self_play.begin(range(100, 105))
    for step in range(40):
        broken = step % 3 == 1
        if broken:
            with pytest.raises(ValueError, match="NaN or infinity"):
                self_play.advance()
        else:
            self_play.advance()
    broken = False
    assert same(play_on(self_play, []), play(CONNECT_FOUR, QUICK, 5))


def test_answers_in_another_precision_or_order_are_understood() -> None:
    plain = StubEvaluator(CONNECT_FOUR)

    def doubles(observations: Planes) -> Any:
        logits, values = plain(observations)
        return np.asfortranarray(logits.astype(np.float64)), values.astype(np.float64)

    assert same(play(CONNECT_FOUR, QUICK, 5, evaluate=doubles), play(CONNECT_FOUR, QUICK, 5))


def test_games_in_the_cache_need_no_network() -> None:
    evaluator = StubEvaluator(TIC_TAC_TOE)
    self_play = SelfPlay(TIC_TAC_TOE, evaluator, QUICK, parallel_games=4, cache_positions=1_000_000)
    first = play_on(self_play, list(range(40)))
    asked = evaluator.positions
    assert same(play_on(self_play, list(range(40))), first)
    assert evaluator.positions == asked


def test_a_game_finished_by_the_cache_is_not_lost_with_refused_answers() -> None:
    stub, broken = StubEvaluator(TIC_TAC_TOE), False

    def evaluate(observations: Planes) -> tuple[Floats, Floats]:
        logits, values = stub(observations)
        return (logits * np.nan if broken else logits), values

    self_play = SelfPlay(TIC_TAC_TOE, evaluate, QUICK, parallel_games=2, cache_positions=1_000_000)
    (known,) = play_on(self_play, [1])
    self_play.begin([1, 2])  # the first is played at once, from the cache; the second needs the network
    broken = True
    with pytest.raises(ValueError, match="NaN or infinity"):
        self_play.advance()
    broken = False
    records = play_on(self_play, [])
    assert [record.seed for record in records] == [1, 2]
    assert same(records[:1], [known])
    assert self_play.num_idle() == 2
