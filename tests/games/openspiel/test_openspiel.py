"""OpenSpiel's games keep the contract, are trained like any other, and are refused where they do not fit."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
import yaml

from keima.compilation.decorators import compiled
from keima.games import CHANCE, Game, load_game
from keima.games.authoring.contract import check_game
from keima.games.authoring.kept_errors import raise_kept_error
from keima.games.game import States, call_legal_actions, call_query, call_step
from keima.games.openspiel import positions
from keima.games.openspiel.positions import OpenSpielAdapter, OpenSpielFailed, RecentPositions
from keima.search.baselines.uct import UctPlayer
from tests.games.test_compiled import digest_of_games
from tests.programs import printed
from tests.sources import ROOT

pyspiel = pytest.importorskip("pyspiel", reason="open_spiel is not installed")

CHECKED: dict[str, dict[str, Any]] = {  # with the other options
    "2048": {"max_plies": 120},
    "amazons": {},
    "backgammon": {},
    "breakthrough(rows=5,columns=5)": {},
    "catch": {},
    "checkers": {"max_plies": 150},
    "cliff_walking": {},
    "clobber(rows=4,columns=4)": {},
    "connect_four": {},
    "dots_and_boxes": {},
    "einstein_wurfelt_nicht": {},
    "gomoku(size=5)": {},
    "havannah(board_size=4)": {},
    "hex(board_size=5)": {},
    "mancala": {"max_plies": 150},
    "misere(game=tic_tac_toe())": {},
    "nim": {},
    "nine_mens_morris": {},
    "othello": {},
    "oware": {"max_plies": 150},
    "pentago": {},
    "pig(winscore=20,horizon=60)": {},
    "quoridor(board_size=5)": {},
    "ultimate_tic_tac_toe": {},
    "y(board_size=5)": {},
}
TRAINED = (  # with chance: catch, pig; for one player: catch, cliff_walking
    *("breakthrough(rows=5,columns=5)", "catch", "clobber(rows=4,columns=4)", "cliff_walking", "dots_and_boxes"),
    *("havannah(board_size=4)", "mancala", "othello", "pig(winscore=20,horizon=60)", "y(board_size=5)"),
)


def openspiel(game: str, **options: Any) -> Game:
    return load_game("openspiel", game=game, **options)


def after(game: Game, *actions: int) -> States:
    state = game.initial_state()
    for action in actions:
        game.play(state, action)
    return state


def test_a_game_of_openspiels_keeps_the_contract() -> None:
    check_game(openspiel("tic_tac_toe"), games=4)


@pytest.mark.medium
@pytest.mark.parametrize(
    "name", [name if at % 4 == 0 else pytest.param(name, marks=pytest.mark.slow) for at, name in enumerate(CHECKED)]
)
def test_many_games_of_openspiels_keep_the_contract(name: str) -> None:
    check_game(openspiel(name, **CHECKED[name]), games=4)


REFUSED = [
    ("", "which one?"),
    ("hexx", "no game called 'hexx'; similar names are hex"),
    ("hex(bord=5)", "refuses 'hex.bord=5.'.*Available parameters are: board_size"),
    ("kuhn_poker", "do not see the whole position"),
    ("pathfinding", "move at the same time"),
    ("chinese_checkers(players=3)", "has 3 players"),
    ("stones_and_gems", "samples its chance outcomes"),
    ("morpion_solitaire", "no observation tensor"),
]


@pytest.mark.parametrize(("name", "reason"), REFUSED)
def test_a_game_that_does_not_fit_is_refused_with_the_reason(name: str, reason: str) -> None:
    with pytest.raises(ValueError, match=f"game 'openspiel': .*{reason}"):
        openspiel(name)


@pytest.mark.parametrize("options", [{"max_plies": -1}, {"max_plies": 1.5}, {"most_legal_actions": "all"}])
def test_options_that_are_no_numbers_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="is a whole number, 0 or more"):
        openspiel("tic_tac_toe", **options)


def test_without_the_package_the_machine_and_the_command_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyspiel", None)
    monkeypatch.setattr("platform.node", lambda: "worker-7")
    with pytest.raises(
        ValueError, match=r"not installed on worker-7: run `.*python.* -m pip install open_spiel` there"
    ):
        openspiel("go(board_size=5)")


def test_the_same_game_has_the_same_options_however_it_is_written() -> None:
    assert openspiel("hex( board_size = 5 )".replace(" ", "")).options == openspiel("hex(board_size=5)").options
    assert openspiel("tic_tac_toe").options == openspiel("tic_tac_toe()").options == {"game": "tic_tac_toe()"}


def test_the_network_sees_openspiels_tensor_and_who_is_to_move() -> None:
    game, state = openspiel("tic_tac_toe"), pyspiel.load_game("tic_tac_toe").new_initial_state()
    assert game.observation_shape == (4, 3, 3)
    for number, action in enumerate([4, 0, 8]):
        row = after(game, *[4, 0, 8][:number])
        *tensor, mover = game.observe(row)
        assert np.ravel(tensor).tolist() == state.observation_tensor(number % 2)
        assert (mover == number % 2).all()
        state.apply_action(action)


@pytest.mark.parametrize(
    ("name", "shape", "policy_planes"),
    [
        ("hex(board_size=5)", (10, 5, 5), 1),
        ("go(board_size=5)", (5, 5, 5), 1),  # the points and a pass
        ("gomoku(size=7)", (4, 7, 7), 1),  # OpenSpiel's tensor is flat
        ("connect_four", (4, 6, 7), 0),
        ("2048", (1, 4, 4), 0),  # of four numbers to a row, for four actions
        ("nim", (40, 1, 1), 0),
        ("catch", (1, 10, 5), 0),  # a game for one needs no plane of the player to move
    ],
)
def test_tensors_of_any_shape_become_planes(name: str, shape: tuple[int, int, int], policy_planes: int) -> None:
    game = openspiel(name)
    assert (game.observation_shape, game.policy_planes) == (shape, policy_planes)


@pytest.mark.parametrize(
    ("name", "names"),
    [
        ("hex(board_size=5)", ["a1", "b1", "c1"]),
        ("connect_four", ["0", "1", "2"]),  # OpenSpiel says x0 or o0
        ("go(board_size=5)", ["a1", "b1", "c1"]),  # B a1, W a1
        ("oware", ["A", "B", "C"]),  # and the second player's a, b, c
        ("amazons", ["0", "1", "2"]),  # its moves have other names at other times
        ("chess", ["0", "1", "2"]),
    ],
)
def test_moves_are_called_as_openspiel_calls_them_where_that_is_one_name(name: str, names: list[str]) -> None:
    game = openspiel(name)
    assert [game.action_name(action) for action in range(3)] == names
    assert [game.parse_action(text) for text in names] == [0, 1, 2]
    with pytest.raises(ValueError, match="is not a move of"):
        game.parse_action("no such move")


def test_chance_moves_by_openspiels_probabilities() -> None:
    game = openspiel("pig(winscore=20,horizon=60)")
    state = after(game, 0)
    assert game.current_player(state) == CHANCE and len(game.legal_actions(state)) == 0
    outcomes, probabilities = game.chance_outcomes(state)
    assert outcomes.tolist() == [0, 1, 2, 3, 4, 5]
    assert np.allclose(probabilities, 1 / 6)
    assert game.outcome_name(0) == "Roll 1"


def test_scores_below_zero_are_counted_from_the_lowest_and_given_at_the_end() -> None:
    game = openspiel("cliff_walking")
    right, up, _, down = range(4)
    assert (game.max_return, game.returns(after(game, up)).tolist()) == (190, [0])
    fallen = after(game, right)  # 100 lost
    assert game.terminal(fallen) and game.returns(fallen).tolist() == [99]
    assert game.returns(after(game, up, *[right] * 7, down)).tolist() == [190]


def test_a_game_that_is_cut_is_drawn() -> None:
    game = openspiel("connect_four", max_plies=4)
    state = after(game, 0, 1, 0, 1)
    assert game.terminal(state) and game.legal_actions(state).size == 0
    assert game.returns(state).tolist() == [0, 0]
    check_game(game, games=2)


def test_the_board_is_written_as_openspiel_writes_it() -> None:
    assert openspiel("tic_tac_toe").render(after(openspiel("tic_tac_toe"), 0, 4)) == "x..\n.o.\n..."


@pytest.mark.medium
@pytest.mark.parametrize("most", [1, 2000])
def test_positions_that_were_forgotten_are_played_again(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    before = digest_of_games("openspiel", game="othello")
    monkeypatch.setattr(positions, "RECENT", RecentPositions(most))
    assert digest_of_games("openspiel", game="othello") == before


SAY_DIGEST = """
import os
from tests.games.test_compiled import digest_of_games
print(digest_of_games("openspiel", game="hex(board_size=3)"), flush=True)
"""
FORK = """
if os.fork() == 0:
    print(digest_of_games("openspiel", game="hex(board_size=3)"), flush=True)
    os._exit(0)
