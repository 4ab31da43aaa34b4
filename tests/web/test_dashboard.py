"""The dashboard in a real browser: over finished runs, a run that plays, and files that are wrong."""

import re
import shutil
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from keima.base.run_folder import LEDGER_NAME, PROGRESS_NAME, STATS_NAME
from keima.base.run_lock import RunLock
from keima.data.ledger import open_ledger, read_ledger
from keima.games import load_game
from keima.ppo.files import PPOStats
from keima.report import make_observers
from keima.report.charts.calibration import measure_calibration
from keima.report.files.progress_file import ProgressFile
from keima.report.files.run_files import METRICS_NAME
from keima.report.games.game_view import load_game_view
from keima.web.run_reader import RunReader
from tests import programs
from tests.example_reports import evaluation, iteration, ppo_round, progress, worker
from tests.report.browser import Browser, running_browser, until
from tests.small_run import small_settings
from tests.web.serving import Dashboard, dashboard

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not (shutil.which("chromedriver") and shutil.which("chromium")),
        reason="needs the Debian packages chromium and chromium-driver",
    ),
]

PATIENCE = 120.0  # seconds for a run to come so far
ITERATIONS = 12


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with running_browser(tmp_path_factory.mktemp("profile")) as made:
        yield made


def leave(folder: Path, *, seconds_each: float = 60.0) -> Path:
    """Return the folder of a run that has ended after some iterations."""
    folder.mkdir()
    for observer in make_observers(folder, name=folder.name, game="connect_four"):
        observer.progress(progress(ITERATIONS, workers=(worker(0),)))
        for number in range(1, ITERATIONS + 1):
            measured = evaluation(number) if number % 3 == 0 else None
            observer.iteration(iteration(number, loss=2 / number, measured=measured, seconds_each=seconds_each))
    return folder


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dashboard]:
    """The dashboard of a run that has ended."""
    with dashboard(leave(tmp_path_factory.mktemp("runs") / "first")) as served:
        yield served


def visit(browser: Browser, served: Dashboard) -> None:
    """Load the dashboard; earlier events are forgotten."""
    browser.visit("about:blank")  # a page of a dashboard that has ended would go on complaining
    browser.complaints()
    browser.requests()
    browser.visit(served.address)


def labels(browser: Browser) -> list[str]:
    """Return what the charts say to those who cannot see them."""
    return list(browser.found("return [...document.querySelectorAll('figure')].map((each) => each.ariaLabel)"))


def drawn(browser: Browser, *, charts: int) -> list[str]:
    """Return the labels, once there are so many charts."""
    until(lambda: len(labels(browser)) >= charts)
    return labels(browser)


def shown_loss(browser: Browser) -> float | None:
    """Return the newest loss that the chart tells."""
    found = next((label for label in labels(browser) if label.startswith("Loss: all")), "")
    return float(found.split()[2].rstrip(",")) if found else None


def text(browser: Browser) -> str:
    """Return all the text that is shown."""
    return str(browser.found("return document.body.innerText"))


def test_the_curves_are_those_of_the_run_and_nothing_else_is_requested(browser: Browser, finished: Dashboard) -> None:
    visit(browser, finished)
    shown = drawn(browser, charts=6)
    assert any(label.startswith("Loss: all 0.167,") for label in shown), shown
    assert "Elo: Elo 1.2K" in shown
    until(lambda: "not running" in text(browser))  # states arrive after curves
    assert "ended" not in text(browser)
    assert finished.token not in browser.found("return location.href")
    assert browser.complaints() == []
    own = f"http://127.0.0.1:{finished.port}/"
    asked = browser.requests()
    assert asked and all(address.startswith(own) for address in asked), asked
    canvases = "return document.querySelectorAll('canvas').length"
    until(lambda: browser.found(canvases) == len(labels(browser)))


def test_runs_are_drawn_over_each_other_and_over_games(browser: Browser, tmp_path: Path) -> None:
    with dashboard(leave(tmp_path / "first"), leave(tmp_path / "second", seconds_each=30.0)) as served:
        visit(browser, served)
        until(lambda: any("first all" in label and "second all" in label for label in labels(browser)))
        browser.click("#runs label:nth-of-type(1) input")
        until(
            lambda: (
                (shown := labels(browser))
                and any(label.startswith("Loss: all") for label in shown)
                and all("first" not in label for label in shown)
            )
        )
        axes = (
            "return [...document.querySelectorAll('.u-legend tr:first-child .u-label')].map((each) => each.textContent)"
        )
        until(lambda: set(browser.found(axes)) == {"minutes"})
        browser.found("const axis = document.getElementById('axis'); axis.value = 'run/total_games'; axis.onchange()")
        until(lambda: set(browser.found(axes)) == {"games"})
        assert browser.complaints() == []


