"""The trading program, started as people start it."""

import argparse
import json
import os
import re
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from keima.base.system.command_line import program_name
from keima.cli.training import ppo
from keima.config.load import known_keys, number_schema
from keima.learning.learner import LearnerState
from keima.learning.ranks.process_group import Ranks
from keima.ppo.checkpoint import PPOCheckpoint
from keima.ppo.settings import TraderSettings
from tests.learning.ranks.test_ranks import free_port
from tests.programs import begun, printed, ranks_of

PROGRAM = "train_ppo_lstm.py"
LINE = re.compile(
    r"(?m)^Episode (\d+)/16 - Reward: -?\d+\.\d\d, Return: -?\$[\d,]+\.\d\d, "
    r"Win Rate: \d+\.\d% \(\d+ closed, \d+ open\), Steps: \d+$"
)
SECONDS = 280  # a busy machine is not mistaken for a broken program
LONG = [
    "--device",
    "cpu",
    "--episodes",
    "100000",
    "--num-envs",
    "4",
    "--update-interval",
    "128",
    "--lstm-size",
    "8",
    "--window",
    "16",
]
TWO_RANKS = ["--distributed", "--num-gpus", "2"]

pytestmark = pytest.mark.trial


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run in another folder: training.log is written to the current one."""
    monkeypatch.chdir(tmp_path)


def words_of_two_ranks(folder: Path) -> list[object]:
    """Return the words of a long run of two ranks with frequent checkpoints."""
    return [*LONG, *TWO_RANKS, "--checkpoint-interval", 8, "--checkpoint-dir", folder, "--master-port", free_port()]


def saved(folder: Path, episodes: int) -> dict[str, Any]:
    return dict(torch.load(folder / f"ppo_lstm_episode_{episodes:07d}.pt", weights_only=True))


def test_a_small_run_prints_and_leaves_what_the_guide_promises(tmp_path: Path) -> None:
    said = printed(PROGRAM, "--smoke", "--device", "cpu", "--checkpoint-dir", tmp_path, cwd=tmp_path, seconds=SECONDS)
    lines = LINE.findall(said)
    assert lines and lines[-1] == "16", said
    logged = (tmp_path / "training.log").read_text()
    assert all(line in logged for line in said.splitlines() if line.startswith("Episode "))
    rows = json.loads((tmp_path / "training_stats.json").read_text())
    assert rows[-1]["run/episodes_over"] == 16 and {"learning/approx_kl", "episodes/win_rate"} <= rows[-1].keys()
    assert list((tmp_path / "tensorboard").iterdir())
    tree = saved(tmp_path, 16)
    assert {"actor_lstm.weight_hh_l0", "seen_observations", "seen_returns"} <= tree["network"].keys()
    assert tree["counters"]["world_size"] == 1


def test_a_resumed_run_ends_like_one_that_was_never_stopped(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    words = ["--device", "cpu", "--update-interval", "64", "--checkpoint-dir"]
    assert ppo.main(["--smoke", *words, str(one)]) == 0
    assert ppo.main(["--smoke", "--episodes", "8", *words, str(two)]) == 0
    assert ppo.main(["--resume", "--episodes", "16", *words, str(two)]) == 0
    first, second = saved(one, 16), saved(two, 16)
    for group in ("network", "optimizer", "worlds", "acting"):
        assert not [name for name, tensor in first[group].items() if not torch.equal(tensor, second[group][name])]
    rows = [json.loads((folder / "training_stats.json").read_text()) for folder in (one, two)]
    assert [row["round"] for row in rows[0]] == [row["round"] for row in rows[1]]


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--resume"], "no checkpoint in .* to resume from: start without --resume"),
        (["--data", "nowhere.csv"], "nowhere.csv"),
        (["--distributed", "--rank", "1"], "leave --rank out"),
        (["--distributed", "--master-port", str(free_port()), "--data", "nowhere.csv"], "nowhere.csv"),
        (["--num-gpus", "2"], "only --distributed starts several ranks"),
        (["--rank", "1"], "--rank 1 is out of range for --world-size 1"),
    ],
)
def test_impossible_options_are_refused_with_their_flag(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], complaint: str
) -> None:
    assert ppo.main([*words, "--checkpoint-dir", str(tmp_path)]) == 2
    assert re.search(complaint, capsys.readouterr().err)


@pytest.mark.parametrize(
    ("flag", "value", "range_"),
    [
        ("--episodes", "0", "a whole number from 1"),
        ("--num-gpus", "0", "a whole number from 1"),
        ("--fee", "2", "a number from 0 and below 1"),
        ("--gamma", "1.5", "a number from 0 to 1"),
        ("--learning-rate-actor", "nan", "a number above 0"),
        ("--master-port", "65536", "a whole number from 1 to 65,535"),
    ],
)
def test_numbers_out_of_range_are_refused_with_their_flag_and_range(
    capsys: pytest.CaptureFixture[str], flag: str, value: str, range_: str
) -> None:
    with pytest.raises(SystemExit, match="2"):
        ppo.main([flag, value])
    assert f"argument {flag}: expected {range_}, found {value}\n" in capsys.readouterr().err


def given(*words: object) -> TraderSettings:
    """Return the settings of a new run with this command line."""
    return ppo.settings_of(ppo.make_parser().parse_args([*map(str, words)]), None)


def flags_of_settings() -> list[argparse.Action]:
    settings = TraderSettings().to_flat()
    return [action for action in ppo.make_parser()._actions if action.dest in settings]


def test_the_help_states_the_defaults_of_the_settings() -> None:
    settings = TraderSettings().to_flat()
    flags = {action.dest: action.help or "" for action in flags_of_settings()}
    assert flags.keys() == settings.keys()
    assert flags.pop("data").endswith("(default: simulated markets only)")
    for name, text in flags.items():
        value = settings[name]
        expected = ("no", "yes")[value] if isinstance(value, bool) else f"{value:g}"
        assert text.rpartition("(default: ")[2].replace(",", "") == f"{expected})", name


def test_flags_accept_the_values_that_the_settings_accept() -> None:
    keys = {key.rpartition(".")[2]: key for key in known_keys(TraderSettings)}
    numbers = [action for action in flags_of_settings() if action.type and action.dest != "data"]
    assert len(numbers) == 26
    for action in numbers:
        schema = number_schema(keys[action.dest], TraderSettings)
        low, high = (
            schema.get("minimum", schema.get("exclusiveMinimum")),
            schema.get("maximum", schema.get("exclusiveMaximum")),
        )
        for bound in (low, high if high != 2**63 else None):
            for value in () if bound is None else (bound - 1, bound, bound + 1):
                words = [action.option_strings[0], str(value)]
                try:
                    ppo.make_parser().parse_args(words)
                except SystemExit:
                    with pytest.raises(ValueError, match=action.dest):
                        TraderSettings.from_flat({action.dest: value})
                else:
                    assert TraderSettings.from_flat({action.dest: value})


def test_flags_override_a_config_file_which_overrides_the_settings_of_a_resumed_run(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("training:\n  gamma: 0.9\n  num_envs: 2\ntrading:\n  ruin: 0.25\n")
    settings = given("--config", path, "--num-envs", 3, "--no-short", "--data", "prices.csv")
    assert (settings.training.gamma, settings.training.num_envs, settings.trading.ruin) == (0.9, 3, 0.25)
    assert (settings.trading.short, settings.history.data) == (False, "prices.csv")
    before = PPOCheckpoint(LearnerState({}, {}), {**TraderSettings().to_flat(), "gamma": 0.5, "epochs": 7, "seed": 3})
    arguments = ppo.make_parser().parse_args(["--config", str(path), "--seed", "4", "--resume"])
    resumed = ppo.settings_of(arguments, before)
    assert (resumed.training.gamma, resumed.training.epochs, resumed.run.seed) == (0.9, 7, 4)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("run:\n  episodes: many\n", 'line 2: run.episodes: expected a whole number, found "many"'),
        ("training:\n  gama: 0.9\n", "line 2: training.gama is not a setting; did you mean training.gamma?"),
        ("trading:\n\n  fee: 1.5\n", "line 3: trading.fee: expected less than 1, found 1.5"),
    ],
)
def test_an_invalid_config_file_is_refused_with_its_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, complaint: str
) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    assert ppo.main(["--config", str(path), "--checkpoint-dir", str(tmp_path / "run")]) == 2
    assert capsys.readouterr().err == f"{program_name()}: {path}: {complaint}\n"
    assert not (tmp_path / "run").exists()


def test_worlds_that_restart_in_a_resumed_run_are_on_new_markets() -> None:
    settings = TraderSettings.from_flat({"num_envs": 2})
    places = [Ranks(rank=rank, world_size=2) for rank in (0, 1)]
    prices = [
        tuple(ppo.build_worlds(settings, ranks, rounds_over=rounds).close) for ranks in places for rounds in (0, 1, 2)
    ]
    assert len({price for pair in prices for price in pair}) == len(places) * 3 * 2


def test_a_fault_in_a_history_is_named_with_its_row(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "prices.csv"
    path.write_text("date,open,high,low,close,volume\n2024-01-01,1,2,0.5,1,1\n2024-01-02,1,2,-1,1,1\n")
    assert ppo.main(["--data", str(path), "--checkpoint-dir", str(tmp_path / "run")]) == 2
    assert "prices.csv, row 3: a price is not above 0" in capsys.readouterr().err


def test_a_second_run_does_not_overwrite_the_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "ppo_lstm_episode_0000005.pt").write_bytes(b"")
    assert ppo.main(["--checkpoint-dir", str(tmp_path)]) == 2
    assert "--resume" in capsys.readouterr().err


def test_flags_cannot_be_abbreviated() -> None:
    """An abbreviated --distributed would be passed on to the ranks, each of which would start ranks."""
    with pytest.raises(SystemExit):
        ppo.make_parser().parse_args(["--distrib"])


def wait_for_checkpoint(folder: Path, process: Any, *, seconds: float = SECONDS) -> None:
    """Return when the run has saved something; it must not end before."""
    deadline = time.monotonic() + seconds
    while not list(folder.glob("*.pt")):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.05)


def rounds_of(folder: Path) -> list[int]:
    return [row["round"] for row in json.loads((folder / "training_stats.json").read_text())]


@pytest.mark.slow
def test_ctrl_c_ends_a_run_cleanly_and_it_can_be_resumed_from_there(tmp_path: Path) -> None:
    with begun(PROGRAM, *LONG, "--checkpoint-interval", 8, "--checkpoint-dir", tmp_path, cwd=tmp_path) as process:
        wait_for_checkpoint(tmp_path, process)
        process.send_signal(signal.SIGINT)
        said, _ = process.communicate(timeout=SECONDS)
    assert process.returncode == 130 and "Traceback" not in said, said
    last = said.splitlines()[-1]
    assert last.startswith("Continue: ") and last.endswith(f"keima ppo --checkpoint-dir {tmp_path} --resume")
    episodes, rounds = int(re.findall(r"([\d,]+) episodes, ", said)[-1].replace(",", "")), rounds_of(tmp_path)
    said = printed(
        PROGRAM,
        "--checkpoint-dir",
        tmp_path,
        "--resume",
        "--device",
        "cpu",
        "--episodes",
        episodes + 8,
        cwd=tmp_path,
        seconds=SECONDS,
    )
    assert f"Resuming after {episodes:,} episodes" in said and f"Episode {episodes + 8}/{episodes + 8} - " in said
    assert rounds_of(tmp_path)[: len(rounds)] == rounds and rounds_of(tmp_path) == [
        *range(1, len(rounds_of(tmp_path)) + 1)
    ]


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_ctrl_c_ends_all_ranks_cleanly_and_another_number_of_them_resumes(tmp_path: Path) -> None:
    words = words_of_two_ranks(tmp_path)
    with begun(PROGRAM, *words, cwd=tmp_path) as process:
        wait_for_checkpoint(tmp_path, process, seconds=900)
        process.send_signal(signal.SIGINT)
        said, _ = process.communicate(timeout=SECONDS)
    assert process.returncode == 130 and "Traceback" not in said, said
    episodes = int(re.findall(r"([\d,]+) episodes, ", said)[-1].replace(",", ""))
    assert saved(tmp_path, episodes)["counters"]["world_size"] == 2
    words = ["--checkpoint-dir", tmp_path, "--resume", "--device", "cpu", "--episodes"]
    said = printed(PROGRAM, *words, episodes + 8, cwd=tmp_path, seconds=900)
    assert f"Resuming after {episodes:,} episodes, by 2 ranks then and 1 now" in said
    assert saved(tmp_path, episodes + 8)["counters"]["world_size"] == 1
    said = printed(
        "train_ppo_lstm_distributed.py",
        *words,
        episodes + 15,
        "--num-gpus",
        3,
        "--master-port",
        free_port(),
        cwd=tmp_path,
        seconds=900,
    )
    assert f"Resuming after {episodes + 8:,} episodes, by 1 rank then and 3 now" in said and said.count("Episode ") == 1
    assert f"Episode {episodes + 15}/{episodes + 15} - " in said and "| Ranks: 3" in said
    assert rounds_of(tmp_path) == [*range(1, len(rounds_of(tmp_path)) + 1)]


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_after_a_rank_is_killed_all_continue_from_the_last_checkpoint(tmp_path: Path) -> None:
    words = [*words_of_two_ranks(tmp_path), "--episodes", 400]
    with begun(PROGRAM, *words, cwd=tmp_path) as process:
        wait_for_checkpoint(tmp_path, process, seconds=900)
        os.kill(ranks_of(process.pid, PROGRAM)[-1], signal.SIGKILL)
        said, _ = process.communicate(timeout=1200)
    assert process.returncode == 0, said
    assert "Resuming after " in said and "Episode 400/400 - " in said
    assert saved(tmp_path, 400)["counters"]["episodes_over"] == 400
    assert rounds_of(tmp_path) == [*range(1, len(rounds_of(tmp_path)) + 1)]


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_ranks_that_die_too_often_are_given_up_with_a_hint_how_to_continue(tmp_path: Path) -> None:
    words = [*words_of_two_ranks(tmp_path), "--max-restarts", 0]
    with begun(PROGRAM, *words, cwd=tmp_path) as process:
        wait_for_checkpoint(tmp_path, process, seconds=900)
        os.kill(ranks_of(process.pid, PROGRAM)[-1], signal.SIGKILL)
        said, _ = process.communicate(timeout=600)
    assert process.returncode == 2 and "continue with --resume" in said.splitlines()[-1], said
