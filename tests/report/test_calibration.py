"""Expected wins compared with actual ones."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from keima.base.reports.intervals import mean_margin, mean_margin_of_groups
from keima.data.ledger import open_ledger
from keima.data.packs import games_path
from keima.data.receive import Received, receive_batch
from keima.data.records import RANDOM_MOVE, GameBatch, encode_batch
from keima.games import Game, load_game
from keima.report.charts.calibration import make_bins, measure_calibration
from keima.report.charts.run_charts import make_calibration_charts
from tests.one_player import SMALL, random_batch
from tests.synthetic import synthetic_batch

CONNECT_FOUR = load_game("connect_four")


def games_with(values: object, *, games: int = 40) -> GameBatch:
    """Return games in which search expected ``values`` for the player to move."""
    batch = synthetic_batch(CONNECT_FOUR, games=games)
    return replace(batch, root_values=np.broadcast_to(np.asarray(values, np.float32), batch.actions.shape))


def outcomes(batch: GameBatch) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    """Return each position's result for its player to move, computed game by game."""
    found = []
    for index in range(batch.num_games):
        state = CONNECT_FOUR.initial_state()
        for action in batch.game_record(index).actions.tolist():
            found.append(batch.returns[index, CONNECT_FOUR.current_player(state)])
            CONNECT_FOUR.play(state, action)
    return np.array(found)


def test_correct_expectations_are_on_the_diagonal() -> None:
    batch = games_with(0.0)
    batch = replace(batch, root_values=outcomes(batch))
    for each in make_bins([batch, batch]):
        assert (each.won, each.margin) == (each.expected, 0)
    assert [each.expected for each in make_bins([batch])][:: len(make_bins([batch])) - 1] == [0, 1]


def test_exaggerated_expectations_are_below_it() -> None:
    batch = games_with(0.98)
    (found,) = make_bins([batch])
    assert found.expected == pytest.approx(0.99)
    assert found.won == pytest.approx((1 + outcomes(batch).mean()) / 2) and found.won + found.margin < 0.8


def test_random_moves_and_bins_of_few_games_are_left_out() -> None:
    batch = games_with(0.5)
    batch.flags[: batch.num_positions // 2] |= RANDOM_MOVE
    (found,) = make_bins([batch])
    assert found.won == pytest.approx((1 + outcomes(batch)[batch.num_positions // 2 :].mean()) / 2)
    assert make_bins([games_with(0.5, games=9)]) == make_bins([]) == []


def test_positions_before_a_random_move_are_left_out() -> None:
    batch = games_with(0.5)
    before = outcomes(batch)
    ends = np.cumsum(batch.lengths)
    batch.flags[ends - 3] |= RANDOM_MOVE
    (found,) = make_bins([batch])
    assert found.won == pytest.approx((1 + before[np.sort(np.concatenate([ends - 2, ends - 1]))].mean()) / 2)


def test_positions_of_one_game_count_as_one_observation() -> None:
    values = np.random.default_rng(1).normal(size=100)
    alone = mean_margin(values)
    assert alone is not None
    assert mean_margin_of_groups(values, np.arange(100)) == pytest.approx(alone)
    assert mean_margin_of_groups(np.repeat(values, 7), np.repeat(np.arange(100), 7)) == pytest.approx(alone)


def receive_all(folder: Path, game: Game, batch: GameBatch) -> Path:
    """Make a run with this batch; return its file."""
    with open_ledger(folder, game) as ledger:
        ledger.grant(batch.worker, batch.num_games)
        batch = replace(batch, run_id=ledger.run_id, first_game=0)
        receipt = receive_batch(
            ledger, game, worker=batch.worker, batch_id=batch.batch_id, fetch=lambda limit: encode_batch(batch)
        )
        assert isinstance(receipt, Received)
    return games_path(folder, batch.batch_id)


def test_a_run_s_games_are_found_and_damaged_ones_reported(tmp_path: Path) -> None:
    path, told = receive_all(tmp_path, CONNECT_FOUR, synthetic_batch(CONNECT_FOUR, games=60)), list[str]()
    bins = measure_calibration(tmp_path, log_event=told.append)
    assert len(bins) > 1 and not told
    drawn = make_calibration_charts("run", bins)
    (chart,) = drawn.charts
    assert drawn.metrics[chart.curves[0].metric] == [None, *(pytest.approx(each.won, rel=1e-5) for each in bins), None]
    assert drawn.metrics[chart.over][1:-1] == [pytest.approx(each.expected, rel=1e-5) for each in bins]
    path.write_bytes(b"")
    assert measure_calibration(tmp_path, log_event=told.append) == [] and path.stem in told[0]
    assert make_calibration_charts("run", []).charts == []


def test_games_for_points_have_no_calibration(tmp_path: Path) -> None:
    receive_all(tmp_path, SMALL, random_batch(games=2))
    assert measure_calibration(tmp_path, log_event=pytest.fail) == []
