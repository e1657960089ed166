"""A user's workspaces that are to be ready at a time of some weekdays."""

from __future__ import annotations

from typing import Any

from tornado.web import HTTPError

from gpuspawner.core.leases.lease import Key
from gpuspawner.service.api.base import ApiHandler, Person
from gpuspawner.service.api.rest import route
from gpuspawner.service.api.rest.shapes import ready as shapes
from gpuspawner.service.ready import telling
from gpuspawner.service.rules.server_names import read_server
from gpuspawner.service.store.idempotency import set_answer


class ReadyHandler(ApiHandler):
    """For a user: neither a service nor a workspace has any."""

    def user(self) -> Person:
        """Return who asks. Raises 403 where that is no user."""
        person = self.must()
        if person.lease is not None or not person.owner.user_created:
            raise HTTPError(403, reason="Only a user of the hub, by a token of theirs, has workspaces made ready.")
        return person

    def missing(self, name: str) -> HTTPError:
        """Return the error of one that does not exist."""
        return HTTPError(404, reason=f"You have none with the id {name[:40]}. See gpuspawner schedule.")


class ReadyList(ReadyHandler):
    """One's own."""

    @route(answer=shapes.ReadyList)
    async def get(self) -> None:
        """Answer them, the oldest first."""
        self.answer({"ready": await telling.wishes_of(self.parts, self.user().owner), "most": telling.MOST})

    @route(answer=shapes.Ready, body=shapes.ReadyBody, status=201)
    async def post(self) -> None:
        """Have a workspace asked for on these days, early enough to be ready by then; a start's options are as ever."""
        person, said = self.user(), self.body()
        key = Key(*person.owner, await read_server(self.parts, person.name, said.pop("server", "")))
        one = await telling.make(self.parts, key, person.name, said, self.where)
        self.answer(await telling.wish_view(self.parts, person.owner, one), 201)


class OneReady(ReadyHandler):
    """One of one's own."""

    @route(answer=shapes.Ready, body=shapes.ReadyChange)
    async def post(self, name: str) -> None:
        """Pause it, resume it, or change when it is to be ready."""
        person, said = self.user(), self.fields("paused", "at", "on")
        one = await telling.change(self.parts, person.owner, person.name, name, said, self.where)
        if one is None:
            raise self.missing(name)
        self.answer(await telling.wish_view(self.parts, person.owner, one))

    @route(answer=shapes.Removed)
    async def delete(self, name: str) -> None:
        """Remove it, and answer its id. What was asked for by it goes on."""
        person = self.user()
        self.fields()
        set_answer({"id": name})
        if not await telling.remove(self.parts, person.owner, person.name, name, self.where):
            raise self.missing(name)
        self.answer({"id": name})


ROUTES: list[Any] = [(r"/api/v1/ready", ReadyList), (r"/api/v1/ready/([^/]+)", OneReady)]
