"""Games of SGF files as training data, and the games of a Go run as SGF."""

from pathlib import Path

import pytest
from sgfmill import sgf

from keima.cli.reports.results import main as view_results
from keima.config.sections.training import TrainingSettings
from keima.data.imports.imported_games import ImportedGame, make_imported_batch
from keima.data.imports.sgf_games import read_sgf_games
from keima.data.ledger import open_ledger
from keima.data.receive import Received, receive_batch
from keima.data.records import AGREED, GameBatch, decode_batch, encode_batch
from keima.data.verify import verify_batch
from keima.games import Game, load_game
from keima.games.authoring.bad_game import BadGame
from keima.games.go.sgf import SGF_LETTERS, SgfGame, read_sgf
from keima.replay.window import ReplayWindow
from tests.synthetic import synthetic_batch

GO = load_game("go", size=5, komi=2.5)
BLACK_WALL = (
    ";B[ca];W[ea];B[cb];W[eb];B[cc];W[ec];B[cd];W[ed];B[ce];W[ee]"  # Black 15 points, White 10 with the column between
)


def read(folder: Path, text: str, game: Game = GO) -> list[ImportedGame | BadGame]:
    path = folder / "games.sgf"
    path.write_text(text, encoding="utf-8")
    return list(read_sgf_games(path, game))


def sgf_of(moves: str, result: str, *, root: str = "SZ[5]KM[2.5]") -> str:
    return f"(;{root}RE[{result}]{moves})"


@pytest.mark.parametrize(
    ("text", "plies", "returns", "resigned"),
    [
        (sgf_of(f"{BLACK_WALL};B[];W[]", "B+7.5"), 12, [1, -1], 0),
        (sgf_of(f"{BLACK_WALL};B[tt];W[tt]", "B+"), 12, [1, -1], 0),
        (sgf_of(f"{BLACK_WALL};B[];W[];B[da]", "B+R"), 12, [1, -1], 0),  # the rules ignore everything after two passes
        (sgf_of(f"{BLACK_WALL};B[];W[]", "W+5.5"), 10, [-1, 1], 1),  # they considered Black's stones dead
        (sgf_of(f"{BLACK_WALL};B[];W[]", "0"), 10, [0, 0], AGREED),
        (sgf_of(";B[cc];W[bb]", "W+R"), 2, [-1, 1], 1),
        (sgf_of(";B[cc];W[bb]", "B+Time"), 2, [1, -1], 2),
        (sgf_of(";B[cc];W[bb]", "W+0.5", root="SZ[5]KM[3]"), 2, [0, 0], AGREED),  # counted with our komi
        (sgf_of(";B[cc];W[bb]", "W+0.5", root="SZ[5]KM[3.5]"), 2, [1, -1], 2),
        (sgf_of("(;B[cc];W[bb])(;B[aa])", "White+Resign"), 2, [-1, 1], 1),
    ],
)
def test_a_game_ends_by_the_rules_or_as_the_players_agreed(
    tmp_path: Path, text: str, plies: int, returns: list[float], resigned: int
) -> None:
    (found,) = read(tmp_path, text)
    assert isinstance(found, ImportedGame), found
    assert (found.actions.size, found.returns.tolist(), found.resigned) == (plies, returns, resigned)
    verify_batch(decode_batch(encode_batch(make_imported_batch([found], GO))), GO)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (sgf_of(";B[cc]", ""), "it has no result"),
        (sgf_of(";B[cc]", "Void"), "its result is 'Void'"),
        (sgf_of(";B[cc]", "?"), "its result is '?'"),
        (sgf_of(";B[cc]", "B+Forfeit"), "does not depend on the position"),
        (sgf_of("", "B+R"), "it has no moves"),
        (sgf_of(";B[];W[]", "B+R"), "it has only passes"),
        (sgf_of(";B[cc]", "B+R", root="SZ[9]KM[2.5]"), "its board is 9 x 9, and not 5 x 5"),
        (sgf_of(";B[cc]", "B+R", root="SZ[5]KM[6.5]"), "its komi is 6.5, and ours 2.5"),
        (sgf_of(";B[cc]", "B+R", root="SZ[5]"), "its komi is 0, and ours 2.5"),
        (sgf_of(";W[cc]", "B+R"), "move 1 is White's, out of turn"),
        (sgf_of(";B[cc];B[dd]", "B+R"), "move 2 is Black's, out of turn"),
        (sgf_of(";W[cc]", "B+R", root="SZ[5]KM[2.5]HA[2]AB[bb][dd]"), "it does not begin with an empty board"),
        (sgf_of(";B[cc];W[cc]", "B+R"), "move 2, C3, is not legal"),
        (sgf_of(";B[cc];W[zz]", "B+R"), "which is not on its board"),
    ],
)
def test_games_that_cannot_be_learned_from_are_reported(tmp_path: Path, text: str, reason: str) -> None:
    (found,) = read(tmp_path, text)
    assert isinstance(found, BadGame), found
    assert reason in found.reason


def test_a_game_too_long_for_our_rules_is_cut_there_and_scored(tmp_path: Path) -> None:
    short = load_game("go", size=5, komi=2.5, max_plies=10)
    (found,) = read(tmp_path, sgf_of(f"{BLACK_WALL};B[bb];W[db]", "W+R"), short)
    assert isinstance(found, ImportedGame)
    assert (found.actions.size, found.returns.tolist(), found.resigned) == (10, [1, -1], 0)
    verify_batch(make_imported_batch([found], short), short)


