"""Routes for the spawner (acquire, wait, acknowledge, heartbeat and release) and for a scheduler that owns the queue.

The spawner proves that it knows the shared secret. A hub token is never enough. The scheduler signs its callback.
"""

from __future__ import annotations

import json
import logging
from dataclasses import asdict
from hashlib import sha256
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from tornado.web import HTTPError, RequestHandler

from gpuspawner.core.authentication import DIGEST_HEADER, digest
from gpuspawner.core.errors import Unavailable
from gpuspawner.core.gpus.placement import interchangeable_kinds
from gpuspawner.core.leases.lease import WAITING, Key, Lease
from gpuspawner.core.leases.reports import OUTCOMES
from gpuspawner.core.queue.snapshot import end_at
from gpuspawner.schedulers.http.scheduler import HttpScheduler
from gpuspawner.service.api.base import ApiHandler, is_spawner
from gpuspawner.service.engine.allocation.start_attempts import StartRequest
from gpuspawner.service.engine.lease_documents import lease_variables
from gpuspawner.service.parts import Parts
from gpuspawner.service.workspaces.notice_file import notice_variables
from gpuspawner.service.workspaces.presenter import present_workspace

log = logging.getLogger("gpuspawner")

LONGEST_WAIT_SECONDS = 10.0
OTHER_HUB = (
    "The hub has the id {asks}, and this GPU service is for {own}: nothing is started. Give configure() and gpuspawner "
    "serve the same hub id."
)


class KeyBody(BaseModel):
    """The workspace that a request of the spawner is about."""

    model_config = ConfigDict(extra="forbid", strict=True)

    hub: str
    user_created: str
    server: str

    def key(self) -> Key:
        """Return the key of its lease."""
        return Key(self.hub, self.user_created, self.server)


class AcquireBody(KeyBody):
    """A request for a lease, sent by the spawner."""

    user: str
    options: dict[str, Any]
    start_id: str
    boot_id: str
    by: str = ""


class StopperBody(KeyBody):
    """The user who stopped a server through the hub, sent by the hub."""

    by: str = Field(min_length=1, max_length=255)


BodyT = TypeVar("BodyT", bound=KeyBody)


class SpawnerHandler(ApiHandler):
    """A handler for the spawner of this hub alone. The hub is not asked, because it may be booting."""

    async def prepare(self) -> None:
        """Check the proof in the headers, and that it belongs to this request."""
        request = self.request
        asked = digest(str(request.method), str(request.uri), request.body)
        if not is_spawner(self.parts.secret, request.headers) or request.headers[DIGEST_HEADER] != asked:
            raise HTTPError(403, reason="Only the hub's spawner may ask this.")
        if why := self.parts.signed_requests.refuse(request.headers, self.parts.clock.wall()):
            raise HTTPError(403, reason=why)

    def attempt(self) -> int:
        """Return the attempt that the request names."""
        return int(self.number("attempt", int))

    def understood(self, model: type[BodyT]) -> BodyT:
        """Return the request's body as a model. Raises 400 if it does not fit."""
        try:
            return model.model_validate(self.fields(*model.model_fields))
        except ValidationError as error:
            raise HTTPError(400, reason="The spawner's request is not understood: is its version the same?") from error

    def number(self, name: str, read: type[float], default: str | None = None) -> float:
        """Return a number that the request names."""
        text = self.get_argument(name) if default is None else self.get_argument(name, default)
        try:
            return read(text)
        except ValueError as error:
            raise HTTPError(400, reason=f"{name} is not a number.") from error

    def view(self, lease: Lease) -> dict[str, Any]:
        """Return the lease and its start attempt as the spawner reads them."""
        return {"lease": present_workspace(self.parts, lease).as_json(), "attempt": lease.attempt}


