"""The public page of a run: what it tells everybody, what it tells nobody, and what it costs."""

import csv
import hashlib
import io
import shutil
import sqlite3
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest

from keima.base.run_folder import LEDGER_NAME
from keima.base.run_lock import RunLock
from keima.cluster.http.door import MACHINES
from keima.coach.crowd.verdicts import FOLDER, REFUSED, write_refused
from keima.data.ledger import open_ledger
from keima.web import crowd_page
from keima.web.contributors import (
    MIRROR_SECONDS,
    Contribution,
    ContributionReader,
    open_read_only,
    spreadsheet_text,
)
from keima.web.crowd_page import (
    NEWEST_GAMES,
    NEWEST_SECONDS,
    STRENGTH,
    CrowdPage,
    NewestGame,
    Packed,
    PublicRun,
    Shared,
    Snapshot,
    contributors_csv,
    contributors_text,
)
from tests.report.browser import Browser, running_browser, until
from tests.web.crowd_run import (
    ADDRESS,
    BATCH_GAMES,
    DAY,
    EVIL,
    GAME,
    KEY_HASH,
    LIE,
    RUN_ID,
    SSH_HOST,
    Visitor,
    add_batches,
    add_machine,
    every_path,
    machine,
    make_crowd_run,
    make_large_ledger,
    receive_games,
    served_page,
    use_core_hours,
    visitor,
)
from tests.web.test_accessibility import CONTRASTS, LEAST_GRAPHICS, LEAST_LARGE, LEAST_TEXT, PHONE

