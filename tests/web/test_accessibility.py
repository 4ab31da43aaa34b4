"""The dashboard for everybody: its colours, its keyboard, small screens, light and dark."""

import shutil
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from keima.base.reports.run_reports import ProgressReport
from keima.base.reports.worker_status import ClusterNetwork, WorkerState
from keima.base.run_folder import PROGRESS_NAME
from keima.base.run_lock import RunLock
from keima.data.ledger import open_ledger
from keima.games import load_game
from keima.report import make_observers
from keima.report.files.progress_file import ProgressFile
from tests.example_reports import evaluation, iteration, progress, worker
from tests.report.browser import Browser, running_browser, until
from tests.web.serving import Dashboard, dashboard
from tests.web.test_dashboard import visit

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not (shutil.which("chromedriver") and shutil.which("chromium")),
        reason="needs the Debian packages chromium and chromium-driver",
    ),
]

TAB, ENTER = "\ue004", "\ue007"
PHONE = {"width": 390, "height": 844, "deviceScaleFactor": 2, "mobile": True}
LEAST_TEXT, LEAST_LARGE, LEAST_GRAPHICS = 4.5, 3.0, 3.0  # WCAG 2.2, success criteria 1.4.3 and 1.4.11, level AA

# The contrast of each visible text with what is behind it, and of the curves' colours with the page.
CONTRASTS = """
const rgb = (text) => (text.match(/[\\d.]+/g) || [0, 0, 0, 0]).map(Number);
const light = (part) => part / 255 <= .04045 ? part / 255 / 12.92 : ((part / 255 + .055) / 1.055) ** 2.4;
const luminance = ([r, g, b]) => .2126 * light(r) + .7152 * light(g) + .0722 * light(b);
const contrast = (one, other) => {
  const [high, low] = [luminance(one), luminance(other)].sort((a, b) => b - a);
  return (high + .05) / (low + .05);
};
const behind = (element) => {
  for (let each = element; each; each = each.parentElement) {
    const colour = rgb(getComputedStyle(each).backgroundColor);
    if (colour.length < 4 || colour[3] === 1) return colour;
    if (colour[3] !== 0) throw new Error("a half transparent background");
  }
  return [255, 255, 255];
};
const found = [];
const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
while (texts.nextNode()) {
  const text = texts.currentNode.data.trim(), holder = texts.currentNode.parentElement;
  const style = getComputedStyle(holder);
  if (!text || !holder.checkVisibility({visibilityProperty: true}) || holder.closest("script, option")) continue;
  const size = parseFloat(style.fontSize), large = size >= 24 || (size >= 18.66 && style.fontWeight >= 700);
  found.push({text: text, kind: large ? "large" : "text", contrast: contrast(rgb(style.color), behind(holder))});
}
const probe = document.createElement("i");
document.body.append(probe);
for (const name of ["faint", "c0", "c1", "c2", "c3", "c4", "c5", "c6", "c7"]) {
  probe.style.color = "var(--" + name + ")";
  const kind = name === "faint" ? "text" : "graphics";  // of axes, and of curves
  found.push({text: name, kind: kind, contrast: contrast(rgb(getComputedStyle(probe).color), behind(document.body))});
}
probe.remove();
return found;
"""
FOCUSED = """
const each = document.activeElement, style = getComputedStyle(each), box = each.getBoundingClientRect();
if (each === document.body) return null;
return {
  name: each.id || each.closest("label")?.textContent.trim() || each.ariaLabel || each.textContent.trim(),
  outlined: style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 2,
  seen: box.bottom > 0 && box.top < innerHeight && box.width > 0,
};
"""
UNFOLDED = "document.querySelectorAll('details').forEach((each) => { each.open = true; })"


def show(folder: Path, number: int) -> None:
    """Replace the run's progress file."""
    file = ProgressFile(folder / PROGRESS_NAME)
    for event in range(50):
        file.event(f"{event}: {'a-long-word-' * 20}")
    file.progress(report(number))


