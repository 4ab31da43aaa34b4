"""The comparison with peers (benchmarks/strength/peers), with a peer that plays the first column that has room."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.strength.peers import compare
from benchmarks.strength.peers.adapter import TRAINED, Task
from benchmarks.strength.peers.exam import find_openings
from benchmarks.strength.peers.peer_runs import Peer, PeerRun
from tests.sources import ROOT

FIRST_COLUMN = f"""
import sys

sys.path.insert(0, {str(ROOT)!r})

from benchmarks.strength.peers.adapter import Trained, end_on_time, run_adapter


def train(folder, task):
    end_on_time(folder, task, lambda: Trained(games=30, positions=600, evaluations=None))
    while True:
        pass


def make_player(folder, task, simulations):
    print("peers print, too")

    def choose(positions):
        room = [[column for column in range(7) if moves.count(column) < 6] for moves in positions]
        return [columns[0] for columns in room], [columns[-1] for columns in room]

    return choose


run_adapter(train, make_player, sys.argv[1:])
"""
SECONDS = 0.3


def make_run(folder: Path, program: str) -> PeerRun:
    """Return a run of a peer with this adapter."""
    adapter = folder / "peer.py"
    adapter.write_text(program, encoding="utf-8")
    peer = Peer(name="peer", adapter=adapter, requirements=None, settings=("quick",))
    return PeerRun(peer=peer, task=Task(minutes=SECONDS / 60, seed=1, settings="quick", cores=2), folder=folder)


@pytest.mark.medium
def test_a_peer_trains_for_its_time_and_then_answers_in_the_order_of_the_positions(tmp_path: Path) -> None:
    run = make_run(tmp_path, FIRST_COLUMN)
    run.train()
    trained = run.trained()
    assert trained and trained.games == 30 and trained.seconds >= SECONDS
    written = (run.path / TRAINED).stat().st_mtime_ns
    run.train()
    assert (run.path / TRAINED).stat().st_mtime_ns == written  # it was done
    with run.player(simulations=8) as player:
        positions = [[], [0] * 6, [6] * 6]
        assert player.ask(positions) == {"search": [0, 1, 0], "policy": [6, 6, 5]}
        assert player.ask(positions[1:]) == {"search": [1, 0], "policy": [6, 5]}


@pytest.mark.medium
def test_a_peer_that_fails_is_named_with_its_log(tmp_path: Path) -> None:
    run = make_run(tmp_path, "raise SystemExit('no luck')")
    with pytest.raises(ChildProcessError, match=r"peer-quick-.*train\.log"):
        run.train()
    assert "no luck" in (run.path / "train.log").read_text()
    with run.player(simulations=8) as player, pytest.raises(ChildProcessError, match=r"choose\.log"):
        player.ask([[]])


@pytest.mark.medium
def test_the_table_has_errors_and_scores_of_what_is_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    peer = make_run(tmp_path, FIRST_COLUMN).peer
    monkeypatch.setattr(compare, "PEERS", {name: Peer(**{**vars(peer), "name": name}) for name in ("keima", "other")})
    file = tmp_path / "found.json"
    line = ["compare", "--quick", "--cores", "1", "--minutes", f"{SECONDS / 60}", "--folder", str(tmp_path)]

    def find_rows(*words: str) -> list[list[Any]]:
        monkeypatch.setattr(sys, "argv", [*line, *words, "--json", str(file)])
        compare.main()
        return json.loads(file.read_text())["tables"][0]["rows"]

    assert find_rows("--show") == [[name, "quick", "1"] + [None] * 7 for name in ("keima", "other")]
    keima, other = find_rows()
    peer.adapter.unlink()
    assert find_rows() == [keima, other]  # without beginning anything again
    assert keima[6] == other[6] and 0 < keima[6][1] < keima[6][0] < keima[6][2] < 100
    assert (keima[9], other[9][0]) == (None, 0.5)  # both play the same, with both colours


def test_openings_are_the_beginnings_of_games_without_repetition() -> None:
    games = [[3, 2, 1], [3, 4, 5], [3, 2, 6], *[[0, 1, 2]] * 10]
    assert find_openings(games) == [[], [3], [3, 2], [0, 1, 2]]