class Acquire(SpawnerHandler):
    """POST: acquire the lease of a start. The service validates the options, as for every other way to start."""

    async def post(self) -> None:
        """Answer the lease, or 4xx if the request is refused. 409 while an earlier workspace of the key still ends.

        503 while the hub does not return the groups of the user, or if its id differs from the service's. 410 if the
        user has left the group that the request needs.
        """
        body = self.understood(AcquireBody)
        if body.hub != self.parts.hub_id:
            words = OTHER_HUB.format(asks=body.hub[:40], own=self.parts.hub_id)
            log.error(words)
            raise Unavailable(words)
        groups = await self.parts.members.fetch(body.user, body.key().owner)
        asking = self.parts.allocator.resolver
        request = await asking.request_of(body.key(), body.user, body.options, groups, start_id=body.start_id)
        ask = StartRequest(body.key(), body.user, request, body.options, body.start_id, body.boot_id, body.by)
        self.answer(self.view(await self.parts.attempts.acquire(ask)))


class Wait(SpawnerHandler):
    """GET ?attempt=&seconds=: record a heartbeat, and answer at the next change of the lease or after the timeout."""

    async def get(self, lease_id: str) -> None:
        """Answer the lease as soon as it is granted or its place changes."""
        attempts, attempt = self.parts.attempts, self.attempt()
        lease = await attempts.hear(lease_id, attempt)
        known = self.get_argument("known", "")
        longest = min(LONGEST_WAIT_SECONDS, self.number("seconds", float, default=str(LONGEST_WAIT_SECONDS)))
        until = self.parts.clock.now() + longest
        while lease.phase in WAITING and self.parts.clock.now() < until:
            if str(self.parts.queue.place(lease).number or "") != known:
                break
            left_seconds = until - self.parts.clock.now()
            await self.parts.registry.wait_for_change(min(left_seconds, self.parts.queue.due_seconds(lease)))
            lease = await attempts.current(lease_id, attempt)
        self.answer(self.view(lease))


class Acknowledge(SpawnerHandler):
    """POST ?attempt=: the spawner takes the grant. Leftovers of earlier attempts are ended first."""

    async def post(self, lease_id: str) -> None:
        """Answer the request and the patch that make the workspace. 409 while leftovers still end.

        503 and 410 as for :class:`Acquire`.
        """
        self.fields()
        attempts, attempt = self.parts.attempts, self.attempt()
        lease = await attempts.hear(lease_id, attempt)
        if not await self.parts.engine.effects.end_older_attempts(lease):
            self.answer({"error": {"message": "Leftovers of an earlier start are still ending."}}, 409)
            return
        groups = await self.parts.members.fetch(lease.user, lease.key.owner)
        await self.parts.allocator.resolver.require_allowed(await attempts.current(lease_id, attempt), groups)
        lease, token = await attempts.acknowledge(lease_id, attempt)
        catalog = self.parts.catalog
        instead = interchangeable_kinds(lease, catalog.gpus, catalog.rules.quotas)
        off = self.parts.restrictions.drained_nodes(end_at(lease, self.parts.clock.now()))
        patch = self.parts.scheduler.patch(lease, off, instead)
        variables = {
            **patch.get("environment", {}),
            **lease_variables(lease, self.parts.secret),
            **_gpu_variables(lease),
            **notice_variables(lease.key.server),
            "GPUSPAWNER_WORKSPACE_TOKEN": token,
            "GPUSPAWNER_SERVICE_URL": self.parts.public_url,
        }
        patch = {**patch, "environment": variables}
        self.answer({**self.view(lease), "patch": patch, "request": asdict(lease.request)})


def _gpu_variables(lease: Lease) -> dict[str, str]:
    """Return the environment variables with the granted and the requested GPU kind."""
    kinds = {"GPUSPAWNER_GPU_KIND": lease.kind, "GPUSPAWNER_GPU_ASKED": lease.request.gpu}
    return {name: kind for name, kind in kinds.items() if kind is not None}


class Report(SpawnerHandler):
    """POST ?attempt=: ``heartbeat``: the start is still under way. ``park``: the spawner stops waiting."""

    async def post(self, lease_id: str, what: str) -> None:
        """Answer the lease. 409 if this start is over. A parked lease is reserved if it was just granted."""
        self.fields()
        attempts = self.parts.attempts
        receive = attempts.hear if what == "heartbeat" else attempts.park
        self.answer(self.view(await receive(lease_id, self.attempt())))


