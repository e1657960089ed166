"""Stop, extend and move several workspaces at once: those that can be; the others are listed with the reason."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gpuspawner.core.administering import acts
from gpuspawner.core.errors import Conflict
from gpuspawner.core.leases import endings, events
from gpuspawner.core.leases.coming_back import stops_to_start_again
from gpuspawner.core.leases.lease import UP, WAITING, Lease, Phase
from gpuspawner.core.rules import Notice
from gpuspawner.core.units import show_duration, show_time
from gpuspawner.service.administering.asking import Act, Body, flag_of, reason_of
from gpuspawner.service.administering.views import affected_view, name_of
from gpuspawner.service.rules.policies import policy_of

FIELDS = {
    "stop": ("ids", "reason", "now", "dry_run"),
    "move": ("ids", "reason", "now", "dry_run"),
    "extend": ("ids", "until", "reason", "dry_run"),
}
"""What each act is asked with."""
DONE = {"stop": "stopped", "move": "moved", "extend": "extended"}
LOST = "Running kernels are lost; files stay."


@dataclass(frozen=True)
class Planned:
    """What is done to one workspace, in a sentence; when it ends then, None where that is not known or it waits."""

    lease: Lease
    words: str
    ends_at: float | None
    do: Callable[[], Awaitable[object]] | None = None


@dataclass(frozen=True)
class Refused:
    """A workspace to which it can't be done, and why, in a sentence."""

    lease: Lease
    why: str


class Workspaces:
    """What one administrator does to workspaces."""

    def __init__(self, act: Act) -> None:
        """Raise 403 where that is no administrator."""
        act.must_be_administrator()
        self._act, self._parts = act, act.parts
        self._longer: dict[str, Lease] = {}
        """Those that are extended together, as they will be: a budget is not given to each of them anew."""

    async def do(self, action: str, body: Body) -> dict[str, Any]:
        """Do one of FIELDS to all of the workspaces asked for, or say what it would do.

        Raises:
            RequestRefused: a field is missing or none.
            Conflict: it can be done to none of them.
            HTTPError: 404 for one that does not exist.
        """
        reason, dry_run = reason_of(body), flag_of(body, "dry_run")
        leases, plan = await self._act.leases(body), self._planner(action, reason, body)
        planned, refused = _plan_each(leases, plan)
        if not dry_run:
            planned = [one for one in planned if await _succeeds(one, refused)]
        if not planned:
            raise Conflict(_none_words(action, refused))
        prefix = self._parts.prefix
        return {
            "action": action,
            "dry_run": dry_run,
            "now": self._act.now,
            "reason": reason,
            "words": _words(action, planned, refused, dry_run=dry_run),
            "affected": [affected_view(prefix, one.lease, one.words, one.ends_at) for one in planned],
            "refused": [affected_view(prefix, one.lease, one.why, None) for one in refused],
        }

    def _planner(self, action: str, reason: str, body: Body) -> Callable[[Lease], Planned]:
        if action == "extend":
            until = self._act.until(body)
            return lambda lease: self._extend(lease, until, reason)
        now = flag_of(body, "now")
        return lambda lease: (self._move if action == "move" else self._stop)(lease, reason, now=now)

    def _stop(self, lease: Lease, reason: str, *, now: bool) -> Planned:
        by, where = self._act.person.name, self._act.where
        if not lease.live:
            raise Conflict("It has ended already.")
        if lease.phase is Phase.STOPPING:
            how = endings.stopped_by(by, where, reason)
            words = "It stops, and does not start again." if stops_to_start_again(lease) else "It stops already."
            return Planned(lease, words, None, lambda: self._parts.reclaimer.end_for_good(lease, how))
        if lease.phase in WAITING:
            withdrawn = endings.withdrawn(by, where, reason)
            return Planned(lease, "Its request is withdrawn.", None, lambda: self._end(lease, withdrawn))
        how = endings.stopped_by(by, where, reason)
        if lease.phase not in UP:
            return Planned(lease, "Its start is stopped.", None, lambda: self._end(lease, how))
        if now:
            return Planned(lease, f"It ends now. {LOST}", self._act.now, lambda: self._end(lease, how))
        return self._announced(lease, reason, moves=False)

    def _move(self, lease: Lease, reason: str, *, now: bool) -> Planned:
        if lease.phase not in UP:
            raise Conflict("It does not run: there is nothing to move.")
        if lease.unasked:
            raise Conflict("It was started without the GPU service, which could not start it again. Stop it instead.")
        if why := self._parts.allocator.offered_no_more(lease):
            raise Conflict(f"It would not start again: {why} Stop it instead.")
        if not now:
            return self._announced(lease, reason, moves=True)
        how = endings.moved_by(self._act.person.name, self._act.where, reason)

        async def move() -> None:
            await self._parts.book.save(self._tried_here(self._parts.book.get(lease.id) or lease))
            await self._end(lease, how)

        words = f"It ends now, and starts again by itself elsewhere, at its old place. {LOST}"
        return Planned(lease, words, self._act.now, move)

    def _announced(self, lease: Lease, reason: str, *, moves: bool) -> Planned:
        """Plan an end after the notice of its policy."""
        now = self._act.now
        at = now + policy_of(self._parts.catalog, lease, now).preemption.notice_seconds
        if lease.notice is not None and lease.notice.at <= at:
            raise Conflict(f"It ends at {show_time(lease.notice.at, now)} already. End it now, or leave it.")
        ends = f"It ends at {show_time(at, now)}, in {show_duration(at - now)}"
        then = ", and starts again by itself elsewhere, at its old place" if moves else ""

        async def announce() -> None:
            newest = self._parts.book.get(lease.id)
            if newest is None or newest.phase not in UP:
                return  # it ended meanwhile
            notice = Notice("", at, reason, self._act.person.name, self._act.where, moves)
            told = replace(self._tried_here(newest) if moves else newest, notice=notice)
            line = self._act.line_of(told, acts.EndAnnounced(f"{ends}{then}: {reason}"))
            await self._parts.book.save(told, audit=[line])

        return Planned(lease, f"{ends}{then}. {LOST}", at, announce)

    def _tried_here(self, lease: Lease) -> Lease:
        """Return a lease that is placed elsewhere next, where there is room."""
        known = self._parts.scheduler.fleet.by_id
        here = dict.fromkeys(known[slot.gpu].node for slot in lease.slots if slot.gpu in known)
        return replace(lease, tried_nodes=(*(x for x in lease.tried_nodes if x not in here), *here))

    def _extend(self, lease: Lease, until: float, reason: str) -> Planned:
        now, deadline_at = self._act.now, lease.deadline_at
        if lease.phase not in UP or deadline_at is None:
            raise Conflict("It has no running lifetime to extend.")
        seconds = until - deadline_at
        if seconds <= 0:
            raise Conflict(f"It runs until {show_time(deadline_at, now)} already. Name a later time, or stop it.")
        if lease.notice is not None and lease.notice.at < until:
            raise Conflict(
                f"It ends at {show_time(lease.notice.at, now)}, as was announced: its lifetime changes nothing."
            )
        latest = self._parts.allocator.bounds.of_extension(lease, seconds, self._longer)
        if latest is not None and latest.at < until:
            raise Conflict(f"It {latest.words}. Grant more first, or name an earlier time.")
        self._longer[lease.id] = replace(lease, deadline_at=until)

        async def extend() -> None:
            await self._parts.allocator.scheduler.extend(lease, until)
            newest = self._parts.book.get(lease.id)
            if newest is None or newest.phase not in UP or newest.deadline_at is None or newest.deadline_at >= until:
                return  # it ended meanwhile, or runs as long by now
            more = until - newest.deadline_at
            latest = self._parts.allocator.bounds.of_extension(newest, more)
            if latest is not None and latest.at < until:  # others took of the budget while some of these were stored
                raise Conflict(f"It {latest.words}. Grant more first, or name an earlier time.")
            longer = replace(
                newest,
                deadline_at=until,
                extended_seconds=newest.extended_seconds + more,
                granted_until=until,
                warned_seconds=(),
                latest_end=latest,
            )
            await self._parts.book.save(longer, audit=[self._act.line_of(longer, events.Extended(more, reason))])

        return Planned(lease, f"It runs until {show_time(until, now)}, {show_duration(seconds)} longer.", until, extend)

    async def _end(self, lease: Lease, how: endings.End) -> None:
        newest = self._parts.book.get(lease.id)
        if newest is None or newest.phase is Phase.STOPPING:
            return  # it ended meanwhile
        await self._parts.reclaimer.mark(lease.id, how)
        await self._parts.reclaimer.drive(lease.id)


