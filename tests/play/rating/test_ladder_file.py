"""Ladders as files: what the shipped ones say, what is refused, and which engines can play here."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from keima.config.load import ConfigError
from keima.games import load_game
from keima.play.arena.ladder import make_go_command
from keima.play.arena.players import GtpSpec, MctsSpec, RandomSpec, UciSpec
from keima.play.rating import rungs
from keima.play.rating.ladder_file import LADDERS, Ladder, find_shipped_ladder, load_ladder
from keima.play.rating.rungs import make_rungs
from tests.own_game import example
from tests.programs import needs_gnu_go

GO9 = load_game("go", size=9, komi=7)
ENGINE: dict[str, Any] = {
    "name": "mine",
    "protocol": "gtp",
    "programs": ["mine"],
    "arguments": ["--level", "{level}"],
    "send": ["boardsize {size}", "komi {komi}"],
    "install": "build it",
    "rungs": [{"level": 3, "elo": 1500, "margin": 40, "source": "its author"}],
}
RANDOM = {"name": "random", "protocol": "built-in", "rungs": [{"elo": 0}]}


def write(folder: Path, *engines: dict[str, Any], **others: Any) -> Path:
    path = folder / "mine.yaml"
    path.write_text(json.dumps({"game": "go", "scale": "mine", "engines": engines, **others}, indent=1))
    return path


def test_every_shipped_ladder_is_valid_and_says_where_its_strengths_are_from() -> None:
    ladders = {path.stem: load_ladder(path) for path in LADDERS.glob("*.yaml")}
    assert {"go", "go_9", "chess", "othello", "hex_7"} <= ladders.keys()
    known = [rung for ladder in ladders.values() for engine in ladder.engines for rung in engine.rungs if rung.elo]
    assert known and all(rung.source for rung in known)
    assert all(engine.install for ladder in ladders.values() for engine in ladder.engines if engine.programs)


def test_the_ladder_for_the_size_of_the_board_is_found() -> None:
    options = {size: find_shipped_ladder(load_game("go", size=size, komi=7)) for size in (7, 9, 13)}
    assert [ladder.options if ladder else None for ladder in options.values()] == [{}, {"size": 9}, {}]
    assert find_shipped_ladder(load_game("tic_tac_toe")) is None


def test_a_file_that_is_named_like_a_shipped_game_has_no_shipped_ladder() -> None:
    own = example("othello", size=8)
    assert find_shipped_ladder(own), "no shipped game is Othello"
    assert not load_ladder(LADDERS / "chess.yaml").fits(replace(own, name="chess-0123456789ab", options={}))


def test_a_go_engine_without_lines_is_told_the_board_and_no_engine_is_asked_for_a_game_that_it_cannot_be_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rungs, "find_program", lambda name: Path("/games", name))
    silent = write(tmp_path, {**ENGINE, "send": []})
    ((rung,), _) = make_rungs(load_ladder(silent), GO9)
    assert isinstance(rung.entrant.spec, GtpSpec) and rung.entrant.spec.setup is None, "GtpPlayer sends size and komi"
    uci = {**ENGINE, "protocol": "uci", "send": [], "go": "depth {level}"}
    with pytest.raises(ConfigError, match="mine: by uci, engines play only chess"):
        load_ladder(write(tmp_path, uci))
    nboard = {**ENGINE, "protocol": "nboard", "send": []}
    with pytest.raises(ConfigError, match="mine: by nboard, engines play only othello"):
        load_ladder(write(tmp_path, nboard))
    _, (skipped,) = make_rungs(load_ladder(write(tmp_path, nboard, game="othello")), example("othello", size=6))
    assert skipped.reason == "plays only games with size: 8"


def test_installed_engines_become_players_by_their_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rungs, "find_program", lambda name: Path("/games", name))
    chess = {"name": "uci", "protocol": "uci", "programs": ["uci"], "go": "depth {level}", "rungs": [{"level": 2}]}
    mcts = {"name": "mcts", "protocol": "built-in", "rungs": [{"level": 50, "elo": 700}]}
    found, skipped = make_rungs(load_ladder(write(tmp_path, ENGINE, mcts, RANDOM)), GO9)
    assert not skipped
    assert [(rung.name, rung.elo, rung.margin) for rung in found] == [
        ("random", 0, 0),
        ("mcts:50", 700, 0),
        ("mine:3", 1500, 40),
    ]
    assert [rung.entrant.spec for rung in found] == [
        RandomSpec(),
        MctsSpec(playouts=50),
        GtpSpec(command=("/games/mine", "--level", "3"), setup=("boardsize 9", "komi 7"), move_seconds=120.0),
    ]
    found, _ = make_rungs(load_ladder(write(tmp_path, chess, RANDOM, game="chess")), load_game("chess"))
    assert [(rung.name, rung.elo) for rung in found] == [("random", 0), ("uci:2", None)]
    assert found[1].entrant.spec == UciSpec(command=("/games/uci",), go="depth 2", move_seconds=120.0)


def test_matches_place_rungs_on_the_scale(tmp_path: Path) -> None:
    mcts = {"name": "mcts", "protocol": "built-in", "rungs": [{"level": 50}, {"level": 100}]}
    matches = [{"first": "mcts:50", "second": "random", "wins": 15, "draws": 0, "losses": 5}]
    found, _ = make_rungs(load_ladder(write(tmp_path, RANDOM, mcts, matches=matches)), GO9)
    placed = {rung.name: (rung.elo, rung.margin) for rung in found}
    assert placed["random"] == (0, 0) and placed["mcts:100"] == (None, 0)
    elo, margin = placed["mcts:50"]
    assert elo and 150 < elo < 200 and 100 < margin < 250


@pytest.mark.parametrize(
    ("match", "message"),
    [
        ({"first": "mcts:5", "second": "random"}, "there is no rung mcts:5; there are mcts:100, mcts:50, random"),
        ({"first": "mcts:50", "second": "mcts:100"}, "none leads from mcts:50 to a rung with an elo"),
        ({"first": "random", "second": "random"}, "a match is at least one game between two rungs"),
        ({"first": "mcts:50", "second": "random", "wins": 0, "losses": 0}, "a match is at least one game between"),
    ],
)
def test_matches_that_place_nothing_are_refused(tmp_path: Path, match: dict[str, Any], message: str) -> None:
    mcts = {"name": "mcts", "protocol": "built-in", "rungs": [{"level": 50}, {"level": 100}]}
    with pytest.raises(ConfigError, match=message):
        load_ladder(write(tmp_path, RANDOM, mcts, matches=[{"wins": 1, "losses": 1} | match]))


def test_missing_and_unsuitable_engines_are_skipped_with_the_remedy(tmp_path: Path) -> None:
    missing = ENGINE | {"programs": ["no-such-program", "nor-this"]}
    picky = ENGINE | {"name": "picky", "needs": {"suicide": True}}
    file = ENGINE | {"name": "file", "programs": [], "path": str(tmp_path / "nothing")}
    found, skipped = make_rungs(load_ladder(write(tmp_path, missing, picky, file)), GO9)
    assert not found
    assert [each.reason for each in skipped] == [
        "there is no program no-such-program or nor-this here",
        "plays only games with suicide: True",
        f"there is no program {tmp_path / 'nothing'} here",
    ]
    assert skipped[0].install == "build it" and skipped[1].install is None


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"rungs": []}, r"line \d+: engines\[0\]\.rungs: "),
        ({"rungs": [{"levels": 3}]}, r"engines\[0\]\.rungs\[0\]\.levels is not a setting; did you mean .*level\?"),
        ({"rungs": [{"level": 3}, {"level": 3}]}, r"engines\[0\]: two of the rungs have the same level"),
        ({"rungs": [{"elo": "strong"}]}, r"engines\[0\]\.rungs\[0\]\.elo: expected a number, found \"strong\""),
        ({"rungs": [{"elo": 1, "margin": -3}]}, r"engines\[0\]\.rungs\[0\]\.margin: expected at least 0, found -3"),
        ({"rungs": [{"level": 3}]}, "none of the rungs has an elo, and the scale needs one"),
        ({"protocol": "xboard"}, r"engines\[0\]\.protocol: expected .*, found \"xboard\""),
        ({"protocol": "uci"}, r"engines\[0\]: go limits the search of a UCI engine"),
        ({"protocol": "built-in"}, r"there is no built-in player mine; there are random, greedy, mcts, alphabeta"),
        ({"protocol": "built-in", "name": "random"}, r"the built-in player random has no levels"),
        ({"programs": []}, r"engines\[0\]: give either programs, the names to look for, or path"),
        (
            {"arguments": [], "rungs": [{"level": 3, "elo": 1}, {"level": 4}]},
            r"engines\[0\]: none of its lines has {level}, so all of its rungs would play alike",
        ),
        ({"rungs": [{"level": 3, "elo": 1}, {"level": 4, "margin": 9}]}, r"engines\[0\]: a margin is that of an elo"),
        ({"send": ["one\ntwo"]}, r"engines\[0\]\.send\[0\]: expected one line of text"),
    ],
)
def test_an_invalid_ladder_is_refused_with_file_and_key(tmp_path: Path, change: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigError, match=f"(?s)mine.yaml.*{complaint}"):
        load_ladder(write(tmp_path, ENGINE | change))


def test_an_unknown_placeholder_is_refused_with_those_that_exist(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rungs, "find_program", lambda name: Path("/games", name))
    with pytest.raises(ValueError, match=r"mine: send: size {width}: there is no {width}; there are .*{size}.*{level}"):
        make_rungs(load_ladder(write(tmp_path, ENGINE | {"send": ["size {width}"]})), GO9)
    with pytest.raises(ValueError, match=r"mine: send: rules {: .*; write a brace twice if it is meant"):
        make_rungs(load_ladder(write(tmp_path, ENGINE | {"send": ["rules {"]})), GO9)


@needs_gnu_go
def test_the_shipped_gnu_go_plays_by_the_rules_of_the_benchmark() -> None:
    ladder = find_shipped_ladder(GO9)
    assert isinstance(ladder, Ladder)
    (spec,) = [rung.entrant.spec for rung in make_rungs(ladder, GO9)[0] if rung.name == "gnugo:10"]
    assert isinstance(spec, GtpSpec) and set(spec.command) == set(make_go_command(GO9, "gnugo", 10))
