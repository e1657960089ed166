"""The person who acts, from where, and under which idempotency key."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

from tornado.web import HTTPError

from gpuspawner.catalog import Catalog, teams_of, visible
from gpuspawner.core.errors import Conflict, RequestRefused, Unavailable, quoted
from gpuspawner.core.events import ActionRefused, Event
from gpuspawner.core.gpus.fleet import catalog_kind_name
from gpuspawner.core.leases.lease import Lease, Owner
from gpuspawner.core.leases.reports import storable
from gpuspawner.core.queue.class_holds import HoldUser
from gpuspawner.service.api.rest.models import Answer
from gpuspawner.service.parts import Parts
from gpuspawner.service.store import AuditLine
from gpuspawner.service.store.idempotency import drop_key, set_answer
from gpuspawner.service.store.rows import Whose
from gpuspawner.service.web.inputs import InputContext
from gpuspawner.service.web.permissions import ALLOWED, Permission, Person, Reach, Role, refusal_words

MAX_REFUSAL_LETTERS = 1000


@dataclass(frozen=True)
class Actor:
    """A signed-in person who uses an endpoint or a page.

    Args:
        state: the parts of the service.
        person: the person.
        origin: from where they act, in words, for the audit.
        idempotency_key: the key that the request was sent with, "" without one.
        role: the role that ``origin`` names.
    """

    state: Parts
    person: Person
    origin: str
    idempotency_key: str = ""
    role: Role | None = None

    @property
    def now(self) -> float:
        """The time, in seconds since the epoch."""
        return self.state.clock.now()

    def require(self, permission: Permission, reach: Reach = Reach.OWN) -> None:
        """Raise 403 unless one of the actor's roles has the permission and reaches as far."""
        if (self.person.reach(permission) or 0) < reach:
            raise HTTPError(403, reason=refusal_words(permission, reach))

    def acting_as(self, permission: Permission, *, of_others: bool = False) -> Actor:
        """Return the same actor, whose audit entries name the role that has the permission, unless users have it.

        ``of_others`` is whether it is about another user's workspace.
        """
        least = Reach.TEAM if of_others else Reach.OWN
        roles = [role for role in Role if role in self.person.roles and ALLOWED[permission].get(role, 0) >= least]
        if not roles or self.role is not None or roles[0] in {Role.USER, Role.SERVICE, Role.WORKSPACE}:
            return self
        return replace(self, origin=f"{self.origin}, as {roles[0].value}", role=roles[0])

    def whose(self, permission: Permission, *, everybody: bool = True) -> Whose:
        """Return whose things the actor sees with a permission. Without ``everybody`` these are their own.

        Raises:
            HTTPError: 403 if the permission reaches only their own.
        """
        if not everybody:
            return self.person.owner
        self.require(permission, Reach.TEAM)
        return None if self.person.reach(permission) is Reach.ALL else frozenset(self.teams_led)

    @property
    def teams_led(self) -> list[str]:
        """The names of the teams that the actor leads."""
        return self.person.teams_led(self.state.catalog.rules)

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

    async def find_leases(self, ids: Sequence[str], permission: Permission) -> list[Lease]:
        """Return workspaces by their ids, in that order. Raises 404 if one does not exist, or for another team's."""
        found = {name: await self.state.registry.find(name) for name in ids}
        leases = {name: lease for name, lease in found.items() if lease and self._covers(permission, lease)}
        if unknown := [name[:40] for name in ids if name not in leases]:
            words = ", ".join(unknown[:5])
            raise HTTPError(404, reason=f"There is no workspace with the id {words}. Nothing was done.")
        return [leases[name] for name in ids]

    async def find_lease(self, name: str, permission: Permission = Permission.SEE_WORKSPACES) -> Lease:
        """Return a workspace that the person has a permission for.

        Raises:
            HTTPError: 404 for a workspace that the person may not see, or that does not exist. 403 for one that the
                person only sees.
        """
        lease = await self.state.registry.find(name)
        if lease is None or not self._covers(Permission.SEE_WORKSPACES, lease):
            raise HTTPError(404, reason=f"You have no workspace with the id {name[:40]}.")
        if not self._covers(permission, lease):
            raise HTTPError(403, reason=_refusal_of(permission, lease))
        return lease

    def _covers(self, permission: Permission, lease: Lease) -> bool:
        return self.person.covers(permission, lease, self.state.catalog.rules)

    async def groups(self) -> frozenset[str]:
        """Return the groups of the hub that the person is in. Raises Unavailable if the hub does not say."""
        return await self.state.members.fetch_recent(self.person.name, self.person.owner)

    async def groups_shown(self) -> frozenset[str]:
        """Return the groups of the hub that the person is in, no group while the hub does not say."""
        try:
            return await self.groups()
        except Unavailable:
            return frozenset()

    async def asker(self) -> HoldUser:
        """Return the person for the check of reservations."""
        groups = await self.groups_shown()
        return HoldUser(self.person.owner.user_created, groups, teams_of(self.state.catalog.rules, groups))

    async def visible_catalog(self) -> Catalog:
        """Return the part of the catalog that the person sees. People who see all GPUs see all of it."""
        catalog, sees_all = self.state.catalog, self.person.reach(Permission.SEE_FLEET) is not None
        return catalog if sees_all else visible(catalog, await self.groups_shown())

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


_WITH_REASON = "Stop it with a reason: gpuspawner stop, the console, or POST /api/v1/admin/workspaces/stop."


def _refusal_of(permission: Permission, lease: Lease) -> str:
    """Return why a person who sees a workspace may not do something with it."""
    if permission is Permission.END:
        return f"Only {lease.user} may stop or restart this workspace without a reason. {_WITH_REASON}"
    if Reach.ALL not in ALLOWED[permission].values():
        return f"Only {lease.user} may {permission.value}."
    return refusal_words(permission, Reach.TEAM)
