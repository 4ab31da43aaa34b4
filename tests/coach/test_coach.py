"""The Coach, on tic-tac-toe with one worker in the same process."""

from dataclasses import replace
from pathlib import Path

import pytest

from keima.base.reports.run_reports import EvaluationReport
from keima.base.steps import Steps
from keima.cli.reports.audit import audit
from keima.coach.backends.backend import InlineBackend
from keima.coach.backends.pending_batch import PendingBatch
from keima.coach.fingerprint import fingerprint
from keima.coach.forecast import LAWS, Law
from keima.coach.loop import Coach
from keima.data.ledger import read_ledger
from keima.networks.files.heading import stored_sha256
from keima.networks.files.model import Model, decode_model
from tests.coach.coaching import FakeEvaluation, Listener, coaching, inline
from tests.small_run import GAME, small_settings

FEW_SAMPLES = {"samples_per_position": 0.5}  # where nothing is asked of learning


@pytest.mark.medium
def test_a_run_completes_its_iterations_and_its_ledger_balances(tmp_path: Path) -> None:
    listener = Listener()
    with coaching(tmp_path, small_settings(tmp_path), listeners=[listener]) as coach:
        last = coach.run()
    assert [report.iteration for report in listener.reports] == [1, 2]
    assert last == listener.reports[-1]
    assert all(report.self_play.games >= 20 for report in listener.reports)
    assert not audit(tmp_path).problems
    with read_ledger(tmp_path) as ledger:
        assert len(ledger.iterations()) == 2
        assert sum(row.games for row in ledger.received_batches()) >= last.total_games


@pytest.mark.medium
def test_no_more_samples_are_drawn_than_the_new_positions_allow(tmp_path: Path) -> None:
    listener = Listener()
    with coaching(tmp_path, small_settings(tmp_path, run={"iterations": 4}), listeners=[listener]) as coach:
        coach.run()
        drawn = sum(report.learner.samples for report in listener.reports if report.learner)
        allowed = 2.0 * coach.state.total_samples
        assert 0 < drawn <= allowed
        assert drawn + coach.state.owed_samples == allowed


@pytest.mark.medium
@pytest.mark.parametrize(("steps", "size"), [(10_000, 32), (1, 48)])
def test_batches_leave_about_so_many_steps_for_the_run(tmp_path: Path, steps: int, size: int) -> None:
    listener, training = Listener(), {"batch_size": 48, "steps_per_run": steps}
    with coaching(tmp_path, small_settings(tmp_path, training=training), listeners=[listener]) as coach:
        coach.run()
    learned = [report.learner for report in listener.reports if report.learner]
    assert learned and all(report.samples == size * report.steps for report in learned)


@pytest.mark.medium
def test_models_can_be_published_within_an_iteration(tmp_path: Path) -> None:
    settings = small_settings(
        tmp_path, training={"steps_per_model": 2, "samples_per_position": 1.0}, run={"iterations": 2}
    )
    listener = Listener()
    with coaching(tmp_path, settings, listeners=[listener]) as coach:
        last = coach.run()
        published = [row.version for row in coach.ledger.models()]
    steps = sum(report.learner.steps for report in listener.reports if report.learner)
    assert last and published == list(range(1, last.model_version + 1))
    assert steps / 2 - 2 <= len(published) - 1 <= steps / 2 + 2


@pytest.mark.medium
def test_nothing_is_learned_before_the_window_is_large_enough(tmp_path: Path) -> None:
    listener = Listener()
    settings = small_settings(tmp_path, training={"window": {"min_positions": 100_000, "max_positions": 100_000}})
    with coaching(tmp_path, settings, listeners=[listener]) as coach:
        coach.run()
        assert coach.learner.step == 0
    assert [report.learner for report in listener.reports] == [None, None]
    with read_ledger(tmp_path) as ledger:
        assert [model.version for model in ledger.models()] == [1]


@pytest.mark.medium
def test_the_window_grows_with_the_games_and_forgets_the_oldest(tmp_path: Path) -> None:
    window = {"min_positions": 50, "max_positions": 10_000, "growth_exponent": 0.5}
    with coaching(tmp_path, small_settings(tmp_path, training={"window": window})) as coach:
        coach.run()
        grown = int(50 * (coach.state.total_samples / 50) ** 0.5)
        assert grown - 9 <= coach.window.num_positions <= grown


@pytest.mark.medium
def test_games_keep_arriving_while_the_coach_trains_and_evaluates(tmp_path: Path) -> None:
    counts = []
    settings = small_settings(tmp_path, run={"iterations": 1}, evaluation={"every": 1})
    with coaching(tmp_path, settings, evaluation=(watching := FakeEvaluation())) as coach:
        watching.in_between = lambda: counts.append(coach.state.total_games)
        coach.run()
        assert coach.state.total_games > counts[0] >= 20