def test_names_and_errors_of_workers_are_shown_as_text(browser: Browser, tmp_path: Path) -> None:
    folder = leave(tmp_path / "<b>run<")
    evil = "<img src=x onerror=\"document.title='taken'\"><script>document.title='taken'</script>"
    workers = (replace(worker(0), name=evil, error=evil), replace(worker(1), activity="x y <i>"))
    ProgressFile(folder / PROGRESS_NAME).progress(progress(1, workers=workers))
    with RunLock(folder), dashboard(folder) as served:
        visit(browser, served)
        until(lambda: evil in text(browser), instead=lambda: (text(browser), browser.complaints()))
        assert browser.found("return document.querySelectorAll('main img, main script, main b, main i').length") == 0
        assert browser.found("return document.title") == "<b>run< · Keima"
        assert browser.complaints() == []


def config(folder: Path) -> Path:
    """Write the settings of a run without end."""
    settings = small_settings(
        folder, run={"iterations": None}, training={"games_per_iteration": 40, "checkpoint_every": 1}
    )
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(settings.model_dump(mode="json")))
    return path


def play(folder: Path) -> AbstractContextManager[Any]:
    """Start a run in ``folder / "live"``."""
    return programs.begun("start_main.py", "--config", config(folder), "--run-dir", folder / "live")


# The marks of a board of tic-tac-toe by point: 1 is the first player's, -1 the second's.
MARKS = """
const cells = [...document.querySelectorAll('#board .cell')].map((cell) => cell.getBoundingClientRect());
const marks = [...document.querySelectorAll('#board .stone')].map((mark) => [mark.getBoundingClientRect(), mark]);
return cells.map((cell) => {
  const within = (box) => box.left > cell.left && box.right < cell.right && box.top > cell.top;
  const found = marks.find(([box]) => within(box) && box.bottom < cell.bottom);
  return found ? (found[1].classList.contains('p1') ? 1 : -1) : 0;
});"""


def see_the_calibration(browser: Browser, folder: Path) -> None:
    """Unfold the calibration, and compare it with that of the run's games."""
    bins = measure_calibration(folder, log_event=pytest.fail)
    assert len(bins) > 1
    browser.click("#calibration > summary")
    until(lambda: any(label.startswith("Wins by") for label in labels(browser)))
    shown = next(label for label in labels(browser) if label.startswith("Wins by"))
    won, expected = (float(metric) / 100 for metric in re.findall(r"([\d.]+) %", shown))
    assert (won, expected) == pytest.approx((bins[-1].won, bins[-1].expected), abs=0.001), shown


def step_through_the_last_game(browser: Browser, served: Dashboard, folder: Path) -> None:
    """Step from the newest game's start to its end, and compare every board, move and value."""
    with read_ledger(folder) as ledger:
        total = sum(row.games for row in ledger.received_batches())
    view = load_game_view(folder, total)
    assert served.read(f"/api/runs/0/games/{total}") == served.read("/api/runs/0/games/-1")
    browser.click("#choice > summary")
    until(lambda: browser.found("return document.getElementById('number').value") == str(total))
    until(lambda: f"Position 1 of {len(view.moments)}." in text(browser))
    for number, moment in enumerate(view.moments, 1):
        said = str(browser.found("return document.getElementById('said').textContent"))
        assert said.startswith(f"Position {number} of {len(view.moments)}.")
        assert f"plays {moment.move}" in said if moment.move else view.result in said
        assert browser.found(MARKS) == np.array(moment.cells).ravel().tolist()
        browser.click("#next")
    assert not browser.found("return document.getElementById('newest').checked")  # it is not replaced by a newer one