class Requeue(SpawnerHandler):
    """POST ?attempt=: the backend has no room for the granted GPUs. Nothing of the attempt is left there."""

    async def post(self, lease_id: str) -> None:
        """Answer the lease, which is at its old queue position again. 410 if this attempt is over."""
        body = self.fields("why", "node")
        why, node = (str(body.get(name, "")) for name in ("why", "node"))
        self.answer(self.view(await self.parts.attempts.requeue(lease_id, self.attempt(), why, node)))


class Release(SpawnerHandler):
    """POST ?attempt=&outcome=: how a start or a server ended."""

    async def post(self, lease_id: str) -> None:
        """Release the lease. Repeats and older attempts change nothing."""
        outcome = self.get_argument("outcome")
        if outcome not in OUTCOMES:
            raise HTTPError(400, reason=f"outcome is one of {', '.join(sorted(OUTCOMES))}.")
        body = self.fields("message", "output")
        message, output = (str(body.get(name, "")) for name in ("message", "output"))
        await self.parts.attempts.release(lease_id, self.attempt(), outcome, message, output)
        self.answer({})


class Forget(SpawnerHandler):
    """POST: the hub deletes a server, or its user."""

    async def post(self) -> None:
        """Withdraw the request that may wait in the queue."""
        await self.parts.attempts.forget(self.understood(KeyBody).key())
        self.answer({})


class Stopper(SpawnerHandler):
    """POST: the user who stopped a server through the hub."""

    async def post(self) -> None:
        """Record the user, also before the lease has ended."""
        body = self.understood(StopperBody)
        await self.parts.allocator.stoppers.name(body.key(), body.by)
        self.answer({})


class Added(SpawnerHandler):
    """POST: the entries that custom resources add to the catalog. The hub checks its starts by them too."""

    async def post(self) -> None:
        """Answer the entries and their version. If the hub knows that version, answer the version alone."""
        added = [asdict(one) for one in self.parts.in_force.used]
        version = sha256(json.dumps(added, sort_keys=True).encode()).hexdigest()
        known = self.fields("known").get("known")
        self.answer({"version": version, "added": None if known == version else added})


CALLBACK_PATH = "/scheduler/changed"


class Changed(RequestHandler):
    """POST: the scheduler says that something changed. The service then asks it, and uses only that answer."""

    def initialize(self, parts: Parts) -> None:
        """Keep the service's parts."""
        self.parts = parts

    def check_xsrf_cookie(self) -> None:
        """Accept the request without a cookie. Its signature proves it."""

    async def post(self) -> None:
        """Answer 204 for a signed, new request, and 401 for any other."""
        scheduler = self.parts.scheduler
        if not isinstance(scheduler, HttpScheduler) or not scheduler.callback_url:
            self.refuse(404, "not_found", "No scheduler sends callbacks here: the catalog's scheduler names none.")
            return
        headers = self.request.headers
        signed, delivery = headers.get("X-Signature", ""), headers.get("X-Delivery", "")
        try:
            why = await scheduler.why_refused(signed, delivery, self.request.body)
        except Unavailable as error:
            self.refuse(503, "unavailable", str(error))
            return
        if why:
            self.refuse(401, "unauthorized", why)
            return
        scheduler.receive_callback()
        self.set_status(204)

    def refuse(self, status: int, code: str, words: str) -> None:
        """Answer an error in the form of the scheduler's API."""
        self.set_status(status)
        self.finish({"error": code, "words": words})


ROUTES = [
    (r"/internal/added", Added),
    (r"/internal/acquire", Acquire),
    (r"/internal/forget", Forget),
    (r"/internal/stopper", Stopper),
    (r"/internal/leases/([^/]+)", Wait),
    (r"/internal/leases/([^/]+)/acknowledge", Acknowledge),
    (r"/internal/leases/([^/]+)/(heartbeat|park)", Report),
    (r"/internal/leases/([^/]+)/release", Release),
    (r"/internal/leases/([^/]+)/requeue", Requeue),
    (CALLBACK_PATH, Changed),
]
