"""The dashboard of a cluster with a worker in each of the four states, in a real browser."""

import shutil
from collections.abc import Iterator
from typing import Any

import pytest

from keima.base.reports.formats import format_percent
from keima.cluster.control.status import SYMBOLS
from tests.lab.driver import Driver, driven
from tests.lab.hosts import running_hosts
from tests.report.browser import Browser, running_browser, until
from tests.web.serving import Dashboard, dashboard

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(400),
    pytest.mark.skipif(
        not (shutil.which("chromedriver") and shutil.which("chromium")),
        reason="needs the Debian packages chromium and chromium-driver",
    ),
]

SLOW_MBIT = 0.2  # a link over which setting a machine up takes minutes
ALL_STATES = {"worker1": "Syncing", "worker2": "Active", "worker3": "Error", "worker4": "Offline"}
CARDS = """
const text = (card, selector) => card.querySelector(selector)?.textContent || "";
const pair = (title) => [title.textContent, title.nextSibling.textContent];
const metrics = (card) => [...card.querySelectorAll("dt")].map(pair);
return Object.fromEntries([...document.querySelectorAll(".card")].map((card) => [text(card, "strong"), {
  state: text(card, ".state"), reason: text(card, ".reason"), remedy: text(card, ".remedy"),
  metrics: Object.fromEntries(metrics(card)),
}]))
"""


@pytest.fixture(scope="module")
def cluster(real_hosts: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    """A run with one worker in each state."""
    with running_hosts() as hosts, driven(tmp_path_factory.mktemp("cluster"), hosts, in_config=4, bare=1) as made:
        slow, _, unwritable, cut = hosts
        slow.link.shape(SLOW_MBIT)
        folder = made.folder(unwritable)
        folder.parent.mkdir(exist_ok=True)
        folder.mkdir()
        folder.chmod(0o500)  # of root: its user cannot write there
        cut.link.cut()
        made.start()
        made.wait(lambda: made.is_current and made.states() == ALL_STATES, "a worker in each state", seconds=120.0)
        yield made


@pytest.fixture(scope="module")
def served(cluster: Driver) -> Iterator[Dashboard]:
    with dashboard(cluster.run_dir) as found:
        yield found


@pytest.fixture(scope="module")
def page(served: Dashboard, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with running_browser(tmp_path_factory.mktemp("profile")) as browser:
        browser.visit(served.address)
        until(lambda: len(cards(browser)) == len(ALL_STATES))
        yield browser


def cards(browser: Browser) -> dict[str, Any]:
    """Return what the cards say, by worker."""
    return dict(browser.found(CARDS))


def as_in_status(card: dict[str, Any]) -> dict[str, Any]:
    """Return what a card says in the form of status.json."""
    reason = card["reason"].partition(": ")[2]  # after the time
    return {
        "state": card["state"],
        "reason": f"{reason}; {card['remedy'].removeprefix('Remedy: ')}" if reason else "",
        "share": card["metrics"].get("Share"),
        "model": card["metrics"]["Model"],
        "grant": card["metrics"]["Outstanding"],
    }


def wanted(cluster: Driver) -> dict[str, Any]:
    """Return what status.json says of each worker."""
    return {
        name: {
            "state": each["state"],
            "reason": each["reason"],
            "share": format_percent(each["share"]),
            "model": str(each["model_version"]),
            "grant": str(each["outstanding"]),
        }
        for name, each in cluster.workers().items()
    }


def agree(shown: dict[str, Any], told: dict[str, Any]) -> bool:
    """Whether the cards say what the status says; a remedy that the status does not name may be added."""
    return shown.keys() == told.keys() and all(
        card | {"reason": ""} == told[name] | {"reason": ""}
        and card["reason"].startswith(told[name]["reason"])
        and bool(card["reason"]) == bool(told[name]["reason"])
        for name, card in shown.items()
    )


def test_the_cards_say_what_the_status_says(cluster: Driver, page: Browser) -> None:
    until(
        lambda: (
            agree({name: as_in_status(card) for name, card in cards(page).items()}, wanted(cluster))
            and {name: card["state"] for name, card in cards(page).items()} == ALL_STATES
        )
    )
    table = (cluster.checkout / "distributed" / "status.txt").read_text(encoding="utf-8")
    for state, symbol in SYMBOLS.items():
        (line,) = [line for line in table.splitlines() if line.startswith(symbol)]
        name = line.split()[2]
        assert ALL_STATES[name] == state.value == cards(page)[name]["state"]


def test_what_is_wrong_is_told_with_a_remedy(page: Browser) -> None:
    shown = cards(page)
    assert "writable" in shown["worker3"]["reason"] or "Permission denied" in shown["worker3"]["reason"], shown
    assert "Remedy: " in shown["worker3"]["remedy"] and "write there" in shown["worker3"]["remedy"]
    assert "198.18" in shown["worker4"]["reason"] or "connect" in shown["worker4"]["reason"], shown
    assert all(shown[name]["remedy"] for name, state in ALL_STATES.items() if state != "Active")
    assert not shown["worker2"]["reason"] and not shown["worker2"]["remedy"]


def test_traffic_and_disk_of_the_one_that_plays_are_shown(page: Browser) -> None:
    metrics = cards(page)["worker2"]["metrics"]
    assert metrics["Disk free"].endswith("B") and not metrics["Sent"].startswith("0.00")
    until(lambda: not cards(page)["worker2"]["metrics"]["Received"].startswith("0.00"))
    assert "2 of 4 workers do not play" in str(page.found("return document.querySelector('.limits').innerText"))


def test_the_mark_of_a_machine_that_comes_back_changes_on_the_page(cluster: Driver, page: Browser) -> None:
    cluster.hosts[3].link.heal()
    until(lambda: cards(page)["worker4"]["state"] == "Active", 120.0)
    assert not page.complaints()
