"""Evaluation games played by real worker processes."""

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import pytest
import torch

from keima.base.steps import run_steps
from keima.cli.reports.audit import audit
from keima.cluster.fleet.backend import Fleet
from keima.cluster.local.processes import LocalProcesses
from keima.coach.backends.folder_matches import FolderMatches
from keima.coach.opening import open_coach
from keima.config.schema import Settings
from keima.data.ledger import open_ledger
from keima.data.ledger_rows import make_model_row, model_path
from keima.evaluation.match import SearchPlayer
from keima.evaluation.match_jobs import Contestant, EvaluationJob
from keima.evaluation.match_worker import make_match_search, play_job
from keima.evaluation.remote_matches import MatchExecutors, MatchSpec, RemoteMatches
from keima.evaluation.strength import Strength
from keima.games import Game
from keima.networks.files.heading import stored_sha256
from keima.networks.files.model import Model, decode_model, describe_model, encode_model
from tests.cluster.local_fleet import Network, fleet_settings, open_fleet, worker_settings
from tests.cluster.small_project import end_all
from tests.small_run import GAME, NETWORK, model_bytes, small_settings

PATIENCE = 180.0
PAIRS = 12

pytestmark = pytest.mark.trial


def two_workers(folder: Path) -> LocalProcesses:
    return LocalProcesses(folder / "workers", count=2, game=GAME, settings=settings_of(folder), run_id="run")


@pytest.fixture(scope="module")
def backend(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalProcesses]:
    opened = two_workers(tmp_path_factory.mktemp("run"))
    yield started(opened)
    opened.close()


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    opened = open_fleet(
        tmp_path, [worker_settings("worker1"), worker_settings("worker2")], settings=settings_of(tmp_path)
    )
    yield started(opened)
    opened.close()


B = TypeVar("B", LocalProcesses, Fleet)


def started(backend: B) -> B:
    """Return the backend when both of its workers are ready to play."""
    backend.publish(1, model_bytes(1))
    deadline = time.monotonic() + PATIENCE
    while len(executors_of(backend).ready_workers()) < 2:
        assert time.monotonic() < deadline, backend.heartbeats()
        backend.collect()
        time.sleep(0.05)
    return backend


def executors_of(backend: LocalProcesses | Fleet) -> MatchExecutors:
    executors = backend.match_executors()
    assert executors
    return executors


def settings_of(folder: Path) -> Settings:
    test = {"elo0": 0.0, "elo1": 200.0}
    evaluation = {"gating": "sprt", "gating_games": 100, "num_simulations": 16, "rating_games": 20, "sprt": test}
    return fleet_settings(folder, evaluation=evaluation)


def play(remote: RemoteMatches, settings: Settings, poll: Callable[[], object]) -> None:
    files = {version: model_bytes(version) for version in (2, 3)}
    contestants = {version: Contestant(version=version, sha256=stored_sha256(data)) for version, data in files.items()}
    models = {contestants[version]: decode_model(data) for version, data in files.items()}

    def player(who: Contestant) -> SearchPlayer:
        return SearchPlayer(make_match_search(GAME, models[who], settings.search, num_simulations=16))

    specs = [
        MatchSpec(first=contestants[2], second=second, pairs=PAIRS, seed=1, opening_plies=2, num_simulations=16)
        for second in (contestants[3], None)
    ]
    for number, spec in enumerate(specs):  # compiles it here: a worker that compiled for too long would lose the order
        play_job(GAME, EvaluationJob(id=f"{number}", match_pairs=1, first_pair=0, **vars(spec) | {"pairs": 1}), player)
    with remote.deploy({contestants[version]: data for version, data in files.items()}):
        results = remote.play(specs, player, poll=lambda: (poll(), None)[1])
    for result in results:
        assert result.wins + result.draws + result.losses == 2 * PAIRS


