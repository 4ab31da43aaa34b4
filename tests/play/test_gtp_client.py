"""Clients of GTP engines: the real GNU Go, and programs that are not engines."""

from pathlib import Path

import numpy as np
import pytest

from keima.games import load_game
from keima.games.game import States
from keima.games.go.rules import score_lead
from keima.play.arena import ladder
from keima.play.arena.ladder import make_go_command, make_go_entrants
from keima.play.arena.players import GtpSpec
from keima.play.engines.engine_process import EngineFailed
from keima.play.engines.gtp_client import GtpClient, GtpPlayer
from tests.play.bad_engines import program
from tests.programs import needs_gnu_go

GAME = load_game("go", size=5, komi=0.5)
KO = "B3 E3 C4 D4 C2 D2 pass C3 D3"  # White must not retake on C3


def actions(moves: str) -> list[int]:
    return [GAME.parse_action(move) for move in moves.split()]


def after(moves: list[int]) -> States:
    state = GAME.initial_state()
    for action in moves:
        GAME.play(state, action)
    return state


def follow(player: GtpPlayer, *games: str) -> list[str]:
    """Return what the player plays after these moves."""
    played = [actions(moves) for moves in games]
    starts = GAME.initial_states(len(games))
    return [
        GAME.action_name(int(action))
        for action in player.choose_with_history(np.stack([after(moves) for moves in played]), starts, played)
    ]


@pytest.mark.medium
@needs_gnu_go
def test_gnu_go_plays_many_games_each_with_its_own_past_and_seed() -> None:
    games = ["C3", "C3 C4 D4", "B2 D4 D2 B4", "C3 pass", KO]
    with GtpClient(make_go_command(GAME, "gnugo", 10)) as engine:
        player = GtpPlayer(GAME, engine, seed=5, seconds=60.0)
        assert engine.name == "GNU Go 3.8"
        assert player.choose(GAME.initial_states(1)).tolist() == actions("C3")
        forth, back = follow(player, *games), follow(player, *reversed(games))
        assert forth == back[::-1]
        assert forth[-1] != "C3"
    with GtpClient(make_go_command(GAME, "gnugo", 10)) as alone:
        assert follow(GtpPlayer(GAME, alone, seed=5, seconds=60.0), games[2]) == forth[2:3]


@needs_gnu_go
def test_gnu_go_captures_dead_stones_before_it_passes() -> None:
    """Black has a wall from C1 to C5 and everything to the left of it, where a white stone is hopeless; White keeps
    passing.
    """
    moves = actions("C3 D3 C2 D2 C4 D4 C5 D5 C1 D1 pass A3 pass E2 pass E4")
    with GtpClient(make_go_command(GAME, "gnugo", 10)) as engine:
        player = GtpPlayer(GAME, engine, seed=1, seconds=60.0)
        while not GAME.terminal(after(moves)):
            black = GAME.current_player(after(moves)) == 0
            moves += (
                player.choose_with_history(after(moves)[None], GAME.initial_states(1), [moves]).tolist()
                if black
                else actions("pass")
            )
            assert len(moves) < 40
    assert score_lead(after(moves)) == 15 - 10 - 0.5


def test_strengths_and_rules_are_part_of_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ladder, "find_program", lambda name: Path("/usr/games", name))
    rungs = make_go_entrants(GAME, ["pachi:500", "gnugo:10", "gnugo:1", "gnugo:10"])
    assert [rung.name for rung in rungs] == ["gnugo:1", "gnugo:10", "pachi:500"]
    assert isinstance(rungs[1].spec, GtpSpec)
    command = rungs[1].spec.command
    assert command[0] == "/usr/games/gnugo" and command[command.index("--level") + 1] == "10"
    assert {"--chinese-rules", "--positional-superko", "--capture-all-dead", "--forbid-suicide"} <= set(command)
    suicidal = load_game("go", size=5, suicide=True)
    assert "--allow-suicide" in make_go_command(suicidal, "gnugo", 1)
    with pytest.raises(ValueError, match="pachi plays under rules that forbid suicide"):
        make_go_command(suicidal, "pachi", 1)


