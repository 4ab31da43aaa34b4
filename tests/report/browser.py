"""A real browser without a screen, driven by chromedriver over WebDriver (https://www.w3.org/TR/webdriver2)."""

import base64
import json
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar
from urllib.request import ProxyHandler, Request, build_opener

ELEMENT = "element-6066-11e4-a52e-4f735466cecf"  # WebDriver's name for a reference to one
KEYS = {
    "Home": "\ue011",
    "End": "\ue010",
    "ArrowLeft": "\ue012",
    "ArrowUp": "\ue013",
    "ArrowRight": "\ue014",
    "ArrowDown": "\ue015",
    "Enter": "\ue007",
    "Tab": "\ue004",
    "PageUp": "\ue00e",
    "PageDown": "\ue00f",
    "Escape": "\ue00c",
}
SWITCHES = (
    *("headless", "no-sandbox", "disable-gpu", "disable-quic", "no-first-run", "disable-background-networking"),
    *("disable-component-update", "disable-sync", "disable-dev-shm-usage", "window-size=1100,1000"),
)
SECONDS = 60.0  # for one answer
# The driver answers when it has sent a key, which on a busy machine is before the page gets it.
AWAIT_KEY = """
window.keyAwaited = true;
addEventListener("keyup", () => { window.keyAwaited = false; }, {capture: true, once: true});"""
T = TypeVar("T")


def until(found: Callable[[], T], seconds: float = 30.0, *, instead: Callable[[], object] = lambda: "") -> T:
    """Return the first true result; if there is none, fail with what is there ``instead``."""
    deadline = time.monotonic() + seconds
    while not (result := found()):
        assert time.monotonic() < deadline, instead()
        time.sleep(0.1)
    return result


class Browser:
    """One page at a time.

    Args:
        address: of chromedriver.
        profile: an empty folder.
    """

    def __init__(self, address: str, profile: Path) -> None:
        self._open = build_opener(ProxyHandler({})).open
        self._address = f"{address}/session"
        switches = [*SWITCHES, f"user-data-dir={profile}"]
        options = {
            "args": switches,
            "binary": shutil.which("chromium"),
            "perfLoggingPrefs": {"enableNetwork": True, "enablePage": False},
        }
        wanted = {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"}}
        session = self._post("", {"capabilities": {"alwaysMatch": wanted}})["sessionId"]
        self._address += f"/{session}"

    def _post(self, command: str, body: dict[str, Any]) -> Any:
        request = Request(self._address + command, json.dumps(body).encode(), {"Content-Type": "application/json"})
        with self._open(request, timeout=SECONDS) as answer:
            return json.load(answer)["value"]

    def close(self) -> None:
        """End the browser."""
        with self._open(Request(self._address, method="DELETE"), timeout=SECONDS):
            pass

    def show(self, page: Path) -> None:
        """Load a page from a file."""
        self.visit(page.resolve().as_uri())

    def visit(self, address: str) -> None:
        """Load a page."""
        self._post("/url", {"url": address})

    def found(self, script: str, *arguments: object) -> Any:
        """Return the result of a script in the page."""
        return self._post("/execute/sync", {"script": script, "args": list(arguments)})

    def resize(self, width: int, height: int) -> None:
        """Give the window this size, including its frame."""
        self._post("/window/rect", {"width": width, "height": height})

    def command(self, name: str, **parameters: object) -> None:
        """Give a command of the Chrome DevTools protocol."""
        self._post("/goog/cdp/execute", {"cmd": name, "params": parameters})

    def click(self, selector: str) -> None:
        """Click in the middle of the element that the selector finds."""
        element = self._post("/element", {"using": "css selector", "value": selector})[ELEMENT]
        self._post(f"/element/{element}/click", {})

    def drag(self, selector: str, start: float, end: float) -> None:
        """Press the mouse within the element that the selector finds, move, and release it: shares of its width."""
        box = self.found("return document.querySelector(arguments[0]).getBoundingClientRect().toJSON()", selector)
        middle = round(box["top"] + box["height"] / 2)
        first, last = (round(box["left"] + share * box["width"]) for share in (start, end))
        moves = [
            {"type": "pointerMove", "x": x, "y": middle, "duration": 20} for x in (first, (first + last) // 2, last)
        ]
        self._point([moves[0], {"type": "pointerDown", "button": 0}, *moves[1:], {"type": "pointerUp", "button": 0}])

    def double_click(self, selector: str) -> None:
        """Click twice in the middle of the element that the selector finds."""
        element = self._post("/element", {"using": "css selector", "value": selector})[ELEMENT]
        clicks = [{"type": kind, "button": 0} for kind in ("pointerDown", "pointerUp")] * 2
        self._point([{"type": "pointerMove", "origin": {ELEMENT: element}, "x": 0, "y": 0}, *clicks])

    def _point(self, actions: list[dict[str, Any]]) -> None:
        self._post("/actions", {"actions": [{"type": "pointer", "id": "mouse", "actions": actions}]})

    def press(self, key: str) -> None:
        """Press and release a key; it goes to the focused element. Return when the page has handled it."""
        value = KEYS.get(key, key)
        actions = [{"type": "keyDown", "value": value}, {"type": "keyUp", "value": value}]
        self.found(AWAIT_KEY)
        self._post("/actions", {"actions": [{"type": "key", "id": "keyboard", "actions": actions}]})
        until(lambda: self.found("return window.keyAwaited !== true"))

    def dark(self, *, on: bool) -> None:
        """Prefer the dark colours of pages, or no longer."""
        feature = {"name": "prefers-color-scheme", "value": "dark" if on else "light"}
        self.command("Emulation.setEmulatedMedia", features=[feature])

    def complaints(self) -> list[str]:
        """Return the console's messages since the last call."""
        return [entry["message"] for entry in self._post("/se/log", {"type": "browser"})]

    def requests(self) -> list[str]:
        """Return the addresses that pages have requested, including their own, since the last call."""
        events = [json.loads(entry["message"])["message"] for entry in self._post("/se/log", {"type": "performance"})]
        asked = [event["params"] for event in events if event["method"] == "Network.requestWillBeSent"]
        return [
            each["request"]["url"] for each in asked if each["documentURL"].startswith(("file:", "http:"))
        ]  # not the browser's own first page

    def picture(self) -> bytes:
        """Return a screenshot as PNG."""
        with self._open(f"{self._address}/screenshot", timeout=SECONDS) as answer:
            return base64.b64decode(json.load(answer)["value"])


@contextmanager
def running_browser(profile: Path) -> Iterator[Browser]:
    """Yield a browser with an empty profile."""
    with subprocess.Popen(
        ["chromedriver", "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as driver:
        assert driver.stdout
        try:
            port = next(
                found[1] for line in driver.stdout if (found := re.search(r"started successfully on port (\d+)", line))
            )
            browser = Browser(f"http://127.0.0.1:{port}", profile)
            try:
                yield browser
            finally:
                browser.close()
        finally:
            driver.terminate()