@pytest.mark.medium
def test_in_synchronous_mode_an_iteration_has_exactly_its_games_and_one_model(tmp_path: Path) -> None:
    listener = Listener()
    settings = small_settings(tmp_path, run={"iterations": 3}, training={"asynchronous": False})
    with coaching(tmp_path, settings, listeners=[listener]) as coach:
        coach.run()
    assert [report.self_play.games for report in listener.reports] == [20, 20, 20]
    with read_ledger(tmp_path) as ledger:
        models = [{row.first_model, row.last_model} for row in ledger.received_batches()]
    assert models == [{1}, {1}, {2}, {2}, {3}, {3}]


@pytest.mark.medium
def test_the_network_grows_during_a_run_which_goes_on_with_the_larger_one(tmp_path: Path) -> None:
    network = {"growth": ["2x12@0.4", "3x16@0.9"]}

    def run(iterations: int) -> list[str]:
        listener = Listener()
        settings = small_settings(tmp_path, run={"iterations": iterations}, network=network, training=FEW_SAMPLES)
        with coaching(tmp_path, settings, listeners=[listener]) as coach:
            coach.run()
            assert coach.state.grown == 1
        return listener.events

    assert "the network grows to 2 blocks and 12 channels" in run(4)
    assert not [event for event in run(5) if "grows" in event], "it has grown before"
    assert not audit(tmp_path).problems
    with read_ledger(tmp_path) as ledger:
        files = [tmp_path / row.path for row in ledger.models()]
        played = {row.last_model for row in ledger.received_batches()}
    channels = [decode_model(path.read_bytes()).description.network["channels"] for path in files]
    assert sorted(channels) == channels and set(channels) == {8, 12}
    assert max(played) > channels.index(12) + 1, "a worker has played with the larger one"


@pytest.mark.medium
def test_a_refused_candidate_leaves_the_old_model_in_play(tmp_path: Path) -> None:
    listener, evaluation = Listener(), FakeEvaluation(refused={2})
    settings = small_settings(tmp_path, training={"asynchronous": False}, evaluation={"every": 1})
    with coaching(tmp_path, settings, evaluation=evaluation, listeners=[listener]) as coach:
        coach.run()
        assert coach.state.model_version == 3
    assert evaluation.asked == [2, 3]
    assert evaluation.measured == [1, 3]
    assert [report.model_version for report in listener.reports] == [1, 3]
    assert any("model 2 is rejected: it is not stronger than model 1" in text for text in listener.events)
    with read_ledger(tmp_path) as ledger:
        assert [model.accepted for model in ledger.models()] == [True, False, True]
        assert {row.last_model for row in ledger.received_batches()} == {1}


@pytest.mark.medium
def test_a_stop_during_a_measurement_ends_it_and_the_iteration_counts(tmp_path: Path) -> None:
    evaluation = FakeEvaluation()
    with coaching(tmp_path, small_settings(tmp_path, evaluation={"every": 1}), evaluation=evaluation) as coach:
        evaluation.in_between = lambda: setattr(coach, "stop_requested", True)
        coach.run()
        assert (coach.state.iteration, evaluation.measured) == (1, [])


@pytest.mark.medium
def test_a_run_ends_at_its_time_limit(tmp_path: Path) -> None:
    now = [100.0]

    def clock() -> float:
        now[0] += 2.0
        return now[0]

    with coaching(tmp_path, small_settings(tmp_path, run={"iterations": None, "minutes": 1.0}), clock=clock) as coach:
        coach.run()
        assert coach.state.seconds >= 60
        assert coach.state.iteration >= 1
    now[0] += 1e6
    with coaching(tmp_path, small_settings(tmp_path, run={"iterations": None, "minutes": 1.0}), clock=clock) as coach:
        assert coach.run() is None


def stop_after(coach: Coach, looks: int) -> None:
    """Request a stop at the ``looks``-th poll of the workers."""
    collect, count = coach.backend.collect, [0]

    def collect_and_count() -> list[PendingBatch]:
        count[0] += 1
        coach.stop_requested = coach.stop_requested or count[0] >= looks
        return collect()

    coach.backend.collect = collect_and_count  # type: ignore[method-assign]


