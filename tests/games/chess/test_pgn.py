"""PGN: python-chess reads the written files and vice versa; broken and huge files do no harm."""

import io
import tracemalloc
from collections.abc import Iterator
from itertools import chain, repeat
from pathlib import Path

import chess
import chess.pgn
import numpy as np
import pytest
import zstandard

from keima.games import Game, load_game
from keima.games.authoring.bad_game import BadGame
from keima.games.chess.notation import START_FEN, action_of_uci, position_from_fen, uci_of
from keima.games.chess.pgn import LONGEST_LINE, PgnGame, pgn_lines, pgn_text, read_pgn
from keima.games.game import IllegalAction
from tests.games.chess.test_chess_differential import STARTS, choose


@pytest.fixture(scope="module")
def game() -> Game:
    return load_game("chess", max_plies=2_000, claim_draws=False)


def random_game(random: np.random.Generator, fen: str, *, plies: int) -> chess.Board:
    board = chess.Board(fen)
    while not board.is_game_over() and len(board.move_stack) < plies:
        board.push(choose(random, board))
    return board


def actions_of(game: Game, board: chess.Board) -> list[int]:
    state, actions = position_from_fen(game, board.root().fen()), []
    for move in board.move_stack:
        actions.append(action_of_uci(state, move.uci()))
        game.play(state, actions[-1])
    return actions


def read(text: str) -> list[PgnGame | BadGame]:
    return list(read_pgn(text.splitlines(keepends=True)))


def one(text: str) -> PgnGame:
    (found,) = read(text)
    assert isinstance(found, PgnGame), found
    return found


def moves(found: PgnGame) -> list[str]:
    game = load_game("chess", max_plies=10_000, claim_draws=False)
    state, names = position_from_fen(game, found.start_fen or START_FEN), []
    for action in found.actions.tolist():
        names.append(uci_of(state, action))
        game.play(state, action)
    return names


# Writing.


@pytest.mark.parametrize("fen", STARTS)
def test_python_chess_reads_the_written_files(game: Game, fen: str) -> None:
    random = np.random.default_rng(1)
    board = random_game(random, fen, plies=150)
    start = None if fen == START_FEN else fen
    tags = {"White": 'Bobby "B" \\ Fischer', "Round": "3", "Annotator": "née"}
    text = pgn_text(game, actions_of(game, board), tags=tags, result="1/2-1/2", start_fen=start)
    theirs = chess.pgn.read_game(io.StringIO(text))
    assert theirs is not None and not theirs.errors
    assert list(theirs.mainline_moves()) == board.move_stack
    assert theirs.headers["White"] == r"Bobby \"B\" \\ Fischer"  # which leaves them as they are in the file
    assert theirs.headers["Annotator"] == "née"
    assert theirs.headers["Result"] == "1/2-1/2"
    assert theirs.board().fen() == chess.Board(fen).fen()
    ours = one(text)
    assert ours.actions.tolist() == actions_of(game, board)
    assert (ours.tags["White"], ours.result) == (tags["White"], "1/2-1/2")
    assert ours.start_fen == start


def test_a_game_has_the_layout_of_the_standard(game: Game) -> None:
    board = chess.Board()
    for san in ("e4", "e5", "Bc4", "Nc6", "Qh5", "Nf6", "Qxf7#"):
        board.push_san(san)
    text = pgn_text(game, actions_of(game, board), tags={"White": "A", "ECO": "C20"}, result="1-0")
    assert text == (
        '[Event "?"]\n[Site "?"]\n[Date "????.??.??"]\n[Round "?"]\n[White "A"]\n[Black "?"]\n'
        '[Result "1-0"]\n[ECO "C20"]\n\n'
        "1. e4 e5 2. Bc4 Nc6 3. Qh5 Nf6 4. Qxf7# 1-0\n\n"
    )


def test_lines_of_moves_have_less_than_80_characters(game: Game) -> None:
    board = random_game(np.random.default_rng(2), START_FEN, plies=300)
    lines = pgn_text(game, actions_of(game, board), tags={}, result="*").split("\n\n")[1].splitlines()
    assert max(map(len, lines)) < 80
    assert min(map(len, lines[:-1])) > 70


def test_a_game_that_black_begins_is_numbered_accordingly(game: Game) -> None:
    fen = "4k3/8/8/8/8/8/8/R3K3 b Q - 3 17"
    state = position_from_fen(game, fen)
    text = pgn_text(game, [action_of_uci(state, "e8e7")], tags={}, result="*", start_fen=fen)
    assert text.endswith(f'[SetUp "1"]\n[FEN "{fen}"]\n\n17... Ke7 *\n\n')


