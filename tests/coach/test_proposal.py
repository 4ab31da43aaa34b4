"""Settings that are chosen by rules: they fit the game and the time, and what a user gives stays."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from keima.coach.bounds import window_capacity
from keima.coach.proposal import (
    GPU_AS_CORES,
    REFERENCE_MINUTES,
    REFERENCE_SPEED,
    CoreSpeeds,
    Players,
    choose_simulations,
    choose_size,
    choose_smaller_board,
    evaluations_per_game,
    find_players_here,
    learning_settings,
    list_reasons,
    load_run_settings,
    lookahead_plies,
    make_room_to_grow,
    network_settings,
    plan_evaluations,
    points_of,
    propose_settings,
    search_settings,
    simulations_per_move,
)
from keima.config.load import apply_overrides, flatten, load_settings, save_resolved
from keima.config.schema import Settings
from keima.config.sections.network import NetworkSettings
from keima.config.sections.search import SearchSettings
from keima.config.sections.training import TrainingSettings, WindowSettings
from keima.games import Game, load_game
from keima.games.authoring.check import GameReport
from keima.networks.inference.evaluator import pick_device
from keima.networks.network import build_network
from tests.networks.test_own_network import NETWORK
from tests.own_game import EXAMPLES, example

CONNECT_FOUR = GameReport(name="connect_four", mean_plies=21, branching=6.7, sudden=0.3)
GO = GameReport(name="go", mean_plies=110, branching=56, sudden=0.04)
OTHELLO = GameReport(name="othello", mean_plies=60, branching=8)

OWN = {  # with chance, and for three players; with options that other tests have compiled
    "pig": {"goal": 20, "max_plies": 200},
    "three_player_connect_four": {"rows": 4, "columns": 4, "winning": 3},
}


def speed_of(game: Game, times: float = 1.0) -> float:
    """Return evaluations per second here, if this machine is so many times as fast as the reference."""
    return times * REFERENCE_SPEED / points_of(game)


@pytest.mark.parametrize(
    ("times", "minutes", "size"),
    [
        (1, REFERENCE_MINUTES, (4, 32)),
        (1, 118, (4, 48)),  # the shipped 9x9 Go
        (4, REFERENCE_MINUTES, (4, 48)),  # a faster machine is like more time
        (0.3, 10, (3, 32)),
        (100, 600, (15, 192)),
    ],
)
def test_the_network_grows_with_speed_and_time(times: float, minutes: float, size: tuple[int, int]) -> None:
    game = load_game("go", size=9)
    assert choose_size(game, GO, speed_of(game, times), minutes) == size


def test_a_game_of_few_moves_has_the_smallest_network_for_any_time() -> None:
    game, report = load_game("tic_tac_toe"), GameReport(name="tic_tac_toe", mean_plies=7.6, branching=5)
    assert choose_size(game, report, speed_of(game), 1000) == (2, 16)


def test_search_follows_the_game() -> None:
    four, go = load_game("connect_four"), load_game("go", size=9)
    assert "resignation" in search_settings(go, GO, 64) and "resignation" not in search_settings(four, CONNECT_FOUR, 64)
    assert (lookahead_plies(four, CONNECT_FOUR), lookahead_plies(go, GO)) == (2, 0)
    assert lookahead_plies(example("othello"), OTHELLO) == 0, "no move ends a game of Othello early"
    long, sudden = (GameReport(name="mine", mean_plies=70, branching=18, sudden=share) for share in (0.0, 0.09))
    assert "resignation" in search_settings(example("othello"), long, 64), "as games of Amazons, which are long"
    assert "resignation" not in search_settings(example("othello"), sudden, 64), "as games of Lines of Action"
    assert lookahead_plies(example("othello"), sudden) == 1
    hex11 = GameReport(name="hex", mean_plies=108, branching=67)
    found = search_settings(load_game("go", size=11), hex11, choose_simulations(hex11, 1e9))
    assert (found["algorithm"], found["num_simulations"], found["full_search_probability"]) == ("gumbel", 32, 1.0)
    assert "algorithm" not in search_settings(go, GO, 64)
    wide = replace(sudden, branching=54.0)
    found = search_settings(example("othello"), wide, 48)
    assert (found["lookahead_plies"], found["match_lookahead_plies"]) == (1, 1), "matches would take too long"
    assert lookahead_plies(example("othello"), replace(sudden, branching=61.0)) == 0


@pytest.mark.parametrize(
    ("report", "evaluations", "simulations"),
    [
        (CONNECT_FOUR, 26_000 * 11 * 60, 64),  # the quickstart
        (CONNECT_FOUR, 26_000 * 28 * 60, 128),
        (GO, 15_000 * 118 * 60, 72),
        (GO, 15_000 * 10 * 60, 48),
        (OTHELLO, 13_900 * 21 * 60, 96),
        (OTHELLO, 4_000 * 15 * 60, 48),
        (GameReport(name="tic_tac_toe", mean_plies=7.6, branching=5), 1e9, 32),
    ],
)
def test_simulations_grow_once_there_are_many_games(report: GameReport, evaluations: float, simulations: int) -> None:
    assert choose_simulations(report, evaluations) == simulations


def test_simulations_are_for_the_search_that_is_given() -> None:
    evaluations = 15_000 * 118 * 60
    assert choose_simulations(GO, evaluations) == 72
    assert choose_simulations(GO, evaluations, given={"full_search_probability": 1.0}) == 48, "games would be too few"
    wide = replace(GO, branching=67)
    assert choose_simulations(wide, evaluations) == 32
    assert choose_simulations(wide, evaluations, given={"algorithm": "puct"}) == 72
    found = search_settings(load_game("go", size=11), wide, 72, given={"algorithm": "puct"})
    assert (found["algorithm"], found["full_search_probability"]) == ("puct", 0.25)


def test_machines_that_only_play_count_whole_and_a_gpu_as_many_cores() -> None:
    assert Players(cores=2).whole_cores == pytest.approx(1.2), "the learner has the rest"
    assert Players(cores=48, machines=3).whole_cores == 48
    assert Players(cores=8, gpus=2, machines=2).whole_cores == 8 + 2 * GPU_AS_CORES


@pytest.mark.slow
def test_the_machines_that_play_decide_over_the_network(tmp_path: Path) -> None:
    path, said = configured(tmp_path), list[str]()
    path.write_text(path.read_text().replace("tic_tac_toe", "connect_four"))
    fleet = {"run.minutes": 60.0, "distributed.enabled": True, "distributed.workers": [{"host": "a"}]}
    chosen = load_run_settings(
        path,
        fleet,
        run_dir=tmp_path / "run",
        say=said.append,
        find_players=lambda settings: Players(cores=20_000, machines=300),
    )
    assert chosen.network.blocks * chosen.network.channels**2 > 20 * 4 * 32**2
    assert any("20,000 cores of 300 other machines" in line for line in said)


@pytest.mark.parametrize(
    ("games", "plan"), [(67_600, (12, 120)), (8_000, (4, 40)), (1_000, (4, 20)), (20_000_000, (12, 1000))]
)
def test_rating_games_take_a_twentieth_of_the_compute_within_bounds(games: float, plan: tuple[int, int]) -> None:
    search = search_settings(load_game("connect_four"), CONNECT_FOUR, 80)
    evaluations, rating_games = plan_evaluations(games, search)
    assert (evaluations, rating_games) == plan
    cost = rating_games * evaluations * 80  # simulations per ply
    share = cost / (games * simulations_per_move(search))
    assert games == 1_000 or share < 0.06


@pytest.mark.parametrize(("name", "report", "share"), [("go", GO, 0.17), ("connect_four", CONNECT_FOUR, 0.67)])
def test_the_last_step_draws_from_a_sixth_of_the_positions_or_from_most_of_a_short_game_s(
    name: str, report: GameReport, share: float
) -> None:
    game, games = load_game(name), 10_000
    search = search_settings(game, report, 48)
    chosen = learning_settings(game, report, search, games=games, fixed={})["training"]["window"]
    learned = games * report.mean_plies * search["full_search_probability"]
    window = WindowSettings(**chosen)
    assert window_capacity(window, round(learned)) == pytest.approx(share * learned, rel=0.1)


@pytest.mark.parametrize("name", ["connect_four", "go", "twenty48", *OWN])
@pytest.mark.parametrize("games", [30, 1e7])
def test_the_choice_is_valid_for_every_game(name: str, games: float) -> None:
    game = load_game(str(EXAMPLES / f"{name}.py"), **OWN[name]) if name in OWN else load_game(name)
    report = GameReport(name=game.name, players=game.num_players, mean_plies=game.max_plies / 2, branching=20)
    search, network = search_settings(game, report, 48), network_settings(game, (3, 32))
    build_network(game, **network)
    settings = Settings.model_validate(
        {
            "run": {"name": "any", "minutes": 10},
            "game": {"name": game.name},
            "search": search,
            "network": network,
            **learning_settings(game, report, search, games=games, fixed={}),
        }
    )
    assert settings.training.window.min_positions >= settings.training.batch_size


def measure_nothing(
    monkeypatch: pytest.MonkeyPatch, known: GameReport, speed: Callable[[dict[str, Any]], float] = lambda search: 1e4
) -> None:
    """Let the game and this machine be known, so that settings are chosen at once."""
    monkeypatch.setattr("keima.coach.proposal.examine_in_process", lambda *arguments, **options: known)
    monkeypatch.setattr(CoreSpeeds, "measure", lambda self, search, size: speed(search))
    monkeypatch.setattr(CoreSpeeds, "measure_learning", lambda *arguments: 1e9)


def configured(folder: Path, **sections: object) -> Path:
    path = folder / "mine.yaml"
    run, game = {"name": "mine", "auto": True}, {"name": "tic_tac_toe"}
    path.write_text(yaml.safe_dump({"run": run, "game": game, **sections}))
    return path


@pytest.mark.medium
def test_what_is_given_stays_and_the_rest_is_chosen_with_reasons(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = GameReport(name="tic_tac_toe", mean_plies=7.6, branching=5)
    monkeypatch.setattr("keima.coach.proposal.examine_in_process", lambda *arguments, **options: known)
    path, said = configured(tmp_path, search={"num_simulations": 12}, network={"channels": 8}), list[str]()
    overrides = {"run.minutes": 3.0, "training.batch_size": 40_000}
    chosen = load_run_settings(path, overrides, run_dir=tmp_path / "run", say=said.append)
    assert (chosen.search.num_simulations, chosen.network.channels, chosen.training.batch_size) == (12, 8, 40_000)
    assert (chosen.network.blocks, chosen.search.cheap_simulations) == (2, 3)
    assert chosen.training.optimizer == "muon" and chosen.training.learning_rate_schedule == "cosine"
    assert chosen.run.minutes == 3.0 and not chosen.run.auto
    assert any("evaluations/s" in line for line in said) and len(said) <= 10


def test_a_run_that_is_limited_by_iterations_is_not_limited_by_a_time_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = GameReport(name="tic_tac_toe", mean_plies=7.6, branching=5)
    measure_nothing(monkeypatch, known)
    for given, minutes in (({"run.iterations": 50}, None), ({}, 5.0), ({"run.minutes": 3.0}, 3.0)):
        chosen = load_run_settings(configured(tmp_path), given, run_dir=tmp_path / "run", say=lambda line: None)
        assert chosen.run.minutes == minutes


def test_a_run_on_a_large_board_begins_on_a_smaller_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measure_nothing(monkeypatch, GO)
    said = list[str]()

    def choose(
        game: dict[str, Any], given: dict[str, Any] | None = None, *, several_boards: bool = True
    ) -> tuple[str, ...]:
        path = configured(tmp_path, game=game)
        given = {"run.minutes": 60.0} if given is None else given
        options: dict[str, Any] = {"run_dir": tmp_path / "run", "say": said.append}
        return load_run_settings(path, given, several_boards=several_boards, **options).game.smaller

    go = {"name": "go", "options": {"size": 9}}
    assert choose(go) == ("size=7@0.25",) and any("size=7 for the first 25%" in line for line in said)
    assert choose(go, several_boards=False) == ()
    hour = {"run.minutes": 60.0, "distributed.enabled": True}
    assert choose(go, {**hour, "distributed.workers": [{"host": "a"}]}) == ("size=7@0.25",)
    for key, value in (("crowd", {}), ("slurm", {"count": 1}), ("ray", {})):
        assert choose(go, {**hour, f"distributed.{key}": value}) == (), f"{key}: the machines would be lost"
    assert choose(go, {"run.iterations": 50}) == choose(go, {"run.iterations": 50, "run.minutes": 60.0}) == ()
    assert choose({**go, "smaller": []}) == () and choose({**go, "smaller": ["size=5@0.1"]}) == ("size=5@0.1",)
    assert choose(go, {"run.minutes": 60.0, "network.growth": ["9x256@0.1"]}) == (), "it grows on its own board"
    assert choose({"name": "go", "options": {"size": 7}}) == (), "it is small"
    assert choose({"name": "connect_four"}) == (), "it has no size"


@pytest.mark.parametrize(("size", "smaller"), [(9, 7), (10, 6), (11, 7), (13, 9), (15, 11), (19, 13)])
def test_the_smaller_board_is_about_two_thirds_as_large(size: int, smaller: int) -> None:
    assert choose_smaller_board(load_game("go", size=size)) == f"size={smaller}@0.25"


def test_a_network_of_one_s_own_is_not_given_the_optimizer_of_the_shipped_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = GameReport(name="tic_tac_toe", mean_plies=7.6, branching=5)
    monkeypatch.setattr("keima.coach.proposal.examine_in_process", lambda *arguments, **options: known)
    (tmp_path / "small.py").write_text(NETWORK)
    path = configured(tmp_path, network={"module": "small.py"})
    chosen = load_run_settings(path, {"run.minutes": 1.0}, run_dir=tmp_path / "run", say=lambda line: None).training
    assert (chosen.optimizer, chosen.learning_rate) == ("adamw", TrainingSettings().learning_rate)
    assert chosen.learning_rate_schedule == "cosine"


def test_a_run_that_continues_has_the_settings_that_it_began_with(tmp_path: Path) -> None:
    path, run_dir = configured(tmp_path, search={"num_simulations": 24}), tmp_path / "run"
    run_dir.mkdir()
    begun = load_settings(path, overrides={"run.auto": False, "network.channels": 12, "run.minutes": 60.0})
    save_resolved(begun, run_dir)
    overrides = {"run.minutes": 240.0}
    said = list[str]()
    continued = load_run_settings(path, overrides, run_dir=run_dir, say=said.append)
    assert (continued.network.channels, continued.search.num_simulations) == (12, 24)
    assert continued.run.minutes == 240.0 and not said


def test_settings_are_chosen_only_where_they_are_to_be(tmp_path: Path) -> None:
    path, overrides = configured(tmp_path), {"run.auto": False}
    settings = load_run_settings(path, overrides, run_dir=tmp_path, say=pytest.fail)
    assert settings == load_settings(path, overrides=overrides)


@pytest.mark.parametrize("plies", [7.6, 21.0], ids=lambda plies: f"{plies:g} plies")
@pytest.mark.parametrize(
    "given",
    [
        {"search": {"num_simulations": 4}},
        {"search": {"resignation": {"no_resign_fraction": 0.3}}},
        {"network": {"growth": ["4x32@0.5"]}},
        {"network": {"type": "spiking"}},
        {"training": {"asynchronous": False}},
        {"training": {"optimizer": "sgd"}},
        {"search": {"cheap_simulations": 200}},
        {"training": {"batch_size": 50_000}},
        {"training": {"window": {"max_positions": 500}}},
        {"training": {"window": {"min_positions": 300}}},
    ],
)
@pytest.mark.medium
def test_what_is_chosen_fits_what_is_given(
    given: dict[str, dict[str, object]], plies: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = GameReport(name="tic_tac_toe", mean_plies=plies, branching=5)
    measure_nothing(monkeypatch, known, speed=lambda search: 1e4 / SearchSettings(**search).num_simulations)
    path, overrides = configured(tmp_path, **given), {"run.minutes": 1.0}
    chosen = load_run_settings(path, overrides, run_dir=tmp_path / "run", say=lambda line: None)
    loaded = dict(flatten(chosen.model_dump()))
    kept = {key: list(loaded[key]) if isinstance(loaded[key], tuple) else loaded[key] for key, _ in flatten(given)}
    assert kept == dict(flatten(given))


def test_sections_without_settings_are_as_if_they_were_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = GameReport(name="tic_tac_toe", mean_plies=7.6, branching=5)
    measure_nothing(monkeypatch, known)
    path = configured(tmp_path, search=None, training=None)
    chosen = load_run_settings(path, {"run.minutes": 1.0}, run_dir=tmp_path / "run", say=lambda line: None)
    assert chosen.search.num_simulations == 32 and chosen.training.optimizer == "muon"


def test_what_is_given_decides_over_what_follows_from_it() -> None:
    four, go = load_game("connect_four"), load_game("go", size=9)
    given = {"resignation": {"no_resign_fraction": 0.3}}
    assert search_settings(go, GO, 64, given=given)["resignation"] == {
        "enabled": True, "threshold": 0.97, "consecutive": 4, "no_resign_fraction": 0.3,
    }  # fmt: skip
    search = search_settings(four, CONNECT_FOUR, 64)
    few = learning_settings(four, CONNECT_FOUR, search, games=30_000, fixed={"games_per_iteration": 50})
    many = learning_settings(four, CONNECT_FOUR, search, games=30_000, fixed={"games_per_iteration": 5000})
    assert (few["evaluation"]["every"], many["evaluation"]["every"]) == (50, 1)
    plain = learning_settings(four, CONNECT_FOUR, search, games=1000, fixed={"optimizer": "sgd"})
    assert "weight_decay" not in plain["training"]
    assert make_room_to_grow((8, 128), {"growth": ("4x48@0.5",)}) == (4, 24)
    assert make_room_to_grow((6, 48), {"growth": ("6x48@0.5",), "channels": 48}) == (5, 48)
    assert make_room_to_grow((3, 32), {"growth": ("6x48@0.5",)}) == (3, 32)


def test_half_of_the_plies_of_a_game_with_dice_are_no_moves() -> None:
    dice = replace(CONNECT_FOUR, mean_outcomes=10.5)
    search = search_settings(load_game("connect_four"), CONNECT_FOUR, 64)
    assert evaluations_per_game(search, dice) == evaluations_per_game(search, CONNECT_FOUR) / 2


def test_only_what_the_settings_leave_plays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("keima.coach.proposal.count_usable_cores", lambda: 64)
    monkeypatch.setattr("keima.coach.proposal.count_gpus", lambda: 4)

    def found(**changes: object) -> Players:
        document = {"run": {"name": "any", "minutes": 10}, "game": {"name": "tic_tac_toe"}}
        apply_overrides(document, {key.replace("__", "."): value for key, value in changes.items()})
        return find_players_here(Settings(**document))  # type: ignore[arg-type]

    assert found() == Players(cores=64, gpus=4)
    assert found(training__device="cuda:1") == Players(cores=64, gpus=1)
    assert found(self_play__device="cpu", self_play__workers=2) == Players(cores=2)


@pytest.mark.parametrize(
    ("cores", "given", "simulations", "samples"),
    [
        (2, {}, 128, 4.0),
        (24, {}, 360, 4.0),  # games with 128 would be three times as many as are learned
        (120, {}, 800, 1.7),
        (30, {"num_simulations": 64}, 64, 1.0),
    ],
)
def test_where_the_learner_could_not_take_all_games_searches_are_larger_and_positions_are_learned_less_often(
    cores: int, given: dict[str, int], simulations: int, samples: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CoreSpeeds, "measure", lambda self, search, size: 26_000.0)
    monkeypatch.setattr(CoreSpeeds, "measure_learning", lambda *arguments: 1_600.0)
    four, players = load_game("connect_four"), Players(cores=cores, machines=1)
    proposal = propose_settings(four, CONNECT_FOUR, minutes=60, given={"search": given}, players=players)
    chosen = proposal.settings
    assert chosen["search"]["num_simulations"] == simulations
    assert chosen["training"]["samples_per_position"] == samples
    said = "\n".join(list_reasons(four, CONNECT_FOUR, proposal, {"search": given}))
    assert ("so many that the learner can take all games" in said) == (cores == 24)
    assert ("the learner is too slow" in said) == (samples < 4)


@pytest.mark.parametrize(
    ("cores", "players", "given", "speed"),
    [
        (2, Players(cores=2), {}, 800.0),  # of one thread, which has two fifths of both cores
        (1, Players(cores=1), {}, 400.0),
        (16, Players(cores=16), {"threads": 16}, 400.0),
        (8, Players(cores=8, gpus=1), {}, 400.0),  # whose GPU also plays
        (2, Players(cores=40, machines=5), {}, 1000.0),
        (2, Players(cores=2), {"asynchronous": False}, math.inf),
        (2, Players(cores=2), {"learner": {"ranks": 2}}, math.inf),
        (2, Players(cores=2), {"device": "cuda:7"}, math.inf),  # of another machine
    ],
)
def test_the_learner_has_the_speed_that_players_leave_to_it(
    cores: int, players: Players, given: dict[str, object], speed: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    def measure(game: Game, network: NetworkSettings, training: TrainingSettings) -> float:
        pick_device(training.device)
        assert (network.blocks, network.squeeze_excitation, training.batch_size) == (3, True, 64)
        return 1000.0

    monkeypatch.setattr("keima.coach.proposal.count_usable_cores", lambda: cores)
    monkeypatch.setattr("keima.coach.proposal.measure_learning_speed", measure)
    monkeypatch.setattr("keima.coach.proposal.use_threads", lambda count: None)
    shape = {"blocks": 3, "channels": 32, "squeeze_excitation": True}
    speeds = CoreSpeeds(load_game("tic_tac_toe"))
    assert speeds.measure_learning(shape, {"batch_size": 64, **given}, players) == pytest.approx(speed)
    own = {**shape, "module": "mine.py"}
    assert speeds.measure_learning(own, {"batch_size": 64, **given}, players) == math.inf
