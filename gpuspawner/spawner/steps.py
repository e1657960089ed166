"""The steps of one start, for its progress page."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any


class Steps:
    """What one start told so far, as the hub's progress page takes it. ``over`` once it tells no more."""

    def __init__(self) -> None:
        """Begin with nothing told."""
        self.told: list[dict[str, Any]] = []
        self.over = False
        self._changed = asyncio.Event()

    def tell(self, progress: int, message: str, html: str = "", stop: str = "") -> None:
        """Add a step, unless it repeats the last one. ``progress`` is in percent; the bar never goes back.

        ``html`` is the message with links, where it has any; ``stop`` the lease of a workspace of the same user for
        which the start waits, and which the page offers to stop.
        """
        if self.told and self.told[-1]["message"] == message:
            return
        reached = self.told[-1]["progress"] if self.told else 0
        more = {key: value for key, value in {"html_message": html, "stop": stop}.items() if value}
        self.told.append({"progress": max(progress, reached), "message": message, **more})
        self._wake()

    def end(self) -> None:
        """Let everybody who follows go, once they have heard all."""
        self.over = True
        self._wake()

    async def follow(self) -> AsyncIterator[dict[str, Any]]:
        """Yield every step, those before the listener came included, until the start is over."""
        seen = 0
        while True:
            while seen < len(self.told):
                yield dict(self.told[seen])  # the hub takes keys out of what it is given
                seen += 1
            if self.over:
                return
            await self._changed.wait()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
