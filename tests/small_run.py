"""A run that is as small as possible, for tests of code that carries runs."""

from pathlib import Path
from typing import Any

import torch

from keima.config.schema import Settings
from keima.games import Game, load_game
from keima.networks.files.model import Model, describe_model, encode_model, save_safetensors
from keima.networks.network import build_network

GAME = load_game("tic_tac_toe")
NETWORK = {"type": "resnet", "blocks": 1, "channels": 8, "global_pooling": False}


def small_settings(directory: Path, **changes: object) -> Settings:
    """Return settings of tic-tac-toe in the smallest form; ``changes`` are by section, such as ``training={...}``."""
    sections: dict[str, dict[str, object]] = {
        "run": {"name": "small", "directory": str(directory), "iterations": 2},
        "game": {"name": "tic_tac_toe"},
        "network": dict(NETWORK),
        "search": {"num_simulations": 8, "full_search_probability": 1.0, "opening_random_moves": 1.0},
        "self_play": {"parallel_games": 8, "workers": 1, "games_per_worker": 40, "flush_seconds": 1.0},
        "training": {
            "batch_size": 16,
            "games_per_iteration": 20,
            "samples_per_position": 2.0,
            "window": {"min_positions": 50, "max_positions": 1_000},
            "threads": 1,
        },
        "evaluation": {"every": 0},
        "distributed": {"batch_size": 10},
    }
    for section, values in changes.items():
        assert isinstance(values, dict)
        sections[section].update(values)
    return Settings.model_validate(sections)


def new_model(game: Game, version: int, **heads: bool) -> Model:
    """Return an untrained network with these auxiliary ``heads``; another version has other weights."""
    torch.manual_seed(version)
    shape: dict[str, Any] = NETWORK | heads
    return Model(
        description=describe_model(game, shape, version), weights=build_network(game, **shape).eval().state_dict()
    )


def model_bytes(version: int, game: Game = GAME) -> bytes:
    """Return a new network as the bytes that are sent."""
    return encode_model(new_model(game, version), game)


def saved_model(path: Path, game: Game, *, version: int = 1, **heads: bool) -> Path:
    """Return a new network as the file that people keep."""
    save_safetensors(path, new_model(game, version, **heads))
    return path
