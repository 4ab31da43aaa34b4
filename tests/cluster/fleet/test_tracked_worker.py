"""A worker's state, and the actions taken, after any events in any order."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keima.base.reports.worker_status import WorkerState
from keima.cluster.fleet.tracked_worker import (
    Action,
    ActionFailed,
    AllActionsDone,
    Busy,
    Connected,
    ConnectionLost,
    Event,
    HeartbeatSeen,
    LogRead,
    MachineRefused,
    ModelSent,
    ProcessFound,
    ProcessStarted,
    Restart,
    Stop,
    Tick,
    Timing,
    TrackedWorker,
    new_tracked_worker,
    process_event,
    retry_seconds,
)

TIMING = Timing()


def beat(number: int, activity: str = "playing", *, version: int = 1, pid: int = 7, error: str = "") -> HeartbeatSeen:
    return HeartbeatSeen(pid=pid, beat=number, activity=activity, model_version=version, error=error)


class Story:
    """A worker to which things happen."""

    def __init__(self) -> None:
        self.now = 100.0
        self.worker = new_tracked_worker("worker1", self.now)
        self.actions: tuple[Action, ...] = ()

    def then(self, *events: Event, after: float = 0.0) -> "Story":
        self.now += after
        for event in events:
            self.worker, self.actions = process_event(self.worker, event, self.now, timing=TIMING)
        return self

    @property
    def state(self) -> WorkerState:
        return self.worker.state


def playing() -> Story:
    return Story().then(Connected(), ProcessFound(False), ModelSent(1), ProcessStarted(), beat(1), beat(2))


def test_a_worker_is_syncing_until_it_plays_with_the_model_sent_to_it() -> None:
    story = Story()
    assert (story.state, story.worker.reason) == (WorkerState.SYNCING, "connecting")
    assert story.then(Connected()).actions == (Action.ASK,)
    assert story.then(ProcessFound(False)).actions == (Action.START,)
    assert story.then(ModelSent(1), ProcessStarted(), beat(1, "starting", version=0)).state is WorkerState.SYNCING
    assert story.then(beat(2, "compiling", version=0)).state is WorkerState.SYNCING
    assert story.then(beat(3, version=1)).state is WorkerState.ACTIVE
    assert story.then(ModelSent(2)).state is WorkerState.SYNCING
    assert story.then(beat(4, version=2)).state is WorkerState.ACTIVE


def test_a_worker_that_still_runs_is_taken_over_without_being_started() -> None:
    story = Story().then(Connected(), beat(50, version=3), ProcessFound(True), ModelSent(3))
    assert story.actions == ()
    assert story.then(beat(51, version=3)).state is WorkerState.ACTIVE


def test_compiling_may_take_long_without_a_heartbeat() -> None:
    story = Story().then(
        Connected(),
        ProcessFound(False),
        ProcessStarted(),
        beat(1, "compiling", version=0),
        beat(2, "compiling", version=0),
    )
    for _ in range(200):
        story.then(ProcessFound(True), after=1.0)
        assert story.state is WorkerState.SYNCING
        assert Action.STOP not in story.actions


def test_a_lost_connection_is_offline_after_ten_seconds_of_silence_and_a_short_one_leaves_it_active() -> None:
    story = playing().then(ConnectionLost("no route"))
    assert story.then(Tick(), after=9.9).state is WorkerState.ACTIVE
    assert story.then(Tick(), after=0.2).state is WorkerState.OFFLINE
    assert story.worker.reason == "no route"
    assert (
        playing()
        .then(ConnectionLost("no route"), after=1.0)
        .then(Connected(), ProcessFound(True), beat(9), after=5.0)
        .state
        is WorkerState.ACTIVE
    )


def test_silence_is_counted_to_the_second() -> None:
    assert playing().then(ConnectionLost("no route"), Tick(), after=10.0).state is WorkerState.OFFLINE
    assert playing().then(Tick(), after=10.0).state is WorkerState.OFFLINE
    assert playing().then(Tick(), after=59.9).actions != (Action.STOP,)
    assert playing().then(Tick(), after=60.0).actions == (Action.STOP,)


def test_a_connection_or_a_start_is_a_sign_of_life_even_before_any_report() -> None:
    back = playing().then(ConnectionLost("no route"), Tick(), after=20.0).then(Connected(), ConnectionLost("no route"))
    assert back.state is WorkerState.SYNCING
    assert back.then(Tick(), after=10.0).state is WorkerState.OFFLINE
    started = (
        Story()
        .then(Connected())
        .then(ProcessFound(False), after=20.0)
        .then(ProcessStarted(), ConnectionLost("no route"))
    )
    assert started.state is WorkerState.SYNCING
    assert started.then(Tick(), after=10.0).state is WorkerState.OFFLINE


def test_a_silent_process_is_checked_every_two_seconds_and_no_more_often() -> None:
    story = playing()
    asked = []
    for _ in range(8):
        story.then(Tick(), after=0.5)
        asked.append(story.actions == (Action.ASK,))
        if asked[-1]:
            story.then(ProcessFound(True))
    assert asked == [False, False, False, True] * 2


def test_a_process_that_reports_its_end_is_checked_before_it_is_silent() -> None:
    story = playing().then(Tick(), after=2.0).then(ProcessFound(True)).then(beat(3, "ended"), after=1.9)
    assert story.actions == ()
    assert story.then(beat(4, "ended"), after=0.1).actions == (Action.ASK,)


def test_a_machine_that_was_never_reached_is_offline_at_once() -> None:
    assert Story().then(ConnectionLost("no such host")).state is WorkerState.OFFLINE


def test_a_frozen_process_is_offline_and_finally_ended_and_restarted() -> None:
    story = playing()
    assert story.then(Tick(), after=3.0).actions == (Action.ASK,)
    story.then(ProcessFound(True), beat(2), Tick(), after=8.0)
    assert story.state is WorkerState.OFFLINE
    assert story.then(Tick(), after=TIMING.frozen_seconds).actions == (Action.STOP,)
    assert story.then(ProcessFound(False)).actions == (Action.START,)


def test_a_dead_process_is_restarted_five_times_in_ten_minutes_and_no_more() -> None:
    story = Story().then(Connected(), ModelSent(1))
    starts = 0
    while story.then(ProcessFound(False), after=5.0).actions == (Action.START,):
        story.then(ProcessStarted())
        starts += 1
    assert starts == 1 + TIMING.restarts
    assert story.actions == (Action.TAIL,)
    story.then(LogRead("ImportError: no torch"))
    assert story.state is WorkerState.ERROR and not story.actions
    assert story.worker.reason.startswith("ended 6 times in 10 minutes; ")
    assert "ImportError: no torch" in story.worker.reason
    assert story.then(Tick(), after=3600).actions == ()
    assert story.then(Restart()).actions == (Action.START,)
    assert story.then(ProcessStarted(), beat(1), beat(2)).state is WorkerState.ACTIVE


def test_a_process_that_dies_rarely_is_always_restarted() -> None:
    story = Story().then(Connected(), ModelSent(1))
    for _ in range(30):
        assert story.then(ProcessFound(False), after=130.0).actions == (Action.START,)
        story.then(ProcessStarted())


def test_old_deaths_no_longer_count_once_a_process_has_lived_for_ten_minutes() -> None:
    story = Story().then(Connected(), ModelSent(1))
    for _ in range(1 + TIMING.restarts):
        assert story.then(ProcessFound(False), after=1.0).actions == (Action.START,)
        story.then(ProcessStarted())
    story.then(beat(1), beat(2))
    assert story.then(ProcessFound(False), after=TIMING.restart_window).actions == (Action.START,)


def test_an_error_reported_by_a_worker_lasts_until_the_worker_clears_it() -> None:
    story = playing().then(beat(3, "error", error="disk full"))
    assert (story.state, story.worker.reason) == (WorkerState.ERROR, "disk full")
    assert story.then(beat(4)).state is WorkerState.ACTIVE


def test_a_failure_of_the_machine_recovers_automatically() -> None:
    story = playing().then(ActionFailed("its disk is full"))
    assert (story.state, story.worker.reason) == (WorkerState.ERROR, "its disk is full")
    assert story.then(beat(3), AllActionsDone()).state is WorkerState.ACTIVE


def test_a_worker_that_waits_for_a_whole_model_is_syncing_unless_that_never_helps() -> None:
    asks = "the whole file of model 1 is needed: model-000001.model: its base is missing"
    story = playing().then(beat(3, "error", version=0, error=asks))
    assert (story.state, story.worker.reason) == (WorkerState.SYNCING, "waits for the whole file of model 1")
    assert story.then(beat(4)).state is WorkerState.ACTIVE
    for number in range(5, 5 + int(TIMING.model_seconds)):
        assert story.then(beat(number, "error", version=0, error=asks), after=1.0).state is WorkerState.SYNCING
    assert story.then(beat(100, "error", version=0, error=asks), after=1.0).state is WorkerState.ERROR
    assert story.worker.reason == asks


def test_a_refusal_is_an_error_however_long_it_lasts() -> None:
    story = Story().then(MachineRefused("its host key has changed"))
    for _ in range(10):
        assert story.then(Tick(), after=30.0).state is WorkerState.ERROR
    assert story.then(Busy("checking the machine")).state is WorkerState.ERROR
    assert story.then(Connected()).state is WorkerState.SYNCING


def test_a_refused_machine_is_offline_for_that_reason_once_it_is_due_for_a_retry() -> None:
    story = Story().then(MachineRefused("its host key has changed"), Restart())
    assert (story.state, story.worker.reason) == (WorkerState.OFFLINE, "its host key has changed")


def test_a_worker_that_is_receiving_a_model_is_not_silent() -> None:
    story = playing().then(Busy("model 2 is being sent"))
    assert story.then(Tick(), after=300.0).state is WorkerState.SYNCING
    assert story.then(Busy()).state is WorkerState.ACTIVE


def test_a_stopped_worker_stays_stopped_until_it_is_restarted() -> None:
    story = playing().then(Stop())
    assert story.actions == (Action.STOP,)
    story.then(ProcessFound(False))
    assert story.state is WorkerState.OFFLINE and not story.actions
    assert story.then(ConnectionLost("gone"), Connected(), ProcessFound(False), after=100.0).actions == ()
    assert story.then(Restart()).actions == (Action.START,)


def test_a_restart_first_ends_the_running_process_even_if_the_machine_comes_back_later() -> None:
    assert playing().then(Restart()).actions == (Action.STOP,)
    story = playing().then(ConnectionLost("gone"), Restart())
    assert story.actions == ()
    assert story.then(Connected(), ProcessFound(True)).actions == (Action.STOP,)
    assert story.then(ProcessFound(False)).actions == (Action.START,)
    assert story.then(ProcessStarted(), Tick()).actions == ()


def test_a_process_in_a_queue_is_syncing_for_the_reason_that_the_queue_names_however_long_it_takes() -> None:
    story = Story().then(Connected(), ProcessFound(False), ModelSent(1), ProcessStarted())
    story.then(ProcessFound(True, waits="waits for node3"), after=3.0)
    assert (story.state, story.worker.reason) == (WorkerState.SYNCING, "waits for node3")
    for _ in range(100):
        assert story.then(ProcessFound(True, waits="waits for node3"), after=100.0).actions == ()
    story.then(ProcessFound(True, start="1"), after=3.0)
    assert (story.state, story.worker.reason) == (WorkerState.SYNCING, "starting")
    assert story.then(beat(1), beat(2), after=30.0).state is WorkerState.ACTIVE


def test_a_process_that_a_scheduler_starts_elsewhere_is_syncing_and_neither_offline_nor_ended_as_frozen() -> None:
    story = playing().then(ProcessFound(True, start="1"), beat(3, "ended"))
    story.then(ProcessFound(True, waits="preempted"), after=2.0)
    assert (story.state, story.worker.reason) == (WorkerState.SYNCING, "preempted")
    assert story.then(ProcessFound(True, start="2"), after=500.0).state is WorkerState.SYNCING
    assert story.then(ProcessFound(True, start="2"), after=100.0).actions == ()
    assert story.state is WorkerState.SYNCING
    assert story.then(beat(1, pid=8), after=5.0).state is WorkerState.ACTIVE


def test_a_process_that_was_started_again_between_two_checks_has_yet_to_talk() -> None:
    story = playing().then(ProcessFound(True, start="1"))
    assert story.state is WorkerState.ACTIVE
    assert story.then(ProcessFound(True, start="2"), after=3.0).state is WorkerState.SYNCING


def test_a_process_that_must_not_be_started_again_is_in_error_until_the_user_restarts_it() -> None:
    story = playing().then(ProcessFound(False, error="cancelled"))
    assert (story.state, story.worker.reason, story.actions) == (WorkerState.ERROR, "cancelled", ())
    story.then(beat(3, "ended"), Tick(), after=500.0)
    assert (story.state, story.actions) == (WorkerState.ERROR, ())
    assert story.then(Restart()).actions == (Action.START,)
    assert story.then(ProcessStarted()).state is WorkerState.SYNCING


def test_a_queue_that_does_not_answer_is_an_error_until_it_does_or_the_worker_talks() -> None:
    story = playing().then(ProcessFound(True, error="no answer"), after=3.0)
    assert (story.state, story.worker.reason) == (WorkerState.ERROR, "no answer")
    assert story.then(ProcessFound(True, error="no answer"), after=500.0).actions == ()
    assert story.then(beat(3)).state is WorkerState.ACTIVE
    story.then(ProcessFound(True, error="no answer"), after=3.0).then(ProcessFound(True), beat(4), after=3.0)
    assert story.state is WorkerState.ACTIVE


EVENTS = st.one_of(
    st.sampled_from(
        [
            Connected(),
            ConnectionLost("gone"),
            MachineRefused("no"),
            ActionFailed("full"),
            AllActionsDone(),
            Busy("busy"),
            Busy(),
            ProcessFound(True),
            ProcessFound(True, start="1"),
            ProcessFound(True, start="2"),
            ProcessFound(True, waits="in a queue"),
            ProcessFound(True, error="the queue does not answer"),
            ProcessFound(False),
            ProcessFound(False, error="cancelled"),
        ]
    ),
    st.sampled_from([ProcessStarted(), LogRead("log"), Restart(), Stop(), Tick(), ModelSent(1), ModelSent(2)]),
    st.builds(
        beat,
        st.integers(0, 5),
        st.sampled_from(["starting", "compiling", "playing", "waiting", "error", "ended"]),
        version=st.integers(0, 2),
        pid=st.integers(1, 2),
    ),
)
HISTORIES = st.lists(st.tuples(EVENTS, st.sampled_from([0.0, 0.5, 3.0, 12.0, 100.0])), max_size=40)


def states_of(
    history: Sequence[tuple[Event, float]],
) -> list[tuple[float, Event, TrackedWorker, TrackedWorker, tuple[Action, ...]]]:
    state, now, found = new_tracked_worker("worker1", 0.0), 0.0, []
    for event, pause in history:
        now += pause
        before = state
        state, actions = process_event(state, event, now, timing=TIMING)
        found.append((now, event, before, state, actions))
    return found


@pytest.mark.medium
@given(HISTORIES)
def test_active_means_connected_running_heard_from_recently_and_up_to_date(
    history: Sequence[tuple[Event, float]],
) -> None:
    for now, _, _, state, _ in states_of(history):
        if state.state is WorkerState.ACTIVE and state.connected:
            assert state.running and state.has_reported and now - state.heard_at < TIMING.offline_seconds
            assert not (state.failure or state.refusal or state.given_up or state.busy or state.waits_for)
            assert state.model_version == state.sent_version
        elif state.state is WorkerState.ACTIVE:
            assert now - state.heard_at < TIMING.offline_seconds


@given(HISTORIES)
def test_since_is_when_the_state_changed_and_every_state_but_active_has_a_reason(
    history: Sequence[tuple[Event, float]],
) -> None:
    for now, _, before, state, _ in states_of(history):
        assert state.since == (before.since if state.state is before.state else now)
        assert state.reason or state.state in (WorkerState.ACTIVE, WorkerState.ERROR) or not state.connected


@given(HISTORIES)
def test_nothing_is_done_without_a_connection_and_nothing_is_started_needlessly(
    history: Sequence[tuple[Event, float]],
) -> None:
    for now, _, _, state, actions in states_of(history):
        assert len(actions) <= 1
        assert state.connected or not actions
        if actions == (Action.START,):
            assert state.running is False and not (state.stopped or state.given_up or state.process_error)
            recent = [start for start in state.starts if now - start < TIMING.restart_window]
            assert len(recent) <= TIMING.restarts
        if actions == (Action.STOP,):
            assert state.running


@given(HISTORIES)
def test_time_alone_changes_nothing_twice(history: Sequence[tuple[Event, float]]) -> None:
    for now, _, _, state, actions in states_of(history):
        again, actions_again = process_event(state, Tick(), now, timing=TIMING)
        assert (again, actions_again) == (state, actions)


@given(HISTORIES)
def test_from_anywhere_a_restart_on_a_good_machine_leads_to_active(history: Sequence[tuple[Event, float]]) -> None:
    found = states_of(history)
    now, state = (found[-1][0], found[-1][3]) if found else (0.0, new_tracked_worker("worker1", 0.0))
    good: list[Event] = [
        Restart(),
        Connected(),
        AllActionsDone(),
        ProcessFound(False),
        ModelSent(2),
        ProcessStarted(),
        beat(100, version=2, pid=9),
        beat(101, version=2, pid=9),
    ]
    for event in good:
        state, _ = process_event(state, event, now, timing=TIMING)
    assert state.state is WorkerState.ACTIVE


@pytest.mark.parametrize("failures", [0, 1, 5, 100, 10_000])
def test_retries_wait_anything_up_to_a_bound_that_doubles_up_to_the_cap(failures: int) -> None:
    assert retry_seconds(failures, outage=1e6, draw=0.0, timing=TIMING) == 0.0
    longest = retry_seconds(failures, outage=1e6, draw=1.0, timing=TIMING)
    assert longest == min(TIMING.retry_seconds, 0.5 * 2 ** min(failures, 20))


@pytest.mark.parametrize(("outage", "longest"), [(0.0, 0.5), (15.0, 7.5), (1000.0, TIMING.retry_seconds)])
def test_a_machine_that_is_back_is_missed_for_at_most_half_as_long_again(outage: float, longest: float) -> None:
    assert retry_seconds(100, outage=outage, draw=1.0, timing=TIMING) == longest
