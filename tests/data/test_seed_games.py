"""Games of files enter a run exactly once, whatever happens while they are received."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from keima.cli.reports.audit import audit
from keima.coach.backends.backend import InlineBackend, SelfPlayBackend
from keima.coach.loop import Coach
from keima.coach.opening import open_coach
from keima.config.schema import Settings
from keima.config.sections.training import SEED_ACCOUNTS
from keima.data import receive as receiving
from keima.data.imports import imported_games
from keima.data.imports.seed_games import ingest_seed_games
from keima.data.ledger import Ledger, open_ledger
from keima.data.receive import load_received, recover_batches
from keima.games import Game, load_game
from tests.coach.coaching import Listener
from tests.small_run import small_settings

CHESS, GO = load_game("chess", max_plies=60), load_game("go", size=5, komi=2.5)
PGN_FILES = SEED_ACCOUNTS["chess"]
OPENINGS = ("e4", "d4", "c4", "Nf3", "b3", "g3", "f4")


class Killed(BaseException):
    """The process ends here."""


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(imported_games, "MOST_GAMES", 3)


def write(path: Path, *, bad: bool = True) -> Path:
    games = [f'[Round "{number}"]\n\n1. {move} Nf6 2. a3 1-0\n' for number, move in enumerate(OPENINGS)]
    if bad:
        games.insert(2, '[Event "bad"]\n\n1. Ke5 1-0\n')
        games.insert(4, '[FEN "4k3/8/8/8/8/8/8/R3K3 w Q - 0 1"]\n\n1. Ra8+ 1-0\n')
    path.write_text("\n".join(games), encoding="utf-8")
    return path


def ingest(folder: Path, *paths: Path, game: Game = CHESS) -> list[str]:
    """Run one session; return the reports."""
    told: list[str] = []
    with open_ledger(folder, game) as ledger:
        recover_batches(ledger, game)
        ingest_seed_games(ledger, game, [str(path) for path in paths], log_event=told.append)
    return told


def openings(folder: Path, game: Game = CHESS) -> Counter[str]:
    """Return how often each first move is in the ledger."""
    with open_ledger(folder, game) as ledger:
        batches = [load_received(folder, row) for row in ledger.received_batches()]
    records = [batch.game_record(index) for batch in batches for index in range(batch.num_games)]
    return Counter(game.action_name(int(record.actions[0])) for record in records)


def once(folder: Path, game: Game = CHESS) -> bool:
    found = openings(folder, game)
    return len(found) == len(OPENINGS) and set(found.values()) == {1} and not audit(folder).problems


def test_every_game_is_entered_once_and_the_rest_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, path = tmp_path / "run", write(tmp_path / "a.pgn")
    run.mkdir()
    (told,) = ingest(run, path)
    assert told.startswith(f"{path}: 7 games with 21 training positions, 2 left out (line 11: Ke5 is not legal")
    assert "it does not begin in the standard position" in told
    assert once(run)
    found = audit(run)
    assert found.workers == [
        {
            "name": PGN_FILES,
            "granted": 7,
            "received": 7,
            "quarantined": 0,
            "missing": 0,
            "discarded": 0,
            "outstanding": 0,
            "core_hours": 0.0,
        }
    ]
    assert found.batches == 3
    path.unlink()
    assert ingest(run, path) == []  # it is no longer needed
    assert once(run)


def test_the_same_content_counts_once_and_a_new_file_is_added(tmp_path: Path) -> None:
    run, path = tmp_path / "run", write(tmp_path / "a.pgn", bad=False)
    run.mkdir()
    twin, other = tmp_path / "b.pgn", tmp_path / "c.pgn"
    twin.write_bytes(path.read_bytes())
    other.write_text("1. h4 h5 1/2-1/2", encoding="utf-8")
    ingest(run, path, twin)
    assert once(run)
    ingest(run, path, twin, other)
    assert sum(openings(run).values()) == len(OPENINGS) + 1
    assert not audit(run).problems


@pytest.mark.parametrize("place", ["grant", "file", "ledger"])
@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_session_killed_anywhere_is_continued(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, number: int
) -> None:
    """Killed after the games of a batch were granted, after its file was in place, or after it was entered."""
    run, path = tmp_path / "run", write(tmp_path / "a.pgn")
    run.mkdir()
    owner, name = {
        "grant": (Ledger, "grant"),
        "file": (receiving, "write_together"),
        "ledger": (receiving, "receive_batches"),
    }[place]
    inner, calls = getattr(owner, name), []

    def killing(*arguments: Any, **options: Any) -> Any:
        result = inner(*arguments, **options)
        calls.append(name)
        if len(calls) == number:
            raise Killed
        return result

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, killing)
        with pytest.raises(Killed):
            ingest(run, path)
    ingest(run, path)
    assert once(run)


def test_a_file_that_changes_while_it_is_read_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, path = tmp_path / "run", write(tmp_path / "a.pgn")
    run.mkdir()
    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "grant", lambda *arguments: (_ for _ in ()).throw(Killed()))
        with pytest.raises(Killed):
            ingest(run, path)
    write(path, bad=False)
    with pytest.raises(ValueError, match=r"a\.pgn has changed since some of its games were ingested"):
        ingest(run, path)


def write_folder(folder: Path) -> Path:
    """Write SGF files in folders, with one game each, except for one with two games, one of them broken, and one with
    nothing to learn from.
    """
    (folder / "deeper").mkdir(parents=True)
    games = [
        f"(;SZ[5]KM[2.5]RE[B+R];B[{'abcde'[number % 5]}{'abcde'[number // 5]}];W[ee])"
        for number in range(len(OPENINGS))
    ]
    for number, text in enumerate(games[1:]):
        (folder / ("deeper" if number % 2 else ".") / f"{number}.SGF").write_text(text, encoding="utf-8")
    (folder / "first.sgf").write_text(f"{games[0]}\n(;SZ[5]KM[2.5]RE[B+R];B[zz])", encoding="utf-8")
    (folder / "other.sgf").write_text("no game", encoding="utf-8")
    (folder / "readme.txt").write_text("none", encoding="utf-8")
    return folder


def test_the_games_of_a_folder_are_entered_once_and_the_rest_is_reported_with_its_file(tmp_path: Path) -> None:
    run, folder = tmp_path / "run", write_folder(tmp_path / "games")
    run.mkdir()
    (told,) = ingest(run, folder, game=GO)
    assert told.startswith(
        f"{folder}: 7 games with 14 training positions, 2 left out (first.sgf, line 2: the game cannot be read"
    )
    assert "other.sgf, line 1: the file has no game in SGF" in told
    assert ingest(run, folder, game=GO) == []
    assert once(run, GO)
    assert audit(run).workers[0]["name"] == SEED_ACCOUNTS["go"]


@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_session_killed_during_a_folder_is_continued(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    run, folder, inner, calls = tmp_path / "run", write_folder(tmp_path / "games"), Ledger.add_received, []
    run.mkdir()

    def killing(*arguments: Any, **options: Any) -> Any:
        calls.append(inner(*arguments, **options))
        if len(calls) == number:
            raise Killed
        return calls[-1]

    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "add_received", killing)
        with pytest.raises(Killed):
            ingest(run, folder, game=GO)
    (folder / "first.sgf").rename(folder / "renamed.sgf")
    with pytest.raises(ValueError, match="games has changed since some of its games were ingested"):
        ingest(run, folder, game=GO)
    (folder / "renamed.sgf").rename(folder / "first.sgf")
    ingest(run, folder, game=GO)
    assert once(run, GO)


def test_a_folder_without_games_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"has no \*\.sgf files"):
        ingest(tmp_path, tmp_path, game=GO)


@pytest.mark.parametrize(("game", "source"), [("go", "a.pgn"), ("go", "a.PGN.zst"), ("chess", "a.sgf")])
def test_the_files_of_another_game_are_refused_by_their_names(tmp_path: Path, game: str, source: str) -> None:
    with pytest.raises(ValueError, match=f"{source} holds games of"):
        small_settings(
            tmp_path, game={"name": game}, training={"window": {"min_positions": 50, "seed_games": [source]}}
        )


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"seed_games: there is no file .*nothing\.pgn"):
        ingest(tmp_path, tmp_path / "nothing.pgn")


def chess_settings(folder: Path, path: Path, **changes: Any) -> Settings:
    return small_settings(
        folder,
        game={"name": "chess", "options": {"max_plies": 60}},
        search={"num_simulations": 2},
        training={
            "games_per_iteration": 2,
            "asynchronous": False,
            "window": {"min_positions": 20, "max_positions": 1_000, "growth_exponent": 1.0, "seed_games": [str(path)]},
        },
        self_play={"parallel_games": 2},
        distributed={"batch_size": 2},
        **changes,
    )


def opened(folder: Path, settings: Settings, listener: Listener) -> Coach:
    def make_backend(game: Game, run_id: str) -> SelfPlayBackend:
        return InlineBackend(folder / "workers", game=game, settings=settings, run_id=run_id, cycles=40)

    return open_coach(folder, settings, make_backend=make_backend, observers=[listener])


def test_a_session_and_its_successor_find_them_in_their_window_and_learn_from_them(tmp_path: Path) -> None:
    run, path, steps = tmp_path / "run", write(tmp_path / "a.pgn"), []
    run.mkdir()
    for _ in range(2):
        coach = opened(run, chess_settings(tmp_path, path), Listener())
        with coach.ledger:
            coach.receiving.restore()
            learned = coach.learn()
            steps.append(learned.steps if learned else 0)
            coach.save()
            assert (coach.state.total_games, coach.window.num_games) == (len(OPENINGS), len(OPENINGS))
        assert not audit(run).problems
    assert steps == [2, 0]  # 21 positions, each drawn twice, in steps of 16


@pytest.mark.medium
def test_a_run_first_learns_from_them_and_its_ledger_balances(tmp_path: Path) -> None:
    run, path, listener = tmp_path / "run", write(tmp_path / "a.pgn"), Listener()
    run.mkdir()
    for iterations in (1, 2):
        coach = opened(run, chess_settings(tmp_path, path, run={"iterations": iterations}), listener)
        with coach.ledger:
            coach.sleep = lambda seconds: None
            coach.run()
            first = coach.ledger.received_batches()[0]
            assert (first.worker, first.last_model) == (PGN_FILES, 0)
            assert coach.state.total_games == len(OPENINGS) + 2 * iterations
            assert coach.window.num_games == len(OPENINGS) + 2 * iterations
        assert not audit(run).problems
    assert [report.self_play.games for report in listener.reports] == [2, 2]  # games of files are no self-play


def test_only_chess_starts_with_pgn_files_and_no_worker_has_their_name(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="only for chess"):
        small_settings(tmp_path, training={"window": {"min_positions": 50, "seed_games": ["a.pgn"]}})
    with pytest.raises(ValueError, match="choose another"):
        small_settings(tmp_path, distributed={"workers": [{"host": "a", "name": PGN_FILES}]})