os.wait()
"""


@pytest.mark.medium
@pytest.mark.parametrize("jit", ["0", "1"])
def test_new_and_forked_processes_say_the_same_and_so_does_plain_python(jit: str) -> None:
    environment = {**os.environ, "NUMBA_DISABLE_JIT": jit, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", SAY_DIGEST + FORK]
    said = subprocess.run(command, env=environment, cwd=ROOT, check=True, capture_output=True, text=True)
    assert said.stdout.split() == [digest_of_games("openspiel", game="hex(board_size=3)")] * 2


def test_what_openspiel_fails_with_is_raised_where_compiled_code_was_called(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: OpenSpielAdapter, key: bytes) -> list[int]:
        raise RuntimeError("a bug of OpenSpiel's")

    game = openspiel("connect_four")
    state = after(game, 3, 2)
    monkeypatch.setattr(OpenSpielAdapter, "legal_actions", fail)
    assert game.legal_actions(state).size == 0
    with pytest.raises(
        OpenSpielFailed, match=r"connect_four\(\) failed after the moves \[3, 2\]: a bug of OpenSpiel's"
    ):
        raise_kept_error()
    with pytest.raises(OpenSpielFailed):
        check_game(game, games=1)


def test_a_player_by_playouts_raises_what_openspiel_fails_with(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: OpenSpielAdapter, key: bytes) -> list[float]:
        raise RuntimeError("a bug of OpenSpiel's")

    game = openspiel("tic_tac_toe")
    player = UctPlayer(game, playouts=10, seed=1)
    assert player.choose(game.initial_states(1))[0] in range(9)
    monkeypatch.setattr(OpenSpielAdapter, "returns", fail)
    with pytest.raises(OpenSpielFailed, match=r"tic_tac_toe\(\) failed after the moves"):
        player.choose(game.initial_states(1))


def test_more_legal_actions_than_promised_are_an_error_that_says_so() -> None:
    with pytest.raises(ValueError, match="there are 7 legal actions: set most_legal_actions"):
        openspiel("connect_four", most_legal_actions=6)


def test_a_history_without_room_is_an_error_and_nothing_is_overwritten() -> None:
    game = openspiel("connect_four", max_plies=4)
    rows = np.stack([after(game, 0, 1, 0, 1), game.start])
    for _ in range(9):
        call_step(game.rules.step, rows[0], 3)
    assert np.array_equal(rows[1], game.start)
    assert call_query(game.rules.terminal, rows[0]) == 1
    with pytest.raises(OpenSpielFailed, match="longer than OpenSpiel promises"):
        raise_kept_error()


@compiled
def count_legal_actions(legal_actions: Any, state: States, out: Any, times: int) -> int:
    total = 0
    for _ in range(times):
        total += legal_actions(state, out)
    return total


def interrupt_the_callback(number: int, frame: FrameType | None) -> None:
    if frame is not None and frame.f_globals["__name__"] == positions.__name__:
        raise KeyboardInterrupt


def test_ctrl_c_in_the_midst_of_compiled_code_is_raised_after_it_and_disturbs_nothing() -> None:
    game, out = openspiel("connect_four"), np.empty(7, np.int32)
    legal_actions = game.rules.legal_actions
    count_legal_actions(legal_actions, game.start, out, 1)
    before = signal.signal(signal.SIGALRM, interrupt_the_callback)
    signal.setitimer(signal.ITIMER_REAL, 0.005, 0.001)
    total = count_legal_actions(legal_actions, game.start, out, 20_000)
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)
    assert total == 7 * 20_000
    with pytest.raises(KeyboardInterrupt):
        raise_kept_error()


def test_legal_actions_are_not_written_behind_a_short_array() -> None:
    game, out = openspiel("connect_four"), np.full(7, -7, np.int32)
    assert call_legal_actions(game.rules.legal_actions, game.start, out[:3]) == 0
    assert (out == -7).all()
    with pytest.raises(OpenSpielFailed, match=r"7 .* more than the 3"):
        raise_kept_error()


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", ["hex(board_size=5)", *TRAINED])
def test_a_run_trains_on_a_game_of_openspiels(name: str, tmp_path: Path) -> None:
    settings = yaml.safe_load((ROOT / "configs" / "tic_tac_toe.yaml").read_text(encoding="utf-8"))
    settings["game"] = {"name": "openspiel", "options": {"game": name} | CHECKED.get(name, {})}
    rating = {"rating_games": 10} if openspiel(name).num_players == 2 else {"rating_games": 0, "score_games": 10}
    settings["evaluation"] |= {"perfect_play": False, **rating}
    (tmp_path / "openspiel.yaml").write_text(yaml.safe_dump(settings), encoding="utf-8")
    config = tmp_path / "openspiel.yaml"
    printed("start_main.py", "--config", config, "--smoke", "--run-dir", "run", cwd=tmp_path, seconds=500)
    assert printed("audit", tmp_path / "run")
