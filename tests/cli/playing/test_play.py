"""Playing against a network in the terminal, with a person who is a list of lines."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from rich.console import Console

from keima.base.files import sha256_hex
from keima.base.system.command_line import program_name
from keima.cli.playing import engine, play
from keima.config.load import save_resolved
from keima.config.sections.search import SearchSettings
from keima.data.ledger import open_ledger
from keima.data.ledger_rows import ModelRow
from keima.games import Game, load_game
from keima.networks.files.model import Model, describe_model, encode_model
from keima.networks.inference.evaluator import Evaluator
from keima.networks.network import build_network
from keima.report.terminal.boards import CHANGED, FIRST_PLAYER, paint_board
from keima.search.move_search import Search
from tests.one_player import SMALL
from tests.small_run import GAME, NETWORK, model_bytes, small_settings


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run that has published three models, the last of which was rejected."""
    (tmp_path / "models").mkdir()
    with open_ledger(tmp_path, GAME) as ledger:
        for version in (1, 2, 3):
            path, data = Path("models") / f"{version}.model", model_bytes(version)
            (tmp_path / path).write_bytes(data)
            values = {"path": str(path), "bytes": len(data), "sha256": sha256_hex(data)}
            ledger.add_model(ModelRow(version=version, iteration=0, accepted=version < 3, **values))  # type: ignore[arg-type]
    return tmp_path


