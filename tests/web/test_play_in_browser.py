"""Games against a network, played by clicks and keys in a real browser."""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from keima.games import load_game
from keima.web.engine import NetworkThinker, answer_or_error
from tests.report.browser import Browser, running_browser, until
from tests.web.serving import Dashboard, server
from tests.web.small_models import GAMES, before_a_promotion, small_model

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not (shutil.which("chromedriver") and shutil.which("chromium")),
        reason="needs the Debian packages chromium and chromium-driver",
    ),
]
PATIENCE = 300.0  # for a search that is compiled
OTHERS = tuple(game for game in GAMES if game != "tic_tac_toe")


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with running_browser(tmp_path_factory.mktemp("profile")) as made:
        yield made


@pytest.fixture(scope="module")
def tic_tac_toe(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dashboard]:
    model = small_model(tmp_path_factory.mktemp("models"), "tic_tac_toe")
    with server("play", "--web", model, page="/play") as served:
        yield served


@contextmanager
def opened(browser: Browser, model: Path) -> Iterator[Dashboard]:
    """Open the page of a server that plays this model."""
    with server("play", "--web", model, page="/play") as served:
        visit(browser, served)
        yield served


def visit(browser: Browser, served: Dashboard) -> None:
    """Open the page; earlier events are forgotten."""
    browser.complaints()
    browser.requests()
    browser.visit(served.address)
    until(lambda: browser.found("return offer !== null && offer.models.length === 1 && !busy"))


def begin(browser: Browser, *, person: str = "0", simulations: int = 4) -> dict[str, Any]:
    """Choose a side and a strength, and begin; returns the view."""
    browser.found("document.getElementById('person').value = arguments[0]", person)
    browser.found("const unit = document.getElementById('unit'); unit.value = 'simulations'; unit.onchange()")
    browser.found("document.getElementById('limit').value = arguments[0]", simulations)
    browser.click("#setup button")
    return settled(browser)


def settled(browser: Browser) -> dict[str, Any]:
    """Return the view once the network has answered."""
    until(lambda: browser.found("return !busy && view !== null && (view.over || !networkToMove())"), PATIENCE)
    assert browser.found("return document.getElementById('trouble').textContent") == ""
    view: dict[str, Any] = browser.found("return view")
    return view


def click_move(browser: Browser, move: dict[str, Any], view: dict[str, Any]) -> None:
    """Make a move as people do: on the board, or by the button with its name."""
    own = f'#board [data-move="{move["name"]}"]'
    if view["position"]["svg"] and browser.found("return document.querySelector(arguments[0]) !== null", own):
        browser.click(own)
    elif not move["points"]:
        browser.click(f'#buttons [data-name="{move["name"]}"]')
    else:
        for point in move["points"]:
            browser.click(f'#board [data-point="{point}"]')


def shown_stones(browser: Browser) -> list[int]:
    """Return how many stones of each player the board shows."""
    counted = "return [1, 2].map((player) => document.querySelectorAll('#board .stone.p' + player).length)"
    return list(browser.found(counted))


def play_to_the_end(browser: Browser, served: Dashboard) -> None:
    """Play by clicks until the game is over; the board shows every position."""
    view = begin(browser)
    while not view["over"]:
        choice = view["legal"][len(view["moves"]) % len(view["legal"])]
        click_move(browser, choice, view)
        view = settled(browser)
        assert choice["name"] in view["moves"][-len(view["players"]) :]
        cells = np.array(view["position"]["cells"])
        if view["position"]["kind"] in ("go", "connect_four"):
            assert shown_stones(browser) == [np.count_nonzero(cells == 1), np.count_nonzero(cells == -1)]
    said = str(browser.found("return document.getElementById('said').textContent"))
    assert view["result"] in said
    owned = browser.found("return document.querySelectorAll('#board .owner').length")
    assert owned == np.count_nonzero(view.get("ownership", []))
    assert browser.complaints() == []
    own = f"http://127.0.0.1:{served.port}/"
    asked = browser.requests()
    assert asked and all(address.startswith(own) for address in asked), asked


def test_a_game_is_played_to_its_end_by_clicks(browser: Browser, tic_tac_toe: Dashboard) -> None:
    visit(browser, tic_tac_toe)
    play_to_the_end(browser, tic_tac_toe)


@pytest.mark.slow
@pytest.mark.parametrize("game", OTHERS, ids=lambda game: Path(game).stem)
def test_every_other_game_is_played_to_its_end_by_clicks(browser: Browser, tmp_path: Path, game: str) -> None:
    with opened(browser, small_model(tmp_path, game)) as served:
        play_to_the_end(browser, served)