def _plan_each(leases: Sequence[Lease], plan: Callable[[Lease], Planned]) -> tuple[list[Planned], list[Refused]]:
    """Return the plans of those to which it can be done, and the others."""
    planned: list[Planned] = []
    refused: list[Refused] = []
    for lease in leases:
        try:
            planned.append(plan(lease))
        except Conflict as error:
            refused.append(Refused(lease, str(error)))
    return planned, refused


async def _succeeds(one: Planned, refused: list[Refused]) -> bool:
    """Carry a plan out; where that can't be done any more, note why and return False."""
    try:
        if one.do is not None:
            await one.do()
    except Conflict as error:
        refused.append(Refused(one.lease, str(error)))
        return False
    return True


def _words(action: str, planned: Sequence[Planned], refused: Sequence[Refused], *, dry_run: bool) -> str:
    rest = f" {len(refused)} can't be." if refused else ""
    if dry_run:
        return f"{_count(planned)} would be {DONE[action]}.{rest} Nothing was done."
    return f"{_count(planned)} {'is' if len(planned) == 1 else 'are'} {DONE[action]}.{rest}"


def _none_words(action: str, refused: Sequence[Refused]) -> str:
    """Return that nothing was done, and why, each workspace on a line of its own."""
    if len(refused) == 1:
        return refused[0].why
    lines = [f"{name_of(one.lease)}: {one.why}" for one in refused]
    return "\n".join([f"None of {_count(refused)} can be {DONE[action]}.", *lines])


def _count(found: Sequence[object]) -> str:
    return "1 workspace" if len(found) == 1 else f"{len(found)} workspaces"
