"""Weights for other PyTorch programs: written files are read again, and nothing in a file is ever called."""

import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from keima.networks.files.weights_file import CorruptWeights, load_weights, save_weights

WEIGHTS = {"stem.weight": torch.arange(12.0).reshape(3, 4), "steps": torch.tensor(7)}


class Trap:
    def __reduce__(self) -> object:
        return os.mkdir, ("caught",)


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path / "model_epoch_50.pth"


def refusal(path: Path) -> str:
    with pytest.raises(CorruptWeights) as caught:
        load_weights(path)
    return str(caught.value)


def test_weights_are_read_as_they_were_written(path: Path) -> None:
    save_weights(path, WEIGHTS)
    read = load_weights(path)
    assert read.keys() == WEIGHTS.keys()
    for name, tensor in WEIGHTS.items():
        assert torch.equal(read[name], tensor)


def test_torch_alone_can_also_read_them(path: Path) -> None:
    save_weights(path, {name: tensor.requires_grad_(tensor.is_floating_point()) for name, tensor in WEIGHTS.items()})
    assert torch.load(path, weights_only=True).keys() == WEIGHTS.keys()


def test_a_file_that_would_run_code_is_refused_without_running_it(path: Path) -> None:
    torch.save({"stem.weight": Trap()}, path)
    assert str(path) in refusal(path)
    assert not (path.parent / "caught").exists()


@pytest.mark.parametrize("keep", [0, 3, 100, 600])
def test_a_truncated_file_is_refused_by_name(path: Path, keep: int) -> None:
    save_weights(path, WEIGHTS)
    path.write_bytes(path.read_bytes()[:keep])
    assert refusal(path).startswith(f"{path} is not a file of weights")


def test_no_message_advises_loading_without_checks(path: Path, tmp_path: Path) -> None:
    save_weights(path, WEIGHTS)
    whole = path.read_bytes()
    save_file({"weight": torch.zeros(200)}, tmp_path / "model.safetensors")
    other = (tmp_path / "model.safetensors").read_bytes()
    for content, remedy in (
        (whole[: len(whole) // 2], "it was cut short or changed in transfer; copy it again"),
        (other, "it is a safetensors file; give it to --model"),
        (other[:60], "it is a safetensors file; give it to --model"),
        (b"hello", "write it with torch.save(model.state_dict(), path)"),
    ):
        path.write_bytes(content)
        said = refusal(path)
        assert remedy in said and "weights_only" not in said and "\n" not in said
    torch.save({"stem.weight": Trap()}, path)
    assert "it has objects other than tensors" in refusal(path) and "weights_only" not in refusal(path)


@pytest.mark.parametrize(
    "content", [[1, 2], {}, {"model": {"stem.weight": torch.ones(2)}}, {3: torch.ones(2)}, torch.ones(2)]
)
def test_a_file_that_holds_something_else_is_refused(path: Path, content: object) -> None:
    torch.save(content, path)
    assert refusal(path).startswith(f"{path} is not a file of weights")


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_are_refused(path: Path, value: float) -> None:
    save_weights(path, {"stem.weight": torch.tensor([1.0, value])})
    assert "stem.weight" in refusal(path)


def test_a_missing_file_is_named(path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="model_epoch_50"):
        load_weights(path)