def test_hint_undo_resign_and_the_network_s_thoughts(browser: Browser, tic_tac_toe: Dashboard) -> None:
    visit(browser, tic_tac_toe)
    begin(browser, simulations=16)
    assert browser.found("return document.querySelectorAll('#board .visits').length") == 0
    browser.click("#thinks")
    assert browser.found("return document.querySelectorAll('#board .visits').length") == 9
    wide = browser.found("return document.getElementById('first').style.width")
    chance = (1 + settled(browser)["opinion"]["expects"][0]) / 2
    assert float(wide.rstrip("%")) == pytest.approx(100 * chance, abs=1e-3)
    browser.click("#hint")
    until(lambda: settled(browser)["thought"])
    named = "return [...document.querySelectorAll('#thought td:first-child')].map((cell) => cell.textContent)"
    assert browser.found(named) == [move["name"] for move in settled(browser)["thought"]["moves"]]
    browser.click('#board [data-point="4"]')
    until(lambda: len(settled(browser)["moves"]) == 2)
    browser.click("#undo")
    until(lambda: settled(browser)["moves"] == [])
    browser.found("document.getElementById('move').value = '5'")
    browser.click("#typed button")
    until(lambda: len(settled(browser)["moves"]) == 2)
    browser.click("#resign")
    until(lambda: settled(browser)["over"])
    assert browser.found("return document.getElementById('said').textContent") == "You resign: it wins."
    assert browser.complaints() == []


def test_the_board_is_played_by_keys(browser: Browser, tic_tac_toe: Dashboard) -> None:
    visit(browser, tic_tac_toe)
    begin(browser)
    browser.found("document.querySelector('#board .board').focus()")
    for key in ("ArrowRight", "ArrowRight", "ArrowDown", "Enter"):  # the first one shows the middle
        browser.press(key)
    until(lambda: len(settled(browser)["moves"]) == 2)
    assert settled(browser)["moves"][0] == "9"


@pytest.mark.slow
def test_arrow_keys_move_the_tiles_and_the_network_can_be_watched(browser: Browser, tmp_path: Path) -> None:
    with opened(browser, small_model(tmp_path, "twenty48")):
        view = begin(browser)
        name = view["legal"][0]["name"]
        browser.press(f"Arrow{name.capitalize()}")
        until(lambda: settled(browser)["moves"] == [name])
        shown = browser.found("return [...document.querySelectorAll('#board span')].map((cell) => cell.textContent)")
        cells = np.array(settled(browser)["position"]["cells"]).ravel().tolist()
        assert shown == [str(tile or "") for tile in cells]
        browser.click("#watch")
        until(lambda: browser.found("return view.over"), PATIENCE)
        assert "The game is over: score" in browser.found("return document.getElementById('said').textContent")


@pytest.mark.slow
def test_a_promotion_asks_for_the_piece_and_black_sees_the_board_from_its_side(
    browser: Browser, tmp_path: Path
) -> None:
    chess = load_game("chess")
    with opened(browser, small_model(tmp_path, "chess")):
        begin(browser)
        names = ["a2a4", "b7b5", "a4b5", "a7a6", "b5a6", "h7h6", "a6a7", "h6h5"]
        assert len(before_a_promotion()) == len(names)
        state = chess.initial_state()
        for action in before_a_promotion():
            chess.play(state, action)
        # The page is shown a position of the engine's in which a pawn may capture on b8; choosing it must ask.
        view = position_after(tmp_path, before_a_promotion())
        browser.found("view = arguments[0]; show()", view)
        for point in (8, 1):
            browser.click(f'#board [data-point="{point}"]')
        asked = "return [...document.querySelectorAll('#choice button')].map((button) => button.textContent)"
        assert sorted(browser.found(asked)) == ["a7b8b", "a7b8n", "a7b8q", "a7b8r"]
        begin(browser, person="1")
        place = (
            "return ['h', 'a'].map((name) => [...document.querySelectorAll('#board text:not(.man)')]"
            ".find((text) => text.textContent === name).getBoundingClientRect().left)"
        )
        h, a = browser.found(place)
        assert h < a


def position_after(folder: Path, actions: list[int]) -> dict[str, Any]:
    """Return what the page is told of a game of chess after these actions."""
    question = {"person": 0, "resigned": None, "simulations": 4, "seconds": None, "do": "look", "action": None}
    answer = answer_or_error(NetworkThinker(folder / "chess.safetensors"), question | {"actions": actions})
    view: dict[str, Any] = json.loads(json.dumps(answer["view"] | {"chosen": "file-0"}))
    return view


def test_the_page_fits_a_phone(browser: Browser, tic_tac_toe: Dashboard) -> None:
    browser.resize(390, 800)
    try:
        visit(browser, tic_tac_toe)
        begin(browser)
        browser.click("#thinks")
        assert browser.found("return document.documentElement.scrollWidth <= window.innerWidth")
    finally:
        browser.resize(1100, 1000)
