"""Take the documentation's pictures of the dashboard: a headless Chromium shows real runs.

    .venv/bin/python tests/screenshots.py runs/connect_four [RUN ...] [--crowd RUN] [--out docs/images]

A run that still plays also shows its workers. The pictures, each under 200 kB: the page in light and in dark colours,
on a phone, a game of the first run, half-way, and a game of Go against a shipped network. With --crowd also the public
page of a run that machines have joined, in the same ways.
"""

import argparse
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.report.browser import Browser, running_browser, until
from tests.web.crowd_run import served_page
from tests.web.serving import dashboard

DESK = {"width": 1280, "height": 1230, "deviceScaleFactor": 1, "mobile": False}
PHONE = {"width": 390, "height": 844, "deviceScaleFactor": 2, "mobile": True}
GAME_HEIGHT = 720
MOST_BYTES = 200_000
PATIENCE = 300.0  # seconds for the network, beside a run
CHARTS, CROWD_CHARTS = 6, 1  # at least, that a page has drawn
CROWD_DESK = DESK | {"height": 1900}


def shown(browser: Browser, address: str, *, dark: bool, screen: Mapping[str, object], charts: int = CHARTS) -> None:
    """Load the page, and wait until it has drawn its charts for this screen."""
    browser.command("Emulation.setDeviceMetricsOverride", **screen)
    browser.command("Emulation.setScrollbarsHidden", hidden=True)
    browser.dark(on=dark)
    browser.visit(address)
    until(lambda: browser.found("return document.querySelectorAll('figure').length") >= charts)
    until(lambda: browser.found("return document.documentElement.scrollWidth <= innerWidth"))
    until(lambda: browser.found("return !document.getAnimations().length"))


def taken(browser: Browser, path: Path) -> None:
    """Write what the window shows.

    Raises:
        SystemExit: the picture is too large.
    """
    data = browser.picture()
    if len(data) > MOST_BYTES:
        raise SystemExit(f"screenshots.py: {path} would have {len(data):,} bytes, more than {MOST_BYTES:,}")
    path.write_bytes(data)
    print(f"{path}: {len(data):,} bytes")


def step_to_the_middle(browser: Browser) -> None:
    """Unfold the games, and step to the first full search in the second half of the newest one."""
    browser.click("#choice > summary")
    until(lambda: "Position 1 of" in str(browser.found("return document.getElementById('said').textContent")))
    positions = int(str(browser.found("return document.getElementById('said').textContent")).split()[3].rstrip("."))
    for step in range(1, positions):
        browser.click("#next")
        if step >= positions // 2 and browser.found("return document.getElementById('policy').children.length"):
            break
    browser.found("document.getElementById('choice').scrollIntoView()")


def play_go(browser: Browser) -> None:
    """Begin a game of Go against the shipped 9 x 9 network, and show what it thinks after two moves of each side."""
    until(lambda: browser.found("return offer !== null && !busy"))
    go9 = "offer.models.find((model) => model.title.startsWith('go9')).name"
    browser.found(f"const select = document.getElementById('model'); select.value = {go9}; select.onchange()")
    browser.click("#setup button")
    played = "return view && !busy && view.moves.length === arguments[0]"
    for moves, point in ((0, 40), (2, 22)):
        until(lambda moves=moves: browser.found(played, moves), PATIENCE)  # type: ignore[misc]
        browser.click(f'#board [data-point="{point}"]')
    until(lambda: browser.found(played, 4), PATIENCE)
    browser.click("#thinks")


def take_crowd_pictures(browser: Browser, run: Path, out: Path) -> None:
    """Take the pictures of a run's public page."""
    with served_page(run) as address:
        for name, dark, screen in (("light", False, CROWD_DESK), ("dark", True, CROWD_DESK), ("phone", False, PHONE)):
            shown(browser, address, dark=dark, screen=screen, charts=CROWD_CHARTS)
            until(lambda: browser.found("return document.querySelectorAll('#rows tr').length"))
            until(lambda: browser.found("return document.getElementById('said').textContent"), PATIENCE)
            taken(browser, out / f"crowd-{name}.png")


def main(argv: Sequence[str] | None = None) -> int:
    """Take all pictures; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="folder of a run")
    parser.add_argument("--crowd", type=Path, metavar="RUN", help="folder of a run that machines have joined")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "images", help="folder for the pictures")
    args = parser.parse_args(argv)
    with (
        dashboard(*args.runs) as served,
        tempfile.TemporaryDirectory() as profile,
        running_browser(Path(profile)) as browser,
    ):
        for name, dark, screen in (("light", False, DESK), ("dark", True, DESK), ("phone", False, PHONE)):
            shown(browser, served.address, dark=dark, screen=screen)
            taken(browser, args.out / f"dashboard-{name}.png")
        shown(browser, served.address, dark=False, screen=DESK | {"height": GAME_HEIGHT})
        step_to_the_middle(browser)
        taken(browser, args.out / "dashboard-game.png")
        browser.visit(served.address.split("?")[0] + "play")
        play_go(browser)
        taken(browser, args.out / "play.png")
        if args.crowd:
            take_crowd_pictures(browser, args.crowd, args.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