@pytest.mark.medium
@pytest.mark.parametrize(
    ("looks", "asynchronous"),
    [
        (6, True),
        (2, False),
        pytest.param(2, True, marks=pytest.mark.slow),
        pytest.param(6, False, marks=pytest.mark.slow),
    ],
)
def test_a_stopped_run_continues_exactly_where_it_was(tmp_path: Path, looks: int, asynchronous: bool) -> None:
    settings = small_settings(tmp_path, run={"iterations": 3}, training={"asynchronous": asynchronous, **FEW_SAMPLES})
    with coaching(tmp_path, settings) as coach:
        stop_after(coach, looks)
        coach.run()
        before = fingerprint(coach.learner.state(), coach.window), vars(coach.state)
        played = coach.state.total_games
    with coaching(tmp_path, settings) as coach:
        assert (fingerprint(coach.learner.state(), coach.window), vars(coach.state)) == before
        assert coach.state.total_games == played
        coach.run()
        assert coach.state.iteration == 3
        assert asynchronous or coach.state.total_games == 60
    assert not audit(tmp_path).problems


@pytest.mark.medium
def test_games_received_after_the_last_checkpoint_count_in_the_next_session(tmp_path: Path) -> None:
    settings = small_settings(tmp_path, run={"iterations": 9})
    with coaching(tmp_path, settings) as coach:
        coach.start()
        coach.conclude(coach.gather(), coach.learn(), None)
        counted = coach.state.total_games
        while coach.state.total_games == counted:
            coach.poll()
        received = coach.state.total_games
    with coaching(tmp_path, settings) as coach:
        assert coach.state.total_games == counted
        coach.start()
        assert coach.state.total_games == received
        assert coach.gather().games >= received - counted


@pytest.mark.medium
def test_a_damaged_model_file_does_not_prevent_a_run_from_being_resumed(tmp_path: Path) -> None:
    settings, listener = small_settings(tmp_path), Listener()
    with coaching(tmp_path, settings) as coach:
        coach.run()
        version = coach.state.model_version
    (tmp_path / "models" / f"model-{version:06d}.model").write_bytes(b"gone")
    with coaching(tmp_path, small_settings(tmp_path, run={"iterations": 3}), listeners=[listener]) as coach:
        coach.run()
        assert coach.state.iteration == 3
        assert coach.state.model_version > version
    assert any(f"model {version} cannot be read" in text for text in listener.events)


def test_models_are_stored_and_sent_uncompressed_if_compression_is_off(tmp_path: Path) -> None:
    files = []
    for compression in (True, False):
        folder = tmp_path / str(compression)
        folder.mkdir()
        with coaching(
            folder, small_settings(tmp_path, run={"iterations": 1}, distributed={"compression": compression})
        ) as coach:
            coach.start()
            sent = (folder / "workers" / "inline" / "inbox" / "model-000001.model").read_bytes()
            files.append((folder / "models" / "model-000001.model").read_bytes())
            assert sent == files[-1]
    assert stored_sha256(files[0]) == stored_sha256(files[1]) and len(files[0]) < len(files[1])


@pytest.mark.medium
def test_a_finished_run_starts_no_worker(tmp_path: Path) -> None:
    settings = small_settings(tmp_path)
    with coaching(tmp_path, settings) as coach:
        coach.run()
    with coaching(tmp_path, settings) as coach:
        backend = inline(tmp_path, settings, coach.ledger.run_id)
        backend.publish = lambda version, model: pytest.fail("a model was published")  # type: ignore[method-assign]
        coach.backend = backend
        assert coach.run() is None


@pytest.mark.medium
def test_strength_is_measured_at_the_set_interval_and_after_the_last_iteration(tmp_path: Path) -> None:
    listener, training = Listener(), {"asynchronous": False, **FEW_SAMPLES}
    settings = small_settings(tmp_path, run={"iterations": 5}, training=training, evaluation={"every": 3})
    with coaching(tmp_path, settings, evaluation=FakeEvaluation(), listeners=[listener]) as coach:
        coach.run()
    assert [report.evaluation is not None for report in listener.reports] == [False, False, True, False, True]


@pytest.mark.medium
def test_in_asynchronous_mode_strength_is_measured_beside_playing_and_reported_with_a_later_iteration(
    tmp_path: Path,
) -> None:
    listener, evaluation = Listener(), FakeEvaluation()
    settings = small_settings(tmp_path, run={"iterations": 5}, evaluation={"every": 3})
    with coaching(tmp_path, settings, evaluation=evaluation, listeners=[listener]) as coach:
        coach.run()
    measured = [report.evaluation and report.evaluation.model_version for report in listener.reports]
    assert measured == [None, None, None, listener.reports[2].model_version, listener.reports[4].model_version]
    assert evaluation.beside == measured[3:4]
    assert not any(look.phase == "evaluating" for look in listener.looks if look.iteration <= 4)


