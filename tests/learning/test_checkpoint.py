import json
import logging
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch

from keima.base.files import sha256_hex
from keima.learning.checkpoint import Checkpoints, CorruptCheckpoint, read_checkpoint
from keima.learning.learner import Learner
from keima.networks.network import build_network
from tests.small_networks import TIC_TAC_TOE, FixedWindow
from tests.sources import ROOT

COACH = {"iteration": 3, "owed_samples": 0.1, "name": "größer", "nothing": None}
WINDOW = FixedWindow(TIC_TAC_TOE, 64)


def learner() -> Learner:
    torch.manual_seed(0)
    return Learner(build_network(TIC_TAC_TOE, blocks=2, channels=8), device="cpu", batch_size=16)


def checkpoints(folder: Path, steps: int = 1) -> Checkpoints:
    """A folder with a checkpoint after each of these steps."""
    kept, taught = Checkpoints(folder / "checkpoints", keep=3), learner()
    for step in range(steps):
        taught.train(WINDOW, 1, 0)
        kept.save(taught.state(), COACH | {"iteration": step})
    return kept


def test_a_checkpoint_has_the_learner_and_the_coach_s_state(tmp_path: Path) -> None:
    taught, kept = learner(), Checkpoints(tmp_path)
    taught.train(WINDOW, 2, 0)
    path = kept.save(taught.state(), COACH)
    loaded = kept.load()
    assert loaded is not None and loaded.path == path and loaded.coach == COACH
    assert loaded.learner.counters == taught.state().counters
    for group, tensors in taught.state().tensors.items():
        assert all(torch.equal(loaded.learner.tensors[group][name], tensor) for name, tensor in tensors.items()), group


@pytest.mark.medium
def test_ten_steps_equal_five_a_checkpoint_and_five_more(tmp_path: Path) -> None:
    whole, first, second = learner(), learner(), learner()
    whole.train(WINDOW, 10, 7)
    first.train(WINDOW, 5, 7)
    Checkpoints(tmp_path).save(first.state(), {})
    loaded = Checkpoints(tmp_path).load()
    assert loaded is not None
    second.restore(loaded.learner)
    second.train(WINDOW, 5, 7)
    for group, tensors in whole.state().tensors.items():
        assert all(torch.equal(second.state().tensors[group][name], tensor) for name, tensor in tensors.items()), group


def test_a_learner_without_steps_can_be_saved(tmp_path: Path) -> None:
    kept = Checkpoints(tmp_path)
    kept.save(learner().state(), {})
    loaded = kept.load()
    assert loaded is not None and loaded.learner.tensors["optimizer"] == {}
    learner().restore(loaded.learner)


def test_an_empty_folder_has_no_checkpoint(tmp_path: Path) -> None:
    assert Checkpoints(tmp_path / "new").load() is None


def test_only_the_newest_are_kept(tmp_path: Path) -> None:
    kept = checkpoints(tmp_path, steps=5)
    assert [path.name for path in kept.paths()] == ["checkpoint-000003", "checkpoint-000004", "checkpoint-000005"]
    loaded = kept.load()
    assert loaded is not None and loaded.coach["iteration"] == 4 and loaded.learner.counters["step"] == 5


def cut_short(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def flip_a_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)


def from_the_future(path: Path) -> None:
    text = json.dumps(json.loads(json.loads(path.read_bytes())["content"]) | {"format": 99})
    path.write_text(json.dumps({"sha256": sha256_hex(text.encode()), "content": text}))


@pytest.mark.parametrize(
    "name", ["checkpoint.json", "network.safetensors", "average.safetensors", "optimizer.safetensors"]
)
@pytest.mark.parametrize("damage", [cut_short, flip_a_bit, Path.unlink])
def test_a_damaged_checkpoint_is_named_and_the_previous_one_is_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str, damage: Any
) -> None:
    kept = checkpoints(tmp_path, steps=2)
    newest = kept.paths()[-1]
    damage(newest / name)
    with pytest.raises(CorruptCheckpoint, match=name):
        read_checkpoint(newest)
    with caplog.at_level(logging.WARNING):
        loaded = kept.load()
    assert loaded is not None and loaded.path == kept.paths()[0]
    assert str(newest / name) in caplog.text


def test_a_checkpoint_of_another_format_is_named_with_both_formats(tmp_path: Path) -> None:
    path = checkpoints(tmp_path).paths()[0]
    from_the_future(path / "checkpoint.json")
    with pytest.raises(CorruptCheckpoint, match=r"checkpoint\.json has format 99, and this program reads format 1"):
        read_checkpoint(path)


@pytest.mark.parametrize("index", [b"", b"[]", b"{}", b'{"content": 3, "sha256": ""}', b"\xff"])
def test_an_invalid_index_is_refused(tmp_path: Path, index: bytes) -> None:
    path = checkpoints(tmp_path).paths()[0]
    (path / "checkpoint.json").write_bytes(index)
    with pytest.raises(CorruptCheckpoint, match=r"checkpoint\.json"):
        read_checkpoint(path)


def test_if_no_checkpoint_can_be_read_nothing_starts_afresh(tmp_path: Path) -> None:
    kept = checkpoints(tmp_path, steps=2)
    for path in kept.paths():
        cut_short(path / "network.safetensors")
    with pytest.raises(CorruptCheckpoint, match="none of the 2 checkpoints"):
        kept.load()


def test_the_next_checkpoint_follows_a_damaged_one(tmp_path: Path) -> None:
    kept = checkpoints(tmp_path, steps=2)
    cut_short(kept.paths()[-1] / "network.safetensors")
    assert kept.save(learner().state(), COACH).name == "checkpoint-000003"
    loaded = kept.load()
    assert loaded is not None and loaded.coach == COACH


def test_values_beyond_json_are_refused_and_the_older_checkpoints_stay(tmp_path: Path) -> None:
    kept = checkpoints(tmp_path)
    with pytest.raises(ValueError, match="JSON"):
        kept.save(learner().state(), {"seconds": float("nan")})
    assert len(kept.paths()) == 1 and kept.load() is not None


@pytest.mark.medium
def test_a_killed_writer_leaves_the_older_checkpoints_and_no_partial_one(tmp_path: Path) -> None:
    kept = checkpoints(tmp_path)
    program = f"""
        import os, signal
        from pathlib import Path
        import keima.learning.checkpoint as checkpoint
        kept = checkpoint.Checkpoints(Path({str(kept.folder)!r}))
        old = kept.load()
        write, written = checkpoint.write_atomically, []
        def write_two(path, data):
            written.append(path)
            if len(written) == 3:
                os.kill(os.getpid(), signal.SIGKILL)
            write(path, data)
        checkpoint.write_atomically = write_two
        kept.save(old.learner, {{}})
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], cwd=ROOT, check=False)
    assert done.returncode == -signal.SIGKILL
    assert len(list(kept.folder.iterdir())) == 2 and len(kept.paths()) == 1
    loaded = kept.load()
    assert loaded is not None and loaded.coach["iteration"] == 0
    kept.save(loaded.learner, COACH)
    assert sorted(path.name for path in kept.folder.iterdir()) == ["checkpoint-000001", "checkpoint-000002"]
