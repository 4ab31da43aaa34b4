"""SGF: sgfmill and GNU Go read our files, we read the files of others, and no file does harm, however broken or large
it is.
"""

import io
import subprocess
import tracemalloc
from itertools import repeat
from pathlib import Path

import numpy as np
import pytest
from sgfmill import sgf, sgf_moves

from keima.games import Game, load_game
from keima.games.authoring.bad_game import BadGame
from keima.games.game import IllegalAction
from keima.games.go.sgf import (
    MOST_BYTES,
    MOST_MARKS,
    PIECE,
    SgfGame,
    point_name,
    read_sgf,
    sgf_text,
    split_into_games,
)
from tests.programs import GNU_GO, needs_gnu_go

GAME = "(;GM[1]FF[4]SZ[9]KM[7]PB[Anna]RE[B+R];B[ee];W[cc];B[])"


@pytest.fixture(scope="module")
def game() -> Game:
    return load_game("go", size=9)


def random_actions(game: Game, *, plies: int, seed: int) -> list[int]:
    random, state, actions = np.random.default_rng(seed), game.initial_state(), list[int]()
    while not game.terminal(state) and len(actions) < plies:
        actions.append(int(random.choice(game.legal_actions(state))))
        game.play(state, actions[-1])
    return actions


def read(folder: Path, text: str | bytes) -> list[SgfGame | BadGame]:
    path = folder / "games.sgf"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return list(read_sgf(path))


def only(folder: Path, text: str | bytes) -> SgfGame:
    (found,) = read(folder, text)
    assert isinstance(found, SgfGame), found
    return found


@pytest.mark.parametrize("size", [5, 9, 19])
def test_written_games_are_read_again_here_and_by_sgfmill(tmp_path: Path, size: int) -> None:
    game = load_game("go", size=size, komi=6.5)
    texts, played = [], []
    for seed in range(3):
        played.append(random_actions(game, plies=60, seed=seed))
        texts.append(
            sgf_text(
                game,
                played[-1],
                tags={"PB": "A [b] \\", "PW": "Ä"},
                result="W+3.5",
                comments=["first \\]", "", "third"],
            )
        )
    path = tmp_path / "games.sgf"
    path.write_text("".join(texts), encoding="utf-8")
    for actions, mine, text in zip(played, read_sgf(path), texts, strict=True):
        assert isinstance(mine, SgfGame)
        assert [action for _, action in mine.moves] == actions
        assert [player for player, _ in mine.moves] == [ply % 2 for ply in range(len(actions))]
        assert (mine.size, mine.komi, mine.handicap, mine.setup, mine.player, mine.result) == (
            size,
            6.5,
            0,
            ((), ()),
            0,
            "W+3.5",
        )
        theirs = sgf.Sgf_game.from_bytes(text.encode())
        assert (theirs.get_size(), theirs.get_komi(), theirs.get_winner()) == (size, 6.5, "w")
        assert (theirs.get_player_name("b"), theirs.get_player_name("w")) == ("A [b] \\", "Ä")
        nodes = list(theirs.main_sequence_iter())
        assert [node.get("C") for node in (nodes[0], nodes[2])] == ["first \\]", "third"]
        assert not nodes[1].has_property("C")
        _, plays = sgf_moves.get_setup_and_moves(theirs)
        points = [size * size if at is None else (size - 1 - at[0]) * size + at[1] for _, at in plays]
        assert points == actions


@needs_gnu_go
def test_gnu_go_sets_up_the_same_position_and_its_own_file_is_read(game: Game, tmp_path: Path) -> None:
    path, theirs = tmp_path / "a.sgf", tmp_path / "b.sgf"
    actions = random_actions(game, plies=40, seed=5)
    path.write_text(sgf_text(game, actions, tags={}, result="?"), encoding="utf-8")
    said = f"loadsgf {path}\nlist_stones black\nlist_stones white\nprintsgf {theirs}\nquit\n"
    answers = subprocess.run(
        [str(GNU_GO), "--mode", "gtp"], input=said, capture_output=True, text=True, check=True, timeout=60
    ).stdout
    state = game.initial_state()
    for action in actions:
        game.play(state, action)
    board = [line.split()[1:-1] for line in game.render(state).replace("(", " ").replace(")", " ").splitlines()[1:10]]
    for mark, answer in zip("XO", answers.split("\n\n")[1:3], strict=True):
        assert sorted(answer.split()[1:]) == sorted(
            game.action_name(9 * row + column) for row in range(9) for column in range(9) if board[row][column] == mark
        )
    (found,) = read_sgf(theirs)
    assert isinstance(found, SgfGame)
    assert found.size == 9


