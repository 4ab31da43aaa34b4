"""Real inputs of the readers of files and messages, for tests that damage them."""

import json
from pathlib import Path
from typing import Any

import torch
import yaml

from keima.evaluation.match_jobs import EvaluationJob, EvaluationJobResult
from keima.learning.checkpoint import INDEX, write_checkpoint
from keima.learning.learner import LearnerState
from keima.networks.files.model import Model, decode_model, save_safetensors
from keima.networks.files.weights_file import save_weights
from keima.worker.worker_folder import Assignment, Heartbeat
from tests.example_reports import evaluation, iteration, worker
from tests.small_run import model_bytes, small_settings

PGN = """[Event "x"]
[White "A \\"quoted\\" one"]
[Result "1-0"]

1. e4 {a comment} e5 2. Bc4 (2. Nf3 Nc6 (2... d6)) Nc6 $1 3. Qh5 Nf6?? 4. Qxf7# 1-0

[Event "y"]
[FEN "4k3/8/8/8/8/8/8/R3K3 w Q - 0 1"]
[SetUp "1"]

1. O-O-O+ Kf7 1/2-1/2
"""
SGF = (
    "(;FF[4]GM[1]SZ[5]KM[7.5]PB[a\\]b]RE[W+R];B[cc];W[bb](;B[dd]C[x:y];W[])(;B[aa]))"
    "(;GM[1]SZ[5]KM[7];B[cc];W[];B[]RE[B+17.5])"
)
GROUPS = {"network": {"a": torch.zeros(2, 3)}, "optimizer": {"b": torch.ones(4)}}
PARTS = (INDEX, *(f"{group}.safetensors" for group in GROUPS))
BETWEEN = b"\n-- next file --\n"


def dumped(value: Any) -> bytes:
    return json.dumps(value).encode()


def heartbeat() -> bytes:
    return (
        Heartbeat(run_id="run", worker="w", beat=3, pid=7, state="playing", note="n", job="o", speed=3.0)
        .model_dump_json()
        .encode()
    )


def poll() -> bytes:
    """Return the answer to a poll of one worker, which comes with the five bytes of a file."""
    worker = {
        "mine": True,
        "wrong": "",
        "stamp": "1-2-3",
        "heartbeat": heartbeat().decode(),
        "running": True,
        "names": [["c.owner", 2], ["000000000-1-w--run-0f.games", 5]],
        "files": [["000000000-1-w--run-0f.games", 5]],
        "unread": [],
    }
    return dumped({"ok": {"workers": [worker]}})


def job() -> EvaluationJob:
    numbers = {"seed": 1, "opening_plies": 2, "match_pairs": 4, "first_pair": 0, "pairs": 2, "num_simulations": 8}
    return EvaluationJob.model_validate(
        {"id": "a-1", "first": {"version": 1, "sha256": "a" * 64}, "second": None, **numbers}
    )


def assignment() -> bytes:
    return (
        Assignment(
            run_id="run",
            worker="w",
            lease="1",
            lease_seconds=60.0,
            granted=10,
            delivered=0,
            model_version=1,
            model_sha256="0" * 64,
            game="tic_tac_toe",
            options={},
            search=small_settings(Path("runs")).search,
            seed=1,
            parallel_games=4,
            cache_positions=0,
            batch_games=10,
            flush_seconds=None,
            matches=(job(),),
        )
        .model_dump_json()
        .encode()
    )


def result() -> bytes:
    moves = ((0, 1, 2, 3, 4, 5, 6),) * 4
    return (
        EvaluationJobResult(worker="w", job=job(), openings="0" * 64, moves=moves, scores=(1.0, 0.0, 0.5, 1.0))
        .model_dump_json()
        .encode()
    )


def checkpoint(place: Path) -> bytes:
    """Yield a checkpoint's files, one after the other."""
    folder = place / "whole"
    folder.mkdir()
    write_checkpoint(folder, LearnerState(GROUPS, {"steps": 3}), {"iteration": 1, "total_games": 5})
    return BETWEEN.join((folder / name).read_bytes() for name in PARTS)


def configs() -> list[bytes]:
    """Return all settings, and those of one section each, which are read much faster."""
    whole = small_settings(Path("runs")).model_dump(mode="json")
    parts = [{name: whole[name] for name in ("run", "game", section)} for section in whole]
    return [yaml.safe_dump(each, sort_keys=False).encode() for each in (whole, *parts)]


def weights(place: Path) -> bytes:
    path = place / "weights.pth"
    save_weights(path, {"a": torch.zeros(2, 3), "b": torch.ones(4)})
    return path.read_bytes()


def safetensors(place: Path) -> bytes:
    path, model = place / "whole.safetensors", decode_model(model_bytes(1))
    save_safetensors(path, Model(description=model.description, weights=model.weights))
    return path.read_bytes()


def stats() -> bytes:
    return dumped([iteration(number, measured=evaluation(number), workers=(worker(),)).as_dict() for number in (1, 2)])


def answers() -> dict[str, Any]:
    """Return an answer to each command of an agent but the poll."""
    interpreter = {"path": "/usr/bin/python3", "version": [3, 11, 2], "packages": {"torch": "2.0", "numpy": None}}
    probe = {
        "root": "/home/u/keima",
        "writable": True,
        "disk_free": 10**10,
        "python": interpreter,
        "platform": "Linux",
        "machine": "x86_64",
        "cpus": 2,
        "memory": 2**34,
        "gpus": [{"index": 0, "name": "G", "memory": 2**34}],
        "gpu_error": "",
        "kills_processes": False,
        "clock": 1e9,
        "boot_id": "b",
        "code": {".": "abc"},
        "whole": ["."],
    }
    owner = {"run_id": "run", "label": "run", "host": "main", "coach": "c", "lease_seconds": 900.0}
    return {
        "inspect": interpreter,
        "probe": probe,
        "start": {"pid": 1, "start_ticks": 2, "boot_id": "b", "already": True},
        "stop": {"found": True, "killed": False},
        "alive": {"running": True, "pid": 3, "code": None},
        "own": {"mine": False, "owner": owner, "token": "t", "contents": "", "unsorted": False},
        "give_way": {},
        "tail": {"text": "log", "end": 3},
        "link": {"linked": True},
        "unpack": {},
        "unpack_cache": {},
    }
