"""Keima as a Go engine: its answers word for word, and games against GNU Go, which checks every move by its own
rules.
"""

import os
import re
import selectors
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest

from keima import __version__
from keima.games import load_game
from keima.paths import SHIPPED
from tests.programs import GNU_GO, command, needs_gnu_go
from tests.small_run import saved_model
from tests.stopwatch import Stopwatch

PATIENCE = 400.0  # seconds, for a machine that is also busy with other work
SIZE, KOMI = 7, 4.5
SECONDS = 10.0  # of main time, in timed games
# In answers to KataGo's command, from networks that predict the score.
POINTS = r"(scoreMean -?\d+\.\d+ scoreLead -?\d+\.\d+ )?"
RULES = (
    '{"friendlyPassOk":false,"hasButton":false,"ko":"POSITIONAL",'
    '"scoring":"AREA","suicide":false,"tax":"NONE","whiteHandicapBonus":"0"}'
)
LONGEST = 150  # plies of a game here

pytestmark = [pytest.mark.medium, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def engine_command(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    game, folder = load_game("go", size=SIZE, komi=KOMI), tmp_path_factory.mktemp("model")
    path = saved_model(folder / "tiny.safetensors", game, version=3, predict_ownership=True, predict_score=True)
    return [*command("gtp", path), "--simulations", "16"]


class Program:
    """A program that gets commands and returns its answers unchanged."""

    def __init__(self, engine_command: list[str]) -> None:
        self._process = subprocess.Popen(
            engine_command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        self._text = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.communicate()

    @property
    def pid(self) -> int:
        return self._process.pid

    def say(self, line: str) -> None:
        assert self._process.stdin
        self._process.stdin.write(f"{line}\n".encode())
        self._process.stdin.flush()

    def until(self, pattern: str, *, seconds: float = PATIENCE) -> str:
        """Return its output up to a pattern."""
        assert self._process.stdout
        deadline = time.monotonic() + seconds
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while not (found := re.search(pattern, self._text.decode())):
                assert selector.select(deadline - time.monotonic()), f"no answer after {self._text!r}"
                data = os.read(self._process.stdout.fileno(), 2**16)
                assert data, f"it has ended after {self._text!r}"
                self._text += data
        text = self._text.decode()
        self._text = text[found.end() :].encode()
        return text[: found.end()]

    def ask(self, line: str) -> str:
        """Return its answer to a command, without the sign of success; other answers are faults."""
        self.say(line)
        answer = self.until(r"\n\n")
        assert answer.startswith("="), (line, answer)
        return answer[1:].strip()


@pytest.fixture(scope="module")
def engine(engine_command: list[str]) -> Iterator[Program]:
    with Program(engine_command) as engine:
        engine.ask("clear_board")
        yield engine


def talk(engine_command: list[str], *lines: str) -> list[str]:
    """Return all answers of an engine that gets everything at once."""
    said = "".join(f"{line}\n" for line in lines)
    ended = subprocess.run(engine_command, input=said, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert ended.returncode == 0 and re.fullmatch(
        r"keima gtp: loading PyTorch\n(keima gtp: compiling .*\n)*", ended.stderr
    )
    assert ended.stdout.endswith("\n\n") and "\n\n\n" not in ended.stdout
    return ended.stdout.removesuffix("\n\n").split("\n\n")


def test_answers_follow_the_protocol(engine_command: list[str]) -> None:
    lines = {
        "7 protocol_version": "=7 2",
        "name # who?": "= Keima",
        "version": f"= {__version__} model 3",
        "known_command genmove": "= true",
        "8 known_command xyzzy": "=8 false",
        "9 xyzzy": "?9 unknown command",
        "xyzzy": "? unknown command",
        "boardsize 19": "? unacceptable size",
        "boardsize seven": "? syntax error: 'seven' is not a whole number from 0",
        "boardsize": "? syntax error: boardsize takes 1 argument, not 0",
        "boardsize 7": "=",
        "komi 0.3": "? syntax error: komi must be a multiple of 0.5, and not more than the board has points, not 0.3",
        "komi 4.5": "=",
        "get_komi": "= 4.5",
        "kata-set-rules japanese": None,
        "kata-set-rules tromp-taylor": "=",
        "11 kata-get-rules": f"=11 {RULES}",
        "play black d4": "=",
        "play white D4": "? illegal move",
        "play white Z9": None,
        "play green D4": "? syntax error: 'green' is not a color",
        "play w pass": "=",
        "play b PASS": "=",
        "final_score # here": "= B+44.5",
        "final_status_list dead": "=",
        "final_status_list alive": "= D4",
        "final_status_list asleep": "? syntax error: 'asleep' is not alive, dead or seki",
        "fixed_handicap 2": "? board not empty",
        "undo": "=",
        "undo ": "=",
        "undo  ": "=",
        "undo   ": "? cannot undo",
        "fixed_handicap 5": "? invalid number of stones",
        "10 fixed_handicap 3": "=10 C3 E5 C5",
        "place_free_handicap 3": "? board not empty",
        "clear_board": "=",
        "set_free_handicap C3": "? bad vertex list",
        "set_free_handicap C3 C3": "? bad vertex list",
        "set_free_handicap C3 pass": "? bad vertex list",
        "set_free_handicap C3 D4": "=",
        "time_settings 1 2": "? syntax error: time_settings takes 3 arguments, not 2",
        "time_settings 600 10 0": "=",
        "time_left b 10 0": "=",
        "loadsgf /no/such/file": None,
        "play w resign": "=",
        "final_score": "= B+Resign",
        "kgs-game_over": "=",
        "quit": "=",
        "name": "nothing is heard any more",
    }
    answers = talk(engine_command, "", "# a comment", *lines)
    expected = list(lines.values())[:-1]
    assert len(answers) == len(expected)
    for line, answer, wanted in zip(lines, answers, expected, strict=False):
        assert answer.startswith("? ") if wanted is None else answer == wanted, line


@pytest.mark.slow
def test_resignation_and_the_rules_at_the_start_are_chosen_on_the_command_line(engine_command: list[str]) -> None:
    """A hopeless game is resigned on request; the rules are for programs without kata-set-rules."""
    asked = ["kata-get-rules", "clear_board", "kata-get-rules", *["genmove b", "genmove w"] * 3, "final_score"]
    first, _, later, *answers = talk([*engine_command, "--rules", "chinese", "--resign", "1"], *asked)
    assert first == later and '"friendlyPassOk":true' in first and '"whiteHandicapBonus":"N"' in first
    assert answers[4:] == ["= resign", "= resign", "= B+Resign"]
    assert "resign" not in "".join(answers[:4])


def test_all_commands_are_listed_and_known(engine: Program) -> None:
    commands = engine.ask("list_commands").split("\n")
    needed = {
        "genmove",
        "kgs-genmove_cleanup",
        "lz-analyze",
        "kata-analyze",
        "loadsgf",
        "time_left",
        "showboard",
        "reg_genmove",
    }
    needed |= {"get_komi", "kgs-game_over", "kata-get-rules", "kata-set-rules"}
    needed |= {"analyze", "genmove_analyze", "kata-search_analyze", "kata-raw-nn", "kata-get-param"}
    assert needed <= set(commands) and len(set(commands)) == len(commands)
    assert {engine.ask(f"known_command {name}") for name in commands} == {"true"}


def test_moves_are_made_for_either_color_out_of_turn(engine: Program) -> None:
    engine.ask("clear_board")
    vertices = [engine.ask(f"genmove {color}") for color in ("b", "b", "w", "w", "white", "BLACK")]
    board = engine.ask("showboard")
    plays = [vertex for vertex in vertices if vertex != "pass"]
    assert len(re.findall("[XO]", "\n".join(board.split("\n")[1:8]))) == len(plays) == len(set(plays))
    assert engine.ask("reg_genmove b") not in plays
    assert engine.ask("showboard") == board


def test_the_network_places_a_free_handicap(engine: Program) -> None:
    engine.ask("clear_board")
    stones = engine.ask("place_free_handicap 4").split()
    assert len(set(stones)) == 4
    assert set(engine.ask("final_status_list alive").split()) == set(stones)


@pytest.mark.parametrize(
    ("name", "winrate"), [("lz-analyze", r"\d{1,5}"), *((name, r"[01]\.\d+") for name in ("kata-analyze", "analyze"))]
)
def test_an_analysis_continues_until_any_input(engine: Program, name: str, winrate: str) -> None:
    engine.ask("clear_board")
    engine.ask("play b D4")
    engine.say(f"31 {name} W 5")
    assert engine.until(r"\n") == "=31\n"
    looks = [engine.until(r"info .*\n") for _ in range(3)]
    for look in looks:
        for move in re.split(r"\s*\binfo\b", look.strip())[1:]:
            assert re.fullmatch(
                rf" move \w+ visits \d+ (utility -?[01]\.\d+ )?winrate {winrate} {POINTS}"
                rf"prior {winrate} lcb {winrate} order \d+ pv( \w+)+",
                move,
            ), move
    visits = [sum(map(int, re.findall(r"visits (\d+)", look))) for look in looks]
    assert visits == sorted(visits) and visits[-1] > visits[0]
    engine.say("")
    rest = engine.until(r"(?m)^\n")
    assert rest == "\n" or rest.startswith("info")
    engine.say(f"{name} interval 5")
    engine.until(r"info .*\n")
    engine.say("32 name")  # which is answered after the analysis has ended
    assert re.fullmatch(r"(info .*\n)*\n=32 Keima\n\n", engine.until(r"=32 Keima\n\n"))


def test_an_analysis_predicts_each_point_s_owner(engine: Program) -> None:
    engine.ask("clear_board")
    engine.say("kata-analyze 5 ownership true")
    engine.until(r"=\n")
    line = engine.until(r"info .*\n")
    assert "scoreLead" in line and len(line.partition(" ownership ")[2].split()) == SIZE**2
    engine.say("")
    engine.until(r"(?m)^\n")


@pytest.mark.parametrize("name", ["kata-genmove_analyze", "genmove_analyze"])
def test_one_command_makes_and_analyses_a_move(engine: Program, name: str) -> None:
    engine.ask("clear_board")
    lines = engine.ask(f"{name} b 1").split("\n")
    assert all(line.startswith("info move ") for line in lines[:-1])
    assert re.fullmatch(r"play (\w\d|pass)", lines[-1])
    assert engine.ask("undo") == ""


def test_another_command_analyses_a_move_and_does_not_make_it(engine: Program) -> None:
    engine.ask("clear_board")
    board = engine.ask("showboard")
    lines = engine.ask("kata-search_analyze w 1 allow w C3 1").split("\n")
    assert lines[-1] == "play C3" and all(line.startswith("info move ") for line in lines[:-1])
    assert engine.ask("showboard") == board


def test_the_networks_own_evaluation_is_told(engine: Program) -> None:
    engine.ask("clear_board")
    engine.ask("play b D4")
    words = engine.ask("kata-raw-nn all").split()
    assert [words[place + 1] for place, word in enumerate(words) if word == "symmetry"] == [*"01234567"]
    words = engine.ask("kata-raw-nn 0").split()
    numbers = {name: float(words[words.index(name) + 1]) for name in ("whiteWin", "whiteLoss", "whiteLead")}
    assert numbers["whiteWin"] + numbers["whiteLoss"] == pytest.approx(1, abs=1e-5)
    start = words.index("policy") + 1
    policy = [*map(float, words[start : start + SIZE**2]), float(words[words.index("policyPass") + 1])]
    assert sum(share for share in policy if share == share) == pytest.approx(1, abs=1e-3)
    assert [place for place, share in enumerate(policy) if share != share] == [SIZE**2 // 2], "the stone's point"
    start = words.index("whiteOwnership") + 1
    assert len([float(word) for word in words[start:]]) == SIZE**2


def test_parameters_of_katago_are_told_as_they_are_here(engine: Program) -> None:
    assert engine.ask("kata-get-param maxVisits") == "16"
    for name in engine.ask("kata-list-params").split():
        float(engine.ask(f"kata-get-param {name}"))


def test_only_allowed_moves_are_searched(engine: Program) -> None:
    engine.ask("clear_board")
    assert engine.ask("lz-genmove_analyze b allow b C3,D4 1").split()[-1] in ("C3", "D4")


def test_dead_stones_are_captured_on_request(engine: Program) -> None:
    engine.ask("clear_board")
    for row in range(1, 8):
        engine.ask(f"play b C{row}")
        engine.ask(f"play b E{row}")
    engine.ask("play w G4")
    for _ in range(8):
        if engine.ask("kgs-genmove_cleanup b") == "pass" or "O" not in engine.ask("showboard"):
            break
        engine.ask("play w pass")
    assert "O" not in "".join(engine.ask("showboard").split("\n")[1:8])


@pytest.mark.parametrize("settings", ["time_settings 2 0 0", "time_settings 0 2 4", "kgs-time_settings byoyomi 1 1 3"])
def test_a_clock_is_respected(engine: Program, settings: str) -> None:
    engine.ask(settings)
    engine.ask("clear_board")
    stopwatch = Stopwatch(engine.pid)
    engine.ask("genmove b")
    assert stopwatch.seconds() < 2
    engine.ask("time_left w 0.2 1")
    stopwatch = Stopwatch(engine.pid)
    engine.ask("genmove w")
    assert stopwatch.seconds() < 1
    engine.ask("kgs-time_settings none")


def test_a_file_is_loaded(engine: Program, tmp_path: Path) -> None:
    path = tmp_path / "a game.sgf"
    path.write_text("(;SZ[7]KM[2];B[dd];W[cc];B[ee])", encoding="utf-8")
    engine.ask(f"loadsgf {path} 3")
    assert set(engine.ask("final_status_list alive").split()) == {"D4", "C5"}
    engine.ask(f"loadsgf {path}")
    assert engine.ask("final_score") == "W+1"
    engine.ask(f"komi {KOMI}")


@pytest.mark.slow
def test_the_end_of_the_input_ends_the_program_during_an_analysis(engine_command: list[str]) -> None:
    assert talk(engine_command, "lz-analyze b 1")[0].startswith("=")


def test_only_go_networks_speak_gtp(tmp_path: Path) -> None:
    path = saved_model(tmp_path / "other.safetensors", load_game("tic_tac_toe"))
    refused = [*command("gtp", path)]
    ended = subprocess.run(refused, input="name\n", capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "the Go Text Protocol is for go, and this model plays tic_tac_toe" in ended.stderr


# Games against GNU Go.


def referee(seed: int) -> Program:
    """Start GNU Go with our rules, as far as it has them; it captures dead stones before it passes."""
    rules = [
        "--chinese-rules",
        "--positional-superko",
        "--forbid-suicide",
        "--capture-all-dead",
        "--level",
        "1",
        "--seed",
        str(seed),
    ]
    return Program([str(GNU_GO), "--mode", "gtp", *rules])


def play_game(engine: Program, opponent: Program, *, color: str, clock: bool) -> float:
    """Play a game in which the engine has a color; return what was left on its clock. Any illegal move is a fault."""
    for each in (engine, opponent):
        each.ask(f"boardsize {SIZE}")
        each.ask("clear_board")
        each.ask(f"komi {KOMI}")
    if clock:
        engine.ask(f"time_settings {SECONDS:.0f} 0 0")
    left, passes, plies = SECONDS, 0, 0
    while passes < 2 and plies < LONGEST:
        mover = "bw"[plies % 2]
        player, other = (engine, opponent) if mover == color else (opponent, engine)
        if clock and player is engine:
            engine.ask(f"time_left {mover} {int(left)} 0")
        began = time.monotonic()
        vertex = player.ask(f"genmove {mover}")
        if player is engine:
            left -= time.monotonic() - began
        if vertex == "resign":
            return left
        other.ask(f"play {mover} {vertex}")
        passes, plies = passes + 1 if vertex.lower() == "pass" else 0, plies + 1
    if passes == 2:
        agree(engine, opponent)
    return left


def agree(engine: Program, opponent: Program) -> None:
    """Assert that both count the same if nothing is dead for GNU Go."""
    for color, mark in (("black", "X"), ("white", "O")):
        theirs = set(opponent.ask(f"list_stones {color}").split())
        rows = [
            line.replace("(", " ").replace(")", " ").split()[1:-1]
            for line in engine.ask("showboard").split("\n")[1 : SIZE + 1]
        ]
        assert theirs == {
            f"{'ABCDEFG'[x]}{SIZE - y}" for y, row in enumerate(rows) for x, sign in enumerate(row) if sign == mark
        }
    if not opponent.ask("final_status_list dead") and not opponent.ask("final_status_list seki"):
        assert engine.ask("final_score") == opponent.ask("final_score")


@needs_gnu_go
def test_games_against_gnu_go_are_played_by_the_same_rules(engine: Program) -> None:
    with referee(1) as opponent:
        for color in "bw":
            play_game(engine, opponent, color=color, clock=False)


@needs_gnu_go
@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_none_of_a_hundred_timed_games_has_a_fault(engine_command: list[str]) -> None:
    with Program(engine_command) as engine:
        poorest = []
        for number in range(100):
            with referee(number) as opponent:
                poorest.append(play_game(engine, opponent, color="bw"[number % 2], clock=True))
    assert min(poorest) > 0


# Games against GNU Go when it does not capture dead stones, with a network that knows how to play.

CLEAN, CLEAN_KOMI = SHIPPED / "models" / "go7.safetensors", 8.5
WALLS = [f"play b {column}{row}" for row in range(1, 8) for column in "CE"] + ["play w G4", "play w G5"]


def play_on(engine: Program, opponent: Program, *, color: str, mover: str) -> None:
    """Continue until both have passed, or for a long time."""
    passes, plies = 0, 0
    while passes < 2 and plies < LONGEST:
        player, other = (engine, opponent) if mover == color else (opponent, engine)
        vertex = player.ask(f"genmove {mover}")
        other.ask(f"play {mover} {vertex}")
        passes, plies, mover = passes + 1 if vertex.lower() == "pass" else 0, plies + 1, "w" if mover == "b" else "b"
    assert passes == 2


def dead_of(opponent: Program, color: str) -> set[str]:
    """Return the stones of a color that GNU Go considers dead."""
    return set(opponent.ask("final_status_list dead").split()) & set(opponent.ask(f"list_stones {color}").split())


def good_engine(*flags: str) -> Program:
    return Program(command("gtp", CLEAN, "--simulations", 50, *flags))


def careless(level: int, seed: int) -> Program:
    """Start GNU Go as people do, but without resigning; it passes as soon as neither side can gain anything, whatever
    is dead.
    """
    return Program(
        [str(GNU_GO), "--mode", "gtp", "--chinese-rules", "--never-resign", "--level", str(level), "--seed", str(seed)]
    )


def begin(*players: Program) -> None:
    for player in players:
        for line in (f"boardsize {SIZE}", "clear_board", f"komi {CLEAN_KOMI}"):
            player.ask(line)


@pytest.mark.slow
@needs_gnu_go
def test_dead_stones_are_removed_when_the_board_is_counted_as_it_stands() -> None:
    with good_engine() as engine, careless(1, 1) as opponent:
        begin(engine, opponent)
        for line in WALLS:
            engine.ask(line)
            opponent.ask(line)
        assert dead_of(opponent, "white") == {"G4", "G5"}
        play_on(engine, opponent, color="b", mover="w")
        assert dead_of(opponent, "white") == set()
        assert engine.ask("final_score") == "B+40.5" and float(opponent.ask("final_score").removeprefix("B+")) == 40.5


@needs_gnu_go
@pytest.mark.slow
def test_where_dead_stones_are_agreed_on_both_sides_count_the_same() -> None:
    """Black's two dead stones win the game as the board stands. Black continues to play instead of passing, in vain."""
    with good_engine("--rules", "chinese") as engine, careless(1, 1) as opponent:
        begin(engine, opponent)
        walls = [f"play {color} {column}{row}" for color, column in ("bC", "wD", "wF") for row in range(1, 8)]
        for line in ("komi 0.5", *walls, "play b G4", "play b G5", "play w pass"):
            engine.ask(line)
            opponent.ask(line)
        assert dead_of(opponent, "black") == set(engine.ask("final_status_list dead").split()) == {"G4", "G5"}
        move = engine.ask("genmove b")
        assert move != "pass"
        opponent.ask(f"play b {move}")
        play_on(engine, opponent, color="b", mover="w")
        assert engine.ask("final_score") == opponent.ask("final_score")


@needs_gnu_go
@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_gnu_go_has_no_dead_stones_left_at_the_end_of_its_games() -> None:
    with good_engine() as engine:
        for number in range(10):
            with careless(10, number) as opponent:
                begin(engine, opponent)
                color, theirs = ("b", "white") if number % 2 == 0 else ("w", "black")
                play_on(engine, opponent, color=color, mover="b")
                assert dead_of(opponent, theirs) == set()
