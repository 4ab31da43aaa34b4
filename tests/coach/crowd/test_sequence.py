"""Which games a worker was given, and in which order they count."""

from keima.base.random import seed_stream
from keima.coach.crowd.sequence import MOST_WAITING, InOrder, KnownGames

SEED, WORKER = 7, "crowd-a-1"


def seeds(numbers: range, *, start: int = 0, worker: str = WORKER) -> list[int]:
    return [seed_stream(SEED, worker, start, number) for number in numbers]


def place(known: KnownGames, wanted: list[int], first_game: int) -> dict[int, tuple[int, int]]:
    known.note_batch(first_game, len(wanted))
    return known.place_games(wanted, run_seeds=[SEED], worker=WORKER, first_game=first_game, games=len(wanted))


def test_games_of_a_worker_s_processes_are_its_own_once() -> None:
    known = KnownGames()
    first, second = seeds(range(10)), seeds(range(10, 20), start=10)
    assert list(place(known, first, 0).values()) == [(0, number) for number in range(10)]
    assert list(place(known, second, 10).values()) == [(10, number) for number in range(10, 20)]
    assert place(known, [*first[:5], *seeds(range(20, 25), start=10)], 20).keys() == set(seeds(range(20, 25), start=10))
    assert known.starts == [10, 0]


def test_games_of_others_and_of_no_one_are_not() -> None:
    known = KnownGames()
    assert place(known, [*seeds(range(3), worker="crowd-b-1"), 1, 2, 3], 0) == {}


def test_a_process_may_begin_after_a_batch_that_was_rejected() -> None:
    known = KnownGames()
    known.note_batch(0, 10)
    assert len(place(known, seeds(range(12, 22), start=10), 20)) == 10


def test_a_long_game_comes_when_a_gpu_has_played_thousands_of_others() -> None:
    known = KnownGames()
    assert len(place(known, seeds(range(100, 110)), 0)) == 10
    assert place(known, seeds(range(3)), 20_000) == {seed: (0, number) for number, seed in enumerate(seeds(range(3)))}


def test_games_count_in_the_order_of_their_numbers() -> None:
    order = InOrder[str]()
    assert order.add(0, 2, "c") == []
    assert order.add(0, 0, "a") == ["a"]
    assert order.add(0, 1, "b") == ["b", "c"]
    assert order.add(0, 1, "again") == []
    assert order.add(0, 4, "e") == []
    assert order.add(10, 10, "of the next process") == ["of the next process"]
    assert order.add(0, 3, "d") == [], "the earlier process is gone, and which games it lost is not known"


def test_a_game_that_never_comes_does_not_hold_up_the_others_for_ever() -> None:
    order = InOrder[int]()
    ready = [thing for number in range(1, MOST_WAITING + 3) for thing in order.add(0, number, number)]
    assert ready == list(range(1, MOST_WAITING + 3))
