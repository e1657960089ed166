"""The reference scheduler over HTTP: the contract's routes, a page that shows its queue, and faults for its tests."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import math
import time
from contextlib import suppress
from http import HTTPStatus
from pathlib import Path
from typing import Any

from tornado import web
from tornado.httpserver import HTTPServer

from demo.scheduler import callbacks, queue
from demo.scheduler.contract import MOST_BYTES, matches, parse
from demo.scheduler.faults import BEFORE, KINDS, Fault
from demo.scheduler.life import Server
from demo.scheduler.machine import Machine, check_parts
from demo.scheduler.records import Job, Refused, from_time

NAME, VERSION = "Reference scheduler", "1"
KEPT_KEYS = 20_000
KEPT_SECONDS = 600
MOST_WAIT_SECONDS = 60.0
HEARD_SECONDS = 10.0
"""How often a hub's long poll counts as contact."""


class Handler(web.RequestHandler):
    """Base of the contract's routes: token, faults and JSON."""

    def initialize(self, server: Server) -> None:
        """Take the server."""
        self.server = server
        self.fault: Fault | None = None

    @property
    def machine(self) -> Machine:
        """The current machine. A fault may replace it."""
        return self.server.machine

    async def prepare(self) -> None:
        """Ask for the token, and let a fault happen that comes before anything is done."""
        self.check_token()
        if self.request.path.startswith("/v1/"):
            self.fault = self.server.faults.take(f"{self.request.method} {self.request.path}")
        if self.fault is not None and self.fault.kind in BEFORE:
            if self.fault.kind == "slow":
                await asyncio.sleep(self.fault.seconds)
            else:
                self.fail(self.fault)
        for name in self.request.query_arguments:
            if name not in self.arguments_known():
                raise Refused(400, "bad_request", f"{name}: no such argument here.")

    def arguments_known(self) -> tuple[str, ...]:
        """Allowed query arguments."""
        return ()

    def check_token(self) -> None:
        """Refuse who does not know the token."""
        told = self.request.headers.get("Authorization", "")
        if self.server.token and not hmac.compare_digest(told.encode(), f"Bearer {self.server.token}".encode()):
            raise Refused(401, "unauthorized", "The bearer token is missing or wrong.")

    def fail(self, fault: Fault) -> None:
        """Answer 500, or nothing."""
        if fault.kind.startswith("cut"):
            self.detach().close()
            raise web.Finish
        raise Refused(500, "fault", "A fault that was asked for.")

    async def answer(self, document: Any, status: int = 200) -> None:
        """Send the answer, unless a fault comes after what was done."""
        self.server.move_on_soon()
        fault = self.fault
        if fault is not None and fault.kind in ("late", "error_after", "cut_after"):
            if fault.kind == "late":
                await asyncio.sleep(fault.seconds)
            else:
                self.fail(fault)
        self.set_status(status)
        if document is not None:
            self.set_header("Content-Type", "application/json")
            self.write(json.dumps(document))

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        """Send an error in the contract's format."""
        error = kwargs.get("exc_info", (None, None))[1]
        self.set_header("Content-Type", "application/json")
        if isinstance(error, Refused):
            self.set_status(error.status)
            self.finish(json.dumps({"error": error.error, "words": error.words}))
        else:
            phrase = HTTPStatus(status_code).phrase
            code = phrase.lower().replace(" ", "_").replace("-", "_")
            self.finish(json.dumps({"error": code, "words": f"{phrase}."}))

    def log_exception(self, *args: Any) -> None:
        """Leave out what was refused: it is no fault of this program."""
        if not isinstance(args[1], Refused):
            super().log_exception(*args)

    def names(self, hub: str, id: str = "x") -> None:  # noqa: A002 - as in the contract
        """Refuse invalid names."""
        for what, value in (("hub", hub), ("id", id)):
            if not matches("Name", value):
                raise Refused(400, "bad_request", f"{what}: letters, digits and ._~- only, at most 100 of them.")

    @property
    def times(self) -> int:
        """How often a request is carried out: twice by that fault."""
        return 2 if self.fault is not None and self.fault.kind == "twice" else 1


