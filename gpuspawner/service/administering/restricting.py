"""Drain, quarantine, pause, reserve, exempt, and lift: what it does is said first, and is the same when it is done."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gpuspawner.catalog import teams_of
from gpuspawner.core.administering import acts
from gpuspawner.core.administering.restrictions import EVERYBODY, Measure, Restriction
from gpuspawner.core.errors import Conflict, RequestRefused, quoted
from gpuspawner.core.idle.idleness import kept as without_idle_time
from gpuspawner.core.leases import events
from gpuspawner.core.leases import lease as leases
from gpuspawner.core.leases.lease import HOLDING, UP, WAITING, Lease, Phase
from gpuspawner.core.placement.placement import count_all
from gpuspawner.core.rules import Account
from gpuspawner.service.administering.asking import Act, Body, flag_of, reason_of
from gpuspawner.service.administering.reserving import reserved_words
from gpuspawner.service.administering.views import affected_view, name_of, restriction_view, title_of
from gpuspawner.service.api.granting import owner_of
from gpuspawner.service.leases.book import all_stored
from gpuspawner.service.store.idempotency import set_answer

FIELDS = {
    Measure.DRAIN: ("node",),
    Measure.QUARANTINE: ("gpu",),
    Measure.PAUSE: ("kind",),
    Measure.RESERVE: ("kind", "count", "user", "team"),
    Measure.EXEMPT: ("ids", "user"),
}
"""What each is asked with, beside OF_ALL."""
OF_ALL = ("what", "reason", "begins", "until", "dry_run")
EVENTS: Mapping[Measure, type[events.Text]] = {
    Measure.DRAIN: acts.Drained,
    Measure.QUARANTINE: acts.Quarantined,
    Measure.PAUSE: acts.GrantsPaused,
    Measure.RESERVE: acts.GpusReserved,
    Measure.EXEMPT: acts.Exempted,
}
KNOWN_SHOWN = 12
"""How many names a refusal tells. Arbitrary: what a person reads."""
NEEDS_END = frozenset({Measure.RESERVE, Measure.EXEMPT})
CLOSES = frozenset({Measure.DRAIN, Measure.QUARANTINE})


@dataclass(frozen=True)
class Asked:
    """What is restricted: the target and, of what is for somebody, the account and how people call it."""

    target: str = ""
    count: int = 0
    account: Account = EVERYBODY
    whom: str = ""


class Restricting:
    """What one administrator restricts and lifts."""

    def __init__(self, act: Act) -> None:
        """Raise 403 where that is no administrator."""
        act.must_be_administrator()
        self._act, self._parts = act, act.parts
        self._ended: list[Lease] = []
        """Workspaces that were asked for and need no exemption any more."""

    async def make(self, body: Body) -> dict[str, Any]:
        """Make a restriction, of exemptions one for each workspace, or say what it would do.

        Raises:
            RequestRefused: a field is missing or none.
            Conflict: it is so already.
        """
        measure, dry_run = _measure_of(body), flag_of(body, "dry_run")
        made = await self._understood(measure, body)
        for one in made:
            self._must_be_new(one)
        words = " ".join(f"{title_of(self._parts, one)}.{reserved_words(self._parts, one)}" for one in made)
        affected = [found for one in made for found in self._affected(one)]
        view = {
            "restrictions": [restriction_view(self._parts, one) for one in made],
            "words": f"{words} Nothing was done yet." if dry_run else words,
            "affected": affected,
            "refused": [affected_view(self._parts.prefix, one, "It has ended already.", None) for one in self._ended],
            "dry_run": dry_run,
            "now": self._act.now,
        }
        if not dry_run:
            set_answer(view)
            await self._carry_out(made)
        return view

    async def lift(self, one: Restriction, body: Body) -> dict[str, Any]:
        """Lift one, and return it as it is then. Repeating it is harmless."""
        reason, by = reason_of(body), self._act.person.name
        line = self._act.line(_user_of(one), acts.Lifted(f"{title_of(self._parts, one)}: {reason}"), one.target)
        lifted = await self._parts.restrictions.lift(one, by, reason, line)
        await self._parts.allocator.give()
        return restriction_view(self._parts, lifted)

    async def _understood(self, measure: Measure, body: Body) -> list[Restriction]:
        for name in body:
            if name not in {*OF_ALL, *FIELDS[measure]}:
                known = ", ".join(FIELDS[measure])
                raise RequestRefused(
                    quoted(name), f"a field that {measure.value} does not take", known, "Leave it out."
                )
        reason, now, by = reason_of(body), self._act.now, self._act.person.name
        begins, until = self._act.times(body, ends=measure in NEEDS_END)
        return [
            Restriction(uuid.uuid4().hex, measure, x.target, reason, by, now, until, begins, x.count, x.account, x.whom)
            for x in await self._asked(measure, body)
        ]

    async def _asked(self, measure: Measure, body: Body) -> Sequence[Asked]:
        kinds = list(self._parts.scheduler.kinds)
        if measure is Measure.DRAIN:
            return [Asked(_one_of("node", body, sorted({gpu.node for gpu in self._parts.scheduler.fleet.gpus})))]
        if measure is Measure.QUARANTINE:
            return [self._gpu(body)]
        if measure is Measure.PAUSE:
            return [Asked(_one_of("kind", body, kinds) if body.get("kind") else "")]
        if measure is Measure.RESERVE:
            kind = _one_of("kind", body, kinds)
            account, whom = await self._account(body)
            return [Asked(kind, self._count(kind, body), account, whom)]
        if body.get("user"):
            account, whom = await self._account({"user": body["user"]})
            return [Asked("", 0, account, whom)]
        found = await self._act.leases(body)
        live, self._ended = [x for x in found if x.live], [x for x in found if not x.live]
        if not live:
            raise Conflict(f"{', '.join(map(name_of, found))} has ended already.")
        return [Asked(lease.id, 0, EVERYBODY, name_of(lease)) for lease in live]

    def _gpu(self, body: Body) -> Asked:
        """Return a GPU by its id, and how people call it: by node and number, as the console does."""
        fleet = self._parts.scheduler.fleet
        placed = {f"{gpu.node}/{gpu.index}": gpu.id for gpu in fleet.gpus}
        named = _one_of("gpu", body, [*placed, *fleet.by_id])
        name = placed.get(named, named)
        gpu = fleet.by_id[name]
        if gpu.group is not None:
            limit = "GPUs that the cluster tells apart"
            remedy = f"It only counts those of {gpu.node}, and would give out any of them: drain the node."
            raise RequestRefused("gpu", quoted(name), limit, remedy)
        return Asked(name, whom=f"{gpu.node}/{gpu.index}")

    def _count(self, kind: str, body: Body) -> int:
        parts, value = self._parts, body.get("count")
        most = count_all(parts.scheduler.kinds[kind], parts.scheduler.fleet)
        if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= most:
            return value
        raise RequestRefused("count", quoted(value), f"1 to {most}, as many as there are", "Say how many to reserve.")

    async def _account(self, body: Body) -> tuple[Account, str]:
        """Return for whom it is, a user or a team, and how people call that."""
        user, team = body.get("user"), body.get("team")
        if bool(user) == bool(team) or not isinstance(user or team, str):
            raise RequestRefused("for whom", quoted(user or team), "either user or team", "Say for whom it is.")
        if isinstance(user, str) and user:
            return Account("", (await owner_of(self._parts, user)).user_created), user
        name = _one_of("team", body, list(teams_of(self._parts.catalog.rules, None)))
        return Account(name), name

    def _must_be_new(self, one: Restriction) -> None:
        if one.measure in NEEDS_END:
            return  # a second one only adds to the first
        for other in self._parts.restrictions.live():
            if (other.measure, other.target) == (one.measure, one.target):
                raise Conflict(f"{title_of(self._parts, other)} already, by {other.by}. Lift that first.")

    def _affected(self, one: Restriction) -> list[dict[str, Any]]:
        """Return whom it concerns now, and how."""
        found = ((lease, self._becomes(one, lease)) for lease in self._parts.book)
        named = sorted(((x, words) for x, words in found if words), key=lambda pair: (pair[0].user, pair[0].id))
        return [affected_view(self._parts.prefix, x, words, x.deadline_at) for x, words in named]

    def _becomes(self, one: Restriction, lease: Lease) -> str:
        """Return what becomes of a workspace; "" where nothing does."""
        if one.measure in CLOSES and self._is_on(one, lease):
            if lease.phase in UP:
                return "It goes on. Its user is told, and offered a move."
            waits = lease.phase is Phase.RESERVED and one.is_in_force(self._act.now)
            return "It waits again, at its old place." if waits else "It goes on."
        if one.measure is Measure.PAUSE and lease.phase in WAITING:
            return "It waits until grants go on." if one.target in {"", lease.request.gpu} else ""
        return "It is not judged as idle meanwhile." if one.spares(lease) and lease.phase in UP else ""

    def _is_on(self, one: Restriction, lease: Lease) -> bool:
        known = self._parts.scheduler.fleet.by_id
        gpus = (known.get(slot.gpu) for slot in (lease.slots if lease.phase in HOLDING else ()))
        return any(gpu is not None and one.closes(gpu) for gpu in gpus)

    async def _carry_out(self, made: Sequence[Restriction]) -> None:
        parts = self._parts
        whys = [f"{title_of(parts, one)}: {one.reason}" for one in made]
        lines = [
            self._act.line(_user_of(one), EVENTS[one.measure](why), one.target)
            for one, why in zip(made, whys, strict=True)
        ]
        await parts.restrictions.add(made, lines)
        for one, why in zip(made, whys, strict=True):
            await all_stored([self._tell(one, lease, why) for lease in parts.book])
        await parts.allocator.give()

    def _tell(self, one: Restriction, lease: Lease, why: str) -> asyncio.Future[None] | None:
        """Tell who is on what is closed, let wait again what was granted there, and end a grace of what is exempt."""
        book, now = self._parts.book, self._act.now
        if one.measure in CLOSES and self._is_on(one, lease):
            if lease.phase in UP:
                return book.save(lease, audit=[self._act.line_of(lease, acts.GpuClosed(why))])
            if lease.phase is Phase.RESERVED and one.is_in_force(now):  # nothing of it was created yet
                return book.save(leases.lapse(lease, now), audit=[self._act.line_of(lease, events.Requeued(why))])
        elif one.spares(lease) and one.is_in_force(now) and lease.phase is Phase.RECLAIMING:
            kept = leases.end_grace(replace(lease, streak=without_idle_time(lease.streak)), now)
            return book.save(kept, audit=[self._act.line_of(kept, events.GraceEnded(why))])
        return None


def _user_of(one: Restriction) -> str:
    return one.whom if one.account.user_created else ""


def _measure_of(body: Body) -> Measure:
    what = body.get("what")
    names = [one.value for one in Measure]
    if not isinstance(what, str) or what not in names:
        raise RequestRefused("what", quoted(what), ", ".join(names), "Name one of them.")
    return Measure(what)


def _one_of(name: str, body: Body, known: Sequence[str]) -> str:
    """Return a name that is known. Raises RequestRefused with those that are."""
    value = body.get(name)
    if isinstance(value, str) and value in known:
        return value
    more = f" and {len(known) - KNOWN_SHOWN} more" if len(known) > KNOWN_SHOWN else ""
    shown = ", ".join(known[:KNOWN_SHOWN]) + more
    raise RequestRefused(name, quoted(value), shown or "none is there now", "Name one of these.")
