"""The reference scheduler as it lives: its machine moved on by a clock, and its news told."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from demo.scheduler import callbacks
from demo.scheduler.faults import Faults
from demo.scheduler.inventory import Inventory
from demo.scheduler.machine import Machine
from demo.scheduler.records import Refused, Settings

STEP_SECONDS = 0.5
SOON_SECONDS = 0.02
"""After a request it moves on so soon, once for all that came meanwhile."""
PAUSE = 4
"""The pause between two steps, as a multiple of a step's duration, so that requests get their time."""


@dataclass
class Server:
    """A machine that lives: with a clock, who waits for news, and where news is sent. ``token`` is "" for none."""

    inventory: Inventory
    settings: Settings = field(default_factory=Settings)
    token: str = ""
    clock: Callable[[], float] = time.time
    faults: Faults = field(default_factory=Faults)

    def __post_init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Start with nothing in memory, as after a crash."""
        self.machine = Machine(self.inventory, self.settings, self.clock(), secrets.token_hex(8))
        self.answered: OrderedDict[str, tuple[float, str, int, Any]] = OrderedDict()
        """By Idempotency-Key: when, the request's digest, and its answer."""
        self.urls: dict[str, str] = {}
        self.sent: dict[str, int] = {}
        self.news = asyncio.Event()
        self._soon: asyncio.TimerHandle | None = None
        self._took_seconds = 0.0
        self._sending: set[asyncio.Task[bool]] = set()

    async def live(self) -> None:
        """Move on, again and again."""
        while True:
            self.move_on()
            await asyncio.sleep(STEP_SECONDS)

    def move_on_soon(self) -> None:
        """Move on in a moment, once for all that asks for it."""
        if self._soon is None:
            delay = max(SOON_SECONDS, PAUSE * self._took_seconds)
            self._soon = asyncio.get_running_loop().call_later(delay, self.move_on)

    def move_on(self) -> None:
        """Decide what is to be decided now, and tell who waits for it."""
        self._soon = None
        before, begun = self.machine.change, time.perf_counter()
        self.machine.step(self.clock())
        if self.machine.change != before:
            self.news.set()
            self.news = asyncio.Event()
        for hub, url in self.urls.items():
            self._send(hub, url)
        self._took_seconds = time.perf_counter() - begun

    def _send(self, hub: str, url: str) -> None:
        cursor = f"{self.machine.boot}-{self.sent.get(hub, self.machine.change)}"
        with suppress(Refused):
            told, is_news = self.machine.since(hub, cursor)
            if is_news:
                fault = self.faults.take("callback")
                twice = fault is not None and fault.kind == "twice"
                task = asyncio.ensure_future(callbacks.send(url, self.token, hub, told["claims"], twice=twice))
                self._sending.add(task)
                task.add_done_callback(self._sending.discard)
        self.sent[hub] = self.machine.change
