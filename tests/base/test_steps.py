import pytest

from keima.base.steps import Steps, Turns, run_steps


def counting(count: int, closed: list[bool]) -> Steps[str]:
    try:
        for number in range(count):
            yield number % 2 == 0
    finally:
        closed.append(True)
    return "done"


def test_all_steps_are_done_with_a_poll_before_each_and_a_wait_where_others_are_waited_for() -> None:
    calls: list[str] = []
    result = run_steps(counting(3, []), poll=lambda: calls.append("poll"), wait=lambda: calls.append("wait"))
    assert result == "done"
    assert calls == ["poll", "poll", "wait", "poll", "poll"]


def test_an_exception_from_a_poll_ends_the_work() -> None:
    closed: list[bool] = []
    polls = iter([None, InterruptedError])

    def poll() -> None:
        if error := next(polls):
            raise error

    with pytest.raises(InterruptedError):
        run_steps(counting(3, closed), poll=poll)
    assert closed == [True]


def test_work_beside_gets_its_share_of_the_time() -> None:
    turns, taken = Turns(0.25), {"beside": 0.0, "main": 0.0}
    for _ in range(1000):
        if turns.is_side_work_next():
            turns.count_side_work(2.0)
            taken["beside"] += 2.0
        else:
            turns.count_main_work(0.5)
            taken["main"] += 0.5
    assert taken["beside"] / sum(taken.values()) == pytest.approx(0.25, abs=0.01)


def test_work_beside_gets_all_the_time_while_there_is_nothing_else_to_do() -> None:
    turns = Turns(0.25)
    turns.count_side_work(100.0)
    assert not turns.is_side_work_next()
    turns.count_main_work(0.0, idle=True)
    assert turns.is_side_work_next()
