"""The page of a run in a real browser."""

import json
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from keima.base.reports.run_reports import GeneralizationReport, IterationReport, SpikeReport
from keima.base.run_folder import STATS_NAME
from keima.games import load_game
from keima.networks.architectures.auxiliary_heads import make_predictor
from keima.networks.network import build_network
from keima.ppo import results as ppo_results
from keima.ppo.files import read_episode
from keima.ppo.rounds import read_rounds
from keima.report.charts.page import make_comparison_page, make_report_charts, make_run_page
from keima.report.charts.run_charts import AXES
from keima.report.files.run_files import METRICS_NAME, MetricsFile, report_scalars
from keima.report.games.game_view import GameView, make_game_view
from tests.example_reports import evaluation, iteration
from tests.one_player import SMALL, random_batch
from tests.ppo.ppo_run import leave_a_run
from tests.report.browser import Browser, running_browser, until
from tests.synthetic import synthetic_batch

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not (shutil.which("chromedriver") and shutil.which("chromium")),
        reason="needs the Debian packages chromium and chromium-driver",
    ),
]

CONNECT_FOUR, GO = load_game("connect_four"), load_game("go", size=5)
SECONDS = 30.0  # for a game to play itself
# Of the chart of that title: its names, values and whether they are shown, by the legend below it.
LEGEND = """
const figure = [...document.querySelectorAll('figure')].find((each) => each.firstChild.textContent === arguments[0]);
const rows = figure ? [...figure.querySelectorAll('.u-legend tr')] : [];
return rows.filter((row) => row.offsetParent).map((row) =>
  [row.querySelector('.u-label').textContent, row.querySelector('.u-value').textContent]);"""
