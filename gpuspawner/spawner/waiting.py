"""The start of a server as its user sees it: its steps, the wait for its lease, and how it is refused or fails."""

from __future__ import annotations

import asyncio
import logging
import sys
import time
import uuid
from collections.abc import AsyncIterator, Mapping
from html import escape
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from tornado.log import app_log
from tornado.web import HTTPError

from gpuspawner.core.errors import Conflict, Gone, GpuspawnerError, RequestRefused, Unavailable
from gpuspawner.core.leases.request import Request


class Steps:
    """The steps of one start for the hub's progress page. ``over``: no more steps will come."""

    def __init__(self) -> None:
        """Begin without a step."""
        self.shown: list[dict[str, Any]] = []
        self.over = False
        self._changed = asyncio.Event()

    def add(self, progress: int, message: str, html: str = "", stop: str = "") -> None:
        """Add a step unless it repeats the last step. ``progress`` is in percent and never decreases.

        ``html`` is the message with links, if it has any. ``stop`` is the lease of a workspace of the same user that
        this start waits for. The page offers to stop it.
        """
        if self.shown and self.shown[-1]["message"] == message:
            return
        reached = self.shown[-1]["progress"] if self.shown else 0
        more = {key: value for key, value in {"html_message": html, "stop": stop}.items() if value}
        self.shown.append({"progress": max(progress, reached), "message": message, **more})
        self._wake()

    def end(self) -> None:
        """End all listeners after their last step."""
        self.over = True
        self._wake()

    async def follow(self) -> AsyncIterator[dict[str, Any]]:
        """Yield every step, including earlier steps, until the start is over."""
        seen = 0
        while True:
            while seen < len(self.shown):
                yield dict(self.shown[seen])  # the hub removes keys from it
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

_Ended: Any = SpawnException or HTTPError


class StartEnded(_Ended):
    """A start that ended with a reason for its user. JupyterHub shows the message from the two jupyterhub_ attributes.

    On JupyterHub 6.x it is no failure of the hub, and 6.1.1 does not set these attributes itself. On 5.x it is a 4xx.
    """

    def __init__(self, message: str, *, reason: str, status: int, link: str = "", link_text: str = "") -> None:
        """Show ``message``. With a link, pages show the link after it."""
        html = linked(message, link, link_text) if link else escape(message)
        if SpawnException is None:
            super().__init__(status, message.replace("%", "%%"))
        else:
            super().__init__(message, reason=reason, message_html=html, status_code=status)
        self.jupyterhub_message = message
        self.jupyterhub_html_message = html


def explain_failure(spawner: GPUSpawnerMixin, error: Exception) -> StartEnded | None:
    """Return what a failed start tells its user, None if the error itself is written for users.

    The words of the class below, for example Docker's own, go into the log.

    Args:
        spawner: the spawner whose start failed.
        error: what its start raised.
    """
    if isinstance(error, (HTTPError, GpuspawnerError)) or hasattr(error, "jupyterhub_message"):
        return None
    spawner.log.error("The start of %s failed", spawner._log_name, exc_info=error)
    below = next(one for one in type(spawner).__mro__ if not hasattr(one, "gpu_service_url"))
    message = (
        f"The hub tried to start your server by {below.__name__}, and that failed. Start it again in some minutes. If "
        "it fails again, tell your administrator. The log of the hub has the cause."
    )
    return StartEnded(message, reason="error", status=503)


class OneLineRefusals(logging.Filter):
    """Makes the hub log a start that ended with a reason in one line, and as an error only for a real failure.

    JupyterHub itself adds a traceback and logs an error even for a place in the queue or an invalid value.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Replace the traceback by the reason. A 4xx is logged as information."""
        error = record.exc_info[1] if record.exc_info else sys.exc_info()[1]
        if error is None:  # JupyterHub 5 asks for a traceback after the exception was handled: there is none
            record.exc_info = None
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


def linked(message: str, link: str, link_text: str) -> str:
    """Return a message with a link after it, as HTML."""
    return f'{escape(message)} <a href="{escape(link)}">{escape(link_text)}</a>'


if TYPE_CHECKING:
    from gpuspawner.spawner.mixin import GPUSpawnerMixin

HEARTBEAT_SECONDS = 10.0
RETRY_SECONDS = 1.0
AWAY_SECONDS = 10.0
"""If the service is away for this time, a request without a GPU starts without a lease, and is adopted later."""
WITHOUT_GPU = {"environment": {"CUDA_VISIBLE_DEVICES": "", "NVIDIA_VISIBLE_DEVICES": "void"}}
WAITING = frozenset({"queued", "parked"})


