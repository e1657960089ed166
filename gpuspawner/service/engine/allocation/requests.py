"""Resolves the options of a start into a request, and checks whether its user may have it by their present groups."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple, Protocol

from gpuspawner.catalog import resolve, teams_of, to_options
from gpuspawner.catalog.requests.visibility import lost_group
from gpuspawner.catalog.watched_file import InForce
from gpuspawner.core import events
from gpuspawner.core.errors import Conflict, Gone, Unavailable
from gpuspawner.core.leases import exits
from gpuspawner.core.leases.lease import JOINABLE, WAITING, Key, Lease, Owner, Phase
from gpuspawner.core.leases.request import Request
from gpuspawner.service.engine.registry import LeaseRegistry
from gpuspawner.service.lease_log import refusals_logged

Groups = Collection[str]
LAST_ONES = 50
"""How many leases of a user are searched for their last choices. Arbitrary: some weeks of work."""


def options_of(lease: Lease) -> dict[str, Any]:
    """Return the options of a start that is to give what a lease waits for.

    In its user's words, and where they said nothing by the defaults of then: by others it would lose its place.
    """
    return {**to_options(lease.request), **lease.options}


USERS_KNOWN = 10_000
"""For how many users the last choices are kept in memory. Arbitrary: more than have the form open."""


class _Chosen(NamedTuple):
    """The last choices of a user: teams, the newest first, and substitutes by template."""

    teams: tuple[str, ...]
    consents: Mapping[str, tuple[str, ...]]


def _chosen_in(last_first: Iterable[Lease]) -> _Chosen:
    teams, consents = dict[str, None](), dict[str, tuple[str, ...]]()
    for lease in last_first:
        teams.setdefault(lease.request.team)
        if lease.request.gpu is not None:
            consents.setdefault(lease.request.template, lease.request.substitutes)
    return _Chosen(tuple(teams), consents)


class Finish(Protocol):
    """``Allocator.dismiss``."""

    async def __call__(self, lease: Lease, how: exits.Exit, *, gone: bool = False) -> None:
        """End a lease."""


class RequestResolver:
    """Turns options into requests, for who is in which groups; and looks again whether a request is still allowed."""

    def __init__(self, registry: LeaseRegistry, in_force: InForce, finish: Finish) -> None:
        """Resolve by the catalog in force. ``finish`` ends a lease."""
        self._registry, self._in_force, self._finish = registry, in_force, finish
        self._known: dict[Owner, tuple[int, _Chosen]] = {}

    async def request_of(
        self, key: Key, user: str, options: Mapping[str, Any], groups: Groups, *, start_id: str = ""
    ) -> Request:
        """Return the request of a start. A waiting request with the same options keeps its first meaning.

        A start that asks again, by the same ``start_id``, gets what its lease says: its user may have changed that on a
        page meanwhile.

        Raises:
            RequestRefused: as :meth:`resolve`.
            Gone: it waits already, and its user has left the group that it needs.
        """
        lease = self._registry.of_key(key)
        if lease is not None and lease.phase in JOINABLE:
            again = bool(start_id) and lease.start_id == start_id
            if again or options in (lease.options, options_of(lease)):
                await self.must_be_allowed(lease, groups)
                return replace(lease.request, user=user)
        with refusals_logged(user, key.server, options.get("gpu")):
            return await self.resolve(options, user, key.owner, groups)

    async def resolve(self, options: object, user: str, owner: Owner, groups: Groups) -> Request:
        """Return the request that options mean for who is in these groups.

        Raises:
            AllRefused: all that is wrong with them.
        """
        last_team = await self.last_team(owner, groups)
        return resolve(self._in_force.catalog, options, user, groups=groups, last_team=last_team)

    async def last_team(self, owner: Owner, groups: Groups) -> str:
        """Return the team that a user's last workspace was charged to, where they are in several; "" for none."""
        teams = teams_of(self._in_force.catalog.rules, groups)
        if len(teams) < 2:  # noqa: PLR2004 - there is nothing to choose
            return ""
        return next((team for team in (await self._chosen(owner)).teams if team in teams), "")

    async def has_started_before(self, owner: Owner) -> bool:
        """Return whether a user is known to have had a workspace, and so a home."""
        return bool((await self._chosen(owner)).teams)

    async def last_consents(self, owner: Owner) -> Mapping[str, tuple[str, ...]]:
        """Return, by template, the substitutes that a user consented to when they asked for it last."""
        return (await self._chosen(owner)).consents

    async def _chosen(self, owner: Owner) -> _Chosen:
        """Return the last choices of a user. They are read again only if a lease of theirs was stored since.

        While the store does not answer, what is known of those that live.
        """
        saves = self._registry.saves[owner]
        known = self._known.pop(owner, None)
        if known is None or known[0] != saves:
            live = [lease for lease in self._registry if lease.key.owner == owner]
            try:
                ended = await self._registry.store.read(self._registry.store.leases.ended, owner, LAST_ONES)
            except Unavailable:
                return _chosen_in(live)
            known = saves, _chosen_in(sorted([*live, *ended], key=lambda lease: -lease.asked_at))
        self._known[owner] = known
        if len(self._known) > USERS_KNOWN:
            del self._known[next(iter(self._known))]
        return known[1]

    def lost_group(self, lease: Lease, groups: Groups) -> str:
        """Return the group that a lease needs and that its user has left; "" for no such group."""
        request = lease.request
        return lost_group(self._in_force.catalog, request.template, lease.kind, request.team, frozenset(groups))

    async def must_be_allowed(self, lease: Lease, groups: Groups) -> None:
        """End a lease that its user, who is in these groups, may not have any more.

        Raises:
            Gone: it has ended, and its user is told why.
        """
        if group := self.lost_group(lease, groups):
            how = exits.not_allowed(group)
            await self._finish(lease, how, gone=lease.phase is Phase.RESERVED)  # nothing of it runs
            raise Gone(how.message)

    async def consent(self, lease: Lease, kinds: object, groups: Groups) -> tuple[Lease, events.Event]:
        """Return a waiting lease with its user's consent to these substitutes, at its place, and what is told of it.

        Raises:
            RequestRefused: a kind that the template does not offer for the one asked for.
            Conflict: it does not wait any more.
        """
        if lease.phase not in WAITING:
            raise Conflict("It has been given its GPU already: consent can be changed while it waits.")
        await self.must_be_allowed(lease, groups)
        options = {**options_of(lease), "substitutes": kinds}
        request = await self.resolve(options, lease.user, lease.key.owner, groups)
        if self._registry.get(lease.id) is not lease:
            raise Conflict("It changed just now. Look at it again, and choose then.")
        asked = replace(lease.request, substitutes=request.substitutes)  # all else stays as it was asked
        kept = {**lease.options, "substitutes": list(request.substitutes)}
        return replace(lease, request=asked, options=kept), events.Consented(tuple(request.substitutes))

    async def reduce(self, lease: Lease, count: int, groups: Groups) -> tuple[Lease, events.Event]:
        """Return a waiting lease that asks for fewer GPUs, at its place, and the event.

        Raises:
            RequestRefused: its template does not allow that number.
            Conflict: it does not wait any more, or the number is not smaller.
        """
        if lease.phase not in WAITING:
            raise Conflict("It has its GPUs already. You can change the number while it waits.")
        if count >= lease.request.count:
            raise Conflict(f"It asks for {lease.request.count}. Choose fewer.")
        await self.must_be_allowed(lease, groups)
        request = await self.resolve({**options_of(lease), "count": count}, lease.user, lease.key.owner, groups)
        if self._registry.get(lease.id) is not lease:
            raise Conflict("It changed just now. Look at it again, and choose then.")
        asked = replace(
            lease.request, count=request.count, cpu_cores=request.cpu_cores, memory_bytes=request.memory_bytes
        )
        return replace(lease, request=asked, options={**lease.options, "count": count}), events.RequestReduced(count)
