"""Requests: their resolution from the options of a start, the rights of their users, and whether GPUs can cover them.

A shortage of GPUs means to wait: labels vanish for a moment, and nodes take time to join. So GPUs that were seen within
a day count. A new request that could never start is refused. The user of a waiting one is told, and it keeps its
position for a day.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from gpuspawner.catalog import resolve, teams_of, to_options
from gpuspawner.catalog.requests.visibility import gpu_title, lost_group
from gpuspawner.catalog.watched_file import InForce
from gpuspawner.core import events
from gpuspawner.core.errors import Conflict, Gone, RequestRefused, Unavailable
from gpuspawner.core.gpus.fleet import Fleet
from gpuspawner.core.gpus.placement import largest_fit
from gpuspawner.core.gpus.topology import requires_domain
from gpuspawner.core.leases import exits
from gpuspawner.core.leases.lease import JOINABLE, WAITING, Key, Lease, Owner, Phase
from gpuspawner.core.leases.request import Request
from gpuspawner.core.leases.steps import note_feasibility
from gpuspawner.schedulers.base import Offer, Scheduler
from gpuspawner.service.clock import Clock
from gpuspawner.service.engine.commits import LeaseCommits
from gpuspawner.service.engine.registry import LeaseRegistry
from gpuspawner.service.failures import step_each
from gpuspawner.service.log import refusals_logged

Groups = Collection[str]
LAST_ONES = 50
"""The number of leases of a user that are searched for the last choices. Arbitrary: some weeks of work."""


def options_of(lease: Lease) -> dict[str, Any]:
    """Return the options of a start for the request of a lease.

    They are the user's options and the defaults of that time. With other defaults, the lease would lose its position.
    """
    return {**to_options(lease.request), **lease.options}


USERS_KNOWN = 10_000
"""The number of users whose last choices are kept in memory. Arbitrary: more than have the form open."""


class _LastChoices(NamedTuple):
    """The last choices of a user: teams, the newest first, and substitutes by template."""

    teams: tuple[str, ...]
    consents: Mapping[str, tuple[str, ...]]


def _choices_in(last_first: Iterable[Lease]) -> _LastChoices:
    teams, consents = dict[str, None](), dict[str, tuple[str, ...]]()
    for lease in last_first:
        teams.setdefault(lease.request.team)
        if lease.request.gpu is not None:
            consents.setdefault(lease.request.template, lease.request.substitutes)
    return _LastChoices(tuple(teams), consents)


class RequestResolver:
    """Resolves options into requests for the groups of a user, and checks whether a request is still allowed."""

    def __init__(self, registry: LeaseRegistry, in_force: InForce, finish: Callable[..., Awaitable[None]]) -> None:
        """Resolve by the catalog in force. ``finish`` ends a lease, as ``Allocator.dismiss``."""
        self._registry, self._in_force, self._finish = registry, in_force, finish
        self._known: dict[Owner, tuple[int, _LastChoices]] = {}

    async def request_of(
        self, key: Key, user: str, options: Mapping[str, Any], groups: Groups, *, start_id: str = ""
    ) -> Request:
        """Return the request of a start. A waiting request with the same options keeps its first meaning.

        A start that asks again with the same ``start_id`` gets the request of its lease, which its user may have
        changed on a page meanwhile.

        Raises:
            RequestRefused: as :meth:`resolve`.
            Gone: the request waits already, and its user has left a group that it needs.
        """
        lease = self._registry.of_key(key)
        if lease is not None and lease.phase in JOINABLE:
            again = bool(start_id) and lease.start_id == start_id
            if again or options in (lease.options, options_of(lease)):
                await self.require_allowed(lease, groups)
                return replace(lease.request, user=user)
        with refusals_logged(user, key.server, options.get("gpu")):
            return await self.resolve(options, user, key.owner, groups)

    async def resolve(self, options: object, user: str, owner: Owner, groups: Groups) -> Request:
        """Return the request that options mean for a user in these groups.

        Raises:
            AllRefused: everything that is wrong with the options.
        """
        last_team = await self.last_team(owner, groups)
        return resolve(self._in_force.catalog, options, user, groups=groups, last_team=last_team)

    async def last_team(self, owner: Owner, groups: Groups) -> str:
        """Return the team of the last workspace of a user in several teams, "" without one."""
        teams = teams_of(self._in_force.catalog.rules, groups)
        if len(teams) < 2:  # noqa: PLR2004 - no choice
            return ""
        return next((team for team in (await self._last_choices(owner)).teams if team in teams), "")

    async def has_started_before(self, owner: Owner) -> bool:
        """Return whether a user is known to have had a workspace, and so a home."""
        return bool((await self._last_choices(owner)).teams)

    async def last_consents(self, owner: Owner) -> Mapping[str, tuple[str, ...]]:
        """Return the substitutes that a user accepted at the last request for each template."""
        return (await self._last_choices(owner)).consents

    async def _last_choices(self, owner: Owner) -> _LastChoices:
        """Return the last choices of a user. They are read again only if a lease of the user was stored since.

        While the store does not answer, only live leases count.
        """
        saves = self._registry.saves[owner]
        known = self._known.pop(owner, None)
        if known is None or known[0] != saves:
            live = [lease for lease in self._registry if lease.key.owner == owner]
            try:
                ended = await self._registry.store.read(self._registry.store.leases.ended, owner, LAST_ONES)
            except Unavailable:
                return _choices_in(live)
            known = saves, _choices_in(sorted([*live, *ended], key=lambda lease: -lease.asked_at))
        self._known[owner] = known
        if len(self._known) > USERS_KNOWN:
            del self._known[next(iter(self._known))]
        return known[1]

    def lost_group(self, lease: Lease, groups: Groups) -> str:
        """Return a group that a lease needs and that its user has left, "" without one."""
        request = lease.request
        return lost_group(self._in_force.catalog, request.template, lease.kind, request.team, frozenset(groups))

    async def require_allowed(self, lease: Lease, groups: Groups) -> None:
        """End a lease that its user, who is in these groups, may no longer have.

        Raises:
            Gone: it was ended. The message is the reason.
        """
        if group := self.lost_group(lease, groups):
            how = exits.not_allowed(group)
            await self._finish(lease, how, gone=lease.phase is Phase.RESERVED)  # no process of it runs
            raise Gone(how.message)

    async def consent(self, lease: Lease, kinds: object, groups: Groups) -> tuple[Lease, events.Event]:
        """Return a waiting lease with its user's consent to these substitutes, at its position, and the event.

        Raises:
            RequestRefused: the template does not offer one of the kinds instead of the requested one.
            Conflict: the lease no longer waits.
        """
        if lease.phase not in WAITING:
            raise Conflict("It has been given its GPU already: consent can be changed while it waits.")
        await self.require_allowed(lease, groups)
        options = {**options_of(lease), "substitutes": kinds}
        request = await self.resolve(options, lease.user, lease.key.owner, groups)
        if self._registry.get(lease.id) is not lease:
            raise Conflict("It changed just now. Look at it again, and choose then.")
        asked = replace(lease.request, substitutes=request.substitutes)  # the rest of the request stays
        kept = {**lease.options, "substitutes": list(request.substitutes)}
        return replace(lease, request=asked, options=kept), events.Consented(tuple(request.substitutes))

    async def reduce(self, lease: Lease, count: int, groups: Groups) -> tuple[Lease, events.Event]:
        """Return a waiting lease that asks for fewer GPUs, at its position, and the event.

        Raises:
            RequestRefused: its template does not allow that number.
            Conflict: the lease no longer waits, or the number is not smaller.
        """
        if lease.phase not in WAITING:
            raise Conflict("It has its GPUs already. You can change the number while it waits.")
        if count >= lease.request.count:
            raise Conflict(f"It asks for {lease.request.count}. Choose fewer.")
        await self.require_allowed(lease, groups)
        request = await self.resolve({**options_of(lease), "count": count}, lease.user, lease.key.owner, groups)
        if self._registry.get(lease.id) is not lease:
            raise Conflict("It changed just now. Look at it again, and choose then.")
        asked = replace(
            lease.request, count=request.count, cpu_cores=request.cpu_cores, memory_bytes=request.memory_bytes
        )
        return replace(lease, request=asked, options={**lease.options, "count": count}), events.RequestReduced(count)


REMEMBERED_SECONDS = 86400.0
"""GPUs that were seen within this time are waited for."""
KEPT_SECONDS = 86400.0
"""A request that cannot start with the present GPUs keeps its position for this time."""
NOTED_SECONDS = 600.0
"""How often the store notes that a kind was seen. Arbitrary: far less than a day."""


class Feasibility:
    """Knows the most GPUs of each kind that one workspace could have, and when, across restarts."""

    def __init__(
        self,
        registry: LeaseRegistry,
        scheduler: Scheduler,
        in_force: InForce,
        clock: Clock,
        commits: LeaseCommits,
    ) -> None:
        """Start empty. :meth:`load` reads the stored kinds."""
        self._commits = commits
        self._registry, self._scheduler, self._in_force, self._clock = registry, scheduler, in_force, clock
        self._seen: dict[str, tuple[int, float]] = {}
        """How many GPUs of each kind one workspace could have, and when."""
        self._fleet: Fleet | None = None

    async def load(self) -> None:
        """Read the stored kinds."""
        self._seen = await self._registry.store.read(self._registry.store.kinds_seen.all)

    def check(self, request: Request, offers: Iterable[Offer]) -> None:
        """Raise RequestRefused if neither the backend's limits nor its GPUs of the last day allow the request."""
        self._scheduler.check(request)
        self._check_topology(request)
        offer = next((offer for offer in offers if offer.kind == request.gpu), None)
        if offer is None or offer.largest is None or request.count <= offer.largest:
            return
        most, at = self._seen.get(offer.kind, (0, 0.0))
        if request.count <= most and self._clock.now() - at <= REMEMBERED_SECONDS:
            return  # it may wait
        title = gpu_title(offer.kind, self._in_force.catalog, simulated=offer.simulated)
        limit, remedy = f"at most {offer.largest} {title} in one workspace", "Ask for fewer, or for another GPU."
        if not offer.largest:
            limit = f"no {title} is there now"
            remedy = "Ask for another GPU, or tell an administrator. The page Admin shows which GPUs the service sees."
        raise RequestRefused("count", str(request.count), limit, remedy, status=403)

    def _check_topology(self, request: Request) -> None:
        catalog, fleet = self._in_force.catalog, self._scheduler.fleet
        kind = catalog.gpus.get(request.gpu or "")
        if kind is None or not fleet.complete or not requires_domain(request, kind):
            return
        most, title = largest_fit(kind, fleet, one_domain=True), gpu_title(kind.name, catalog)
        if request.count <= most:
            return
        limit = f"at most {most} {title} in one NVLink or NUMA domain"
        remedy = "Ask for fewer, or for another template."
        if not most:
            limit = f"no NVLink or NUMA domain of {title} is known"
            remedy = "Ask for one GPU, for another template, or an administrator."
        raise RequestRefused("count", str(request.count), limit, remedy, status=403)

    async def look(self, offers: Iterable[Offer]) -> None:
        """Note the kinds of a new view of the GPUs, and tell users whose waiting requests cannot start now."""
        if self._scheduler.fleet is self._fleet:
            return
        self._fleet = self._scheduler.fleet
        offers = tuple(offers)
        await self._note(offers)
        waiting = [lease for lease in self._registry if lease.phase in WAITING]
        step = "looking whether it could start"
        await step_each(step, waiting, lambda lease: self._judge(lease, offers), self._registry.failures)

    async def _note(self, offers: Iterable[Offer]) -> None:
        now, seen = self._clock.now(), self._seen
        new = {offer.kind: (offer.largest, now) for offer in offers if offer.largest}
        due = {kind: found for kind, found in new.items() if self._is_news(found[0], seen.get(kind), now)}
        if due:
            await self._registry.store.write(self._registry.store.kinds_seen.save, due)
            seen.update(due)

    @staticmethod
    def _is_news(largest: int, noted: tuple[int, float] | None, now: float) -> bool:
        """Return whether to store the number of GPUs: it rose, it was stored long ago, or the old one has expired."""
        if noted is None or largest > noted[0]:
            return True
        return now - noted[1] > (NOTED_SECONDS if largest == noted[0] else REMEMBERED_SECONDS)

    def _judge(self, lease: Lease, offers: Iterable[Offer]) -> asyncio.Future[None] | None:
        try:
            self.check(lease.request, offers)
            why = ""
        except RequestRefused as error:
            why = str(error)
        found = note_feasibility(lease, why, KEPT_SECONDS, self._clock.now())
        return None if found is None else self._commits.commit(lease, found)
