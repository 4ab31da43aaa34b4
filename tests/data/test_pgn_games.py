"""Games of PGN files as training data, and the games of a chess run as PGN."""

import io
from dataclasses import replace
from pathlib import Path

import chess.pgn
import numpy as np
import pytest

from keima.cli.reports.results import main as view_results
from keima.config.sections.training import TrainingSettings
from keima.data.imports.imported_games import MOST_GAMES, ImportedGame, group_into_batches, make_imported_batch
from keima.data.imports.pgn_games import read_pgn_games
from keima.data.ledger import Ledger, open_ledger
from keima.data.receive import Received, receive_batch
from keima.data.records import AGREED, CorruptBatch, GameBatch, decode_batch, encode_batch, validate_batch
from keima.data.verify import verify_batch
from keima.games import Game, load_game
from keima.games.authoring.bad_game import BadGame
from keima.games.chess.pgn import PgnGame, read_pgn
from keima.replay.window import ReplayWindow
from keima.report.games.game_view import make_game_view
from tests.synthetic import synthetic_batch

CHESS = load_game("chess", max_plies=60)
MATE = "1. e4 e5 2. Bc4 Nc6 3. Qh5 Nf6 4. Qxf7#"
SHUFFLE = "1. Nf3 Nf6 2. Ng1 Ng8 3. Nf3 Nf6 4. Ng1 Ng8 5. e4 e5"


def read(folder: Path, text: str) -> list[ImportedGame | BadGame]:
    path = folder / "games.pgn"
    path.write_text(text, encoding="utf-8")
    return list(read_pgn_games(path, CHESS))


@pytest.mark.parametrize(
    ("text", "plies", "returns", "resigned"),
    [
        (f"{MATE} 1-0", 7, [1, -1], 0),
        ("1. e4 e5 1-0", 2, [1, -1], 2),
        ("1. e4 e5 0-1", 2, [-1, 1], 1),
        ("1. e4 e5 1/2-1/2", 2, [0, 0], AGREED),
        (f"{SHUFFLE} 1-0", 8, [0, 0], 0),  # by the run's rules, the game was already drawn by repetition
        (f"{SHUFFLE.split(' 5.')[0]} 1/2-1/2", 8, [0, 0], 0),
        ("Nf3 Nf6 Ng1 Ng8 e4 e5 " + "Nf3 Nf6 Ng1 Ng8 d4 d5 " + "Nf3 Nf6 Ng1 Ng8 c4 c5 0-1", 18, [-1, 1], 1),
    ],
)
def test_a_game_ends_by_the_rules_by_resignation_or_by_agreement(
    tmp_path: Path, text: str, plies: int, returns: list[float], resigned: int
) -> None:
    (found,) = read(tmp_path, text)
    assert isinstance(found, ImportedGame), found
    assert (found.actions.size, found.returns.tolist(), found.resigned) == (plies, returns, resigned)
    verify_batch(decode_batch(encode_batch(make_imported_batch([found], CHESS))), CHESS)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("1. e4 e5 *", "it has no result"),
        ('[Event "x"]\n\n1-0', "it has no moves"),
        ('[FEN "4k3/8/8/8/8/8/8/R3K3 w Q - 0 1"]\n\n1. Ra8+ 1-0', "it does not begin in the standard position"),
        (f"{MATE} 0-1", "its result is 0-1, but it ends by checkmate"),
        ("1. e4 e4 1-0", "e4 is not legal"),
    ],
)
def test_games_that_cannot_be_learned_from_are_reported(tmp_path: Path, text: str, reason: str) -> None:
    (found,) = read(tmp_path, text)
    assert isinstance(found, BadGame)
    assert reason in found.reason


def test_other_games_have_no_pgn(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="games of chess, not of go"):
        next(read_pgn_games(tmp_path / "x.pgn", load_game("go", size=5)))


def test_a_window_of_such_games_teaches_the_moves_and_the_results(tmp_path: Path) -> None:
    games = [each for each in read(tmp_path, f"{MATE} 1-0\n\n1. d4 d5 0-1\n\n") if isinstance(each, ImportedGame)]
    window = ReplayWindow(CHESS, capacity_positions=100, training=TrainingSettings(td_lambda=0.5))
    assert window.add(decode_batch(encode_batch(make_imported_batch(games, CHESS)))) == 9
    batch = window.sample(500, 1)
    assert (batch.policies.max(axis=1) == 1).all() and (batch.policies.sum(axis=1) == 1).all()
    white = batch.observations[:, 112, 0, 0] == 1
    assert set(np.abs(batch.values)) == {1.0}
    openings = batch.policies.argmax(axis=1)[batch.observations[:, 113, 0, 0] == 0]
    assert set(openings.tolist()) == {int(each.actions[0]) for each in games}
    won = batch.values[white & (batch.observations[:, 113, 0, 0] > 0.04)]
    assert (won == 1).all()  # only the mate has this length