@pytest.mark.slow
def test_a_match_is_played_by_worker_processes(backend: LocalProcesses, tmp_path: Path) -> None:
    remote = RemoteMatches(GAME, executors_of(backend))
    play(remote, settings_of(tmp_path), backend.collect)
    assert (remote.remote_games, remote.local_games) == (4 * PAIRS, 0)
    deadline = time.monotonic() + PATIENCE
    while left := [*backend.root.glob("*/inbox/player-*"), *backend.root.glob("*/outbox/*.match")]:
        assert time.monotonic() < deadline, left
        time.sleep(0.05)


@pytest.mark.slow
def test_a_match_is_played_by_the_machines_of_a_fleet(fleet: Fleet, tmp_path: Path) -> None:
    remote = RemoteMatches(GAME, executors_of(fleet))
    play(remote, settings_of(tmp_path), fleet.collect)
    assert (remote.remote_games, remote.local_games) == (4 * PAIRS, 0)
    deadline = time.monotonic() + PATIENCE
    while left := [*tmp_path.glob("hosts/*/workers/*/inbox/player-*"), *tmp_path.rglob("*.match")]:
        assert time.monotonic() < deadline, left
        fleet.collect()
        time.sleep(0.05)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_machine_cut_off_during_a_match_delays_nothing(tmp_path: Path) -> None:
    network = Network(tmp_path / "hosts")
    machines = [worker_settings("worker1"), worker_settings("worker2")]
    fleet = open_fleet(tmp_path, machines, settings=settings_of(tmp_path), network=network)
    try:
        remote = RemoteMatches(GAME, executors_of(started(fleet)))

        def poll() -> None:
            fleet.collect()
            if fleet._assignments.jobs.get("worker1"):
                network.cut.add("worker1")

        play(remote, settings_of(tmp_path), poll)
        assert network.cut == {"worker1"}
        assert remote.remote_games + remote.local_games == 4 * PAIRS
    finally:
        network.cut.clear()
        fleet.close()
        end_all(tmp_path)  # a machine that is away when a run ends is left as it is


@pytest.mark.slow
def test_a_match_is_completed_although_a_worker_is_killed_during_it(tmp_path: Path) -> None:
    backend = started(two_workers(tmp_path))
    remote = RemoteMatches(GAME, executors_of(backend))
    killed: list[str] = []

    def poll() -> None:
        backend.collect()
        if not killed and backend.assignments.jobs.get("local-1"):
            backend._processes["local-1"].kill()
            killed.append("local-1")

    play(remote, settings_of(tmp_path), poll)
    backend.close()
    assert killed == ["local-1"]
    assert remote.remote_games + remote.local_games == 4 * PAIRS
    assert remote.remote_games > 0


def model_that(*, plays_blindly: bool, version: int) -> Model:
    """Return a network that gives every position the same answer, so that search decides; or one that is confidently
    wrong.
    """
    base = decode_model(model_bytes(7))
    weights = dict(base.weights)
    for name, tensor in base.weights.items():
        if name.startswith(("policy", "value")) and tensor.is_floating_point():
            weights[name] = tensor * (20.0 if plays_blindly else 0.0)
    return Model(description=describe_model(GAME, NETWORK, version), weights=weights)


@pytest.mark.slow
@pytest.mark.parametrize("is_better", [True, False])
def test_gating_by_workers_reaches_the_same_verdict_as_local_gating(
    backend: LocalProcesses, tmp_path: Path, is_better: bool
) -> None:
    settings = settings_of(tmp_path)
    candidate = model_that(plays_blindly=not is_better, version=9)
    best = model_that(plays_blindly=is_better, version=8)
    remote = RemoteMatches(GAME, executors_of(backend))
    verdicts = []
    for number, who in enumerate([remote, None]):
        (tmp_path / str(number)).mkdir()
        with open_ledger(tmp_path / str(number), GAME) as ledger:
            strength = Strength(GAME, settings, ledger, remote=who)
            file = encode_model(candidate, GAME)
            verdicts.append(
                run_steps(strength.accepts(candidate, best, file=file), poll=lambda: (backend.collect(), None)[1])
            )
            ((first, second, wins, draws, losses, _),) = ledger.matches()
            assert (first, second) == ("model-000009", "model-000008")
            assert wins + draws + losses >= 32
    assert verdicts == [is_better, is_better]
    assert remote.remote_games >= 32
    assert remote.local_games == 0


