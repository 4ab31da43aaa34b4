"""The trading program, as people start it."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.programs import printed, run

PROGRAM = "train_ppo_lstm.py"
LINE = re.compile(
    r"Episode (\d+)/16 - Reward: -?\d+\.\d\d, Return: -?\$[\d,]+\.\d\d, Win Rate: \d+\.\d% \(\d+ closed, \d+ open\), Steps: \d+ \| Ranks: 1"
)
SECONDS = 280  # a busy machine is not taken for a broken program

pytestmark = pytest.mark.trial


def saved(folder: Path, episodes: int) -> dict[str, Any]:
    return dict(torch.load(folder / f"ppo_lstm_episode_{episodes:07d}.pt", weights_only=True))


def test_a_small_run_says_what_the_guide_says_and_leaves_what_it_promises(tmp_path: Path) -> None:
    said = printed(PROGRAM, "--smoke", "--device", "cpu", "--checkpoint-dir", tmp_path, seconds=SECONDS)
    lines = LINE.findall(said)
    assert lines and lines[-1] == "16", said
    rows = json.loads((tmp_path / "training_stats.json").read_text())
    assert rows[-1]["run/episodes_over"] == 16 and {"learning/approx_kl", "episodes/win_rate"} <= rows[-1].keys()
    assert list((tmp_path / "tensorboard").iterdir())
    tree = saved(tmp_path, 16)
    assert {"actor_lstm.weight_hh_l0", "seen_observations", "seen_returns"} <= tree["network"].keys()
    assert tree["counters"]["world_size"] == 1


def test_a_run_that_is_gone_on_with_ends_as_one_that_was_never_stopped(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    words = ("--smoke", "--device", "cpu", "--update-interval", 64, "--checkpoint-dir")
    printed(PROGRAM, *words, one, seconds=SECONDS)
    printed(PROGRAM, *words, two, "--episodes", 8, seconds=SECONDS)
    printed(PROGRAM, "--checkpoint-dir", two, "--resume", "--device", "cpu", "--episodes", 16, seconds=SECONDS)
    first, second = saved(one, 16), saved(two, 16)
    for group in ("network", "optimizer", "worlds", "acting"):
        assert not [name for name, tensor in first[group].items() if not torch.equal(tensor, second[group][name])]
    rows = [json.loads((folder / "training_stats.json").read_text()) for folder in (one, two)]
    assert [row["round"] for row in rows[0]] == [row["round"] for row in rows[1]]


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--episodes", "0"], "--episodes 0: expected a whole number from 1"),
        (["--resume"], "no checkpoint in .* start without --resume"),
        (["--data", "nowhere.csv"], "nowhere.csv"),
        (["--fee", "2"], "fee is a share"),
        (["--distributed", "--rank", "1"], "leave --rank out"),
    ],
)
def test_what_cannot_be_is_refused_with_its_flag(tmp_path: Path, words: list[str], complaint: str) -> None:
    refused = run(PROGRAM, *words, "--checkpoint-dir", tmp_path, seconds=SECONDS)
    assert refused.returncode == 2, refused.stderr
    assert re.search(complaint, refused.stderr) and "Traceback" not in refused.stderr


def test_a_fault_in_a_history_is_named_with_its_row(tmp_path: Path) -> None:
    path = tmp_path / "prices.csv"
    path.write_text("date,open,high,low,close,volume\n2024-01-01,1,2,0.5,1,1\n2024-01-02,1,2,-1,1,1\n")
    refused = run(PROGRAM, "--data", path, "--checkpoint-dir", tmp_path / "run", seconds=SECONDS)
    assert refused.returncode == 2 and "prices.csv, row 3: a price is not above 0" in refused.stderr


def test_a_second_run_does_not_overwrite_the_first(tmp_path: Path) -> None:
    (tmp_path / "ppo_lstm_episode_0000005.pt").write_bytes(b"")
    refused = run(PROGRAM, "--checkpoint-dir", tmp_path, seconds=SECONDS)
    assert refused.returncode == 2 and "--resume" in refused.stderr
