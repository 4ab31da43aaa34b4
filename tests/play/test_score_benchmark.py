"""The benchmark of one-player games, with its own processes."""

from pathlib import Path

import numpy as np
import pytest
import torch

from keima.config.sections.search import SearchSettings
from keima.evaluation.score import play_for_score
from keima.games import load_game
from keima.games.twenty48.expectimax import choose_expectimax_move
from keima.networks.files.model import save_safetensors
from keima.networks.network import build_network
from keima.play.arena.players import ExpectimaxPlayer, ExpectimaxSpec, NetworkSpec, RandomSpec
from keima.play.arena.score_benchmark import (
    find_affordable_depth,
    make_model_from_weights,
    play_scored,
    sample_positions,
)
from keima.play.arena.slices import SliceFailed
from tests.one_player import SMALL

FULL = load_game("twenty48")
NETWORK = {"blocks": 2, "channels": 8}


@pytest.mark.medium
def test_all_games_are_played_whatever_the_number_of_processes() -> None:
    told: list[tuple[int, int]] = []
    result = play_scored(
        SMALL,
        "random",
        RandomSpec(),
        games=5,
        seed=1,
        processes=2,
        on_progress=lambda ended, moves: told.append((ended, moves)),
    )
    assert result.name == "random"
    assert len(result.games.scores) == result.report.games == 5
    assert result.report.best == result.games.scores.max()
    assert told[-1] == (5, result.games.moves)
    assert result.games.plies.sum() == 5 * 2 + 2 * result.games.moves
    assert result.move_seconds > 0
    found = result.as_dict()
    assert found["mean"] == result.report.mean and len(found["scores"]) == 5
    assert [part["milestone"] for part in found["milestones"]] == [512, 1024]


@pytest.mark.medium
def test_slices_are_the_games_of_one_process_cut_in_two() -> None:
    alone = play_for_score(FULL, ExpectimaxPlayer(0), games=4, seed=3)
    result = play_scored(FULL, "expectimax", ExpectimaxSpec(depth=0), games=4, seed=3, processes=2)
    assert result.games.scores.tolist() == alone.scores.tolist()
    assert result.report.mean > 2000, "it plays far better than at random, which makes about 1,100"


@pytest.mark.medium
def test_a_failing_process_says_why(tmp_path: Path) -> None:
    (tmp_path / "broken.model").write_bytes(b"broken")
    spec = NetworkSpec(model=tmp_path / "broken.model", search=SearchSettings(), num_simulations=4)
    with pytest.raises(SliceFailed, match="CorruptModel"):
        play_scored(SMALL, "network", spec, games=2, seed=1, processes=1)


def test_a_state_dictionary_reveals_its_network(tmp_path: Path) -> None:
    for pooling in (True, False):
        weights = build_network(FULL, **NETWORK, global_pooling=pooling).state_dict()  # type: ignore[arg-type]
        model = make_model_from_weights(FULL, weights)
        assert model.description.network == {"type": "resnet", **NETWORK, "global_pooling": pooling}
    with pytest.raises(ValueError, match="the network takes 16 planes of 16 cells"):
        make_model_from_weights(SMALL, weights)
    with pytest.raises(ValueError, match="is not a state dictionary of a network for twenty48"):
        make_model_from_weights(FULL, {"weight": torch.zeros(3)})


@pytest.mark.medium
def test_a_network_plays_from_its_file(tmp_path: Path) -> None:
    model = make_model_from_weights(SMALL, build_network(SMALL, **NETWORK).state_dict())  # type: ignore[arg-type]
    save_safetensors(tmp_path / "a.safetensors", model)
    spec = NetworkSpec(model=tmp_path / "a.safetensors", search=SearchSettings(algorithm="gumbel"), num_simulations=4)
    result = play_scored(SMALL, "network", spec, games=3, seed=1, processes=1)
    assert result.report.games == 3 and (result.games.scores > 0).all()


@pytest.mark.medium
def test_expectimax_looks_as_far_ahead_as_the_time_allows() -> None:
    assert find_affordable_depth(FULL, 0.0) == 0
    assert find_affordable_depth(FULL, 1e-3) >= 1


@pytest.mark.medium
def test_the_time_is_measured_on_positions_of_real_games() -> None:
    positions = sample_positions(FULL)
    assert all(FULL.current_player(state) == 0 and not FULL.terminal(state) for state in positions)
    assert max(FULL.milestone_of(state) for state in positions) >= 128
    chosen = ExpectimaxPlayer(1).choose(np.stack(positions))
    assert chosen.tolist() == [choose_expectimax_move(state, depth=1) for state in positions]