FORMULA = "=HYPERLINK(1)"
in_browser = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not (shutil.which("chromedriver") and shutil.which("chromium")),
        reason="needs the Debian packages chromium and chromium-driver",
    ),
]


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that no test changes."""
    folder = tmp_path_factory.mktemp("secret-folder") / "first"
    make_crowd_run(folder)
    return folder


@pytest.fixture(scope="module")
def guest(run_dir: Path) -> Visitor:
    return visitor(run_dir)


def people(guest: Visitor) -> dict[str, Any]:
    """Return the lines of the table by name."""
    return {each["name"]: each for each in guest.ask("/public/contributors").json()["people"]}


def new_run(tmp_path: Path, *names: str, batches: int = 0) -> tuple[Path, list[str]]:
    """Return a run with a machine of one worker for each name, and these workers; each has given ``batches``."""
    folder = tmp_path / "run"
    folder.mkdir()
    machines = [add_machine(folder, machine(number, name)) for number, name in enumerate(names)]
    workers = [each.worker_names[0] for each in machines]
    with open_ledger(folder, GAME, run_id=RUN_ID) as ledger:
        ledger.grant_all(dict.fromkeys(workers, 1000))
        for worker in workers:
            receive_games(ledger, worker, batches=batches)
    return folder, workers


# What it tells.


def test_the_table_has_what_each_name_has_given_and_what_became_of_it(guest: Visitor) -> None:
    anna = people(guest)["Anna"]
    assert (anna["machines"], anna["present"]) == (2, 1)
    assert (anna["games"], anna["games_this_week"], anna["games_in_window"]) == (60, 50, 60)
    assert (anna["games_given_up"], anna["games_outstanding"]) == (30, 300 - 60 - 30)
    assert anna["core_hours"] == pytest.approx(4.0 + 1.0 + 0.5)
    assert anna["core_hours_this_week"] == pytest.approx(4.0 - 1.5 + 1.0 + 0.5)  # 1.5 were there 8 days ago
    assert anna["reasons"] == [] and anna["games_distrusted"] == anna["games_refused"] == 0
    assert abs(anna["seen"] - time.time()) < 3600


def test_games_of_a_liar_are_not_in_the_window_and_the_reason_is_told(guest: Visitor) -> None:
    liar = people(guest)[FORMULA]
    assert (liar["games"], liar["games_distrusted"], liar["games_in_window"]) == (40, 40, 0)
    assert liar["reasons"] == [LIE]
    assert list(people(guest)).index(FORMULA) > list(people(guest)).index("Anna")


def test_the_run_s_own_machines_are_one_line_without_their_names(guest: Visitor) -> None:
    own = guest.ask("/public/contributors").json()["own"]
    assert own["name"] == "the run's own machines"
    assert (own["games"], own["core_hours"], own["machines"]) == (20, 8.0, 0)
    sums = guest.ask("/public/contributors").json()["people"]
    assert own["games"] + sum(each["games"] for each in sums) == 130


def test_the_file_has_the_same_table(guest: Visitor, run_dir: Path) -> None:
    answer = guest.ask("/public/contributors.csv")
    assert (
        answer.headers["content-type"].startswith("text/csv") and "attachment" in answer.headers["content-disposition"]
    )
    rows = list(csv.DictReader(io.StringIO(answer.text)))
    known = people(guest)
    assert [row["name"].removeprefix("'") for row in rows] == [*known, "the run's own machines"]
    for row in rows[:-1]:
        each = known[row["name"].removeprefix("'")]
        for column in ("games", "games_this_week", "games_in_window", "games_distrusted", "games_outstanding"):
            assert int(row[column]) == each[column], column
        assert float(row["core_hours"]) == pytest.approx(each["core_hours"])
        assert row["reasons"] == "; ".join(each["reasons"])
    assert contributors_csv(run_dir) == answer.text
    text = contributors_text(run_dir)
    assert "Anna" in text and "the run's own machines" in text and LIE[:30] in text and "\x1b" not in text


@pytest.mark.parametrize(
    ("text", "safe"),
    [
        ("anna", "anna"),
        ("a=b", "a=b"),
        ("=1+1", "'=1+1"),
        ("+1", "'+1"),
        ("-1", "'-1"),
        ("@SUM(A1)", "'@SUM(A1)"),
        ("  =1", "'  =1"),
        ("\t=1", "'\t=1"),
        ("\uff1d1", "'\uff1d1"),  # full width, which spreadsheets may take for the same
        ("\r", "'\r"),
        ("", ""),
    ],
)
def test_no_name_is_a_formula_in_a_spreadsheet(text: str, safe: str) -> None:
    assert spreadsheet_text(text) == safe


def test_the_state_has_strength_and_newest_games(guest: Visitor) -> None:
    state = guest.ask("/public/state").json()
    assert (state["name"], state["game"], state["running"], state["iterations"]) == ("first", "tic_tac_toe", False, 7)
    assert ["Elo", "700 ± 40"] in [pair[:2] for pair in state["strength"]]
    assert ["Solver error with search", "7.1 ± 1.2 %"] in [pair[:2] for pair in state["strength"]]
    assert ["Iteration", "7 of 200"] in state["metrics"]
    assert [game["number"] for game in state["games"]] == list(range(130, 130 - NEWEST_GAMES, -1))
    assert {game["name"] for game in state["games"]} == {EVIL[:60], "the run's own machines"}


def test_a_run_that_plays_says_so(tmp_path: Path) -> None:
    folder, _ = new_run(tmp_path, "anna")
    assert not visitor(folder).ask("/public/state").json()["running"]
    with RunLock(folder):
        assert visitor(folder).ask("/public/state").json()["running"]


def test_the_curves_begin_with_those_of_strength(guest: Visitor) -> None:
    curves = guest.ask("/public/curves").json()
    assert {chart["title"] for chart in curves["strength"]} >= {"Elo", "Moves that throw away game value"}
    assert "Loss" in {chart["title"] for chart in curves["others"]}
    assert curves["metrics"]["evaluation/elo"] == [100.0 * number for number in range(1, 8)]
    assert {"metric": "run/seconds", "name": "time"} in curves["axes"] and "table" not in curves
    assert not {curve["metric"] for chart in curves["others"] for curve in chart["curves"]} & STRENGTH.keys()


def test_a_game_is_told_move_by_move_with_the_name_for_the_table(guest: Visitor) -> None:
    game = guest.ask("/public/games/130").json()
    assert (game["number"], game["worker"], game["kind"]) == (130, EVIL[:60], "grid")
    assert len(game["moments"]) > 5 and game["moments"][-1]["move"] == ""
    assert guest.ask("/public/games/120").json()["worker"] == "the run's own machines"


def test_a_run_without_anything_has_a_page(tmp_path: Path) -> None:
    folder, _ = new_run(tmp_path)
    guest = visitor(folder)
    state = guest.ask("/public/state").json()
    assert (state["games"], state["people"], state["strength"]) == ([], 0, [])
    assert guest.ask("/public/contributors").json()["people"] == []
    assert guest.ask("/public/curves").json()["iterations"] == 0
    assert guest.ask("/").status == 200


def test_a_machine_whose_file_is_damaged_is_named_by_its_workers(tmp_path: Path) -> None:
    folder, (worker,) = new_run(tmp_path, "Anna", batches=1)
    (path,) = (folder / FOLDER / MACHINES).iterdir()
    reader = ContributionReader(folder)
    assert [each.name for each in reader.read().people] == ["Anna"]
    for damaged in ("{", "[]", '{"id": 1}', "[" * 100_000):
        path.write_text(damaged)
        assert [(each.name, each.games) for each in reader.read().people] == [("m0", BATCH_GAMES)], worker


# What it tells nobody.


def test_no_answer_has_a_secret(run_dir: Path, guest: Visitor) -> None:
    link = (run_dir / FOLDER / "links.json").read_text().split('"secret": "')[1].split('"')[0]
    secrets = [link, KEY_HASH, ADDRESS.removeprefix("https://"), SSH_HOST, "10.1.2.3", "crowd-m", "m1-000001", "Zen 9"]
    secrets += [
        "secret-folder",
        str(run_dir),
        "local-0",
        "e" * 64,
        "restarted",
        hashlib.sha256(link.encode()).hexdigest()[:16],
    ]
    paths = list(every_path(guest.ask("/public/state").json()))
    assert len(paths) == 5 + NEWEST_GAMES
    for path in (*paths, "/public/games/1", "/public/nothing", "/public/games/x"):
        answer = guest.ask(path)
        for secret in secrets:
            assert secret not in answer.text and secret not in str(answer.headers), (path, secret)


def test_what_goes_wrong_is_told_without_folders(tmp_path: Path) -> None:
    folder, _ = new_run(tmp_path, "anna", batches=1)
    guest = visitor(folder)
    shutil.rmtree(folder / "games")
    lost = guest.ask(f"/public/games/{BATCH_GAMES}")
    assert (lost.status, lost.text) == (404, "This game cannot be shown.\n")
    for content in (b"", b"no ledger", b"\xff" * 10_000):
        (folder / LEDGER_NAME).write_bytes(content)
        guest = visitor(folder)
        for path in ("/public/state", "/public/contributors", "/public/contributors.csv"):
            answer = guest.ask(path)
            assert (answer.status, answer.text) == (503, "The run cannot be read now.\n"), path
        assert guest.ask("/public/games/1").status == 404


def test_every_answer_is_kept_to_itself(guest: Visitor) -> None:
    for path in (*every_path(guest.ask("/public/state").json()), "/public/crowd.js", "/public/games/7"):
        headers = guest.ask(path).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy and "script-src 'self'" in policy and "unsafe" not in policy, path
        assert headers["x-content-type-options"] == "nosniff" and headers["referrer-policy"] == "no-referrer"


def test_names_are_never_part_of_the_page_s_code(guest: Visitor) -> None:
    page = guest.ask("/")
    assert "onerror" not in page.text and "@GAMES@" not in page.text
    for path in ("/public/crowd.js", "/public/games.js", "/public/boards.js"):
        script = guest.ask(path).text
        assert not any(way in script for way in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write")), (
            path
        )
    for path in ("/public/state", "/public/contributors"):
        assert guest.ask(path).headers["content-type"] == "application/json"
    idle = next(name for name in people(guest) if name.startswith("idle"))
    assert idle.isprintable() and "\u202e" not in idle


def test_all_that_the_page_needs_is_there_under_addresses_relative_to_it(guest: Visitor) -> None:
    page = guest.ask("/").text
    needed = {part.split('"')[0] for part in page.replace('src="', 'href="').split('href="')[1:]}
    assert needed and all(each.startswith("public/") for each in needed), needed
    assert all(guest.ask(f"/{each}").status == 200 for each in needed)


@pytest.mark.parametrize(
    "number", ["0", "-1", "1", "109", "131", "x", "1e3", "0130", "130.0", "%31", "1" * 13, "9" * 6000, "..", "../state"]
)
def test_only_the_newest_games_can_be_seen(guest: Visitor, number: str) -> None:
    assert guest.ask(f"/public/games/{number}").status == 404


def test_the_ledger_cannot_be_changed(run_dir: Path) -> None:
    with open_read_only(run_dir) as database, pytest.raises(sqlite3.OperationalError, match="readonly"):
        database.execute("DELETE FROM batches")


# What it costs.


def test_an_answer_is_compressed_for_those_who_can_read_it(guest: Visitor) -> None:
    for path in ("/", "/public/state", "/public/curves", "/public/contributors.csv"):
        plain, packed = guest.ask(path), guest.ask(path, packed=True)
        assert packed.headers["content-encoding"] == "gzip" and "content-encoding" not in plain.headers
        assert packed.body == plain.body and len(packed.sent) < len(plain.sent), path
        assert packed.headers["cache-control"].startswith("public, max-age=")


class CountingRun(PublicRun):
    """Counts what is computed, and how often at the same time."""

    snapshots, games, now, most = 0, 0, 0, 0

    def read_snapshot(self) -> Snapshot:
        self.snapshots += 1
        return self._timed(super().read_snapshot)

    def read_game(self, game: NewestGame) -> Packed:
        self.games += 1
        return self._timed(lambda: super(CountingRun, self).read_game(game))

    def _timed(self, read: Callable[[], Any]) -> Any:
        self.now += 1
        self.most = max(self.most, self.now)
        time.sleep(0.05)
        found = read()
        self.now -= 1
        return found


def test_many_visitors_cost_as_much_as_one(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crowd_page, "STATE_SECONDS", 1e9)
    run = CountingRun(run_dir)
    guest = Visitor(CrowdPage(run).routes())
    paths = ["/public/state", "/public/contributors", "/public/contributors.csv", "/public/games/130"] * 25
    answers = anyio.run(guest.ask_all, [*paths, "/public/games/5", "/public/games/129"])
    assert [answer.status for answer in answers] == [200] * 100 + [404, 200]
    assert (run.snapshots, run.games) == (1, 2)
    assert run.most == 1
    assert all(guest.ask("/public/games/130").status == 200 for _ in range(5)) and run.games == 2


def test_the_newest_games_change_once_a_minute(tmp_path: Path) -> None:
    folder, (worker,) = new_run(tmp_path, "anna", batches=3)
    now = time.time()
    run = PublicRun(folder, wall=lambda: now)
    assert max(run.read_snapshot().games) == 3 * BATCH_GAMES
    with open_ledger(folder, GAME) as ledger:
        receive_games(ledger, worker)
    assert max(run.read_snapshot().games) == 3 * BATCH_GAMES
    now += NEWEST_SECONDS
    assert max(run.read_snapshot().games) == 4 * BATCH_GAMES


def test_while_a_value_is_computed_others_get_the_last_one() -> None:
    now, started, found = 0.0, [0], list[int]()

    def compute() -> int:
        started[0] += 1
        time.sleep(0.1)
        return started[0]

    async def visit() -> None:
        found.append(await shared.get())

    async def scenario() -> None:
        nonlocal now
        await visit()
        now = 6.0
        async with anyio.create_task_group() as group:
            for _ in range(5):
                group.start_soon(visit)
        now = 1000.0
        async with anyio.create_task_group() as group:
            for _ in range(5):
                group.start_soon(visit)

    shared = Shared(compute, seconds=5.0, clock=lambda: now)
    anyio.run(scenario)
    assert sorted(found) == [1] + [1] * 4 + [2] + [3] * 5


def fresh(folder: Path, now: float) -> tuple[Contribution, ...]:
    return ContributionReader(folder, wall=lambda: now).read().people


def test_what_is_read_step_by_step_is_what_is_read_at_once(tmp_path: Path) -> None:
    folder, workers = new_run(tmp_path, "anna", "bob", "carla", batches=1)
    now = time.time()
    reader = ContributionReader(folder, wall=lambda: now)
    assert reader.read().people == fresh(folder, now)
    with open_ledger(folder, GAME) as ledger:
        for step, window in enumerate((20, 40, 40, 90, 10, 60)):
            receive_games(ledger, workers[step % 3], batches=2)
            ledger.add_iteration(
                step + 1, {"window_games": window, "workers": [{"name": workers[0], "core_hours": step}]}
            )
            use_core_hours(folder, workers[0], step + 0.5)
            if step == 3:
                write_refused(folder, {workers[1]: LIE})
            if step == 4:
                add_machine(folder, replace(machine(2, "Carla and friends"), workers=3))
            now += 3 * DAY if step == 2 else MIRROR_SECONDS
            found = reader.read().people
            assert found == fresh(folder, now), step
            believed = sum(each.games - each.games_distrusted for each in found)
            assert sum(each.games_in_window or 0 for each in found) >= min(window, believed)
    assert {each.name for each in found} == {"anna", "bob", "Carla and friends"}
    now += 8 * DAY
    later = reader.read().people
    assert later == fresh(folder, now) and sum(each.games_this_week for each in later) == 0
    assert [each.games for each in later] == [each.games for each in found]


def test_a_list_of_liars_that_is_damaged_hides_nothing_else(tmp_path: Path) -> None:
    folder, _ = new_run(tmp_path, "anna", batches=1)
    for content in ("{", "[]", "[" * 100_000, "1"):
        (folder / FOLDER / REFUSED).write_text(content)
        (found,) = ContributionReader(folder).read().people
        assert (found.games, found.games_distrusted) == (BATCH_GAMES, 0)


def seconds_of(read: Callable[[], object]) -> float:
    """Return the least processor time of some calls."""
    taken = []
    for _ in range(3):
        began = time.process_time()
        read()
        taken.append(time.process_time() - began)
    return min(taken)


@pytest.mark.medium
def test_the_table_costs_what_is_new_and_not_what_was_before(tmp_path: Path) -> None:
    folder, now = tmp_path / "run", time.time()
    make_large_ledger(folder, batches=5_000, machines=100)
    reader = ContributionReader(folder)
    reader.read()
    small = seconds_of(reader.read)
    names = [name for number in range(100) for name in machine(number, "", workers=4).worker_names]
    add_batches(folder, names, batches=95_000, since=now - 7 * DAY, until=now)
    began = time.process_time()
    found = reader.read()
    first = time.process_time() - began
    assert sum(each.games for each in found.people) == 100_000 * 20
    large = seconds_of(reader.read)
    assert large < 3 * small and large < first / 5, (small, first, large)


# In a browser.


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with running_browser(tmp_path_factory.mktemp("profile")) as made:
        yield made


@pytest.fixture(scope="module")
def address(run_dir: Path) -> Iterator[str]:
    with served_page(run_dir) as address:
        yield address


def visit(browser: Browser, address: str) -> None:
    """Load the page, and wait until everything is there."""
    browser.visit("about:blank")
    browser.complaints()
    browser.requests()
    browser.visit(address)
    until(lambda: browser.found("return document.querySelectorAll('#rows tr').length"))
    until(lambda: browser.found("return document.querySelectorAll('#strong figure').length") >= 2)
    until(lambda: "Position 1 of" in browser.found("return document.getElementById('said').textContent"))


class TestInABrowser:
    pytestmark = in_browser

    def test_hostile_names_are_text_and_nothing_else_is_requested(self, browser: Browser, address: str) -> None:
        visit(browser, address)
        text = browser.found("return document.body.innerText")
        assert EVIL[:60] in text and "<b>lies</b>" in text and "the run's own machines" in text
        assert browser.found("return document.querySelectorAll('main img, main script, main b').length") == 0
        assert browser.found("return document.title") == "first · tic_tac_toe"
        assert browser.complaints() == []
        asked = browser.requests()
        assert asked and all(each.startswith(address) for each in asked), asked

    def test_everybody_finds_the_own_line(self, browser: Browser, address: str) -> None:
        visit(browser, f"{address}?name=ANN")
        names = "return [...document.querySelectorAll('#rows .who')].map((each) => each.textContent)"
        assert browser.found(names) == ["Anna"]
        browser.found("const name = document.getElementById('name'); name.value = 'nobody'; name.oninput()")
        assert browser.found(names) == [] and "Nobody of that name" in browser.found("return document.body.innerText")

    @pytest.mark.parametrize("scheme", ["light", "dark"])
    def test_all_texts_have_enough_contrast(self, browser: Browser, address: str, scheme: str) -> None:
        browser.dark(on=scheme == "dark")
        visit(browser, address)
        found = browser.found(CONTRASTS)
        least = {"text": LEAST_TEXT, "large": LEAST_LARGE, "graphics": LEAST_GRAPHICS}
        assert not [each for each in found if each["contrast"] < least[each["kind"]]]

    def test_a_phone_scrolls_in_one_direction_alone(self, browser: Browser, address: str) -> None:
        browser.command("Emulation.setDeviceMetricsOverride", **PHONE)
        try:
            visit(browser, address)
            browser.click("#more > summary")
            until(lambda: browser.found("return document.querySelectorAll('#others figure').length") > 2)
            assert browser.found("return window.innerWidth") == PHONE["width"]  # wider content would enlarge it
            assert browser.found("return document.documentElement.scrollWidth") <= PHONE["width"]
        finally:
            browser.command("Emulation.clearDeviceMetricsOverride")
