"""The comparison of networks by benchmarks/strength/trunks.py."""

import time
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.strength.trunks import (
    Candidate,
    Costs,
    Outcome,
    Plan,
    Positions,
    above_plain,
    learn,
    lessons_of,
    read_batches,
    split_games,
    table,
)
from keima.config.sections.network import NetworkSettings
from keima.data.records import encode
from keima.games import load_game
from keima.learning.learner import TensorBatch, to_tensors
from keima.replay.window import ReplayWindow
from tests.synthetic import synthetic_batch

CONNECT_FOUR = load_game("connect_four")
CPU = torch.device("cpu")
KNOWN = [
    Costs(name="resnet-1x8", parameters=1000, played=5.0, plain=10.0, gpu_played=None, gpu_plain=None),
    Costs(name="resnet-4x8", parameters=4000, played=20.0, plain=40.0, gpu_played=None, gpu_plain=None),
    Costs(name="bottleneck-2x8", parameters=2000, played=40.0, plain=20.0, gpu_played=None, gpu_plain=None),
]


def outcome(name: str, seed: int, policy_loss: float) -> Outcome:
    return Outcome(name=name, seed=seed, policy_loss=policy_loss, value_loss=0.5, train_loss=0.0, seconds=1.0)


def folder_of_games(path: Path, games: int) -> Path:
    (path / "some.games").write_bytes(encode(synthetic_batch(CONNECT_FOUR, games=games, full_share=0.5)))
    return path


@pytest.mark.parametrize("name", ["go", "connect_four"])
def test_positions_on_a_device_are_those_of_the_replay_window_under_each_symmetry(name: str) -> None:
    game = load_game(name, **({"size": 5} if name == "go" else {}))
    batch = synthetic_batch(game, games=4, full_share=0.5)
    heads = Candidate("resnet-1x8").network(game)
    window = ReplayWindow(game, capacity_positions=10**6, network=heads)
    window.add(batch)
    places = window.to_learn_from()
    symmetries = np.arange(len(places)) % len(game.point_symmetries)
    wanted = to_tensors(window.take(places, symmetries), CPU)
    ours = Positions(game, [batch], heads, CPU, 10**6)
    taken = ours.take(torch.arange(len(ours)), torch.from_numpy(symmetries))
    for field in fields(TensorBatch):
        mine, theirs = getattr(taken, field.name), getattr(wanted, field.name)
        assert mine.dtype == theirs.dtype
        torch.testing.assert_close(mine, theirs, atol=1e-3, rtol=1e-3, equal_nan=True)


def test_every_tenth_game_is_held_out(tmp_path: Path) -> None:
    learned, held_out = split_games(CONNECT_FOUR, read_batches(folder_of_games(tmp_path, 25)))
    assert [part.num_games for part in learned + held_out] == [22, 3]


def test_a_folder_without_games_is_refused_with_the_flag_that_makes_some(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no files of games.*--play"):
        read_batches(tmp_path)


@pytest.mark.medium
def test_a_network_learns_from_the_games_until_the_deadline(tmp_path: Path) -> None:
    plan = Plan(
        folder=folder_of_games(tmp_path, 20),
        device="cpu",
        steps=20,
        batch_size=32,
        learning_rate=1e-2,
        optimizer="adamw",
        positions=10**6,
        deadline=time.time() + 1000,
    )
    lessons = lessons_of(plan)
    first, again, other = (learn(Candidate("bottleneck-1x8-se"), seed, lessons) for seed in (1, 1, 2))
    assert first is not None and again is not None and other is not None
    assert first.loss == again.loss != other.loss
    untrained = learn(Candidate("bottleneck-1x8-se"), 1, replace(lessons, plan=replace(plan, steps=1)))
    assert untrained is not None and first.loss < untrained.loss
    late = replace(lessons, plan=replace(plan, deadline=0.0))
    assert learn(Candidate("bottleneck-1x8-se"), 1, late) is None


def test_a_loss_is_compared_with_that_of_plain_networks_of_the_same_time() -> None:
    outcomes = [outcome("resnet-1x8", 1, 2.0), outcome("resnet-4x8", 1, 1.0), outcome("bottleneck-2x8", 1, 1.2)]
    losses = {(each.name, each.seed): each.loss for each in outcomes}
    assert above_plain(KNOWN[2], "plain", KNOWN, losses) == [pytest.approx(-0.3)]  # 20 is halfway from 10 to 40
    assert above_plain(KNOWN[2], "played", KNOWN, losses) == []  # slower than all plain networks
    assert above_plain(KNOWN[2], "gpu_plain", KNOWN, losses) == []
    more = [outcome("resnet-1x8", 2, 2.0), outcome("resnet-4x8", 2, 1.0), outcome("bottleneck-2x8", 2, 1.0)]
    assert table(KNOWN, outcomes + more).splitlines()[-1] == (
        "| bottleneck-2x8 | 2,000 | 40.00 | 20.00 | 2 | 1.1000 ± 1.2706 | 0.5000 ± 0.0000 | – | -0.4000 ± 1.2706 |"
    )


def test_a_name_gives_the_settings_of_a_network() -> None:
    settings = NetworkSettings(**Candidate("bottleneck-3x96-se").settings)
    assert (settings.type, settings.blocks, settings.channels, settings.squeeze_excitation) == (
        "bottleneck",
        3,
        96,
        True,
    )
    assert Candidate("resnet-4x64").plain and not Candidate("resnet-4x64-se").plain
    with pytest.raises(ValueError, match="the only option is -se"):
        _ = Candidate("resnet-4x64-ln").settings
