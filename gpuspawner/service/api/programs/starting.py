"""A start by a program: the service asks for the GPUs, and starts the server in the hub once they are granted.

It starts it by the right that it has for those whose place came while they were away (``servers``), and only for who
asks: a program of theirs needs no right in the hub at all. The hub's own limits hold as for any start.
"""

from __future__ import annotations

import json
import uuid
from typing import Any

from tornado.web import HTTPError

from gpuspawner.core.errors import Conflict
from gpuspawner.core.leases.lease import WAITING, Key
from gpuspawner.service.api.base import Person
from gpuspawner.service.api.rest import route
from gpuspawner.service.engine.allocator import StartRequest
from gpuspawner.service.rules.server_names import read_server
from gpuspawner.service.start.options import StartBody
from gpuspawner.service.store.idempotency import set_about
from gpuspawner.service.workspaces.api import Workspaces as Listed
from gpuspawner.service.workspaces.models import Workspace
from gpuspawner.service.workspaces.presenter import lease_view


class Workspaces(Listed):
    """Workspaces: one's own, or those of all for administrators."""

    @route(answer=Workspace, status=202, body=StartBody)
    async def post(self) -> None:
        """Ask for a workspace of one's own, which starts as soon as it has its GPUs.

        It answers at once: whether it waits, and where, is in the answer, and asked for again there. What runs already
        is a conflict; what waits for the same is answered as it is.
        """
        person = self._starter()
        options = self.body()
        server = await read_server(self.parts, person.name, options.pop("server", ""))
        parts, key = self.parts, Key(*person.owner, server)
        groups = await parts.members.now(person.name, person.owner)
        request = await parts.allocator.asking.request_of(key, person.name, options, groups)
        lease = parts.registry.of_key(key)
        if lease is not None and lease.phase in WAITING and lease.request == request:
            self.answer(lease_view(parts, lease), 202)
            return
        if lease is not None:
            called = f"called {server}" if server else "without a name"
            raise Conflict(
                f"You have a workspace {called} already ({lease.id[:8]}): open or stop it, or name another one."
            )
        name = uuid.uuid4().hex
        ask = StartRequest(
            key, person.name, request, options, uuid.uuid4().hex, "", unattended=True, where=self.where, lease_id=name
        )
        set_about(name)
        self.answer(lease_view(parts, await parts.allocator.acquire(ask)), 202)

    async def replay(self, about: str) -> None:
        """Answer the workspace that a repeated request asked for before, as it is now."""
        self.send(202, json.dumps(lease_view(self.parts, await self.own(about))))

    def _starter(self) -> Person:
        person = self.must()
        if person.lease is not None or not person.owner.user_created:
            raise HTTPError(403, reason="Only a user of the hub, by a token of theirs, starts a workspace.")
        return person


ROUTES: list[Any] = [(r"/api/v1/workspaces", Workspaces)]
