"""Debian's Firefox for tests, driven by WebDriver BiDi: Playwright drives only a Firefox of its own."""

from __future__ import annotations

import contextlib
import itertools
import json
import re
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from typing import Any

from harness.programs import require
from websocket import WebSocket, create_connection

LISTENS = re.compile(r"WebDriver BiDi listening on (\S+)")
ANSWERS_WITHIN_SECONDS = 60


class FirefoxError(Exception):
    """The browser refused a command, or a script raised."""


class Firefox:
    """One tab. Errors of its scripts are in ``errors``."""

    def __init__(self, connection: WebSocket) -> None:
        self._connection, self._numbers = connection, itertools.count()
        self.errors: list[str] = []
        self.send("session.new", capabilities={})
        self.send("session.subscribe", events=["log.entryAdded"])
        self._tab = self.send("browsingContext.getTree")["contexts"][0]["context"]

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a command and return its result.

        Raises:
            FirefoxError: the browser refused it.
        """
        number = next(self._numbers)
        self._connection.send(json.dumps({"id": number, "method": method, "params": parameters}))
        while True:
            answer = json.loads(self._connection.recv())
            if answer.get("method") == "log.entryAdded" and answer["params"]["level"] == "error":
                self.errors.append(answer["params"]["text"])
            if answer.get("id") == number:
                if answer["type"] == "error":
                    raise FirefoxError(answer["message"])
                result: dict[str, Any] = answer["result"]
                return result

    def open(self, address: str) -> None:
        """Load a page."""
        self.send("browsingContext.navigate", context=self._tab, url=address, wait="complete")

    def resize(self, width: int, height: int) -> None:
        """Change the size of the tab in pixels."""
        self.send("browsingContext.setViewport", context=self._tab, viewport={"width": width, "height": height})

    def set_cookie(self, name: str, value: str, path: str) -> None:
        """Keep a cookie of this machine."""
        cookie = {"name": name, "value": {"type": "string", "value": value}, "domain": "127.0.0.1", "path": path}
        self.send("storage.setCookie", cookie=cookie)

    def run(self, script: str) -> Any:
        """Return the value of an expression, which may be a promise, as JSON has it.

        Raises:
            FirefoxError: it raised.
        """
        expression = f"Promise.resolve({script}).then((value) => JSON.stringify(value ?? null))"
        found = self.send(
            "script.evaluate",
            expression=expression,
            target={"context": self._tab},
            awaitPromise=True,
            userActivation=True,
        )
        if found["type"] == "exception":
            raise FirefoxError(found["exceptionDetails"]["text"])
        return json.loads(found["result"]["value"])

    def click(self, selector: str) -> None:
        """Click an element as a person does, in its middle."""
        box = f"(({{ x, y, width, height }}) => [x + width / 2, y + height / 2])(({selector}).getBoundingClientRect())"
        x, y = (round(number) for number in self.run(box))
        moves = [{"type": "pointerMove", "x": x, "y": y}, {"type": "pointerDown", "button": 0}]
        actions = [{"type": "pointer", "id": "mouse", "actions": [*moves, {"type": "pointerUp", "button": 0}]}]
        self.send("input.performActions", context=self._tab, actions=actions)


@contextlib.contextmanager
def firefox() -> Iterator[Firefox]:
    """Run Firefox without a window and with an empty profile."""
    program = require("firefox-esr")
    with tempfile.TemporaryDirectory(prefix="firefox-", ignore_cleanup_errors=True) as profile:
        command = [program, "--headless", "--no-remote", "--profile", profile, "--remote-debugging-port", "0"]
        with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as process:
            try:
                assert process.stderr is not None
                found = next(filter(None, map(LISTENS.search, process.stderr)))
                address = f"{found[1]}/session"
                connection = create_connection(address, timeout=ANSWERS_WITHIN_SECONDS, suppress_origin=True)
                with contextlib.closing(connection):
                    yield Firefox(connection)
            finally:
                process.send_signal(signal.SIGTERM)
                process.wait(30)