def test_games_that_cannot_be_written_are_refused(game: Game) -> None:
    with pytest.raises(ValueError, match="PGN is for chess, not for go"):
        pgn_text(load_game("go", size=5), [], tags={}, result="*")
    with pytest.raises(ValueError, match="not '2-0'"):
        pgn_text(game, [], tags={}, result="2-0")
    with pytest.raises(ValueError, match="not a tag name"):
        pgn_text(game, [], tags={'a"b': "x"}, result="*")
    with pytest.raises(ValueError, match="is not a chess position"):
        pgn_text(game, [], tags={}, result="*", start_fen="nothing")
    with pytest.raises(IllegalAction):
        pgn_text(game, [0], tags={}, result="*")


def test_a_tag_stays_on_its_line(game: Game) -> None:
    assert '[Site "a b"]\n' in pgn_text(game, [], tags={"Site": "a\r\nb"}, result="*")


# Reading.


def annotated(board: chess.Board, random: np.random.Generator) -> chess.pgn.Game:
    """Return the game with everything that annotators add."""
    game = chess.pgn.Game.from_board(board)
    game.headers["Result"] = ["1-0", "0-1", "1/2-1/2"][int(random.integers(3))]
    game.comment = "at the start"
    for node in list(game.mainline()):
        if random.random() < 0.2:
            node.comment = "a comment (with brackets) ; 1-0 [%clk 0:01]\n" + "long " * int(random.integers(30))
        if random.random() < 0.2:
            node.nags.add(int(random.integers(1, 140)))
        parent = node.parent
        others = [move for move in parent.board().legal_moves if move != node.move]
        if random.random() < 0.1 and others:
            line = parent.add_variation(others[0], comment="better")
            replies = list(line.board().legal_moves)
            if replies:
                line.add_variation(replies[0]).comment = "and so on"
                if len(replies) > 1:
                    line.add_variation(replies[1])
    return game


@pytest.mark.medium
def test_files_written_by_python_chess_are_read(game: Game) -> None:
    random, boards, texts, results = np.random.default_rng(3), [], [], []
    for number in range(24):
        boards.append(random_game(random, STARTS[number % len(STARTS)], plies=80))
        theirs = annotated(boards[-1], random)
        results.append(theirs.headers["Result"])
        texts.append(str(theirs))
    for end in ("\n", "\r\n"):
        found = list(read_pgn("\n\n".join(texts).replace("\n", end).splitlines(keepends=True)))
        assert [each for each in found if isinstance(each, BadGame)] == []
        games = [each for each in found if isinstance(each, PgnGame)]
        assert [each.actions.tolist() for each in games] == [actions_of(game, board) for board in boards]
        assert [each.result for each in games] == results


def test_loosely_written_files_are_read() -> None:
    found = one(
        "\ufeff% not for us\n"
        '[Event "x"] [Site "a \\"b\\""]\n[White "Quo"ted"]\n[Black "open]\n'
        "1.e4 e5 ; to the end { of the line\n"
        '2 . Nf3!? $1 Nc6 (2... d6 (2... f6? {bad} ) 3.d4) 3.Bb5 {a comment\n[Event "inside"] over\n% lines }\n'
        "% 1. illegal\n3...a6 +- 4.Ba4 N Nf6?! 5.0-0 <reserved> Be7 1-0 {White won}\n"
    )
    assert moves(found) == ["e2e4", "e7e5", "g1f3", "b8c6", "f1b5", "a7a6", "b5a4", "g8f6", "e1g1", "f8e7"]
    assert found.tags == {"Event": "x", "Site": 'a "b"', "White": 'Quo"ted', "Black": "open"}
    assert found.result == "1-0"
    assert found.line == 2


def test_games_without_tags_may_follow_each_other() -> None:
    found = [each for each in read("1. e4 e5 1-0 1. d4 d5 *\n1. c4 1/2 1. Nf3\n") if isinstance(each, PgnGame)]
    assert [(len(each.actions), each.result) for each in found] == [(2, "1-0"), (2, "*"), (1, "1/2-1/2"), (1, "*")]


def test_games_without_moves_or_results_are_games_too() -> None:
    text = (
        '[Event "a"]\n[Result "1-0"]\n\n[Event "b"]\n[Result "0-1"]\n\n0-1\n\n'
        '[Event "c"]\n[Result "1-0"]\n\n1. e4\n\n[Event "d"]\n\n1. d4 *\n'
    )
    found = [each for each in read(text) if isinstance(each, PgnGame)]
    assert [(each.tags["Event"], len(each.actions), each.result) for each in found] == [
        ("a", 0, "1-0"),
        ("b", 0, "0-1"),
        ("c", 1, "1-0"),
        ("d", 1, "*"),
    ]
    assert [each.line for each in found] == [1, 4, 9, 14]


