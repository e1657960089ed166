"""The person who acts, from where, and under which idempotency key."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from tornado.web import HTTPError

from gpuspawner.catalog import Catalog, teams_of, visible
from gpuspawner.core.errors import Conflict, RequestRefused, Unavailable, quoted
from gpuspawner.core.events import ActionRefused, Event
from gpuspawner.core.gpus.fleet import catalog_kind_name
from gpuspawner.core.leases.lease import NOBODY, Lease, Owner
from gpuspawner.core.leases.reports import storable
from gpuspawner.core.queue.class_holds import HoldUser
from gpuspawner.service.api.base import Person
from gpuspawner.service.api.rest.models import Answer
from gpuspawner.service.parts import Parts
from gpuspawner.service.store import AuditLine
from gpuspawner.service.store.idempotency import drop_key, set_answer
from gpuspawner.service.web.inputs import InputContext
from gpuspawner.service.web.permissions import ALLOWED, Permission, Role

MAX_REFUSAL_LETTERS = 1000


@dataclass(frozen=True)
class Actor:
    """A signed-in person who uses an endpoint or a page.

    Args:
        state: the parts of the service.
        person: the person.
        origin: from where they act, in words, for the audit.
        idempotency_key: the key that the request was sent with, "" without one.
    """

    state: Parts
    person: Person
    origin: str
    idempotency_key: str = ""

    @property
    def roles(self) -> frozenset[Role]:
        """The roles that the person has."""
        if self.person.lease is not None:
            return frozenset({Role.WORKSPACE})
        role = Role.SERVICE if self.person.owner == NOBODY else Role.USER
        return frozenset({role, Role.ADMINISTRATOR} if self.person.admin else {role})

    @property
    def now(self) -> float:
        """The time, in seconds since the epoch."""
        return self.state.clock.now()

    def require(self, permission: Permission) -> None:
        """Raise 403 unless one of the actor's roles has the permission."""
        if not self.roles & ALLOWED[permission]:
            if Role.USER in ALLOWED[permission]:
                remedy = "Sign in to the hub, or send a user's token."
                raise HTTPError(403, reason=f"Only a user may {permission.value}. {remedy}")
            raise HTTPError(403, reason=f"Only administrators (scope custom:gpu:admin) {permission.value}.")

    def input_context(self) -> InputContext:
        """Return the state that the meaning of this actor's input depends on."""
        state = self.state
        kinds = tuple(
            dict.fromkeys(map(catalog_kind_name, state.scheduler.kinds))
        )  # a quota counts it in every cluster
        return InputContext(self.now, state.accounting.zone, kinds, teams_of(state.catalog.rules, None))

    def audit_entry(self, event: Event, user: str = "", target: str = "") -> AuditLine:
        """Return the audit entry of an act of this actor that concerns no single workspace."""
        return AuditLine(self.now, "", user, self.person.name, event, self.origin, target)

    def audit_entry_of(self, lease: Lease, event: Event) -> AuditLine:
        """Return the audit entry of an act of this actor on a workspace."""
        return self.state.allocator.commits.line(lease, self.person.name, event, self.origin)

    async def find_leases(self, ids: Sequence[str]) -> list[Lease]:
        """Return workspaces by their ids, in that order. Raises 404 if one does not exist."""
        found = [(name, await self.state.registry.find(name)) for name in ids]
        if unknown := [name[:40] for name, lease in found if lease is None]:
            words = ", ".join(unknown[:5])
            raise HTTPError(404, reason=f"There is no workspace with the id {words}. Nothing was done.")
        return [lease for _, lease in found if lease is not None]

    async def find_lease(self, name: str) -> Lease:
        """Return a workspace that the person may see and act on. Raises 404 for any other, and for none."""
        person, lease = self.person, await self.state.registry.find(name)
        may = lease is not None and (person.admin or person.owns(lease))
        if lease is None or not may or person.lease not in {None, name}:
            raise HTTPError(404, reason=f"You have no workspace with the id {name[:40]}.")
        return lease

    def sees_everybody(self, *, asked: bool) -> bool:
        """Return whether the workspaces of all users are ``asked`` for. Raises 403 without the permission."""
        if asked:
            self.require(Permission.SEE_ALL_USAGE)
        return asked

    async def groups(self) -> frozenset[str]:
        """Return the groups of the hub that the person is in. Raises Unavailable if the hub does not say."""
        return await self.state.members.lately(self.person.name, self.person.owner)

    async def groups_shown(self) -> frozenset[str]:
        """Return the groups that decide what the person sees: none while the hub does not say."""
        try:
            return await self.groups()
        except Unavailable:
            return frozenset()

    async def asker(self) -> HoldUser:
        """Return the person as far as GPUs are held for some."""
        groups = await self.groups_shown()
        return HoldUser(self.person.owner.user_created, groups, teams_of(self.state.catalog.rules, groups))

    async def visible_catalog(self) -> Catalog:
        """Return the part of the catalog that the person sees: for administrators all of it."""
        catalog = self.state.catalog
        return catalog if self.person.admin else visible(catalog, await self.groups_shown())

    def store_answer(self, answer: Answer) -> None:
        """Have the next write store the answer in its transaction, so that a repeated key gets this answer."""
        set_answer(answer.as_json())

    async def find_user(self, name: str) -> Owner:
        """Return the user of that name. Raises RequestRefused if the hub has no such user."""
        created = await self.state.hub.created(name) if name.isprintable() else None  # no half of a surrogate pair
        if created is None:
            raise RequestRefused("user", quoted(name), "users of the hub", "Name one as the hub does.")
        return Owner(self.state.hub_id, created)

    @asynccontextmanager
    async def auditing_refusals(self, act: str) -> AsyncIterator[None]:
        """Store an audit entry if the act is refused. ``act`` is its name, "" for a request that changes nothing."""
        try:
            yield
        except (Conflict, RequestRefused) as error:
            if act:
                drop_key()
                event = ActionRefused(act, storable(str(error))[:MAX_REFUSAL_LETTERS])
                await self.state.registry.save(audit=[self.audit_entry(event)])
            raise
