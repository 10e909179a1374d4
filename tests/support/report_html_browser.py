"""A headless Chromium for the tests of the HTML report, driven through a pair of pipes.

The DevTools protocol needs no port, no driver program and no package that way: messages are JSON,
each ended by a NUL.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--remote-debugging-pipe",
)
# The browser reads commands from descriptor 3 and answers on 4, which may be in use as something
# else: above 9 both ends are out of the way.
_AS_3_AND_4 = """
import fcntl, os, sys
commands, answers = (fcntl.fcntl(int(end), fcntl.F_DUPFD, 10) for end in sys.argv[1:3])
os.dup2(commands, 3), os.dup2(answers, 4)
os.execv(sys.argv[3], sys.argv[3:])
"""
_PATIENCE_S = 60.0


def chromium() -> str | None:
    """The path of a Chromium, or None."""
    return next((found for name in _NAMES if (found := shutil.which(name))), None)


class Browser:
    """A page in a running browser, and what it logged, threw and asked for."""

    def __init__(self, commands: int, answers: int) -> None:
        self._commands = commands
        self._answers = answers
        self._read = b""
        self._last_id = 0
        self._session: str | None = None
        self.events: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: object) -> dict[str, Any]:
        """Send a command and wait for its answer."""
        self._last_id += 1
        message: dict[str, object] = {
            "id": self._last_id,
            "method": method,
            "params": parameters,
        }
        if self._session is not None:
            message["sessionId"] = self._session
        pending = json.dumps(message).encode() + b"\0"
        while pending:
            pending = pending[os.write(self._commands, pending) :]
        while True:
            answer = self._next_message()
            if answer.get("id") == self._last_id:
                assert "error" not in answer, (method, answer["error"])
                result: dict[str, Any] = answer["result"]
                return result
            self.events.append(answer)

    def _next_message(self) -> dict[str, Any]:
        deadline = time.monotonic() + _PATIENCE_S
        while b"\0" not in self._read:
            ready, _, _ = select.select(
                [self._answers], [], [], deadline - time.monotonic()
            )
            assert ready, "the browser does not answer"
            piece = os.read(self._answers, 1 << 20)
            assert piece, "the browser has ended"
            self._read += piece
        raw, _, self._read = self._read.partition(b"\0")
        message: dict[str, Any] = json.loads(raw)
        return message

    def open(
        self, page: Path, *, width: int = 1280, height: int = 900, dark: bool = False
    ) -> None:
        """Open a page of the report, and wait until its charts are drawn or have failed."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call("Page.navigate", url="about:blank")
        self.wait_for(
            "location.href === 'about:blank' && document.readyState === 'complete'"
        )
        self.events.clear()
        self.call("Page.navigate", url=page.resolve().as_uri())
        self.wait_for(
            "location.protocol === 'file:' && document.readyState === 'complete'"
        )
        if self.value("document.querySelectorAll('.chart').length"):
            self.wait_for("document.documentElement.dataset.charts !== undefined")

    def value(self, script: str) -> Any:
        """Evaluate JavaScript in the page."""
        answer = self.call(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def wait_for(self, condition: str) -> None:
        """Wait until a condition in JavaScript holds."""
        deadline = time.monotonic() + _PATIENCE_S
        while not self.value(condition):
            assert time.monotonic() < deadline, f"never true: {condition}"
            time.sleep(0.02)

    def click(self, selector: str) -> None:
        """Click in the middle of an element, as a mouse does."""
        at = self.value(
            f"""(() => {{
                const element = document.querySelector({json.dumps(selector)});
                element.scrollIntoView({{block: "center", inline: "center"}});
                const box = element.getBoundingClientRect();
                return {{x: box.x + box.width / 2, y: box.y + box.height / 2}};
            }})()"""
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.call(
                "Input.dispatchMouseEvent", type=kind, button="left", clickCount=1, **at
            )

    def type(self, text: str) -> None:
        """Type into what has the focus."""
        self.call("Input.insertText", text=text)

    def press(self, key: str, code: int) -> None:
        """Press a key by its name and its Windows key code."""
        text = "\r" if key == "Enter" else ""
        self.call(
            "Input.dispatchKeyEvent",
            type="keyDown",
            key=key,
            code=key,
            windowsVirtualKeyCode=code,
            text=text,
        )
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key, code=key)

    def screenshot(self, path: Path, *, whole: bool = True) -> None:
        """Write the page as a PNG."""
        answer = self.call(
            "Page.captureScreenshot", format="png", captureBeyondViewport=whole
        )
        path.write_bytes(base64.b64decode(answer["data"]))

    def pdf(self, path: Path) -> None:
        """Print the page."""
        answer = self.call(
            "Page.printToPDF", preferCSSPageSize=True, printBackground=True
        )
        path.write_bytes(base64.b64decode(answer["data"]))

    def requests(self) -> list[str]:
        """What the page asked for since it was opened, itself included.

        Without what a URL of the scheme `data` holds itself: some plotly.js try out an image so.
        """
        sent = [
            event
            for event in self.events
            if event["method"] == "Network.requestWillBeSent"
        ]
        urls = [event["params"]["request"]["url"] for event in sent]
        return [url for url in urls if not url.startswith("data:")]

    def complaints(self) -> list[object]:
        """Messages on the console, exceptions, and what the browser logged, policy included."""
        methods = (
            "Runtime.consoleAPICalled",
            "Runtime.exceptionThrown",
            "Log.entryAdded",
        )
        return [event["params"] for event in self.events if event["method"] in methods]

    def dialogs(self) -> list[object]:
        """The alerts that were opened."""
        return [
            event
            for event in self.events
            if event["method"].startswith("Page.javascript")
        ]


@contextlib.contextmanager
def running_browser(program: str) -> Iterator[Browser]:
    """Start a browser with an empty profile; ends it and removes the profile."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        to_browser, commands = os.pipe()
        answers, from_browser = os.pipe()
        profile = Path(folder) / "profile"
        log = (Path(folder) / "log").open("wb")
        process = subprocess.Popen(
            [
                sys.executable,
                "-c",
                _AS_3_AND_4,
                str(to_browser),
                str(from_browser),
                program,
                *_FLAGS,
                f"--user-data-dir={profile}",
                "about:blank",
            ],
            pass_fds=(to_browser, from_browser),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
        os.close(to_browser)
        os.close(from_browser)
        try:
            browser = Browser(commands, answers)
            yield browser
            with contextlib.suppress(AssertionError, OSError):
                browser._session = None
                browser.call("Browser.close")
        finally:
            os.close(commands)
            os.close(answers)
            try:
                process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            log.close()


# The cells of a table's column, as shown.
COLUMN = """(name, place) => [...[...document.querySelectorAll('section.table')]
    .find((section) => section.querySelector('h3').textContent === name)
    .querySelectorAll('tbody tr')].map((row) => row.children[place].textContent)"""

CELLS = """[...document.querySelectorAll('tbody tr')].map((row) => [...row.children].map((cell) =>
    [cell.tagName, cell.className, cell.textContent, cell.style.getPropertyValue('--share').trim()]
))"""


# Contrast ratios as WCAG 2 defines them, of each text with the first color behind it.
CONTRASTS = """(() => {
    const luminance = (color) => {
        const [red, green, blue] = color.match(/[\\d.]+/g).map(Number).map((part) => part / 255)
            .map((part) => part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
    };
    const behind = (element) => {
        for (let at = element; at; at = at.parentElement) {
            const color = getComputedStyle(at).backgroundColor;
            if (color !== "rgba(0, 0, 0, 0)") return color;
        }
        return "rgb(255, 255, 255)";
    };
    const ratio = (one, other) => {
        const [a, b] = [luminance(one), luminance(other)];
        return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    };
    const found = {};
    for (const selector of ["h1", ".card dt", ".card .detail", ".notes li", "figcaption a",
        "thead button", "tbody td", "caption", ".status", ".legend button", "nav a", ".more"]) {
        const element = document.querySelector(selector);
        found[selector] = ratio(getComputedStyle(element).color, behind(element));
    }
    const tick = document.querySelector(".ytick text");
    found.tick = ratio(getComputedStyle(tick).fill, behind(tick));
    const cell = document.querySelector("tbody .bar");
    const bar = getComputedStyle(cell).backgroundImage.match(/rgb\\([^)]*\\)/)[0];
    found.bar = ratio(getComputedStyle(cell).color, bar);
    return [luminance(behind(cell)), found];
})()"""


def column(browser: Browser, name: str, place: int) -> list[str]:
    """The cells of a column of a table, as shown."""
    found: list[str] = browser.value(f"({COLUMN})('{name}', {place})")
    return found


def selector(number: int, rest: str) -> str:
    """Select within the table of a number."""
    return f"section.table[id^='table-{number}-'] {rest}"


def search(browser: Browser, number: int, words: str) -> str:
    """Type words into a table's search field; what its line says then."""
    browser.click(selector(number, "input[type=search]"))
    field = f'document.querySelector("{selector(number, "input[type=search]")}")'
    browser.value(f"{field}.select()")
    before = status(browser, number)
    browser.type(words)
    browser.wait_for(f"{status_script(number)} !== {before!r}")
    return status(browser, number)


def status_script(number: int) -> str:
    """JavaScript for the line above a table."""
    return f'document.querySelector("{selector(number, ".status")}").textContent'


def status(browser: Browser, number: int) -> str:
    """The line above a table."""
    said: str = browser.value(status_script(number))
    return said