@pytest.mark.slow
def test_rating_games_are_played_by_workers(backend: LocalProcesses, tmp_path: Path) -> None:
    remote = RemoteMatches(GAME, executors_of(backend))
    with open_ledger(tmp_path, GAME) as ledger:
        strength = Strength(GAME, settings_of(tmp_path), ledger, remote=remote)
        report = run_steps(strength.measure(decode_model(model_bytes(2))), poll=lambda: (backend.collect(), None)[1])
        ((first, second, *counts, simulations),) = ledger.matches()
    assert (first, second, sum(counts), simulations) == ("model-000002", "random", 20, 16)
    assert report.elo is not None
    assert remote.remote_games > 0
    assert remote.remote_games + remote.local_games == 20, "those of a worker that is late are played here"


@pytest.mark.parametrize("asynchronous", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_workers_play_a_run_s_evaluation_games_unless_every_byte_must_be_reproducible(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asynchronous: bool
) -> None:
    evaluation = {"every": 1, "gating": "sprt", "gating_games": 32, "num_simulations": 8, "rating_games": 8}
    settings = fleet_settings(tmp_path, evaluation=evaluation, training={"asynchronous": asynchronous})
    seen: list[str] = []

    assign_jobs = FolderMatches.assign_jobs

    def noted(matches: FolderMatches, worker: str, jobs: Sequence[EvaluationJob]) -> None:
        seen.extend(job.id for job in jobs)
        assign_jobs(matches, worker, jobs)

    monkeypatch.setattr(FolderMatches, "assign_jobs", noted)

    def make_backend(game: Game, run_id: str) -> LocalProcesses:
        return LocalProcesses(tmp_path / "workers", count=2, game=game, settings=settings, run_id=run_id)

    coach = open_coach(tmp_path, settings, make_backend=make_backend, observers=[])
    coach.run()
    matches = coach.ledger.matches()
    coach.ledger.close()
    assert sum(wins + draws + losses for _, _, wins, draws, losses, _ in matches) >= 32 + 8
    assert {second for _, second, *_ in matches} >= {"random", "model-000001"}
    assert bool(seen) == asynchronous
    assert not audit(tmp_path).problems


def test_a_damaged_opponent_plays_no_matches_and_those_of_a_killed_coach_count_once(tmp_path: Path) -> None:
    settings = small_settings(tmp_path, evaluation={"rating_games": 16, "num_simulations": 4})
    with open_ledger(tmp_path, GAME) as ledger:
        strength, models = Strength(GAME, settings, ledger), [decode_model(model_bytes(number)) for number in (1, 2, 3)]
        for model in models:
            row = make_model_row(tmp_path, model.model_version, iteration=1, data=b"", accepted=True)
            model_path(tmp_path, model.model_version).parent.mkdir(exist_ok=True)
            model_path(tmp_path, model.model_version).write_bytes(model_bytes(model.model_version))
            ledger.add_model(row)
            for _ in range(2):  # killed before the report was stored
                run_steps(strength.measure(model, beside=True))
        model_path(tmp_path, 2).write_bytes(b"damaged")
        run_steps(strength.measure(models[2], beside=True))
        played = [match[:2] for match in ledger.matches()]
    assert len(played) == len(set(played)), "each pairing counts once"
    assert {("model-000003", "random"), ("model-000003", "model-000002")} <= {*played}


def test_the_main_node_measures_on_the_device_of_its_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def picked(name: str) -> torch.device:
        asked.append(name)
        return torch.device("cpu")

    monkeypatch.setattr("keima.networks.inference.evaluator.pick_device", picked)
    settings = small_settings(tmp_path, training={"device": "cuda:1"})
    with open_ledger(tmp_path, GAME) as ledger:
        strength, model = Strength(GAME, settings, ledger), decode_model(model_bytes(1))
        strength.make_evaluator(model), strength.make_search(model)
    assert asked == ["cuda:1", "cuda:1"]
