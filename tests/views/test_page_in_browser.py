"""The page of a run in a real browser."""

import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from games import load_game
from tests.training.example_reports import evaluation, iteration
from tests.training.one_player import SMALL, random_batch
from tests.training.ppo.ppo_run import leave_a_run
from tests.training.synthetic import synthetic_batch
from tests.views.browser import Browser, running_browser
from training.common.reports import GeneralizationReport, IterationReport, SpikeReport
from training.common.run_folder import STATS_NAME
from training.networks.auxiliary_heads import predictions_of
from training.networks.network import build_network
from views import ppo_results
from views.game_view import GameView, view_game
from views.page import filled, page
from views.ppo_files import read_episode
from views.ppo_rounds import read_rounds
from views.svg import Series, laid_out

pytestmark = pytest.mark.skipif(
    not (shutil.which("chromedriver") and shutil.which("chromium")),
    reason="needs the Debian packages chromium and chromium-driver",
)

CONNECT_FOUR, GO = load_game("connect_four"), load_game("go", size=5)
SECONDS = 30.0  # for a game to play itself
MARKS = """
return [...document.querySelectorAll('svg')[1].querySelectorAll('polygon.mark')].map((mark) => {
  let name = mark;
  while (name.tagName !== 'text') name = name.nextElementSibling;
  const box = mark.getBoundingClientRect();
  const [x, y] = [(box.left + box.right) / 2, (box.top + box.bottom) / 2];
  return {name: name.textContent, x: x, y: y, seen: getComputedStyle(mark).stroke};
})"""  # of the second picture: their names, positions, and colours
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
    (folder / "page.html").write_text(text or page("run", [("Run", "here")], rows, games), encoding="utf-8")
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
    return [view_game(SMALL, batch, index, number=index + 1) for index in range(count)]


def game_for_two() -> GameView:
    return view_game(CONNECT_FOUR, synthetic_batch(CONNECT_FOUR, games=1), 0, number=1)


def test_it_requests_nothing_and_the_console_is_silent(browser: Browser, tmp_path: Path) -> None:
    show(browser, tmp_path, games_of_2048(1))
    browser.press("End")
    assert browser.complaints() == []
    assert browser.requests() == [(tmp_path / "page.html").as_uri()]
    assert browser.found("return document.querySelectorAll('svg').length") >= 4


def test_injected_requests_are_refused(browser: Browser, tmp_path: Path) -> None:
    text = page("run", [], [], []).replace("</body>", '<img src="picture.png"></body>')
    show(browser, tmp_path, [], text=text)
    assert any("Content Security Policy" in said for said in browser.complaints())


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
    return view_game(GO, synthetic_batch(GO, games=1), 0, number=1, predict=predictions_of(network))


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


def test_a_ppo_run_shows_its_account_and_its_trades_on_the_prices(browser: Browser, tmp_path: Path) -> None:
    leave_a_run(tmp_path)
    rounds, episode = read_rounds(tmp_path / STATS_NAME), read_episode(tmp_path)
    assert rounds and episode and episode.trades
    show(browser, tmp_path, [], text=ppo_results.page(rounds, tmp_path))
    assert browser.complaints() == [] and browser.requests() == [(tmp_path / "page.html").as_uri()]
    headings = browser.found(
        "return [...document.querySelectorAll('h2')].filter((part) => part.offsetParent).map((part) => "
        "part.textContent)"
    )
    assert headings == ["The last whole episode", "Training", "Rounds"]
    titles = browser.found(
        "return [...document.querySelectorAll('svg')].map((part) => part.getAttribute('aria-label'))"
    )
    assert titles[:3] == ["Worth", "Price", "Reward per episode"]
    marks = browser.found(MARKS)
    kinds = sorted({trade.kind for trade in episode.trades})
    assert sorted({mark["name"] for mark in marks}) == kinds
    # Each mark is one of its kind's trades or the legend's, and is placed by the price axis and the bars.
    assert len(marks) == len(episode.trades) + len(kinds)
    curve = browser.found(
        "return document.querySelectorAll('svg')[1].querySelector('polyline').getBoundingClientRect().toJSON()"
    )
    opened = next(trade for trade in episode.trades if trade.kind == kinds[0])
    drawn = next(mark for mark in marks if mark["name"] == opened.kind)
    along = (opened.bar - 1) / (len(episode.closes) - 1)
    assert abs(drawn["x"] - (curve["left"] + along * curve["width"])) < 3
    assert drawn["seen"] != "rgba(0, 0, 0, 0)"


TEXTS = """
return [...document.querySelectorAll('svg')].flatMap((drawn) => {
  const parts = [...drawn.querySelectorAll('.title, .name')];
  const texts = parts.map((part) => [part.textContent, part.getBoundingClientRect()]);
  return texts.flatMap(([one, a], i) => texts.slice(i + 1).filter(([_, b]) =>
    a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom).map(([other]) => [one, other]));
});"""  # the titles and names of curves that overlap
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


def test_at_1280_pixels_no_title_overlaps_a_name_and_no_table_is_cut_off(browser: Browser, tmp_path: Path) -> None:
    browser.resize(1280, 900)
    rows = [everything(iteration(number, measured=evaluation(number))) for number in range(1, 200)]
    show(browser, tmp_path, [], text=page("run", [("Run", "here")], rows, []))
    assert browser.found(TEXTS) == []
    curves = [Series(name=f"worker-{number}", points=[(0, 0), (1, number)]) for number in range(5)]
    crowded = laid_out("The share of games that reach a milestone", curves, x_name="hours", show="{:g}".format)
    assert crowded
    show(browser, tmp_path, [], text=filled("run", [], [("Curves", [crowded])], ""))
    assert browser.found(TEXTS) == []
    show(browser, tmp_path, [], text=page("run", [("Run", "here")], rows, []))
    tables = browser.found(CUT)
    assert tables and all(cut <= 0 and left >= 0 for cut, left in tables)
    assert browser.found("return document.documentElement.scrollWidth - document.documentElement.clientWidth") <= 0
    leave_a_run(tmp_path)
    rounds = read_rounds(tmp_path / STATS_NAME)
    assert rounds
    show(browser, tmp_path, [], text=ppo_results.page(rounds, tmp_path))
    assert browser.found(TEXTS) == []
    assert all(cut <= 0 for cut, _ in browser.found(CUT))
