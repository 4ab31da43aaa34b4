"""Games that were played before: what they depend on, and what a broken file counts for."""

from pathlib import Path

import pytest

import keima.play.rating.game_cache as game_cache
from keima.config.sections.search import SearchSettings
from keima.games import load_game
from keima.play.arena.players import GtpSpec, MctsSpec, NetworkSpec
from keima.play.rating.game_cache import GameCache, StoredGames

GAME = load_game("tic_tac_toe")
OPPONENT = MctsSpec(playouts=10)


def make_cache(folder: Path, *, weights: bytes = b"weights", simulations: int = 2, seed: int = 1) -> GameCache:
    (folder / "model").write_bytes(weights)
    network = NetworkSpec(model=folder / "model", search=SearchSettings(), num_simulations=simulations)
    return GameCache(GAME, network, seed=seed, opening_plies=2, folder=folder / "cache")


def batch(first: int, games: int = 4) -> StoredGames:
    return StoredGames(first=first, games=games, wins=games, seconds=1.5)


def test_games_are_found_again_by_everything_that_they_depend_on(tmp_path: Path) -> None:
    make_cache(tmp_path).add(OPPONENT, batch(0))
    make_cache(tmp_path).add(OPPONENT, batch(4, 8))
    assert make_cache(tmp_path).read(OPPONENT) == [batch(0), batch(4, 8)]
    assert make_cache(tmp_path).read(MctsSpec(playouts=11)) == []
    assert make_cache(tmp_path).read(None) == []
    assert make_cache(tmp_path, simulations=3).read(OPPONENT) == []
    assert make_cache(tmp_path, seed=2).read(OPPONENT) == []
    assert make_cache(tmp_path, weights=b"others").read(OPPONENT) == []
    assert make_cache(tmp_path).read(OPPONENT) != []


def test_a_changed_search_plays_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_cache(tmp_path).add(OPPONENT, batch(0))
    monkeypatch.setattr(game_cache, "cache_folder", lambda path: Path(f"{path.stem}-of-other-sources"))
    assert make_cache(tmp_path).read(OPPONENT) == []


def test_another_program_under_the_same_name_is_another_opponent(tmp_path: Path) -> None:
    program = tmp_path / "engine"
    program.write_text("one")
    engine = GtpSpec(command=(str(program), "--level", "3"), move_seconds=1.0)
    make_cache(tmp_path).add(engine, batch(0))
    assert make_cache(tmp_path).read(engine) == [batch(0)]
    program.write_text("two")
    assert make_cache(tmp_path).read(engine) == []


@pytest.mark.parametrize("where", ["argument", "line", "silently"])
def test_another_network_of_the_same_program_is_another_opponent(tmp_path: Path, where: str) -> None:
    weights = tmp_path / "weights.gz"
    weights.write_text("one")
    engine = GtpSpec(
        command=("engine", *([f"--weights={weights}"] if where == "argument" else []), "x" * 5000 + "."),
        setup=(f"setoption name WeightsFile value {weights}",) if where == "line" else (),
        files=(str(weights), str(tmp_path / "none")) if where == "silently" else (),
        move_seconds=1.0,
    )
    make_cache(tmp_path).add(engine, batch(0))
    assert make_cache(tmp_path).read(engine) == [batch(0)]
    weights.write_text("two")
    assert make_cache(tmp_path).read(engine) == []


def test_a_broken_file_counts_as_missing_and_is_replaced(tmp_path: Path) -> None:
    make_cache(tmp_path).add(OPPONENT, batch(0))
    (file,) = (tmp_path / "cache").iterdir()
    for content in ("", "{}", '{"about": {}, "batches": [{"first": -1, "games": 0}]}', "\0"):
        file.write_text(content)
        assert make_cache(tmp_path).read(OPPONENT) == []
    make_cache(tmp_path).add(OPPONENT, batch(0))
    assert make_cache(tmp_path).read(OPPONENT) == [batch(0)]


def test_games_after_a_gap_do_not_count(tmp_path: Path) -> None:
    cache = make_cache(tmp_path)
    cache.add(OPPONENT, batch(4))
    assert cache.read(OPPONENT) == []