@pytest.fixture
def type_lines(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Return the person's input, which ends after these lines."""
    lines: list[str] = []

    def answer(console: Console, prompt: str = "") -> str:
        console.print(prompt)
        if not lines:
            raise EOFError
        return lines.pop(0)

    monkeypatch.setattr(Console, "input", answer)
    yield lines


def played(capsys: pytest.CaptureFixture[str], run: Path, *arguments: str, code: int = 0) -> str:
    assert play.main([str(run), "--simulations", "8", *arguments]) == code
    return capsys.readouterr().out


def every_move(times: int) -> Sequence[str]:
    """Return all moves, this many times: occupied ones are refused, and the game continues."""
    return [GAME.action_name(action) for action in range(GAME.num_actions)] * times


def test_a_whole_game_can_be_played_to_its_result(
    run: Path, type_lines: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    type_lines += every_move(1)
    said = played(capsys, run)
    assert "tic_tac_toe, model 2, 8 simulations a move" in said
    assert any(result in said for result in ("You win!", "You lose.", "A draw."))
    assert "Another game?" in said


def test_it_searches_as_in_the_matches_of_its_run_and_says_how(
    run: Path, type_lines: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    searches = list[SearchSettings]()

    def make_search(game: Game, evaluator: Evaluator, settings: SearchSettings, **options: Any) -> Search:
        searches.append(settings)
        return Search(game, evaluator, settings, **options)

    monkeypatch.setattr(play, "Search", make_search)
    matches = {"match_lookahead_plies": 2, "match_policy_temperature": 1.36}
    save_resolved(small_settings(run, search={"algorithm": "gumbel", **matches}), run)
    type_lines += ["quit"]
    assert "8 simulations a move: Gumbel's search, lookahead of 2 plies, policy temperature 1.36." in played(
        capsys, run
    )
    (search,) = searches
    assert (search.algorithm, search.lookahead_plies, search.forced_playouts) == ("gumbel", 2, False)


def test_the_network_begins_if_asked_to(run: Path, type_lines: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    type_lines += ["quit"]
    said = played(capsys, run, "--second")
    assert said.index("It plays") < said.index("Your move:")


def test_a_hint_names_a_legal_move_and_its_prospects(
    run: Path, type_lines: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    type_lines += ["hint", "quit"]
    said = played(capsys, run)
    hint = next(line for line in said.splitlines() if line.startswith("It would play"))
    assert GAME.parse_action(hint.removeprefix("It would play ").split(",")[0]) in range(GAME.num_actions)
    assert "%" in hint


def test_a_move_can_be_undone_with_its_answer(
    run: Path, type_lines: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    type_lines += ["undo", GAME.action_name(4), "undo", GAME.action_name(4), "quit"]
    said = played(capsys, run)
    assert "is not legal" not in said
    assert said.count("It plays") == 2


def test_a_new_game_can_be_started_during_another_one(
    run: Path, type_lines: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    type_lines += [GAME.action_name(4), "new", GAME.action_name(4), "q"]
    said = played(capsys, run)
    assert "is not legal" not in said
    assert said.count("It plays") == 2


@pytest.mark.parametrize("typed", ["", "xyzzy", "99", "-1", "[red]", "a1 a2", "\x00", "ä"])
def test_an_invalid_move_is_refused_and_asked_for_again(
    run: Path, type_lines: list[str], capsys: pytest.CaptureFixture[str], typed: str
) -> None:
    type_lines += [typed, "quit"]
    said = played(capsys, run)
    assert said.count("Your move:") == 2
    assert "It plays" not in said


def test_an_occupied_move_is_refused_with_legal_ones(
    run: Path, type_lines: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    type_lines += [GAME.action_name(4), GAME.action_name(4), "quit"]
    said = played(capsys, run)
    assert "is not legal here; " in said


def test_another_game_follows_on_request(run: Path, type_lines: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    type_lines += [*every_move(1)]
    played(capsys, run)
    moves = len(every_move(1)) - len(type_lines) - 1  # the last line answered whether another game is wanted
    type_lines[:] = [*every_move(1)[:moves], "yes", "quit"]
    assert played(capsys, run).count("Your move:") == moves + 1


def test_help_lists_the_possible_input(run: Path, type_lines: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    type_lines += ["help", "HELP", "quit"]
    said = played(capsys, run)
    for word in ("hint", "undo", "resign", "new", "quit"):
        assert len(re.findall(rf"(?m)^{word} ", said)) == 2
    assert "Here, for example, you may play " in said and "Type a move, or help." in said


def test_a_player_can_resign(run: Path, type_lines: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    type_lines += [GAME.action_name(4), "resign", "y", "quit"]
    said = played(capsys, run)
    assert "You resign: it wins." in said
    assert said.count("Your move:") == 3


def test_the_network_resigns_on_request(run: Path, type_lines: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    move = GAME.action_name(4)
    type_lines += [move, "undo", move, "undo", move]
    said = played(capsys, run, "--resign", "1")
    assert said.count("It plays") == 2 and "It resigns.\nIt resigns: you win!" in said


@pytest.mark.parametrize("typed", ["xyzzy", "", "hint", "help", "undo", GAME.action_name(4)])
def test_the_board_is_shown_again_only_after_a_change(
    run: Path, type_lines: list[str], capsys: pytest.CaptureFixture[str], typed: str
) -> None:
    type_lines += [GAME.action_name(4), typed, "quit"]
    said = played(capsys, run)
    boards = len(re.findall(r"(?m)^[1-9XO] [1-9XO] [1-9XO]\n[1-9XO] [1-9XO] [1-9XO]\n", said))
    assert boards == (4 if typed == "undo" else 3)  # at the start, after either side's move, and after undoing


def test_the_last_move_is_named_below_the_board(
    run: Path, type_lines: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    type_lines += [GAME.action_name(4), "quit"]
    mine, its = re.findall(r"Last move: (\w+), by (you|it)", played(capsys, run))
    assert mine == (GAME.action_name(4), "you") and its[1] == "it"


def test_pieces_are_coloured_and_the_last_move_is_marked() -> None:
    chess, go = load_game("chess"), load_game("go", size=5)
    for game, moves, marked in ((GAME, [0, 4], "O"), (chess, [chess.parse_action("e2e4")], "P."), (go, [0, 24], "O")):
        state = game.initial_state()
        for move in moves:
            before = game.render(state)
            game.play(state, move)
        text = paint_board(game.render(state), before)
        assert text.plain == game.render(state)
        assert "".join(text.plain[span.start : span.end] for span in text.spans if CHANGED in str(span.style)) == marked
    start = paint_board(chess.render(chess.initial_state()))
    first = "".join(start.plain[span.start : span.end] for span in start.spans if FIRST_PLAYER in str(span.style))
    assert set(first) == set("PRNBQK"), "neither coordinates nor words"


def test_chess_moves_are_typed_and_named_by_the_board_s_squares() -> None:
    chess = load_game("chess")
    table, opponent = play.GameSession(chess, person=1), cast(play.Opponent, None)
    table.play(play.parse_move(chess, table.state, "e2e4"))
    assert list(play.handle_line(table, opponent, "E7E5")) == []
    assert table.moves == ["e2e4", "e7e5"] and "Last move: e7e5, by you" in play.painted_board(table).plain
    assert "e9e5' is not a move" in next(iter(play.handle_line(table, opponent, "e9e5")))
    assert "e2e4 is not legal here; " in next(iter(play.handle_line(table, opponent, "e2e4")))


def test_the_end_of_the_input_ends_the_program(
    run: Path, type_lines: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert "Your move:" in played(capsys, run)


def test_any_model_of_the_run_can_be_played_against(
    run: Path, type_lines: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert "model 3," in played(capsys, run, "--version", "3")


def test_unplayable_models_and_runs_are_refused_with_a_reason(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (run / "models" / "2.model").write_bytes(b"damaged")
    for arguments, reason in (
        ([str(tmp_path / "nowhere")], "no such file"),
        ([str(run), "--version", "9"], "has no model 9"),
        ([str(run)], "2.model"),
    ):
        assert play.main(arguments) == 2
        said = capsys.readouterr().err
        assert said.startswith(f"{program_name()}: ")
        assert reason in said


@pytest.mark.parametrize("count", ["0", "-3", "many"])
def test_the_number_of_simulations_is_at_least_one(run: Path, count: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        play.main([str(run), "--simulations", count])
    assert ended.value.code == 2
    assert "--simulations" in capsys.readouterr().err


def test_flags_without_meaning_for_an_engine_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, reason in (
        (["uci", "--resign", "0.05"], "unrecognized arguments: --resign"),
        (["gtp", "--resign", "5"], "from 0 to 1"),
        (["uci", "--rules", "chinese"], "unrecognized arguments: --rules"),
        (["gtp", "--rules", "japanese"], "invalid choice: 'japanese'"),
        (["gtp", "-config", "analysis.cfg"], "unrecognized arguments: -config"),
        (["analysis", "--simulations", "5"], "unrecognized arguments: --simulations"),
        (["analysis", "--report-as", "GREEN"], "invalid choice: 'GREEN'"),
    ):
        protocol, *flags = arguments
        with pytest.raises(SystemExit) as ended:
            engine.main([protocol, "any.safetensors", *flags])
        assert ended.value.code == 2
        assert reason in capsys.readouterr().err


# One-player games.


@pytest.fixture
def run_of_2048(tmp_path: Path) -> Path:
    """A run of 2048 on 3 x 3 that has published one model."""
    torch.manual_seed(1)
    network = build_network(SMALL, **NETWORK)  # type: ignore[arg-type]
    data = encode_model(
        Model(description=describe_model(SMALL, NETWORK, 1), weights=network.eval().state_dict()), SMALL
    )
    (tmp_path / "1.model").write_bytes(data)
    with open_ledger(tmp_path, SMALL) as ledger:
        ledger.add_model(
            ModelRow(version=1, iteration=0, accepted=True, path="1.model", bytes=len(data), sha256=sha256_hex(data))
        )
    return tmp_path


@pytest.mark.medium
def test_a_one_player_game_can_be_watched_to_its_end(
    run_of_2048: Path, type_lines: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    said = played(capsys, run_of_2048, "--watch", "--seed", "1")
    assert said.count("It plays") > 10
    assert "points more" in said and "The game is over: score " in said
    assert "Your move:" not in said
    assert played(capsys, run_of_2048, "--watch", "--seed", "1") == said, "a seed gives the same game again"


@pytest.mark.medium
def test_a_person_plays_a_one_player_game_with_hints(
    run_of_2048: Path, type_lines: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    type_lines += ["hint", "up", "right", "down", "left", "go", "undo", "watch"]
    said = played(capsys, run_of_2048)
    assert "It would play " in said and "Another game?" in said
    assert said.count("Your move:") == 8


def test_the_network_cannot_begin_a_one_player_game(run_of_2048: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert play.main([str(run_of_2048), "--second"]) == 2
    assert "--second: twenty48 is a one-player game" in capsys.readouterr().err


def test_a_two_player_game_cannot_be_watched(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert play.main([str(run), "--watch"]) == 2
    assert "--watch: tic_tac_toe is not a one-player game" in capsys.readouterr().err