def test_people_continue_after_a_draw_that_neither_side_claims() -> None:
    shuffle = "Nf3 Nf6 Ng1 Ng8 " * 6
    assert len(one(f"{shuffle} e4 1-0").actions) == 25


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        ("1. e4 e5\n2. Ke3 1-0", 2, "Ke3 is not legal"),
        ("1. e4 hello", 1, "'hello' is not a move"),
        ("1. e4 -- 2. d4", 1, "'--' is not a move"),
        ("1. e4 e5 ) 1-0", 1, "a variation ends"),
        ("1. e4 e5\n( 2. d4 1-0\n", 2, "a variation begins here"),
        ("1. e4\ne5 { 2. d4 1-0\n\n\n", 2, "a comment begins here"),
        ('[Result "1-0"]\n\n1. e4 0-1', 3, "its tag says 1-0, and its end says 0-1"),
        ('[FEN "8/8/8/8 w - - 0 1"]\n\n1. e4 0-1', 3, "is not a chess position"),
        ('[Variant "Atomic"]\n\n1. e4 0-1', 3, "a game of Atomic"),
        (f"1. e4 {{{'x' * (LONGEST_LINE + 1)}}} e5", 1, "the line has more than"),
        ("\n".join(f'[T{n} "x"]' for n in range(300)), 257, "more than 256 tags"),
        ("1. f3 e5 2. g4 Qh4# 3. a3", 1, "a3 is not legal"),
    ],
)
def test_a_bad_game_has_a_reason_and_the_next_one_is_read(text: str, line: int, reason: str) -> None:
    bad, good = read(f'{text}\n\n[Event "next"]\n\n1. d4 1-0\n')
    assert isinstance(bad, BadGame) and isinstance(good, PgnGame)
    assert bad.line == line
    assert reason in bad.reason
    assert (good.tags["Event"], moves(good), good.result) == ("next", ["d2d4"], "1-0")


@pytest.mark.parametrize("text", ["", "\n\n", "{a comment}\n", "% nothing\n", "*", "; nothing"])
def test_a_file_without_games_has_none(text: str) -> None:
    assert read(text) == []


def test_any_bytes_can_be_read(tmp_path: Path) -> None:
    random, path = np.random.default_rng(4), tmp_path / "noise.pgn"
    for alphabet in (bytes(range(256)), b'[]{}(); \n"%$1.e4-0Nfx*\\'):
        path.write_bytes(bytes(random.choice(np.frombuffer(alphabet, np.uint8), 20_000)))
        for found in read_pgn(pgn_lines(path)):
            assert isinstance(found, PgnGame | BadGame)


# Files.


def test_a_file_may_be_in_utf_8_or_latin_1_and_compressed(tmp_path: Path) -> None:
    text = '[White "Hübner"]\n\n1. e4 *\n\n'
    files = {"utf8.pgn": text.encode(), "bom.pgn": text.encode("utf-8-sig"), "latin1.pgn": text.encode("latin-1")}
    files["packed.pgn.zst"] = zstandard.compress(text.encode())
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
        (found,) = read_pgn(pgn_lines(tmp_path / name))
        assert isinstance(found, PgnGame) and found.tags["White"] == "Hübner"


def test_a_damaged_compressed_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.pgn.zst"
    path.write_bytes(b"no zst at all")
    with pytest.raises(ValueError, match="is damaged"):
        list(pgn_lines(path))


@pytest.mark.medium
def test_an_endless_line_is_not_kept_in_memory(tmp_path: Path) -> None:
    path = tmp_path / "long.pgn"
    with path.open("wb") as file:
        file.write(b"1. e4 e5 " + b"x" * 2**26 + b'\n\n[Event "next"]\n\n1. d4 1-0\n')
    tracemalloc.start()
    try:
        bad, good = read_pgn(pgn_lines(path))
        assert tracemalloc.get_traced_memory()[1] < 16 * 2**20
    finally:
        tracemalloc.stop()
    assert isinstance(bad, BadGame) and isinstance(good, PgnGame)


@pytest.mark.medium
@pytest.mark.parametrize(
    "lines",
    [
        chain(repeat("{a comment without end\n", 100_000)),
        chain(repeat("( e4 \n", 100_000)),
        chain(['[Event "x"]\n'], repeat("Nf3 Nf6 Ng1 Ng8 \n", 20_000)),
        repeat(f'[Event "{"x" * 500}"]\n', 10_000),
        (f'[T{number} "{"x" * 500}"]\n' for number in range(10_000)),
    ],
    ids=["comment", "variations", "moves", "same tag", "tags"],
)
def test_an_endless_game_takes_no_memory(lines: Iterator[str]) -> None:
    tracemalloc.start()
    try:
        found = list(read_pgn(lines))
        assert tracemalloc.get_traced_memory()[1] < 16 * 2**20
    finally:
        tracemalloc.stop()
    assert found and isinstance(found[0], BadGame)


def test_messages_about_bad_games_cannot_control_the_terminal(tmp_path: Path) -> None:
    path = tmp_path / "games.pgn"
    path.write_text(
        '[Event "x"]\n\n1. e4 \x1b[2Jx\x9b31m\x07 1-0\n\n[Variant "\x1b]0;title\x07"]\n\n1. e4 1-0\n', encoding="utf-8"
    )
    reasons = [game.reason for game in read_pgn(pgn_lines(path)) if isinstance(game, BadGame)]
    assert len(reasons) == 2 and all(reason.isprintable() for reason in reasons)