def test_other_games_have_no_sgf(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="hold games of Go, not of chess"):
        next(read_sgf_games(tmp_path / "x.sgf", load_game("chess")))


def test_a_window_of_such_games_teaches_the_moves_and_the_results(tmp_path: Path) -> None:
    games = [
        each
        for each in read(tmp_path, sgf_of(";B[cc];W[bb]", "B+R") + sgf_of(";B[cd]", "W+R"))
        if isinstance(each, ImportedGame)
    ]
    window = ReplayWindow(GO, capacity_positions=100, training=TrainingSettings(td_lambda=1.0))
    assert window.add(make_imported_batch(games, GO)) == 3
    batch = window.sample(200, 1)
    assert (batch.policies.max(axis=1) == 1).all()
    assert set(batch.values.tolist()) == {1.0, -1.0}


def a_run(folder: Path) -> list[GameBatch]:
    """Two batches of three games, some of which are resigned."""
    folder.mkdir()
    with open_ledger(folder, GO) as ledger:
        ledger.grant("one", 6)
        batches = []
        for n in range(2):
            names = {"run_id": ledger.run_id, "worker": "one", "batch_id": f"b{n}"}
            batches.append(synthetic_batch(GO, games=3, seed=n, resign_share=0.5, first_game=3 * n, **names))
            data = encode_batch(batches[-1])
            assert isinstance(
                receive_batch(ledger, GO, worker="one", batch_id=f"b{n}", fetch=lambda limit, data=data: data), Received
            )
    return [decode_batch(encode_batch(batch)) for batch in batches]


def test_the_games_of_a_run_are_written_with_search_s_judgement(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    batches, path = a_run(tmp_path / "demo"), tmp_path / "games.sgf"
    assert view_results([str(tmp_path / "demo"), "--sgf", str(path)]) == 0
    assert capsys.readouterr().out == f"{path}: 6 games\n"
    records = [batch.game_record(index) for batch in batches for index in range(3)]
    for number, (mine, record) in enumerate(zip(read_sgf(path), records, strict=True), 1):
        assert isinstance(mine, SgfGame)
        assert [action for _, action in mine.moves] == record.actions.tolist()
        assert mine.result[:2] == {1: "B+", 0: "0", -1: "W+"}[int(record.returns[0])]
        assert mine.result.endswith("R") == bool(record.resigned)
        text = path.read_text(encoding="utf-8").split("(;GM")[number]
        nodes = list(sgf.Sgf_game.from_string(f"(;GM{text}").main_sequence_iter())
        assert nodes[0].get("RO") == str(number)
        assert nodes[0].get("EV") == "Self-play of demo"
        assert nodes[0].get("PB") == "Models 7 to 8"
        for ply, node in enumerate(nodes[:-1]):
            value = float(record.root_values[ply]) * (1 if ply % 2 == 0 else -1)
            assert float(node.get_raw("SBKV")) == pytest.approx(50 + 50 * value, abs=0.06)
            assert f"{50 + 50 * value:.0f} %" in node.get("C")
        assert nodes[-1].has_property("SBKV") is False
        entries = int(record.policy_sizes[0])
        if entries:
            best = int(record.policy_actions[:entries][record.policy_weights[:entries].argmax()])
            if best < 25:
                labels = [raw.decode() for raw in nodes[0].get_raw_list("LB")]
                assert any(label.startswith(f"{SGF_LETTERS[best % 5]}{SGF_LETTERS[best // 5]}:") for label in labels)


def test_they_are_written_one_by_one_into_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a_run(tmp_path / "demo")
    folder = tmp_path / "out"
    folder.mkdir()
    assert view_results([str(tmp_path / "demo"), "--sgf", str(folder)]) == 0
    assert capsys.readouterr().out == f"{folder}: 6 games\n"
    assert sorted(path.name for path in folder.iterdir()) == [f"game-{number:06d}.sgf" for number in range(1, 7)]
    assert all(isinstance(each, SgfGame) for path in folder.iterdir() for each in read_sgf(path))


def test_written_games_can_be_learned_from(tmp_path: Path) -> None:
    batches, path = a_run(tmp_path / "demo"), tmp_path / "games.sgf"
    assert view_results([str(tmp_path / "demo"), "--sgf", str(path)]) == 0
    found = list(read_sgf_games(path, GO))
    records = [batch.game_record(index) for batch in batches for index in range(3)]
    for played, record in zip(found, records, strict=True):
        assert isinstance(played, ImportedGame), played
        assert played.actions.tolist() == record.actions.tolist()
        assert (played.returns.tolist(), played.resigned) == (record.returns.tolist(), record.resigned)


def test_a_run_of_another_game_has_no_sgf_and_leaves_no_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "demo").mkdir()
    open_ledger(tmp_path / "demo", load_game("tic_tac_toe")).close()
    assert view_results([str(tmp_path / "demo"), "--sgf", str(tmp_path / "games.sgf")]) == 2
    assert "only games of go can be written as SGF" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["demo"]


def test_messages_about_omitted_games_cannot_control_the_terminal(tmp_path: Path) -> None:
    path = tmp_path / "games.sgf"
    path.write_text("(;GM[1]SZ[9]KM[7]RE[\x1b\\]0;owned\x07\x1b\\[31m];B[aa];W[bb])", encoding="utf-8")
    (found,) = read_sgf_games(path, load_game("go", size=9))
    assert isinstance(found, BadGame) and "owned" in found.reason and found.reason.isprintable()