@pytest.mark.parametrize(
    "name", ["gnugo:0", "gnugo:20", "gnugo:ten", "gnugo:", "fuego:1", "pachi:-5", "pachi:1e3", "pachi:499"]
)
def test_an_invalid_engine_is_refused_with_examples(name: str) -> None:
    with pytest.raises(
        ValueError,
        match=f"there is no '{name}' here; GNU Go is gnugo:LEVEL with a level from 1 to 19, such as gnugo:10",
    ):
        make_go_entrants(GAME, [name])


def test_a_missing_engine_is_reported_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ladder, "find_program", lambda name: None)
    with pytest.raises(ValueError, match=r"--opponent: GNU Go was not found: install it \(Debian: apt install gnugo\)"):
        make_go_entrants(GAME, ["gnugo:10"])
    with pytest.raises(ValueError, match="--opponent: Pachi was not found"):
        make_go_entrants(GAME, ["pachi:1000"])


GREETING = ("for answer in '= False Engine' '= 1.0' '= play' '=' '='; do", "read line", r'printf "$answer\n\n"', "done")
MOVE = ("read line", "echo =", "echo", "read line", "echo =", "echo", "read line")


@pytest.mark.medium
@pytest.mark.parametrize(
    ("lines", "complaint"),
    [
        (["echo '= C3'", "echo"], "asked for move 2 of the game C3: it answered 'C3', which is not a legal move there"),
        (
            ["echo '= resign'", "echo"],
            "asked for move 2 of the game C3: it resigned; .* switch its resignation off",
        ),
        (
            ["echo '? no memory'", "echo"],
            "asked for move 2 of the game C3: False Engine 1.0 refuses 'genmove white': . no memory",
        ),
        (
            ["echo what", "echo"],
            "asked for move 2 of the game C3: False Engine 1.0 answers 'genmove white' with what",
        ),
        (
            ["echo killed >&2", "exit 137"],
            "asked for move 2 of the game C3: .* ended with exit code 137 when it was told .*: killed",
        ),
        (
            ["exec sleep 100"],
            "asked for move 2 of the game C3: .* has not answered '=' to .* in time: does it speak GTP",
        ),
    ],
)
def test_invalid_answers_and_crashes_are_reported_with_engine_game_and_move(
    tmp_path: Path, lines: list[str], complaint: str
) -> None:
    with GtpClient([program(tmp_path, *GREETING, *MOVE, *lines)], seconds=60.0) as engine:
        player = GtpPlayer(GAME, engine, seed=1, seconds=0.0)
        if lines == ["exec sleep 100"]:
            engine._seconds = 0.5  # not for the greeting, which takes a busy machine longer
        with pytest.raises(EngineFailed, match=f"^False Engine 1.0, {complaint}"):
            follow(player, "C3")


@pytest.mark.medium
def test_a_program_that_is_not_an_engine_is_not_waited_for(tmp_path: Path) -> None:
    with pytest.raises(EngineFailed, match="has not answered '=' to 'name' in time: does it speak GTP"):
        GtpClient([program(tmp_path, "exec sleep 100")], seconds=0.3)


@pytest.mark.medium
@pytest.mark.parametrize("lines", [["exec yes"], ["exec 0<&- 1>&-", "exec sleep 100"]])
def test_an_engine_that_talks_on_or_listens_no_more_is_not_waited_for(lines: list[str], tmp_path: Path) -> None:
    with pytest.raises(EngineFailed):
        GtpClient([program(tmp_path, *lines)], seconds=0.3)


def test_positions_without_a_history_are_refused(tmp_path: Path) -> None:
    with (
        GtpClient([program(tmp_path, *GREETING, "exec sleep 100")]) as engine,
        pytest.raises(ValueError, match="from their first move"),
    ):
        GtpPlayer(GAME, engine, seed=1, seconds=0.0).choose(after(actions("C3"))[None])