@pytest.mark.medium
@pytest.mark.parametrize("has_ended", [False, True])
def test_a_measurement_beside_playing_whose_report_a_stop_has_lost_is_begun_again(
    tmp_path: Path, has_ended: bool
) -> None:
    evaluation = FakeEvaluation()
    settings = small_settings(tmp_path, run={"iterations": 4}, evaluation={"every": 2})
    with coaching(tmp_path, settings, evaluation=evaluation) as coach:
        setattr(
            evaluation,
            "at_the_end" if has_ended else "in_between",
            lambda: setattr(coach, "stop_requested", True),
        )
        coach.run()
        interrupted = coach.state.model_version
        assert (coach.state.iteration, evaluation.measured) == (2, [interrupted] if has_ended else [])
    listener, evaluation = Listener(), FakeEvaluation()
    with coaching(tmp_path, settings, evaluation=evaluation, listeners=[listener]) as coach:
        coach.run()
        assert (evaluation.measured, coach.state.measuring) == ([interrupted, coach.state.model_version], 0)
    assert [report.evaluation is not None for report in listener.reports] == [True, True]


@pytest.mark.slow
def test_a_measurement_that_takes_longer_than_its_interval_delays_the_next(tmp_path: Path) -> None:
    evaluation, steps = FakeEvaluation(), 0

    class Slow(FakeEvaluation):
        def measure(self, model: Model, *, beside: bool = False) -> Steps[EvaluationReport]:
            nonlocal steps
            first = coach.state.iteration
            while beside and coach.state.iteration < first + 3:
                steps += 1
                yield False
            return (yield from super().measure(model, beside=beside))

    evaluation = Slow()
    settings = small_settings(tmp_path, run={"iterations": 8}, evaluation={"every": 1})
    with coaching(tmp_path, settings, evaluation=evaluation) as coach:
        coach.run()
    assert steps > 0
    assert 1 <= len(evaluation.beside) <= 2
    assert evaluation.measured[-1] not in evaluation.beside


class ExactEvaluation(FakeEvaluation):
    """Also counts the errors of a search."""

    def measure(self, model: Model, *, beside: bool = False) -> Steps[EvaluationReport]:
        report = yield from super().measure(model, beside=beside)
        return replace(report, search_error=0.3 / model.model_version, search_error_margin=0.02)


def test_a_measured_strength_comes_with_what_to_expect_at_the_end(tmp_path: Path) -> None:
    listener, settings = (
        Listener(),
        small_settings(tmp_path, training=FEW_SAMPLES, run={"iterations": 4}, evaluation={"every": 1}),
    )
    with coaching(tmp_path, settings, evaluation=ExactEvaluation(), listeners=[listener]) as coach:
        coach.run()
    measured = [report.evaluation for report in listener.reports if report.evaluation]
    assert all(each.expected_error is not None and each.expected_error < 0.3 for each in measured[:-1])
    assert measured[-1].expected_error is None, "this is the end"


def test_earlier_runs_that_cannot_be_read_now_cost_only_the_forecast(tmp_path: Path) -> None:
    answers = [OSError("no space left on the disk"), LAWS]

    def read_laws() -> dict[str, Law]:
        answer = answers.pop(0)
        if isinstance(answer, OSError):
            raise answer
        return answer

    listener = Listener()
    training = {**FEW_SAMPLES, "asynchronous": False}  # each iteration waits for its evaluation
    settings = small_settings(tmp_path, training=training, run={"iterations": 4}, evaluation={"every": 1})
    evaluation = ExactEvaluation()
    with coaching(tmp_path, settings, evaluation=evaluation, listeners=[listener], read_laws=read_laws) as coach:
        coach.run()
    first, second, *_ = [report.evaluation for report in listener.reports if report.evaluation]
    assert first.expected_error is None and second.expected_error is not None
    assert not answers, "they are read only once"


@pytest.mark.medium
def test_with_gating_a_measurement_is_waited_for(tmp_path: Path) -> None:
    listener, evaluation = Listener(), FakeEvaluation()
    settings = small_settings(
        tmp_path, training=FEW_SAMPLES, run={"iterations": 3}, evaluation={"every": 1, "gating": "sprt"}
    )
    with coaching(tmp_path, settings, evaluation=evaluation, listeners=[listener]) as coach:
        coach.run()
    assert [report.evaluation is not None for report in listener.reports] == [True, True, True]
    assert evaluation.beside == []


@pytest.mark.parametrize(
    ("training", "self_play", "expected"),
    [("cpu", "auto", "cpu"), ("cuda:1", "auto", "cuda:1"), ("cuda", "cpu", "cpu"), ("auto", "auto", "auto")],
)
def test_a_worker_in_the_coach_s_process_plays_on_the_device_of_the_settings(
    tmp_path: Path, training: str, self_play: str, expected: str
) -> None:
    settings = small_settings(tmp_path, training={"device": training}, self_play={"device": self_play})
    backend = InlineBackend(tmp_path, game=GAME, settings=settings, run_id="run")
    assert backend._worker.device == expected