def test_games_that_cannot_be_written_are_refused(game: Game) -> None:
    for wrong, reason in (
        (dict(actions=[0, 0]), "not legal"),
        (dict(result="1-0"), "such as B\\+R"),
        (dict(tags={"pb": "x"}), "not a property name"),
        (dict(comments=["", "", "one too many"]), "3 positions, and the game has 2"),
    ):
        with pytest.raises(ValueError, match=reason):
            sgf_text(game, **({"actions": [0], "tags": {}, "result": "0"} | wrong))  # type: ignore[arg-type]
    with pytest.raises(IllegalAction):
        sgf_text(game, [0, 0], tags={}, result="0")
    with pytest.raises(ValueError, match="not for chess"):
        sgf_text(load_game("chess"), [], tags={}, result="0")


def test_marks_belong_to_their_positions(game: Game) -> None:
    text = sgf_text(game, [0], tags={}, result="0", marks=[{"LB": [f"{point_name(9, 10)}:1"]}, {"TR": ["aa", "cc"]}])
    root, move = sgf.Sgf_game.from_bytes(text.encode()).main_sequence_iter()
    assert root.get("LB") == [((7, 1), "1")]
    assert move.get("TR") == {(8, 0), (6, 2)}


@pytest.mark.parametrize(
    ("text", "moves"),
    [
        (GAME, [(0, 40), (1, 20), (0, 81)]),
        ("(;SZ[9];B[ee](;W[cc];B[tt])(;W[dd]))", [(0, 40), (1, 20), (0, 81)]),  # the first variation is the main line
        ("(;SZ[9];B[ee](;W[cc](;B[aa])(;B[bb]))(;W[dd]))", [(0, 40), (1, 20), (0, 0)]),
        ("mail\r\n( hello )\r\n(\r\n;SiZe[9]\r\n;Black[ee]C[a \\] ( ; )]\r\n;White[cc])", [(0, 40), (1, 20)]),
        ("(;SZ[9]B[ee];W[])", [(0, 40), (1, 81)]),
        ("(;SZ[9]C[\\\\];B[ee]C[(;])", [(0, 40)]),
    ],
)
def test_games_of_other_programs_are_read(tmp_path: Path, text: str, moves: list[tuple[int, int]]) -> None:
    assert list(only(tmp_path, text).moves) == moves


@pytest.mark.parametrize(
    ("properties", "expected"),
    [
        ("", dict(size=19, komi=0.0, result="", player=0)),
        ("SZ[13]KM[6.5]RE[0]", dict(size=13, komi=6.5, result="0")),
        ("KM[375]", dict(komi=7.5)),
        ("KM[3.75]", dict(komi=7.5)),
        ("KM[650]", dict(komi=6.5)),
        ("KM[5,5]", dict(komi=5.5)),
        ("SZ[9]HA[2]AB[gc][cg]", dict(handicap=2, setup=((24, 56), ()), player=1)),
        ("SZ[9]AB[aa:ba]AW[ca]", dict(setup=((0, 1), (2,)), player=0)),
        ("SZ[9]AB[aa]PL[B]", dict(setup=((0,), ()), player=0)),
        ("CA[no-such-encoding]PB[\xe9\xa7]", dict(size=19)),
    ],
)
def test_the_properties_of_a_game_are_understood(tmp_path: Path, properties: str, expected: dict[str, object]) -> None:
    found = only(tmp_path, f"(;{properties})".encode("latin-1"))
    assert {name: getattr(found, name) for name in expected} == expected


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        ("", 1, "no game in SGF"),
        ("no game here ( ) ;", 1, "no game in SGF"),
        ("\n\n(;SZ[9];B[ee]", 3, "a parenthesis is not closed"),
        ("(;SZ[9];B[ee", 1, "a bracket is not closed"),
        ("(;SZ[9];B)", 1, "property with no values"),
        ("(;SZ[9];B[ee]!;W[cc])", 1, "unexpected end"),
        ("(;SZ[9:13])", 1, "its board is '9:13'"),
        ("(;SZ[0])", 1, "its board is '0'"),
        (f"(;SZ[{'9' * 9000}])", 1, "its board is"),
        ("(;GM[2])", 1, "not Go, but game '2'"),
        ("(;KM[six])", 1, "its komi is 'six'"),
        ("(;KM[nan])", 1, "its komi is 'nan'"),
        ("(;HA[1e9])", 1, "its handicap is"),
        ("(;SZ[9];B[zz])", 1, "a move of it is 'zz'"),
        ("(;SZ[9];B[D4x])", 1, "a move of it is 'D4x'"),
        ("(;SZ[9];B[ee]W[cc])", 1, "two moves in one of its nodes"),
        ("(;SZ[9];B[ee][cc])", 1, "two moves in one of its nodes"),
        ("(;SZ[9]AB[zz])", 1, "a stone that is not on its board"),
        ("(;SZ[9];B[ee];AB[aa])", 1, "in the middle of the game, in its node 3"),
        ("(;AB" + "[aa:ss]" * 1000 + ")", 1, "more stones than its board has points"),
    ],
)
def test_a_broken_game_is_reported_with_its_place(tmp_path: Path, text: str, line: int, reason: str) -> None:
    (found,) = read(tmp_path, text)
    assert isinstance(found, BadGame)
    assert (found.line, reason in found.reason) == (line, True), found


