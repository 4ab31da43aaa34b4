"""Exported networks and their cards."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from keima.base.run_folder import STATS_NAME
from keima.cli.reports.export import main as export
from keima.config.load import save_resolved
from keima.data.ledger import open_ledger
from keima.data.ledger_rows import make_model_row, model_path
from keima.games import load_game
from keima.networks.files.model import Model, canary_positions, describe_model, encode_model
from keima.networks.inference.evaluator import Evaluator
from keima.networks.network import build_network
from keima.play.network_loader import load_network_from_model, load_network_from_run
from keima.report.files.run_files import StatsFile
from tests.example_reports import evaluation, iteration
from tests.ppo.ppo_run import leave_a_run
from tests.small_run import small_settings

GO = load_game("go", size=5, komi=2.5)
NETWORK: dict[str, Any] = {"type": "resnet", "blocks": 1, "channels": 32, "predict_ownership": True}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run of Go with two models, the second one rejected, and as many iterations."""
    folder = tmp_path / "runs" / "go5"
    model_path(folder, 1).parent.mkdir(parents=True)
    workers = {"workers": [{"host": "secret.example.com", "user": "somebody"}]}
    settings = small_settings(
        folder.parent, game={"name": "go", "options": GO.options}, network=NETWORK, distributed=workers
    )
    save_resolved(settings, folder)
    observer = StatsFile(folder / STATS_NAME)
    with open_ledger(folder, GO) as ledger:
        for version in (1, 2):
            torch.manual_seed(version)
            weights = build_network(GO, **NETWORK).eval().state_dict()
            data = encode_model(Model(description=describe_model(GO, NETWORK, version), weights=weights), GO)
            model_path(folder, version).write_bytes(data)
            ledger.add_model(make_model_row(folder, version, iteration=version, data=data, accepted=version == 1))
            observer.iteration(iteration(version, measured=evaluation(version, solved=False)))
    return folder


def benchmark(folder: Path, **changes: object) -> Path:
    """Return what a benchmark writes about a run's newest model, as far as it is read."""
    match = {
        "first": "network",
        "second": "gnugo:10",
        "wins": 161,
        "draws": 0,
        "losses": 39,
        "score": 0.805,
        "interval": [0.74, 0.85],
    }
    other = match | {"first": "gnugo:1", "second": "gnugo:10"}
    model = load_network_from_run(folder).model.description.model_dump()
    content = {"model": model, "arguments": {"simulations": 400}, "matches": [match, other]} | changes
    path = folder / "benchmark.json"
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


@pytest.mark.medium
def test_the_newest_accepted_model_is_exported_and_plays_as_before(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = run.parent / "models" / "go5.safetensors"
    assert export([str(run), str(path)]) == 0
    assert capsys.readouterr().out.startswith(f"{path}: the model, ")
    kept, given = load_network_from_run(run), load_network_from_model(path)
    assert given.model.description == kept.model.description
    observations = canary_positions(GO, 8)
    answers = [Evaluator(each.model.build(GO), GO, device="cpu")(observations) for each in (kept, given)]
    assert all(np.array_equal(first, second) for first, second in zip(*answers, strict=True))
    floats = sum(tensor.nbytes for tensor in kept.model.weights.values())
    assert path.stat().st_size < 0.6 * floats, "what has travelled in 16 bits needs no more"


def test_the_card_says_what_it_is_and_how_it_was_made_but_not_where(run: Path) -> None:
    path = run.parent / "go5.safetensors"
    assert export([str(run), str(path), "--benchmark", str(benchmark(run))]) == 0
    text = path.with_suffix(".md").read_text(encoding="utf-8")
    assert text.startswith(
        "# go5\n\nA network for go (size 5, komi 2.5, suicide False, max_plies 50): type resnet, blocks 1, channels 32"
    )
    assert f"keima gtp {path}" in text
    assert (
        "From self-play alone, without human games: 100 games with 2,300 positions in 1 min 00 s, 1 iterations." in text
    )
    assert "- 60 steps of the learner." in text
    assert "num_simulations: 8" in text and "predict_ownership: true" in text and "cheap_simulations" not in text
    assert (
        "Against gnugo:10: 80.5 % (74.0 to 85.0, 95 %) of 200 games with colours swapped, 400 simulations a move."
        in text
    )
    assert "Elo 100 ± 40, where a random player is 0 (model 1, 128 simulations a move)." in text
    assert text.count("Against") == 1 and "secret" not in text and str(run.parent) not in text.replace(str(path), "")


def test_a_file_that_is_there_is_replaced_only_on_request(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = run.parent / "go5.safetensors"
    path.with_suffix(".md").write_text("what I know of it")
    assert export([str(run), str(path)]) == 2
    assert f"already here: {path.with_suffix('.md')}; choose another name" in capsys.readouterr().err
    assert path.with_suffix(".md").read_text() == "what I know of it" and not path.exists()
    assert export([str(run), str(path), "--replace"]) == 0 and path.exists()


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"model": {}}, "measures another model than model 1"),
        ({"matches": None}, "is not a result of keima benchmark --save for two players"),
    ],
)
def test_a_benchmark_of_another_network_is_refused(
    run: Path, changes: dict[str, object], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = run.parent / "go5.safetensors"
    assert export([str(run), str(path), "--benchmark", str(benchmark(run, **changes))]) == 2
    assert complaint in capsys.readouterr().err and not path.exists()


def test_runs_without_an_exportable_network_are_refused(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert export([str(run), str(run.parent / "go5.pt")]) == 2
    assert "an exported model is called NAME.safetensors" in capsys.readouterr().err
    leave_a_run(tmp_path)
    assert export([str(tmp_path), str(tmp_path / "trader.safetensors")]) == 2
    assert "is not the folder of a run" in capsys.readouterr().err


def test_an_unmeasured_strength_is_not_claimed(run: Path) -> None:
    observer = StatsFile(run / STATS_NAME)
    observer.iteration(replace(iteration(1), evaluation=evaluation(2)))
    assert export([str(run), str(run.parent / "go5.safetensors")]) == 0
    assert "- Not measured yet." in (run.parent / "go5.md").read_text(encoding="utf-8")