def report(number: int) -> ProgressReport:
    """Return a report of a worker in each state, with long words in its texts."""
    workers = tuple(
        replace(
            worker(i),
            name=f"worker{i}-{'x' * 40}",
            state=state,
            share=0.25,
            last_batch=9.0,
            since=5.0,
            reason=""
            if state is WorkerState.ACTIVE
            else f"writing ~/{'long-folder/' * 20}: it went wrong; free space on its disk",
            note="plays in its own way",
        )
        for i, state in enumerate(WorkerState)
    )
    network = ClusterNetwork(model_version=1, sync_seconds=500.0, network_mb_per_minute=1.0)
    return replace(progress(number, workers=workers), network=network)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A run that plays, with everything that the page can show of it."""
    folder = tmp_path_factory.mktemp("runs") / "first"
    folder.mkdir()
    for observer in make_observers(folder, name="first", game="tic_tac_toe"):
        for number in range(1, 8):
            observer.iteration(iteration(number, measured=evaluation(number), workers=(worker(0),)))
    with open_ledger(folder, load_game("tic_tac_toe"), run_id="run") as ledger:
        ledger.grant("local-0", 40)
    show(folder, 7)
    with RunLock(folder):
        yield folder


@pytest.fixture(scope="module")
def served(folder: Path) -> Iterator[Dashboard]:
    with dashboard(folder) as found:
        yield found


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with running_browser(tmp_path_factory.mktemp("profile")) as made:
        yield made


@pytest.fixture
def page(browser: Browser, served: Dashboard) -> Browser:
    """The page, with all charts and cards."""
    visit(browser, served)
    until(lambda: browser.found("return document.querySelectorAll('figure').length") >= 6)
    until(lambda: browser.found("return document.querySelectorAll('.card').length") == len(WorkerState))
    until(lambda: "Every game is accounted for" in browser.found("return document.body.innerText"))
    return browser


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_all_texts_and_curves_have_enough_contrast(page: Browser, scheme: str) -> None:
    page.dark(on=scheme == "dark")
    page.found(UNFOLDED)
    background = page.found("return getComputedStyle(document.body).backgroundColor")
    assert (background == "rgb(255, 255, 255)") == (scheme == "light"), background
    found = page.found(CONTRASTS)
    said = {each["text"] for each in found}
    assert {"What limits this run now", "Offline", "first · tic_tac_toe", "plays in its own way"} <= said, said
    least = {"text": LEAST_TEXT, "large": LEAST_LARGE, "graphics": LEAST_GRAPHICS}
    assert not [each for each in found if each["contrast"] < least[each["kind"]]]


def tabbed(page: Browser, most: int = 60) -> list[dict[str, Any]]:
    """Return what the focus passes from the top of the page to its end."""
    passed: list[dict[str, Any]] = []
    for _ in range(most):
        page.press(TAB)
        found = page.found(FOCUSED)
        if found is None or found in passed[:1]:
            return passed
        passed.append(found)
    raise AssertionError("the focus never reaches the end")


def test_everything_is_reached_by_the_keyboard_and_what_has_the_focus_is_seen(page: Browser) -> None:
    passed = tabbed(page)
    assert all(each["outlined"] and each["seen"] for each in passed), passed
    names = [each["name"] for each in passed]
    assert names[:2] == ["first", "axis"] or "first" in names[:4], names
    for part in ("Every game is accounted for", "Events: 50", "first: 7 iterations"):
        assert part in names, names


def test_what_has_the_focus_keeps_it_and_stays_unfolded_when_the_page_is_drawn_again(
    page: Browser, folder: Path
) -> None:
    while (page.found(FOCUSED) or {"name": ""})["name"] != "Events: 50":
        page.press(TAB)
    page.press(ENTER)
    assert page.found("return document.activeElement.parentElement.open")
    page.press(TAB)
    assert page.found(FOCUSED)["name"] == "Events"
    page.found("document.activeElement.scrollTop = 40")
    show(folder, 123)
    until(lambda: "123 of 200" in page.found("return document.body.innerText"))
    assert page.found(FOCUSED)["name"] == "Events"
    assert page.found("return document.activeElement.scrollTop") == 40


def test_a_phone_scrolls_in_one_direction_alone(page: Browser) -> None:
    page.command("Emulation.setDeviceMetricsOverride", **PHONE)
    try:
        page.found(UNFOLDED)
        until(lambda: page.found("return window.innerWidth") == PHONE["width"])  # wider content would enlarge it
        until(lambda: page.found("return document.documentElement.scrollWidth") <= PHONE["width"])
        parts = "[...document.querySelectorAll('.card, figure, .limits')]"
        assert 200 < page.found(f"return Math.max(...{parts}.map((each) => each.clientWidth))") < PHONE["width"]
    finally:
        page.command("Emulation.clearDeviceMetricsOverride")


def test_what_is_told_is_told_to_screen_readers_too(page: Browser) -> None:
    assert page.found("return document.documentElement.lang") == "en"
    unnamed = (
        "return [...document.querySelectorAll('input, select, figure, [role=region]')]"
        ".filter((each) => !(each.labels?.length || each.ariaLabel)).length"
    )
    assert page.found(unnamed) == 0
    assert page.found("return document.getElementById('connection').getAttribute('role')") == "status"
    levels = page.found("return [...document.querySelectorAll('h1, h2, h3')].map((each) => Number(each.tagName[1]))")
    assert levels[0] == 1 and all(after - before <= 1 for before, after in pairwise(levels))