def test_a_broken_game_affects_only_itself(tmp_path: Path) -> None:
    found = read(
        tmp_path, f"{GAME}\n(;GM[1]SZ[9];B[ee\n{GAME} {GAME}\n(;SZ[9];B[ee](;W[cc]\n{GAME}\n(;SZ[9];B)\n{GAME}(;GM[1]"
    )
    assert [isinstance(each, SgfGame) for each in found] == [True, False, True, True, False, True, False, True, False]
    assert [each.line for each in found] == [1, 2, 3, 3, 4, 5, 6, 7, 7]


def test_a_comment_may_quote_a_game(tmp_path: Path) -> None:
    assert len(only(tmp_path, "(;SZ[9];B[ee]C[look:\n(;GM[1\\]SZ[9\\];B[aa\\])\n];W[cc])").moves) == 2


def test_a_file_may_be_cut_anywhere_while_it_is_read() -> None:
    text = ("x" * (PIECE - 20) + "(  ;SZ[9]C[" + "\\\\\\]" * 20 + "];B[ee])" + " " * (PIECE - 60) + GAME).encode()
    expected = list(split_into_games(io.BytesIO(text)))
    assert len(expected) == 2
    for shift in range(0, 200, 3):
        found = list(split_into_games(io.BytesIO(b"y" * shift + text)))
        assert found == expected, shift


class Endless(io.RawIOBase):
    """A file that is never in memory as a whole."""

    def __init__(self, pieces: int, piece: bytes) -> None:
        super().__init__()
        self.left = repeat(piece, pieces)

    def readline(self, size: int | None = -1, /) -> bytes:
        return next(self.left, b"")


@pytest.mark.medium
@pytest.mark.parametrize(
    ("piece", "pieces"),
    [
        (b"(;" * 20_000, 6),
        (b"(;SZ[9]" + b";B[ee]" * 8_000, 6),
        (b"(;C[" + b"\\]" * 20_000, 6),
        (b"(;C[" + b"x" * 60_000, 200),
        (b"(;SZ[9])" * 5_000, 2),
        (b"( " * 20_000, 6),
    ],
)
def test_hostile_files_are_read_in_bounded_memory(piece: bytes, pieces: int) -> None:
    tracemalloc.start()
    for found in split_into_games(Endless(pieces, piece)):  # type: ignore[arg-type]
        assert isinstance(found, BadGame) or len(found[1]) < 100
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 3 * MOST_BYTES


@pytest.mark.medium
def test_the_deepest_and_the_largest_accepted_game_do_no_harm(tmp_path: Path) -> None:
    many = MOST_MARKS // 5 - 2
    deep = "(;B[aa]" * many
    (found,) = read(tmp_path, f"(;SZ[9]{deep}{')' * many})")
    assert isinstance(found, SgfGame)
    assert len(found.moves) == many
    (found,) = read(tmp_path, f"(;SZ[9]{';' * MOST_MARKS})")
    assert isinstance(found, BadGame)
    assert "more than" in found.reason
    (found,) = read(tmp_path, f"(;SZ[9]C[{'x' * MOST_BYTES}])")
    assert isinstance(found, BadGame)
