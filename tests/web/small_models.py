"""Files of small untrained networks, for tests of playing against them."""

from pathlib import Path
from typing import Any

import torch

from keima.games import load_game
from keima.networks.files.model import Model, describe_model, save_safetensors
from keima.networks.network import build_network
from keima.play.session import parse_move
from tests.own_game import EXAMPLES
from tests.small_run import NETWORK

GAMES: dict[str, dict[str, Any]] = {
    "tic_tac_toe": {},
    "connect_four": {},
    "go": {"size": 5, "max_plies": 30},
    "chess": {"max_plies": 24},
    "twenty48": {"height": 2, "width": 2},
    str(EXAMPLES / "hex.py"): {"size": 3, "swap": True},
    str(EXAMPLES / "corner_four.py"): {},
    str(EXAMPLES / "three_player_connect_four.py"): {"rows": 4, "columns": 4, "winning": 3},
}


def small_model(folder: Path, game: str, **options: Any) -> Path:
    """Write a model for a game; returns the file."""
    torch.manual_seed(1)
    loaded = load_game(game, **(options or GAMES.get(game, {})))
    path = folder / f"{Path(game).stem}.safetensors"
    network = build_network(loaded, **NETWORK)  # type: ignore[arg-type]
    weights = network.eval().state_dict()
    save_safetensors(path, Model(description=describe_model(loaded, NETWORK, 1), weights=weights))
    return path


def before_a_promotion() -> list[int]:
    """Return the actions of a game of chess after which a pawn may capture on b8."""
    chess = load_game("chess")
    state, actions = chess.initial_state(), list[int]()
    for text in ("a2a4", "b7b5", "a4b5", "a7a6", "b5a6", "h7h6", "a6a7", "h6h5"):
        actions.append(parse_move(chess, state, text))
        chess.play(state, actions[-1])
    return actions