class Capabilities(Handler):
    """The scheduler's abilities."""

    async def get(self) -> None:
        """Answer what this scheduler can do."""
        settings = self.server.settings
        await self.answer(
            {
                "contract": "1.0",
                "name": NAME,
                "version": VERSION,
                "positions": True,
                "estimates": True,
                "substitutes": True,
                "preemption_notice_seconds": settings.notice_seconds,
                "hold_seconds": settings.hold_seconds,
                "callbacks": bool(self.server.token),
            }
        )


class Stock(Handler):
    """The GPUs of each kind."""

    async def get(self) -> None:
        """Answer it for each kind and cluster."""
        await self.answer(queue.stock(self.machine, self.server.clock()))


class Offers(Handler):
    """The dry run."""

    async def post(self) -> None:
        """Answer what a claim would get now."""
        asked = parse(self.request.body, "offers")
        check_parts(asked)
        await self.answer(queue.offers(self.machine, asked, self.server.clock()))


class Claims(Handler):
    """The claims of a hub."""

    def arguments_known(self) -> tuple[str, ...]:
        """Cursor and wait."""
        return ("cursor", "wait_seconds")

    async def get(self, hub: str) -> None:
        """Answer with all claims or the changed ones, and wait for a change."""
        self.names(hub)
        cursor = self.get_query_argument("cursor", None)
        if cursor is not None and not 0 < len(cursor) <= 200:  # noqa: PLR2004 - as in the contract
            raise Refused(400, "bad_request", "cursor: give the one of the answer before.")
        try:
            wait = float(self.get_query_argument("wait_seconds", "0"))
        except ValueError:
            wait = math.nan
        if not 0 <= wait <= MOST_WAIT_SECONDS:
            raise Refused(400, "bad_request", "wait_seconds: a number from 0 to 60.")
        until = time.monotonic() + wait
        self.machine.hear(hub, self.server.clock())
        told, is_news = self.machine.since(hub, cursor)
        while not is_news and (left := until - time.monotonic()) > 0:
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self.server.news.wait(), min(left, HEARD_SECONDS))
            self.machine.hear(hub, self.server.clock())
            told, is_news = self.machine.since(hub, cursor)
        if self.times > 1 and cursor is not None:
            told["cursor"] = cursor  # so that the same is told again
        await self.answer(told)


class Claim(Handler):
    """One claim."""

    async def put(self, hub: str, id: str) -> None:  # noqa: A002
        """Make or change it."""
        self.names(hub, id)
        asked = parse(self.request.body, "claim")
        key = self.request.headers.get("Idempotency-Key", "")
        if not 0 < len(key) <= 200 or not all("!" <= letter <= "~" for letter in key):  # noqa: PLR2004
            raise Refused(400, "bad_request", "Idempotency-Key: 1 to 200 letters without spaces name this request.")
        for _ in range(self.times):
            status, document = self._once(f"{hub} {key}", hub, id, asked)
        await self.answer(document, status)

    def _once(self, key: str, hub: str, id: str, asked: dict[str, Any]) -> tuple[int, Any]:  # noqa: A002
        """Do it, unless the same request was done before: then answer as then."""
        server, now = self.server, self.server.clock()
        digest = hashlib.sha256(json.dumps([hub, id, asked], sort_keys=True).encode()).hexdigest()
        while server.answered and (
            len(server.answered) > KEPT_KEYS or next(iter(server.answered.values()))[0] < now - KEPT_SECONDS
        ):
            server.answered.popitem(last=False)
        if key in server.answered:
            _, of, status, document = server.answered[key]
            if of != digest:
                raise Refused(422, "key_reused", "This Idempotency-Key was of another request. Choose a new one.")
            self.machine.hear(hub, now)
            return status, document
        status = 200
        try:
            document = self.machine.put(hub, id, asked, now)
        except Refused as error:
            if error.status != HTTPStatus.CONFLICT:
                raise
            status, document = error.status, {"error": error.error, "words": error.words}
        server.answered[key] = (now, digest, status, document)
        return status, document

    async def delete(self, hub: str, id: str) -> None:  # noqa: A002
        """Release it."""
        self.names(hub, id)
        for _ in range(self.times):
            self.machine.release(hub, id, self.server.clock())
        await self.answer(None, 204)


