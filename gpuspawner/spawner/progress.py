"""The progress of a start, and how a start is refused or fails: sentences for its user."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import AsyncIterator
from html import escape
from typing import Any

from tornado.log import app_log
from tornado.web import HTTPError


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


try:
    from jupyterhub.spawner import SpawnException
except ImportError:  # JupyterHub 5.x
    SpawnException = None


if SpawnException is None:

    class StartEnded(HTTPError):
        """A start that ended with a reason for its user: on 5.x a 4xx, told by JupyterHub from these attributes."""

        def __init__(self, message: str, *, reason: str, status: int, message_html: str = "") -> None:
            """Tell ``message``; ``message_html`` may hold links."""
            super().__init__(status, message.replace("%", "%%"))
            self.gpu_reason = reason
            self.jupyterhub_message = message
            self.jupyterhub_html_message = message_html or escape(message)

else:

    class StartEnded(SpawnException):  # type: ignore[no-redef]
        """A start that ended with a reason for its user: on 6.x no failure of the hub's.

        JupyterHub 6.1.1 shows the two jupyterhub_ attributes, which its own SpawnException does not set.
        """

        def __init__(self, message: str, *, reason: str, status: int, message_html: str = "") -> None:
            """Tell ``message``; ``message_html`` may hold links."""
            html = message_html or escape(message)
            super().__init__(message, reason=reason, message_html=html, status_code=status)
            self.jupyterhub_message = message
            self.jupyterhub_html_message = html


class OneLineRefusals(logging.Filter):
    """Makes the hub log a start that ended with a reason in one line, and as an error only where it is one.

    By itself the hub adds a traceback, and calls each an error: also a place in the queue, or a bad value.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Put the reason in the traceback's place; what its user is told with a 4xx is information."""
        error = record.exc_info[1] if record.exc_info else sys.exc_info()[1]
        if not isinstance(error, StartEnded):
            return True
        if record.exc_info:
            record.msg, record.args, record.exc_info = f"{record.getMessage()}: {error}", (), None
        if error.status_code < 500 and record.levelno > logging.INFO:  # noqa: PLR2004 - HTTP's own number
            record.levelno, record.levelname = logging.INFO, logging.getLevelName(logging.INFO)
        return True


one_line_refusals = OneLineRefusals()


def log_in_one_line(log: logging.Logger) -> None:
    """Have ``log``, the hub's, tell refusals so; and Tornado's, by which the hub tells that it does not start a server.

    That one passes its records on, which no filter of the hub's own log sees.
    """
    for one in (log, app_log):
        one.addFilter(one_line_refusals)


def ended_start(message: str, *, reason: str, status: int, link: str = "", link_text: str = "") -> Any:
    """Return the error of a start that ended; with a link, pages show it behind the message."""
    html = linked(message, link, link_text) if link else escape(message)
    return StartEnded(message, reason=reason, status=status, message_html=html)


def linked(message: str, link: str, link_text: str) -> str:
    """Return a message with a link behind it, as HTML."""
    return f'{escape(message)} <a href="{escape(link)}">{escape(link_text)}</a>'