def test_batches_of_files_are_the_same_every_time(tmp_path: Path) -> None:
    (played,) = (each for each in read(tmp_path, f"{MATE} 1-0") if isinstance(each, ImportedGame))
    assert [len(games) for games in group_into_batches([played] * (2 * MOST_GAMES + 5))] == [MOST_GAMES, MOST_GAMES, 5]
    long = replace(played, actions=np.zeros(60_000, np.int32))
    assert [len(games) for games in group_into_batches([long] * 5)] == [2, 2, 1]
    assert list(group_into_batches([])) == []


def test_only_people_can_agree_on_a_draw_and_only_before_the_end(tmp_path: Path) -> None:
    (drawn,) = (each for each in read(tmp_path, "1. e4 1/2-1/2") if isinstance(each, ImportedGame))
    batch = make_imported_batch([drawn], CHESS)
    with pytest.raises(CorruptBatch, match="the player who resigned does not exist"):
        validate_batch(replace(batch, first_model=batch.first_model + 1, last_model=batch.last_model + 1))
    with pytest.raises(CorruptBatch, match="the returns are not those of the rules"):
        verify_batch(replace(batch, returns=np.array([[1, -1]], np.float32)), CHESS)
    (mate,) = (each for each in read(tmp_path, f"{MATE} 1-0") if isinstance(each, ImportedGame))
    with pytest.raises(CorruptBatch, match="agreed on a draw"):
        verify_batch(
            make_imported_batch([replace(mate, resigned=AGREED, returns=np.zeros(2, np.float32))], CHESS), CHESS
        )
    assert make_game_view(CHESS, batch, 0, number=1).result == "a draw, as agreed"


def take(ledger: Ledger, game: Game, batch: GameBatch) -> None:
    receipt = receive_batch(
        ledger, game, worker=batch.worker, batch_id=batch.batch_id, fetch=lambda limit: encode_batch(batch)
    )
    assert isinstance(receipt, Received)


def a_run(folder: Path, *, name: str = "chess") -> list[GameBatch]:
    """Two batches of three games, some of which are resigned."""
    game = CHESS if name == "chess" else load_game(name)
    folder.mkdir()
    with open_ledger(folder, game) as ledger:
        ledger.grant("one", 6)
        batches = [
            synthetic_batch(
                game,
                games=3,
                seed=n,
                resign_share=0.5,
                run_id=ledger.run_id,
                worker="one",
                batch_id=f"b{n}",
                first_game=3 * n,
            )
            for n in range(2)
        ]
        for batch in batches:
            take(ledger, game, batch)
    return batches


def test_python_chess_reads_the_written_games_of_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    batches, path = a_run(tmp_path / "demo"), tmp_path / "games.pgn"
    assert view_results([str(tmp_path / "demo"), "--pgn", str(path)]) == 0
    assert capsys.readouterr().out == f"{path}: 6 games\n"
    text, found = path.read_text(encoding="utf-8"), []
    records = [batch.game_record(index) for batch in batches for index in range(3)]
    stream = io.StringIO(text)
    while (theirs := chess.pgn.read_game(stream)) is not None:
        found.append(theirs)
    ours = [each for each in read_pgn(text.splitlines()) if isinstance(each, PgnGame)]
    assert len(found) == len(ours) == 6
    for number, (theirs, mine, record) in enumerate(zip(found, ours, records, strict=True), 1):
        assert not theirs.errors
        assert mine.actions.tolist() == record.actions.tolist()
        assert theirs.headers["Round"] == str(number)
        assert theirs.headers["Event"] == "Self-play of demo"
        assert theirs.headers["White"] == "Models 7 to 8"
        assert theirs.headers["PlyCount"] == str(len(list(theirs.mainline_moves())))
        assert theirs.headers["Result"] == {1: "1-0", 0: "1/2-1/2", -1: "0-1"}[int(record.returns[0])]
        assert (theirs.headers["Termination"] == "resignation") == bool(record.resigned)
        if theirs.end().board().is_checkmate():
            assert theirs.headers["Termination"] == "checkmate"


def test_a_run_of_another_game_has_no_pgn_and_leaves_no_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a_run(tmp_path / "demo", name="connect_four")
    assert view_results([str(tmp_path / "demo"), "--pgn", str(tmp_path / "games.pgn")]) == 2
    assert "only games of chess can be written as PGN" in capsys.readouterr().err
    assert view_results([str(tmp_path / "nothing"), "--pgn", str(tmp_path / "games.pgn")]) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["demo"]