class GrantWait:
    """The wait of one start. Each call to the service may be repeated."""

    def __init__(self, spawner: GPUSpawnerMixin) -> None:
        """Begin to wait, until ``waits_until`` of the start."""
        self._spawner, self._client = spawner, spawner._gpu_client()
        self._begun = time.monotonic()
        self._answer: dict[str, Any] | None = None
        self._trouble: Conflict | Unavailable | None = None
        self._may_stay = True
        """Whether the start takes a grant that comes at the last moment. It tries once."""

    async def run(self) -> None:
        """Acquire, wait and acknowledge. Park when the time is over.

        Raises:
            StartEnded: The request was refused or withdrawn, or waits in the queue without this start.
        """
        spawner = self._spawner
        spawner._gpu_step(5, "Asking for a GPU" if spawner._gpu_asks_for_gpu() else "Asking for a place")
        spawner._gpu_change(is_asked=True)
        ask = {
            **spawner._gpu_key(),
            "user": spawner.user.name,
            "by": spawner.gpu_actor(),
            "options": spawner.user_options or {},
            "start_id": uuid.uuid4().hex,
            "boot_id": spawner.gpu_boot_id,
        }
        while not await self._is_granted(ask):
            if time.monotonic() >= spawner._gpu_attempt.waits_until:
                await self._park()
                self._may_stay = False

    async def _is_granted(self, ask: Mapping[str, Any]) -> bool:
        """Ask the service once. Return whether the server may be made now."""
        spawner = self._spawner
        try:
            answer = self._answer = await self._next_answer(ask)
            self._spawner._gpu_change(lease=answer["lease"]["id"], number=answer["attempt"])
            if answer["lease"]["phase"] in WAITING:
                spawner._gpu_step(20, answer["lease"]["queue"]["sentence"])
                return False
            answer = self._answer = await self._client.acknowledge(*spawner._gpu_attempt.key)
            self._grant(Request.from_json(answer["request"]), answer["patch"])
            spawner._gpu_step(50, f"{answer['lease']['words']}.")
        except RequestRefused as error:
            self._spawner._gpu_change(outcome="cancelled", is_asked=False)
            raise StartEnded(str(error), reason="refused", status=error.status) from error
        except Gone as error:
            raise self._withdrawn(error) from error
        except Conflict as error:
            spawner._gpu_step(15, str(error))
            self._answer, self._trouble = None, error
            await asyncio.sleep(RETRY_SECONDS)
            return False
        except Unavailable as error:
            return await self._starts_without(error)
        return True

    async def _next_answer(self, ask: Mapping[str, Any]) -> dict[str, Any]:
        if self._answer is None:
            return await self._client.acquire(ask)
        attempt, queue = self._spawner._gpu_attempt, self._answer["lease"]["queue"]
        known_place = None if queue is None else queue["place"]
        return await self._client.wait(*attempt.key, known_place, attempt.waits_until - time.monotonic())

    def _grant(self, request: Request, patch: Mapping[str, Any]) -> None:
        self._spawner._gpu_attempt = self._spawner._gpu_attempt.granted(request, patch, time.monotonic())

    async def _starts_without(self, error: Unavailable) -> bool:
        """Return whether the start continues although the service does not answer. If not, wait a moment."""
        spawner, is_away = self._spawner, time.monotonic() - self._begun >= AWAY_SECONDS
        if is_away and not spawner._gpu_asks_for_gpu() and not spawner._gpu_attempt.lease:
            spawner._gpu_step(50, f"{error} Starting without it, and without a GPU.")
            self._grant(spawner._gpu_current_request(), WITHOUT_GPU)
            return True
        spawner._gpu_step(10, f"{error} This start tries again; your place, if you had one, stays.")
        self._trouble = error
        await asyncio.sleep(RETRY_SECONDS)
        return False

    def _withdrawn(self, error: Gone) -> Any:
        self._spawner._gpu_change(outcome="gone")
        return StartEnded(str(error), reason="withdrawn", status=409)

    async def _park(self) -> None:
        """End a start whose time to wait is over. Its place is kept, and the message says where it is shown.

        Return only if the place has just been granted and the grant may be taken.
        """
        spawner, answer, trouble = self._spawner, self._answer, self._trouble
        if answer is None:
            self._spawner._gpu_change(outcome="parked")
            if isinstance(trouble, Conflict):
                still = str(trouble).partition(";")[0].rstrip(".")
                raise StartEnded(f"{still}. Press Start again in some minutes.", reason="ending", status=409)
            message = f"{trouble} Nothing was started: press Start again in some minutes."
            raise StartEnded(message, reason="unavailable", status=503)
        try:
            parked = await self._client.park(*spawner._gpu_attempt.key)
            if parked["lease"]["phase"] not in WAITING and self._may_stay:
                return
            answer = parked
        except Gone as error:
            raise self._withdrawn(error) from error
        except (Conflict, RequestRefused, Unavailable) as error:
            spawner.log.warning("The place of %s may not be parked: %s", spawner._log_name, error)
        self._spawner._gpu_change(outcome="parked")
        queue = answer["lease"]["queue"] or {}
        kept = f"{trouble or ''} Your place in the queue stays.".lstrip()
        message = f"{queue.get('sentence', kept)} It starts by itself."
        raise StartEnded(message, reason="queued", status=409, link=answer["lease"]["page"], link_text="See your place")


async def send_heartbeats(spawner: GPUSpawnerMixin) -> None:
    """Send heartbeats while the hub holds the start pending: a server may need long to answer after start()."""
    client = spawner._gpu_client()
    while True:
        await asyncio.sleep(HEARTBEAT_SECONDS)
        if spawner.pending != "spawn":
            return
        try:
            await client.heartbeat(*spawner._gpu_attempt.key)
            spawner._gpu_change(heard_at=time.monotonic())
        except Conflict as error:
            spawner.log.warning("This start of %s is over: %s", spawner._log_name, error)
            return
        except (Unavailable, RequestRefused) as error:
            spawner.log.warning("A heartbeat of %s was not acknowledged: %s", spawner._log_name, error)
