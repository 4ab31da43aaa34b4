"""Recorded games, move by move: in the terminal, and on a page."""

import io
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console

from keima.base.run_folder import STATS_NAME
from keima.cli.reports.results import main as view_results
from keima.data.ledger import Ledger, open_ledger
from keima.data.receive import Received, receive_batch
from keima.data.records import GameBatch, encode_batch
from keima.games import CHANCE, Game, load_game
from keima.games.game import States
from keima.games.go.rules import score_lead
from keima.networks.architectures.auxiliary_heads import make_predictor
from keima.networks.network import build_network
from keima.report.charts.page import make_run_page
from keima.report.files.run_files import StatsFile
from keima.report.games.drawn_board import read_cells
from keima.report.games.game_view import load_game_view, load_sample_games, make_game_view
from keima.report.terminal.steps import print_game, step_through
from tests.example_reports import evaluation
from tests.example_reports import iteration as iteration_for_two
from tests.one_player import SMALL, ends, iteration, random_batch
from tests.synthetic import synthetic_batch

CONNECT_FOUR, GO = load_game("connect_four"), load_game("go", size=5)


def take(ledger: Ledger, game: Game, batch: GameBatch) -> None:
    ledger.grant(batch.worker, batch.num_games)
    receipt = receive_batch(
        ledger, game, worker=batch.worker, batch_id=batch.batch_id, fetch=lambda limit: encode_batch(batch)
    )
    assert isinstance(receipt, Received)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run with two batches of two games of 2048 on 3 x 3, and two iterations."""
    with open_ledger(tmp_path, SMALL) as ledger:
        for number in (0, 1):
            batch = random_batch(games=2, seed=number, batch_id=f"run1-worker1-{number}")
            take(ledger, SMALL, GameBatch(**(vars(batch) | {"run_id": ledger.run_id, "first_game": 2 * number})))
    observer = StatsFile(tmp_path / STATS_NAME)
    for number in (1, 2):
        observer.iteration(iteration(number, measured=True))
    return tmp_path


def test_a_game_of_chance_is_shown_move_by_move_with_its_outcomes() -> None:
    batch = random_batch(games=3)
    view = make_game_view(SMALL, batch, 1, number=7)
    record, state = batch.game_record(1), SMALL.initial_state()
    decisions = [(ply, action) for ply, action in enumerate(record.actions.tolist()) if record.flags[ply] & 1]
    assert [(moment.ply, moment.move) for moment in view.moments[:-1]] == [
        (ply, SMALL.action_name(action)) for ply, action in decisions
    ]
    for action in record.actions[:2].tolist():
        assert SMALL.current_player(state) == CHANCE
        SMALL.play(state, action)
    assert view.moments[0].board == SMALL.render(state)
    assert view.moments[0].outcomes == (SMALL.outcome_name(int(record.actions[3])),)
    assert view.moments[0].policy[0] == (view.moments[0].move, pytest.approx(2 / (len(view.moments[0].policy) + 1)))
    assert view.moments[-1].score == record.returns[0] and not view.moments[-1].move
    assert max(max(row) for row in view.moments[-1].cells) == max(2, SMALL.milestone_of(_end(batch, 1)))
    assert view.result == f"score {record.returns[0]:,.0f}"


def _end(batch: GameBatch, index: int) -> States:
    state = SMALL.initial_state()
    for action in batch.game_record(index).actions.tolist():
        SMALL.play(state, action)
    return state


def test_a_two_player_game_is_shown_with_its_players_and_its_end() -> None:
    batch = synthetic_batch(CONNECT_FOUR, games=5)
    for index in range(5):
        view = make_game_view(CONNECT_FOUR, batch, index, number=1)
        assert len(view.moments) == batch.lengths[index] + 1
        assert [moment.player for moment in view.moments[:3]] == [0, 1, 0]
        won = batch.returns[index, 0]
        assert view.result == ("the first player won" if won > 0 else "the second player won" if won < 0 else "a draw")
        assert all(sum(share for _, share in moment.policy) == pytest.approx(1) for moment in view.moments[:-1])


@pytest.mark.medium
def test_at_the_end_of_a_go_game_its_points_are_assigned_by_the_rules() -> None:
    batch = synthetic_batch(GO, games=6, resign_share=0.5)
    assert 0 < np.count_nonzero(batch.resigned) < 6
    for index, state in enumerate(ends(batch, GO)):
        view = make_game_view(GO, batch, index, number=1)
        assert np.array_equal(view.moments[-1].cells, read_cells(GO, state))
        assert not any(moment.ownership or moment.score_lead for moment in view.moments[:-1])
        if batch.resigned[index]:
            assert not view.moments[-1].ownership and view.moments[-1].score_lead is None
        else:
            assert view.moments[-1].score_lead == score_lead(state)
            assert sum(view.moments[-1].ownership) / 100 - GO.options["komi"] == score_lead(state)


def test_a_network_s_predictions_are_shown_from_black_s_view() -> None:
    torch.manual_seed(1)
    predict = make_predictor(build_network(GO, blocks=1, channels=8, predict_ownership=True, predict_score=True))
    assert predict is not None
    batch = synthetic_batch(GO, games=1, resign_share=1.0)
    view, state = make_game_view(GO, batch, 0, number=1, predict=predict), GO.initial_state()
    for moment, action in zip(view.moments, [*batch.actions.tolist(), None], strict=True):
        predictions, sign = predict(GO.observe(state)[None]), (1, -1)[GO.current_player(state)]
        assert predictions.ownership is not None and predictions.score_leads is not None
        assert np.abs(np.array(moment.ownership) - 100 * sign * predictions.ownership[0]).max() < 0.6
        assert moment.score_lead == pytest.approx(sign * predictions.score_leads[0], abs=1e-3)
        if action is not None:
            GO.play(state, action)


def test_the_games_of_a_run_are_numbered_in_order_of_receipt(run: Path) -> None:
    assert [load_game_view(run, number).number for number in (1, 4, -1, -4)] == [1, 4, 4, 1]
    scores = random_batch(games=2, seed=1).returns[:, 0]
    assert load_game_view(run, 3).result == f"score {scores[0]:,.0f}"
    for number in (0, 5, -5):
        with pytest.raises(ValueError, match=f"has 4 games: there is no game {number}"):
            load_game_view(run, number)


def test_the_best_and_the_worst_of_the_newest_games_represent_a_run(run: Path) -> None:
    scores = [load_game_view(run, number).moments[-1].score for number in (3, 4)]
    assert [view.moments[-1].score for view in load_sample_games(run)] == sorted(
        scores, key=lambda score: -(score or 0)
    )


def test_without_a_terminal_the_whole_game_is_printed(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert view_results([str(run), "--game", "-1"]) == 0
    printed = capsys.readouterr().out
    view = load_game_view(run, 4)
    assert printed.startswith(f"twenty48, game 4  by worker1, models 1 to 2: {view.result}")
    assert printed.count("position ") == len(view.moments)
    assert "expects 50 more" in printed and f"The end: {view.result}." in printed


def test_a_missing_game_is_refused(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert view_results([str(run), "--game", "9"]) == 2
    assert "there is no game 9" in capsys.readouterr().err


def test_keys_step_through_a_game() -> None:
    view = make_game_view(CONNECT_FOUR, synthetic_batch(CONNECT_FOUR, games=1), 0, number=1)
    out = io.StringIO()
    keys = iter(["\x1b[C", " ", "p", "?", "\x1b[F", "\x1b[C", "\x1b[5~", "g", "q", "never read"])
    step_through(view, Console(file=out, force_terminal=True, width=80, height=40), lambda: next(keys))
    shown = [int(text) for text in re.findall(r"position (\d+) of", out.getvalue())]
    end = len(view.moments)
    assert shown == [1, 2, 3, 2, 2, end, end, max(1, end - 10), 1]
    assert next(keys) == "never read"


def test_a_printed_game_has_every_board(capsys: pytest.CaptureFixture[str]) -> None:
    view = make_game_view(CONNECT_FOUR, synthetic_batch(CONNECT_FOUR, games=1), 0, number=1)
    print_game(view, Console(highlight=False, width=100))
    printed = capsys.readouterr().out
    assert all(moment.board.splitlines()[0] in printed for moment in view.moments)
    assert "Player 1 plays" in printed and "Expects to win" in printed


def contained(text: str, name: str) -> Any:
    found = re.search(rf'<script type="application/json" id="{name}">(.*?)</script>', text, re.DOTALL)
    assert found
    return json.loads(found[1])


def data(text: str) -> list[dict[str, object]]:
    return list(contained(text, "data"))


def drawn(text: str) -> Any:
    return contained(text, "drawn")


def titles(text: str) -> set[str]:
    return {chart["title"] for chart in drawn(text)["runs"][0]["charts"]}


def test_a_run_becomes_one_page_that_loads_nothing(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert view_results([str(run), "--html", str(run / "report.html")]) == 0
    text = (run / "report.html").read_text(encoding="utf-8")
    assert "default-src 'none'" in text
    addresses = re.findall(r"""(?:src|href)\s*=|url\(|@import|https?:[\w/.]*""", text)
    assert addresses == ["https://github.com/leeoniya/uPlot"], "uPlot names its origin in a comment"
    assert "Score" in titles(text) and "6,000 ± 500" in text
    assert [view["number"] for view in data(text)] == [view.number for view in load_sample_games(run)]


def test_nothing_in_a_run_can_break_out_of_the_page() -> None:
    text = make_run_page("</title><b>@GAMES@", [("<i>", "@TABLE@")], [], [])
    assert "<b>" not in text and "<i>" not in text
    assert "&lt;b&gt;@GAMES@" in text and "@TABLE@" in text
    view = make_game_view(CONNECT_FOUR, synthetic_batch(CONNECT_FOUR, games=1, worker="w"), 0, number=1)
    evil = type(view)(**(vars(view) | {"worker": "</script><script>alert(1)"}))
    assert data(make_run_page("run", [], [], [evil]))[0]["worker"] == "</script><script>alert(1)"
    text = make_run_page("</script><b>", [], [iteration_for_two(1)], [])
    assert drawn(text)["runs"][0]["name"] == "</script><b>" and "<b>" not in text


def test_metrics_of_two_player_games_are_on_their_page() -> None:
    rows = [iteration_for_two(number, measured=evaluation(number)) for number in (1, 2, 3)]
    text = make_run_page("run", [], rows, [])
    assert {"Elo", "Moves that throw away game value"} <= titles(text)
    assert "self_play/score_mean" not in drawn(text)["runs"][0]["metrics"]


def test_a_page_without_games_has_no_viewer() -> None:
    assert '"data">[]<' in make_run_page("run", [], [], [])
