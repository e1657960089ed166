"""The restrictions that administrators set. They are part of every snapshot and survive restarts."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from zoneinfo import ZoneInfo

from gpuspawner.catalog import Catalog
from gpuspawner.catalog.requests.visibility import gpu_title
from gpuspawner.core.administration import Restriction, RestrictionKind, close_gpus, exemption_of, reservation_holds
from gpuspawner.core.errors import Conflict
from gpuspawner.core.gpus.fleet import Fleet
from gpuspawner.core.leases.lease import Lease
from gpuspawner.core.rules import Rules
from gpuspawner.core.units import show_end
from gpuspawner.service.clock import Clock
from gpuspawner.service.store import AuditLine, Store
from gpuspawner.service.store.rows import RowWrite


def _moved_back(one: Restriction, seconds: float) -> Restriction:
    """Return a restriction that was made while the clock was ahead by this much, with the same length.

    Otherwise a node that an administrator drained then would take workspaces until the date that the clock showed. The
    stored times stay, because a later start may know the time better.
    """
    begins_at = one.begins_at - seconds if one.begins_at else 0.0
    until = None if one.until is None else one.until - seconds
    return replace(one, since=one.since - seconds, begins_at=begins_at, until=until)


class Restrictions:
    """Restrictions that are in force or planned.

    Derived values are cached until a restriction is added, begins, is removed or ends.
    """

    def __init__(self, store: Store, clock: Clock, catalog: Callable[[], Catalog]) -> None:
        """Start empty. :meth:`load` reads the stored restrictions."""
        self._store, self._clock, self._catalog = store, clock, catalog
        self._live: tuple[Restriction, ...] = ()
        self._in_force: tuple[Restriction, ...] = ()
        self._lifting = asyncio.Lock()
        """Held from the check of a lift until it is stored, so that two at one moment are one."""
        self._fleet: tuple[Fleet, tuple[Restriction, ...], Fleet] | None = None
        self._rules: tuple[Rules, tuple[Restriction, ...], Rules] | None = None

    async def load(self) -> None:
        """Read the restrictions in force from the store. Those that were made in the future count from now on."""
        now = self._clock.now()
        stored = await self._store.read(self._store.restrictions.in_force, now)
        self._live = tuple(_moved_back(one, one.since - now) if one.since > now else one for one in stored)

    def in_force(self) -> tuple[Restriction, ...]:
        """Return the restrictions in force, oldest first. It is the same object until a change."""
        now = self._clock.now()
        zone = ZoneInfo(self._catalog().rules.timezone)
        found = tuple(one for one in self.live() if one.is_in_force(now, zone))
        if found != self._in_force:
            self._in_force = found
        return self._in_force

    def live(self) -> tuple[Restriction, ...]:
        """Return the restrictions in force now or later, oldest first. It is the same object until a change."""
        now = self._clock.now()
        if any(one.is_over(now) for one in self._live):
            self._live = tuple(one for one in self._live if not one.is_over(now))
        return self._live

    async def last(self, limit: int) -> list[Restriction]:
        """Return the last restrictions, newest first."""
        return await self._store.read(self._store.restrictions.latest, limit)

    async def get(self, name: str) -> Restriction | None:
        """Return a restriction by its id, also one that is over."""
        return await self._store.read(self._store.restrictions.get, name)

    async def add(
        self,
        made: Sequence[Restriction],
        save: Callable[[RowWrite], Awaitable[None]],
        lifted: Restriction | None = None,
    ) -> None:
        """Add restrictions, all or none. ``lifted`` is a restriction that they replace, as it is afterwards.

        They are in force before ``save`` stores them with the function that it gets, so that no grant in between
        ignores them. If they can't be stored, they are removed again.
        """
        old = tuple(x for x in self._live if lifted is not None and x.id == lifted.id)
        self._live = (*(x for x in self._live if x not in old), *made)
        try:
            await save(partial(self._store.restrictions.write, objects=[*made, *([lifted] if lifted else [])]))
        except BaseException:
            self._live = (*(x for x in self._live if x not in made), *old)
            raise

    async def set_members(self, members: Mapping[str, frozenset[str]]) -> None:
        """Store the present members of the classes that have reservations, by the name of the class."""
        changed = [
            replace(one, members=members[one.whom])
            for one in self.live()
            if one.members is not None and members.get(one.whom, one.members) != one.members
        ]
        if changed:
            await self._store.write(self._store.restrictions.save, changed)
            newer = {one.id: one for one in changed}
            self._live = tuple(newer.get(one.id, one) for one in self._live)

    async def lift(self, one: Restriction, by: str, why: str, line: AuditLine) -> Restriction:
        """Store that a restriction is lifted, and return it as it is then.

        Raises:
            Conflict: it has already ended.
        """
        async with self._lifting:
            newest = await self.get(one.id) or one
            if newest.lifted_at is not None:
                return newest  # a second click
            if newest.is_over(self._clock.now()):
                raise Conflict("Its time is over already: there is nothing to lift.")
            lifted = replace(newest, lifted_at=self._clock.now(), lifted_by=by, lifted_why=why)
            await self._store.write(self._store.restrictions.save, [lifted], [line])
            self._live = tuple(x for x in self._live if x.id != one.id)  # it stays in force until the change is stored
        return lifted

    def close_gpus(self, fleet: Fleet) -> Fleet:
        """Return the fleet, with restricted GPUs closed to new workspaces."""
        now = self.in_force()
        if self._fleet is None or self._fleet[0] is not fleet or self._fleet[1] is not now:
            self._fleet = fleet, now, close_gpus(fleet, now)
        return self._fleet[2]

    def drained_nodes(self, until: float) -> frozenset[str]:
        """Return the names of nodes that are drained now or before ``until``."""
        now, zone = self._clock.now(), ZoneInfo(self._catalog().rules.timezone)
        found = ((one, one.opening(now, zone)) for one in self.live() if one.measure is RestrictionKind.DRAIN)
        return frozenset(one.target for one, opening in found if opening is not None and opening.opens_at < until)

    def add_reservations(self, rules: Rules) -> Rules:
        """Return the catalog's rules with the GPUs that administrators reserve, now or later."""
        now = self.live()
        if self._rules is None or self._rules[0] is not rules or self._rules[1] is not now:
            holds = reservation_holds(now)
            # Maintenance comes first, because it takes whole nodes, and reservations then take GPUs of other nodes.
            first = sorted((*rules.holds, *holds), key=lambda hold: not hold.is_maintenance)
            self._rules = rules, now, replace(rules, holds=tuple(first)) if holds else rules
        return self._rules[2]

    def paused_kinds(self) -> Mapping[str, str]:
        """Return a sentence with the reason for each paused kind. See ``Snapshot.paused``."""
        now = self._clock.now()
        return {
            one.target: paused_words(one, self._catalog(), now)
            for one in self.in_force()
            if one.measure is RestrictionKind.PAUSE
        }

    def exempt_until(self, lease: Lease) -> float | None:
        """Return the end of a workspace's exemption from idle stops, None without an exemption."""
        one = self.exemption_of(lease)
        return None if one is None else one.until

    def exemption_of(self, lease: Lease) -> Restriction | None:
        """Return the restriction that exempts a workspace from idle stops for longest, None without one."""
        return exemption_of(lease, self.in_force())


def paused_words(one: Restriction, catalog: Catalog, now: float) -> str:
    """Return a sentence about a pause, with its GPU kind, end, actor and reason."""
    what = gpu_title(one.target, catalog) if one.target else "Nothing"
    given = f"No {what} is given" if one.target else f"{what} is given"
    until = "" if one.until is None else f" until {show_end(one.until, now)}"
    return f"{given}{until}: {one.by} paused it ({one.reason.rstrip('.')})."
