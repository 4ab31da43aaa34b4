"""The output of a PPO run, and the files that it leaves."""

import json
from dataclasses import replace
from pathlib import Path

from keima.base.run_folder import STATS_NAME
from keima.ppo.files import EPISODE_NAME, PPOStats, read_episode
from keima.ppo.observers import episode_line
from keima.ppo.reports import EpisodesReport, RoundReport
from keima.ppo.rounds import read_rounds
from keima.ppo.worlds.trading_kernels import NOTHING, TRADES
from keima.report.metrics import PPO_METRICS
from tests.ppo.ppo_run import WORLDS, leave_a_run


def round_report(number: int, *, episodes_over: int = 100, world_size: int = 4) -> RoundReport:
    metrics = {"profit": 2 * 234.56, "closed": 40.0, "won": 26.0, "open": 6.0, "fees": 1.0}
    return RoundReport(
        round=number,
        steps=512,
        total_steps=512 * number,
        episodes_over=episodes_over,
        episodes_planned=1000,
        world_size=world_size,
        seconds=1.0,
        steps_per_second=512.0,
        acting_share=0.5,
        explained_variance=0.25,
        learning={},
        episodes=EpisodesReport(count=2, rewards=2 * 45.23, steps=2 * 234, metrics=metrics),
    )


def test_the_line_is_the_guide_s_to_the_letter() -> None:
    said = (
        "Episode 100/1000 - Reward: 45.23, Return: $234.56, Win Rate: 65.0% (20 closed, 3 open), Steps: 234 | GPUs: 4"
    )
    report = round_report(1)
    assert episode_line(report, report.episodes, "GPUs") == said
    alone = round_report(1, world_size=1)
    assert episode_line(alone, alone.episodes, "GPUs") == said.removesuffix(" | GPUs: 4")


def test_a_loss_is_shown_as_a_loss_and_no_trade_is_no_win() -> None:
    report = round_report(1)
    lost = replace(report.episodes, metrics={**report.episodes.metrics, "profit": -2469.0, "closed": 0.0, "won": 0.0})
    assert "Return: -$1,234.50, Win Rate: 0.0% (0 closed, 3 open)" in episode_line(report, lost, "GPUs")


def test_a_run_leaves_its_rounds_and_its_last_whole_episode(tmp_path: Path) -> None:
    markets, said = leave_a_run(tmp_path, episodes=3 * WORLDS)
    assert said.count("Episode ") == 3 and said.splitlines()[-1].startswith(f"Episode {3 * WORLDS}/{3 * WORLDS} - ")
    rounds = read_rounds(tmp_path / STATS_NAME)
    assert rounds is not None and [row["round"] for row in rounds] == [1, 2, 3]
    assert {metric.name for metric in PPO_METRICS} <= rounds[-1].keys()
    kept, seen = read_episode(tmp_path), markets.last_episode()
    assert kept is not None and seen is not None
    assert kept.closes == tuple(seen.closes) and kept.account_values == tuple(seen.account_values)
    written = json.loads((tmp_path / EPISODE_NAME).read_bytes())
    assert written["worths"] == list(kept.account_values), "the key that all versions read"
    assert kept.capital == 10_000 and kept.episodes_over == 3 * WORLDS
    made = [(i + 1, TRADES[kind], seen.prices[i]) for i, kind in enumerate(seen.trades) if kind != NOTHING]
    assert made and [(trade.bar, trade.kind, trade.price) for trade in kept.trades] == made


def test_a_failing_observer_stops_nothing(tmp_path: Path) -> None:
    (tmp_path / STATS_NAME).mkdir()
    (tmp_path / EPISODE_NAME).mkdir()
    _, said = leave_a_run(tmp_path, episodes=8)
    assert "Episode 8/8" in said


def test_rounds_undone_by_a_crash_are_reported_once(tmp_path: Path) -> None:
    path = tmp_path / STATS_NAME
    first = PPOStats(path)
    for number in (1, 2, 3):
        first.round(round_report(number))
    first.close()
    second = PPOStats(path)
    second.round(round_report(2, world_size=2))
    second.close()
    assert [(row["round"], row["run/world_size"]) for row in json.loads(path.read_text())] == [(1, 4), (2, 2)]


def test_a_file_that_is_no_list_of_rounds_is_not_mistaken_for_one(tmp_path: Path) -> None:
    path = tmp_path / STATS_NAME
    for text in ("", "[]", '[{"iteration": 1}]', '{"round": 1}', "[1]", "["):
        path.write_text(text)
        assert read_rounds(path) is None
    (tmp_path / EPISODE_NAME).write_text('{"closes": 1}')
    assert read_episode(tmp_path) is None