class Action(Handler):
    """Acts on one claim."""

    async def post(self, hub: str, id: str, action: str) -> None:  # noqa: A002
        """Confirm, extend, or acknowledge a preemption."""
        self.names(hub, id)
        now = self.server.clock()
        for _ in range(self.times):
            if action == "confirm":
                told = self.machine.confirm(hub, id, parse(self.request.body, "confirm")["revision"], now)
            elif action == "extend":
                told = self.machine.extend(hub, id, parse(self.request.body, "extend")["until"], now)
            else:
                told = self.machine.acknowledge(hub, id, now)
        await self.answer(told)


class Callback(Handler):
    """Where a hub's changes are sent."""

    async def put(self, hub: str) -> None:
        """Note the address."""
        self.names(hub)
        url = parse(self.request.body, "callback")["url"]
        if url is None:
            self.server.urls.pop(hub, None)
        elif not self.server.token:
            raise Refused(409, "no_callbacks", "Without a token there is nothing to sign with. Start it with one.")
        elif not callbacks.is_on_this_machine(url):
            raise Refused(409, "url_refused", "This scheduler sends to its own machine alone, as http://127.0.0.1:...")
        else:
            self.server.urls[hub] = url
            self.server.sent[hub] = self.machine.change
        await self.answer(None, 204)


class Admin(Handler):
    """For tests and demonstrations: training jobs, and faults."""

    async def post(self, what: str) -> None:
        """Submit or cancel a job, plan a fault, or forget all."""
        try:
            told = json.loads(self.request.body or "{}")
            if what == "jobs":
                job = Job(**{"priority": 10, "lasts_seconds": 90, "asked_at": self.server.clock(), **told})
                self.machine.submit(job)
            elif what == "cancel":
                self.machine.cancel(told["id"])
            elif what == "faults":
                fault = Fault(**told)
                self.server.faults.coming.append(fault)
                if fault.kind not in KINDS:
                    self.server.faults.coming.pop()
                    raise Refused(400, "bad_request", f"{fault.kind}: one of {', '.join(KINDS)}.")
            else:
                self.server.begin()
        except (TypeError, KeyError, ValueError) as error:
            raise Refused(400, "bad_request", f"{error}") from None
        await self.answer(None, 204)


class Page(web.RequestHandler):
    """The queue, for who looks: this machine's own users, where it listens there alone."""

    def initialize(self, server: Server) -> None:
        """Take the server."""
        self.server = server

    def get(self) -> None:
        """Show the current queue."""
        machine, now = self.server.machine, self.server.clock()
        self.set_header("Cache-Control", "no-store")
        self.set_header("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'")
        stock = queue.stock(machine, now)["stock"]
        self.render("page.html", machine=machine, now=now, stock=stock, name=NAME, clock=of_clock)


def of_clock(at: float | None) -> str:
    """Show a time of the day in UTC."""
    return (from_time(at) or "")[11:19] or "not known"


def application(server: Server) -> web.Application:
    """Return all routes."""
    claim = r"/v1/hubs/([^/]+)/claims/([^/]+)"
    routes: list[tuple[str, type[web.RequestHandler]]] = [
        (r"/v1/capabilities", Capabilities),
        (r"/v1/stock", Stock),
        (r"/v1/offers", Offers),
        (r"/v1/hubs/([^/]+)/claims", Claims),
        (claim, Claim),
        (claim + r"/(confirm|extend|preemption/acknowledge)", Action),
        (r"/v1/hubs/([^/]+)/callback", Callback),
        (r"/admin/(jobs|cancel|faults|forget)", Admin),
        (r"/", Page),
    ]
    given = {"server": server}
    return web.Application(
        [(path, handler, given) for path, handler in routes],
        default_handler_class=Unknown,
        default_handler_args=given,
        template_path=str(Path(__file__).parent),
    )


class Unknown(Handler):
    """Unknown routes."""

    async def prepare(self) -> None:
        """Say so."""
        self.check_token()
        raise Refused(404, "not_found", f"No route {self.request.path[:200]}. docs/scheduler.openapi.yaml has all.")


def listen(server: Server, port: int, address: str = "127.0.0.1") -> HTTPServer:
    """Serve on a port; requests are bounded before they are read."""
    http = HTTPServer(application(server), max_body_size=MOST_BYTES, max_header_size=MOST_BYTES)
    http.listen(port, address)
    return http
