"""The progress of a start, and how a start is refused or fails: sentences for its user."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import AsyncIterator
from html import escape
from http import HTTPStatus
from typing import Any

from tornado.log import app_log
from tornado.web import HTTPError


class Steps:
    """The steps of one start for the hub's progress page. ``over``: there will be no more."""

    def __init__(self) -> None:
        """Begin without a step."""
        self.told: list[dict[str, Any]] = []
        self.over = False
        self._changed = asyncio.Event()

    def tell(self, progress: int, message: str, html: str = "", stop: str = "") -> None:
        """Add a step unless it repeats the last step. ``progress`` is in percent and never decreases.

        ``html`` is the message with links, if it has any. ``stop`` is the lease of a workspace of the same user that
        this start waits for. The page offers to stop it.
        """
        if self.told and self.told[-1]["message"] == message:
            return
        reached = self.told[-1]["progress"] if self.told else 0
        more = {key: value for key, value in {"html_message": html, "stop": stop}.items() if value}
        self.told.append({"progress": max(progress, reached), "message": message, **more})
        self._wake()

    def end(self) -> None:
        """End all listeners after their last step."""
        self.over = True
        self._wake()

    async def follow(self) -> AsyncIterator[dict[str, Any]]:
        """Yield every step, including earlier steps, until the start is over."""
        seen = 0
        while True:
            while seen < len(self.told):
                yield dict(self.told[seen])  # the hub removes keys from it
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
        """A start that ended with a reason for its user.

        On 5.x it is a 4xx, which JupyterHub shows from these attributes.
        """

        def __init__(self, message: str, *, reason: str, status: int, message_html: str = "") -> None:
            """Show ``message``. ``message_html`` may contain links."""
            super().__init__(status, message.replace("%", "%%"))
            self.gpu_reason = reason
            self.jupyterhub_message = message
            self.jupyterhub_html_message = message_html or escape(message)

else:

    class StartEnded(SpawnException):  # type: ignore[no-redef]
        """A start that ended with a reason for its user. On 6.x it is no failure of the hub.

        JupyterHub 6.1.1 shows the two jupyterhub_ attributes, which its own SpawnException does not set.
        """

        def __init__(self, message: str, *, reason: str, status: int, message_html: str = "") -> None:
            """Show ``message``. ``message_html`` may contain links."""
            html = message_html or escape(message)
            super().__init__(message, reason=reason, message_html=html, status_code=status)
            self.jupyterhub_message = message
            self.jupyterhub_html_message = html


class OneLineRefusals(logging.Filter):
    """Makes the hub log a start that ended with a reason in one line, and as an error only for a real failure.

    JupyterHub itself adds a traceback and logs an error even for a place in the queue or an invalid value.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Replace the traceback by the reason. A 4xx is logged as information."""
        error = record.exc_info[1] if record.exc_info else sys.exc_info()[1]
        if not isinstance(error, StartEnded):
            return True
        if record.exc_info:
            record.msg, record.args, record.exc_info = f"{record.getMessage()}: {error}", (), None
        if error.status_code < HTTPStatus.INTERNAL_SERVER_ERROR and record.levelno > logging.INFO:
            record.levelno, record.levelname = logging.INFO, logging.getLevelName(logging.INFO)
        return True


one_line_refusals = OneLineRefusals()


def log_in_one_line(log: logging.Logger) -> None:
    """Filter ``log``, the hub's, and Tornado's log, which reports that a server was not started.

    Tornado's log passes its records on, and filters of the hub's own log do not get them.
    """
    for one in (log, app_log):
        one.addFilter(one_line_refusals)


def ended_start(message: str, *, reason: str, status: int, link: str = "", link_text: str = "") -> Any:
    """Return the error of a start that ended. With a link, pages show the link after the message."""
    html = linked(message, link, link_text) if link else escape(message)
    return StartEnded(message, reason=reason, status=status, message_html=html)


def linked(message: str, link: str, link_text: str) -> str:
    """Return a message with a link after it, as HTML."""
    return f'{escape(message)} <a href="{escape(link)}">{escape(link_text)}</a>'