FOCUS = """
[...document.querySelectorAll('figure')].find((each) => each.firstChild.textContent === arguments[0]).focus();"""
# Of the chart of that title: the place of the point that the cursor is on, by number, in pixels from the top, and the
# colour in the middle of what is drawn there.
POINT = """
const figure = [...document.querySelectorAll('figure')].find((each) => each.firstChild.textContent === arguments[0]);
const at = figure.querySelectorAll('.u-cursor-pt')[arguments[1]].getBoundingClientRect();
const canvas = figure.querySelector('canvas'), box = canvas.getBoundingClientRect(), size = canvas.width / box.width;
const [x, y] = [at.left + at.width / 2 - box.left, at.top + at.height / 2 - box.top];
const ink = canvas.getContext('2d').getImageData(Math.round(size * x), Math.round(size * y), 1, 1);
return [y, ...ink.data.slice(0, 3)];"""
# Whether the first chart has a point of exactly this colour.
DRAWN_IN = """
const canvas = document.querySelector('canvas');
const ink = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
for (let i = 0; i < ink.length; i += 4) if (arguments[0].every((part, k) => part === ink[i + k])) return true;
return false;"""
TITLES = "return [...document.querySelectorAll('figcaption')].map((part) => part.textContent)"
SIZES = {"K": 1e3, "M": 1e6, "%": 0.01}
# Which objects are on which points of the board, by the names at the edge.
BOARD = """
const middle = (part) => {
  const box = part.getBoundingClientRect();
  return [(box.left + box.right) / 2, (box.top + box.bottom) / 2];
};
const all = (selector) => [...document.querySelectorAll('.board ' + selector)];
const names = all('text:not(.share)').map((part) => [part.textContent, ...middle(part)]);
const nearest = (place, axis, kind) =>
  names.filter(([name]) => kind.test(name)).sort((a, b) => Math.abs(a[axis] - place) - Math.abs(b[axis] - place))[0][0];
const point = (part) => nearest(middle(part)[0], 1, /[A-Z]/) + nearest(middle(part)[1], 2, /[0-9]/);
return {black: all('circle.p1').map(point), white: all('circle.p2').map(point), last: all('.last').map(point),
  visits: all('.visits').map(point), texts: all('.share').map((part) => part.textContent),
  owners: all('rect.owner').map((part) => [point(part), part.textContent])};"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with running_browser(tmp_path_factory.mktemp("profile")) as made:
        yield made


def show(browser: Browser, folder: Path, games: Sequence[GameView], *, text: str = "") -> None:
    """Load the page of a run with three iterations and these ``games``, or this page; earlier events are forgotten."""
    rows = [iteration(number, measured=evaluation(number)) for number in (1, 2, 3)]
    (folder / "page.html").write_text(text or make_run_page("run", [("Run", "here")], rows, games), encoding="utf-8")
    browser.complaints()
    browser.requests()
    browser.show(folder / "page.html")


def text_of(browser: Browser, name: str) -> str:
    """Return the text of the part with this name."""
    return str(browser.found("return document.getElementById(arguments[0]).textContent", name))


def position(browser: Browser) -> int:
    """Return the number of the shown position."""
    return int(text_of(browser, "said").split()[1])


def after_keys(browser: Browser, *keys: str) -> list[int]:
    """Return the positions shown after each of these keys."""
    shown = []
    for key in keys:
        browser.press(key)
        shown.append(position(browser))
    return shown


def games_of_2048(count: int) -> list[GameView]:
    batch = random_batch(games=count)
    return [make_game_view(SMALL, batch, index, number=index + 1) for index in range(count)]


def game_for_two() -> GameView:
    return make_game_view(CONNECT_FOUR, synthetic_batch(CONNECT_FOUR, games=1), 0, number=1)


def test_it_requests_nothing_and_the_console_is_silent(browser: Browser, tmp_path: Path) -> None:
    show(browser, tmp_path, games_of_2048(1))
    browser.press("End")
    assert browser.complaints() == []
    assert browser.requests() == [(tmp_path / "page.html").as_uri()]
    assert browser.found("return document.querySelectorAll('canvas').length") >= 4


def test_injected_requests_are_refused(browser: Browser, tmp_path: Path) -> None:
    text = make_run_page("run", [], [], []).replace("</body>", '<img src="picture.png"></body>')
    show(browser, tmp_path, [], text=text)
    until(lambda: any("Content Security Policy" in said for said in browser.complaints()))  # written after the load


def test_it_steps_through_a_game_of_2048(browser: Browser, tmp_path: Path) -> None:
    views = games_of_2048(2)
    show(browser, tmp_path, views)
    first, end = views[0].moments[0], len(views[0].moments)
    tiles = browser.found("return [...document.querySelectorAll('#board span')].map((cell) => cell.textContent)")
    assert tiles == [str(tile or "") for row in first.cells for tile in row]
    assert f"Plays {first.move}, then {first.outcomes[0]}. Expects 50 points more." in text_of(browser, "said")
    named = browser.found(
        "return [...document.querySelectorAll('#policy td:first-child')].map((cell) => cell.textContent)"
    )
    assert named == [name for name, _ in first.policy]
    assert after_keys(browser, "ArrowRight", "ArrowRight", "ArrowLeft", "End", "ArrowRight", "Home") == [
        2,
        3,
        2,
        end,
        end,
        1,
    ]
    browser.click("#last")
    assert f"The end: {views[0].result}." in text_of(browser, "said")
    assert after_keys(browser, "ArrowLeft", "PageUp") == [end - 1, end - 11], (
        "a button that was clicked leaves the keys alone"
    )
    browser.click("#game option:nth-child(2)")
    assert position(browser) == 1
    assert (
        browser.found("return document.getElementById('game').selectedOptions[0].textContent")
        == f"game 2: {views[1].result}"
    )
    assert after_keys(browser, "ArrowRight") == [2]


def game_of_go(*, foreseen: bool) -> GameView:
    torch.manual_seed(1)
    network = build_network(GO, blocks=1, channels=8, predict_ownership=foreseen)
    return make_game_view(GO, synthetic_batch(GO, games=1), 0, number=1, predict=make_predictor(network))


def test_it_draws_stones_policy_and_ownership_on_a_go_board(browser: Browser, tmp_path: Path) -> None:
    view = game_of_go(foreseen=True)
    show(browser, tmp_path, [view])
    browser.press("ArrowRight")
    browser.press("ArrowRight")
    now, last = view.moments[2], view.moments[1].move
    drawn = browser.found(BOARD)
    assert [len(drawn[kind]) for kind in ("black", "white")] == [
        np.count_nonzero(np.array(now.cells) == color) for color in (1, -1)
    ]
    shares = {name: share for name, share in now.policy if name != "pass"}
    assert sorted(drawn["visits"]) == sorted(shares) and drawn["last"] == [last]
    assert sorted(map(int, drawn["texts"])) == sorted(
        int(100 * share + 0.5) for share in shares.values() if share >= 0.01
    )
    strong = [(GO.action_name(point), share) for point, share in enumerate(now.ownership) if abs(share) > 5]
    assert strong and {(name, f"{'Black' if share > 0 else 'White'} {abs(share)} %") for name, share in strong} <= set(
        map(tuple, drawn["owners"])
    )
    assert "newest network predicts it" in text_of(browser, "legend") and "Black plays" in text_of(browser, "said")
    for layer, kind in (("owners", "owners"), ("visits", "visits")):
        browser.click(f"#{layer}")
        assert not browser.found(BOARD)[kind]
    assert after_keys(browser, "ArrowRight", "End") == [4, len(view.moments)], (
        "a box that was clicked leaves the arrows alone"
    )
    browser.press(" ")
    assert browser.found(BOARD)["owners"] == [] and text_of(browser, "run") == "play"
    browser.click("#owners")
    assert len(browser.found(BOARD)["owners"]) == np.count_nonzero(view.moments[-1].ownership)
    assert browser.complaints() == [] and browser.requests() == [(tmp_path / "page.html").as_uri()]


def test_it_says_where_no_network_predicts_the_owner(browser: Browser, tmp_path: Path) -> None:
    show(browser, tmp_path, [game_of_go(foreseen=False)])
    assert browser.found(BOARD)["owners"] == []
    assert "take a network that has learned them (network.predict_ownership)" in text_of(browser, "legend")
    browser.press("End")
    assert browser.found(BOARD)["owners"], "the rules know it at the end"


def test_its_slider_steps_through_a_game(browser: Browser, tmp_path: Path) -> None:
    view = games_of_2048(1)[0]
    show(browser, tmp_path, [view])
    browser.click("#slider")
    middle = position(browser)
    assert abs(middle - len(view.moments) / 2) < 0.1 * len(view.moments)
    assert after_keys(browser, "ArrowRight", "Home", "End") == [middle + 1, 1, len(view.moments)]


def test_it_plays_a_game_automatically_and_stops_at_its_end(browser: Browser, tmp_path: Path) -> None:
    view = game_for_two()
    show(browser, tmp_path, [view])
    assert browser.found("return document.querySelectorAll('.board.connect_four .stone').length") == 0
    assert "Player 1 plays" in text_of(browser, "said")
    browser.press("End")
    after_keys(browser, "ArrowLeft", "ArrowLeft")
    browser.press(" ")
    assert text_of(browser, "run") == "stop"
    deadline = time.monotonic() + SECONDS
    while text_of(browser, "run") == "stop":
        assert time.monotonic() < deadline
    assert position(browser) == len(view.moments)
    end = np.array(view.moments[-1].cells)
    discs = "return [1, 2].map((player) => document.querySelectorAll('.board .stone.p' + player).length)"
    assert browser.found(discs) == [np.count_nonzero(end == 1), np.count_nonzero(end == -1)]


def test_it_has_no_viewer_without_games(browser: Browser, tmp_path: Path) -> None:
    hidden = "return document.getElementById('games').hidden"
    show(browser, tmp_path, [])
    assert browser.found(hidden) and browser.complaints() == []
    show(browser, tmp_path, [game_for_two()])
    assert not browser.found(hidden)


@pytest.mark.medium
def test_a_ppo_run_shows_its_account_and_its_trades_on_the_prices(browser: Browser, tmp_path: Path) -> None:
    leave_a_run(tmp_path)
    rounds, episode = read_rounds(tmp_path / STATS_NAME), read_episode(tmp_path)
    assert rounds and episode and episode.trades
    show(browser, tmp_path, [], text=ppo_results.make_page(rounds, tmp_path))
    assert browser.complaints() == [] and browser.requests() == [(tmp_path / "page.html").as_uri()]
    headings = browser.found(
        "return [...document.querySelectorAll('h2')].filter((part) => part.offsetParent).map((part) => "
        "part.textContent)"
    )
    assert headings == ["The last whole episode", "Learning", "Speed and time", "Rounds"]
    assert browser.found(TITLES)[:3] == ["Account value", "Price", "Reward per episode"]
    kinds = {trade.kind for trade in episode.trades}
    assert {name for name, _ in legend(browser, "Price")[2:]} == kinds
    browser.found(FOCUS, "Price")
    by_bar = {trade.bar: trade for trade in episode.trades}
    for bar in range(len(episode.closes), 0, -1):
        browser.press("ArrowLeft")
        shown = until(lambda bar=bar: (found := legend(browser, "Price"))[0][1] == str(bar) and found)  # type: ignore[misc]
        assert number(shown[1][1]) == pytest.approx(episode.closes[bar - 1], rel=0.006)
        marked = {name: number(text) for name, text in shown[2:] if text}
        trade = by_bar.get(bar)
        assert marked == ({trade.kind: pytest.approx(trade.price, rel=0.006)} if trade else {})
        if trade and trade.kind.startswith("opened"):
            place = [name for name, _ in shown].index(trade.kind) - 1
            colour = browser.found(POINT, "Price", place)[1:]
            assert colour in ([31, 122, 61], [179, 38, 30]), "a filled triangle is drawn on the trade's bar and price"


CUT = """
return [...document.querySelectorAll('.scroll')].map((part) =>
  [part.scrollWidth - part.clientWidth, part.getBoundingClientRect().left]);"""


def everything(row: IterationReport) -> IterationReport:
    """Show everything that a two-player game can have in the table."""
    assert row.learner
    spikes = SpikeReport(
        firing_rate=0.123,
        layers={},
        synaptic_operations=123_456_789.0,
        multiply_accumulates=1.0,
        without_spikes=1_234_567_890.0,
    )
    new = GeneralizationReport(policy_new=1.5, policy_learned=1.1, value_new=0.7, value_learned=0.6)
    return replace(row, learner=replace(row.learner, spikes=spikes, generalization=new))


@pytest.mark.medium
@pytest.mark.parametrize("width", [360, 1280])
def test_no_table_is_cut_off_and_nothing_is_wider_than_the_window(browser: Browser, tmp_path: Path, width: int) -> None:
    browser.resize(width, 900)
    rows = [everything(iteration(number, measured=evaluation(number))) for number in range(1, 200)]
    leave_a_run(tmp_path)
    rounds = read_rounds(tmp_path / STATS_NAME)
    assert rounds
    for text in (make_run_page("run", [("Run", "here")], rows, []), ppo_results.make_page(rounds, tmp_path)):
        show(browser, tmp_path, [], text=text)
        tables = browser.found(CUT)
        assert tables and (width < 1000 or all(cut <= 0 and left >= 0 for cut, left in tables))
        until(lambda: browser.found("return document.documentElement.scrollWidth <= innerWidth"))
    browser.resize(1100, 1000)


def legend(browser: Browser, title: str) -> list[tuple[str, str]]:
    """Return the names and values below the chart of that title, the axis first."""
    return [(name.strip().removesuffix(":"), text) for name, text in browser.found(LEGEND, title)]


def number(text: str) -> float:
    """Return the number that is shown as, say, 12.3K or 4.5 %."""
    size = SIZES.get(text[-1], 1.0)
    return float(text.rstrip("KM%").replace("$", "").replace(",", "")) * size


def metrics_of(folder: Path, rows: Sequence[IterationReport]) -> list[dict[str, float]]:
    """Return what metrics.jsonl says of these iterations."""
    file = MetricsFile(folder / METRICS_NAME)
    for row in rows:
        file.iteration(row)
    return [json.loads(line) for line in (folder / METRICS_NAME).read_text().splitlines()]


def losses(count: int, *, seconds_each: float = 60.0) -> list[IterationReport]:
    return [
        iteration(k, loss=2 / k, measured=evaluation(k) if k % 3 == 0 else None, seconds_each=seconds_each)
        for k in range(1, count + 1)
    ]


@pytest.mark.medium
def test_every_curve_has_the_metrics_of_metrics_jsonl(browser: Browser, tmp_path: Path) -> None:
    rows = losses(9)
    written = metrics_of(tmp_path, rows)
    show(browser, tmp_path, [], text=make_run_page("run", [], rows, []))
    charts = make_report_charts("run", rows).charts
    drawn = [chart for chart in charts if chart.title in browser.found(TITLES)]
    assert {"Loss", "Elo", "Moves that throw away game value", "Games per second"} <= {chart.title for chart in drawn}
    browser.found(FOCUS, "Loss")
    tops = []
    for row in reversed(written):
        browser.press("ArrowLeft")
        minutes = row["run/seconds"] / 60
        until(lambda minutes=minutes: number(legend(browser, "Loss")[0][1]) == pytest.approx(minutes))  # type: ignore[misc]
        for chart in drawn:
            names = [curve.name or chart.title for curve in chart.curves]
            metrics = dict(zip(names, (curve.metric for curve in chart.curves), strict=True))
            for name, text in legend(browser, chart.title)[1:]:
                if text and metrics[name] in row and legend(browser, chart.title)[0][1] == f"{minutes:g}":
                    known = pytest.approx(row[metrics[name]], rel=0.006, abs=6e-4)
                    assert number(text) == known, (chart.title, name, minutes)
        tops.append((row["learner/loss"], browser.found(POINT, "Loss", 0)[0]))
    under_cursor = "return getComputedStyle(document.querySelector('.u-cursor-pt')).backgroundColor"
    assert browser.found(under_cursor) == "rgb(31, 111, 235)", "the point that the cursor is on has its curve's colour"
    (low, bottom), (high, top) = tops[0], tops[-1]
    assert top < bottom, "more is higher up"
    for loss, place in tops:
        assert place == pytest.approx(bottom + (loss - low) / (high - low) * (top - bottom), abs=1.5)


def places_shown(browser: Browser, title: str) -> tuple[float, float]:
    """Return the first and last place that the keys reach in a chart."""
    browser.found(FOCUS, title)
    ends = []
    for key in ("ArrowRight", "ArrowLeft"):
        last = ""
        while (now := legend(browser, title)[0][1]) != last:
            last = now
            browser.press(key)
            time.sleep(0.05)
        ends.append(number(last))
    return min(ends), max(ends)


@pytest.mark.medium
def test_dragging_enlarges_all_charts_and_a_double_click_shows_the_whole(browser: Browser, tmp_path: Path) -> None:
    show(browser, tmp_path, [], text=make_run_page("run", [], losses(20), []))
    assert places_shown(browser, "Games per second") == (1, 20)
    browser.drag("figure:first-of-type .u-over", 0.3, 0.6)
    first, last = places_shown(browser, "Games per second")
    assert first == pytest.approx(1 + 0.3 * 19, abs=1.1) and last == pytest.approx(1 + 0.6 * 19, abs=1.1)
    assert places_shown(browser, "Loss") == (first, last)
    browser.double_click("figure:first-of-type .u-over")
    assert places_shown(browser, "Games per second") == (1, 20)
    browser.press("+")
    narrow = places_shown(browser, "Loss")
    assert narrow[1] - narrow[0] < 12
    browser.press("Escape")
    assert places_shown(browser, "Games per second") == (1, 20)
    assert browser.complaints() == []


@pytest.mark.medium
def test_two_runs_lie_over_each_other_and_over_games(browser: Browser, tmp_path: Path) -> None:
    rows = {"first": losses(6), "second": losses(9, seconds_each=30.0)}
    summaries = [[("Games", "600")], [("Games", "900"), ("Elo", "<b>12</b>")]]
    text = make_comparison_page([make_report_charts(name, each) for name, each in rows.items()], summaries, AXES)
    show(browser, tmp_path, [], text=text)
    names = [name for name, _ in legend(browser, "Loss")]
    assert names == ["minutes", *(f"{run} {curve}" for run in rows for curve in ("all", "policy", "value"))]
    assert "<b>12</b>" in browser.found("return document.body.innerText")
    select = "const axis = document.getElementById('axis'); axis.value = arguments[0]; axis.onchange()"
    for metric, unit in (("run/total_games", "games"), ("iteration", "iterations"), ("run/seconds", "minutes")):
        browser.found(select, metric)
        assert legend(browser, "Loss")[0][0] == unit
        places = [report_scalars(row) | {"iteration": row.iteration} for row in rows["second"]]
        last = places[-1][metric] / (60 if unit == "minutes" else 1)
        assert places_shown(browser, "Loss")[1] == pytest.approx(max(last, 6 if unit == "minutes" else 0), rel=0.006)
    browser.click("#runs label:nth-of-type(1) input")
    assert [name for name, _ in legend(browser, "Loss")] == ["minutes", "all", "policy", "value"]
    assert browser.complaints() == [] and browser.requests() == [(tmp_path / "page.html").as_uri()]


@pytest.mark.medium
def test_curves_are_drawn_in_the_colours_of_a_dark_theme(browser: Browser, tmp_path: Path) -> None:
    show(browser, tmp_path, [], text=make_run_page("run", [], losses(3), []))
    light, dark = [31, 111, 235], [106, 167, 255]
    assert browser.found(DRAWN_IN, light) and not browser.found(DRAWN_IN, dark)
    browser.dark(on=True)
    try:
        until(lambda: browser.found(DRAWN_IN, dark))
        assert not browser.found(DRAWN_IN, light)
        assert browser.found("return getComputedStyle(document.body).backgroundColor") == "rgb(20, 24, 30)"
    finally:
        browser.dark(on=False)