@pytest.mark.slow
def test_a_run_is_followed_while_it_plays_and_when_it_ends(browser: Browser, tmp_path: Path) -> None:
    folder = tmp_path / "live"
    with play(tmp_path) as process:
        until((folder / PROGRESS_NAME).exists, PATIENCE)
        with dashboard(folder) as served:
            visit(browser, served)
            until(lambda: "local-1" in text(browser))
            until(
                lambda: (folder / METRICS_NAME).exists() and len(RunReader(folder).read_curves()["metrics"]) > 9,
                PATIENCE,
            )
            before = until(lambda: RunReader(folder).read_curves()["iterations"] >= 3 and labels(browser), PATIENCE)
            until(lambda: labels(browser) != before, PATIENCE)
            process.terminate()
            process.wait(PATIENCE)
            until(lambda: "not running" in text(browser))
            last = RunReader(folder)
            until(lambda: dict(last.read_state()["metrics"])["Games"] in text(browser))
            losses = last.read_curves()["metrics"]["learner/loss"]
            until(lambda: shown_loss(browser) == pytest.approx(losses[-1], rel=0.01))
            until(lambda: "Every game is accounted for" in text(browser))
            see_the_calibration(browser, folder)
            step_through_the_last_game(browser, served, folder)
            folder.rename(tmp_path / "elsewhere")
            until(lambda: "is gone" in text(browser))
            assert browser.complaints() == []


def quiet(browser: Browser) -> bool:
    """Whether the page asks for nothing for longer than between two looks at the files."""
    browser.requests()
    time.sleep(1.5)
    return browser.requests() == []


def test_the_page_says_when_the_dashboard_has_ended(browser: Browser, tmp_path: Path) -> None:
    with dashboard(leave(tmp_path / "first")) as served:
        visit(browser, served)
        drawn(browser, charts=6)
    until(lambda: "has stopped" in text(browser))


def test_a_hidden_page_asks_for_nothing_and_catches_up_when_it_is_looked_at(browser: Browser, tmp_path: Path) -> None:
    folder = leave(tmp_path / "first")
    with RunLock(folder), dashboard(folder) as served:
        visit(browser, served)
        drawn(browser, charts=6)
        browser.found("Object.defineProperty(document, 'hidden', {value: true, configurable: true})")
        until(lambda: quiet(browser))  # what had been asked before is answered
        ProgressFile(folder / PROGRESS_NAME).progress(replace(progress(17), phase="resting"))
        time.sleep(2.5)  # more than twice the time between two looks at the files
        assert browser.requests() == [] and "resting" not in text(browser)
        browser.found("delete document.hidden; document.dispatchEvent(new Event('visibilitychange'))")
        until(lambda: "resting" in text(browser))


@pytest.mark.parametrize("width", [360, 1300])
def test_it_fits_a_phone_and_a_desk(browser: Browser, finished: Dashboard, width: int) -> None:
    browser.resize(width, 900)
    visit(browser, finished)
    drawn(browser, charts=6)
    until(lambda: browser.found("return document.documentElement.scrollWidth <= window.innerWidth"))


def test_damage_to_a_run_that_is_watched_is_told_and_forgotten_when_it_is_mended(
    browser: Browser, tmp_path: Path
) -> None:
    folder = leave(tmp_path / "first")
    with open_ledger(folder, load_game("connect_four")) as ledger:
        ledger.grant("local-0", 40)
    whole = {name: (folder / name).read_bytes() for name in (LEDGER_NAME, PROGRESS_NAME)}
    with dashboard(folder) as served:
        visit(browser, served)
        until(lambda: "Every game is accounted for" in text(browser))
        (folder / LEDGER_NAME).write_bytes(b"no database" * 1000)
        until(lambda: "run.db cannot be read" in text(browser))
        (folder / PROGRESS_NAME).write_bytes(b"{")
        until(lambda: "is not a progress file" in text(browser))
        for name, content in whole.items():
            (folder / name).write_bytes(content)
        until(lambda: "Every game is accounted for" in text(browser) and "is not a progress file" not in text(browser))
        until(lambda: "cannot be read" not in text(browser))
        assert browser.complaints() == []


def test_a_run_of_ppo_is_shown_beside_another_run(browser: Browser, tmp_path: Path) -> None:
    ppo = tmp_path / "market"
    ppo.mkdir()
    file = PPOStats(ppo / STATS_NAME)
    for number in (1, 2, 3):
        file.round(ppo_round(number))
    with dashboard(leave(tmp_path / "first"), ppo) as served:
        visit(browser, served)
        until(lambda: "Reward per episode: market 3" in labels(browser))
        until(lambda: any(label.startswith("Elo: first") for label in labels(browser)))
        for told in ("market · PPO", "not running · last round: ", "12.0k"):
            until(lambda told=told: told in text(browser))
        file.round(ppo_round(4))
        until(lambda: "16.0k" in text(browser))
        assert browser.complaints() == []
