"""Work in threads, at most so many at once."""

import threading
from collections.abc import Iterator

import pytest

from keima.base.system.threads import StepThreads, prefetch, run_in_parallel, wait_for_turn


def test_each_item_is_worked_on_once_and_everything_that_is_yielded_arrives_in_its_order() -> None:
    def work(item: int) -> Iterator[str]:
        yield f"{item} begins"
        yield f"{item} ends"

    said = list(run_in_parallel(work, range(20), at_once=4))
    assert len(said) == 40
    for item in range(20):
        assert [text for of, text in said if of == item] == [f"{item} begins", f"{item} ends"]


def test_as_many_are_in_work_at_once_as_is_allowed_and_no_more() -> None:
    together, lock, at_work, most = threading.Barrier(3, timeout=240), threading.Lock(), set[int](), list[int]()

    def work(item: int) -> Iterator[int]:
        with lock:
            at_work.add(item)
            most.append(len(at_work))
        together.wait()  # breaks unless three are here at once
        with lock:
            at_work.remove(item)
        yield item

    assert sorted(item for item, _ in run_in_parallel(work, range(12), at_once=3)) == list(range(12))
    assert max(most) == 3


def test_nothing_is_begun_for_nothing() -> None:
    assert list(run_in_parallel(lambda item: iter([item]), [], at_once=3)) == []


def test_an_error_reaches_the_caller_and_ends_the_work() -> None:
    begun = []

    def work(item: int) -> Iterator[int]:
        begun.append(item)
        raise ValueError(f"item {item} is bad")
        yield item

    with pytest.raises(ValueError, match="item 0 is bad"):
        list(run_in_parallel(work, range(5), at_once=1))
    assert begun == [0]


def test_if_the_caller_stops_listening_no_further_item_is_begun() -> None:
    begun, go_on = [], threading.Event()

    def work(item: int) -> Iterator[int]:
        begun.append(item)
        yield item
        go_on.wait(20)

    results = run_in_parallel(work, range(5), at_once=1)
    assert next(results) == (0, 0)
    before = threading.active_count()
    results.close()  # type: ignore[attr-defined]
    go_on.set()
    while threading.active_count() >= before:
        pass
    assert begun == [0]


def test_at_most_so_many_threads_have_their_turn_under_one_name() -> None:
    with (
        wait_for_turn("one", 2, 0.0) as first,
        wait_for_turn("one", 2, 0.0) as second,
        wait_for_turn("another", 2, 0.0) as other,
    ):
        assert first and second and other
        with wait_for_turn("one", 2, 0.01) as third:
            assert not third
    with wait_for_turn("one", 2, 0.0) as again, wait_for_turn("one", 2, 0.0) as and_again:
        assert again and and_again


def test_threads_take_steps_at_the_same_time_when_they_are_told_to() -> None:
    together, steps = threading.Barrier(2, timeout=240), [0, 0, 0]

    def step(number: int) -> int:
        together.wait()  # breaks unless two are here at once
        steps[number] += 1
        return number

    threads = StepThreads([lambda: step(0), lambda: step(1), lambda: step(2)], name="test")
    for pair in ((0, 1), (1, 2)):
        for number in pair:
            threads.begin_step(number)
        taken: list[int] = []
        while threads.busy:
            taken += threads.take_results()
        assert sorted(taken) == list(pair)
    assert steps == [1, 2, 1] and threads.take_results() == []


def test_the_error_of_a_step_reaches_whoever_takes_its_result_and_the_thread_goes_on() -> None:
    results = iter([ValueError("bad"), 5])

    def step() -> int:
        result = next(results)
        if isinstance(result, ValueError):
            raise result
        return result

    threads = StepThreads([step], name="test")
    threads.begin_step(0)
    with pytest.raises(ValueError, match="bad"):
        threads.take_results()
    threads.begin_step(0)
    assert threads.take_results() == [5]


def test_threads_end_with_what_they_belong_to() -> None:
    threads = StepThreads([lambda: 1], name="short-lived")
    threads.begin_step(0)
    assert threads.take_results() == [1]
    del threads
    while any(thread.name.startswith("short-lived") for thread in threading.enumerate()):
        pass


def test_the_next_item_is_made_while_the_caller_works_with_the_last() -> None:
    made, begun = list[int](), threading.Semaphore(0)

    def make(number: int) -> int:
        begun.release()
        made.append(number)
        return 10 * number

    items = prefetch(make, range(3, 6))
    assert next(items) == 30
    for _ in range(2):
        assert begun.acquire(timeout=240)  # 4 is made before it is asked for
    assert list(items) == [40, 50]
    assert made == [3, 4, 5] and list(prefetch(make, range(0))) == []


def test_nothing_is_being_made_once_the_caller_has_stopped_early() -> None:
    going, ended = threading.Event(), list[int]()

    def make(number: int) -> int:
        if number:
            going.set()
        ended.append(number)
        return number

    items = prefetch(make, range(9))
    next(items)
    assert going.wait(240)
    items.close()  # type: ignore[attr-defined]
    assert ended == [0, 1]
