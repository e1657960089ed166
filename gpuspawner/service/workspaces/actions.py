"""The actions of people on a workspace. API and pages use the same."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from gpuspawner.catalog.requests.visibility import gpus_asked
from gpuspawner.core import events
from gpuspawner.core.errors import Conflict, RequestRefused, quoted
from gpuspawner.core.leases import exits, transitions
from gpuspawner.core.leases.lease import JOINABLE, UP, WAITING, Lease, Phase, parse_dispute_text
from gpuspawner.core.leases.lifetimes import deciding_since
from gpuspawner.core.leases.step_results import EVIDENCE_SECONDS
from gpuspawner.service.parts import Parts
from gpuspawner.service.web.permissions import Person
from gpuspawner.service.workspaces.restarts import WITH, WITHOUT, next_of, way_of
from gpuspawner.service.workspaces.warnings import closed_gpus


async def act(parts: Parts, person: Person, lease: Lease, action: str, where: str, said: object = "") -> None:
    """Carry out an action on a workspace. Its endpoint has checked that the person may do it.

    Args:
        parts: the service.
        person: the sender.
        lease: the workspace.
        action: the last part of an action's address in the API, for example ``keep``.
        where: the place of the action in words. A stop shows it.
        said: the text of a dispute or an answer, the kinds of GPU of a consent, or a number of GPUs or minutes.

    Raises:
        Conflict: the action is not possible now. The message says why.
        RequestRefused: the text is too long, an answer has no text, or a kind of GPU cannot be given.
        Unavailable: the hub does not say in which groups the user of a request is.
    """
    if action in _OF_AN_END:
        async with parts.registry.ended_lock:
            newest = await parts.registry.find(lease.id) or lease
            await _OF_AN_END[action](parts, person, newest, said, where)
    elif _is_done(lease, action):
        return  # a second click, in another tab
    elif not lease.live:
        raise Conflict("This workspace has ended. Start it again from the form; its files are kept.")
    else:
        await _OF_A_LIVE_ONE[action](parts, person, lease, said, where)


def _is_done(lease: Lease, action: str) -> bool:
    """Return whether a workspace ended, or is ending, by this very action."""
    done = lease.reason is not None and lease.reason is _DONE_BY.get(action)
    return done and (action not in {WITHOUT, WITH} or action == way_of(lease))


async def _save(parts: Parts, person: Person, lease: Lease, event: events.Event, where: str, **others: Any) -> None:
    """Store a workspace with the audit entry of an action. ``others`` is stored with it."""
    line = parts.allocator.commits.line(lease, person.name, event, where)
    await parts.registry.save(lease, audit=[line], **others)


async def _stop(parts: Parts, person: Person, lease: Lease, _said: object, where: str) -> None:
    await stop(parts, person.name, lease, where)


async def stop(parts: Parts, who: str, lease: Lease, where: str) -> None:
    """Stop a workspace for a person, or withdraw its request while it waits."""
    waits = lease.phase in WAITING
    how = exits.withdrawn(who, where) if waits else exits.stopped_by(who, where)
    if lease.phase is Phase.STOPPING:
        await parts.actions.end_for_good(lease, how)
        return
    await parts.engine.begin_stop(lease.id, how)
    await parts.engine.drive(lease.id)


async def _consent(parts: Parts, person: Person, lease: Lease, kinds: object, where: str) -> None:
    """Accept these kinds of GPU instead. Its place stays. Repeating it is harmless."""
    groups = await parts.members.fetch(lease.user, lease.key.owner)
    waiting = parts.registry.get(lease.id) or lease
    consented, event = await parts.allocator.resolver.consent(waiting, kinds, groups)
    if consented.request == waiting.request:
        return
    await _save(parts, person, consented, event, where)
    await parts.allocator.grant_waiting()


async def _take(parts: Parts, person: Person, lease: Lease, count: object, where: str) -> None:
    """Request fewer GPUs while it waits. Its place stays."""
    groups = await parts.members.fetch(lease.user, lease.key.owner)
    waiting = parts.registry.get(lease.id) or lease
    reduced, event = await parts.allocator.resolver.reduce(waiting, int(str(count)), groups)
    await _save(parts, person, reduced, event, where)
    await parts.allocator.grant_waiting()


async def _rename(parts: Parts, person: Person, lease: Lease, said: object, where: str) -> None:
    """Give it another name for people. Repeating it is harmless."""
    title = " ".join(str(said).split())
    if len(title) > LONGEST_TITLE or not title.isprintable():
        limit = f"up to {LONGEST_TITLE} characters of text"
        raise RequestRefused("title", quoted(said), limit, "Write a short name, for example Llama fine-tuning.")
    current = parts.registry.get(lease.id) or lease
    if current.title != title:
        event = events.Renamed(title or current.key.server)
        await _save(parts, person, replace(current, title=title), event, where)


LONGEST_TITLE = 60
"""Characters of a name for people. Arbitrary: one line of a card."""


async def _come(parts: Parts, person: Person, lease: Lease, _said: object, where: str) -> None:
    """Note that its user waited for it and sees it run. Running programs alone say nothing about that."""
    await parts.actions.note_arrival(lease, person.name, f"waited for on {where}", where)


async def _see(parts: Parts, _person: Person, lease: Lease, _said: object, _where: str) -> None:
    if not lease.live:
        await parts.registry.save(replace(lease, seen_by_user=True))


async def _share(parts: Parts, person: Person, lease: Lease, _said: object, where: str) -> None:
    """Let administrators read its last output. Repeating it is harmless."""
    row = await parts.store.read(parts.store.outputs.get, lease.id, parts.clock.now())
    if row is None:
        raise Conflict("There is no output of this workspace any more: it is kept for a week after a failure.")
    if not row.shared:
        newest = await parts.registry.find(lease.id) or lease  # it may have ended meanwhile
        share = partial(parts.store.outputs.write_shared, lease_id=lease.id)
        await _save(parts, person, newest, events.OutputShared(), where, others=[share])


async def _dispute(parts: Parts, person: Person, lease: Lease, said: object, where: str) -> None:
    """Store the report of a wrong end. The readings that decided it are kept as long as its audit."""
    sentence = parse_dispute_text(said)
    if lease.dispute is not None and lease.dispute.sentence == sentence:
        return  # a second click
    since = deciding_since(lease, EVIDENCE_SECONDS)
    disputed = transitions.dispute(lease, sentence, since, parts.clock.now())
    await _save(parts, person, disputed, events.Disputed(sentence), where, kept=[(lease.id, since)])


async def _answer(parts: Parts, person: Person, lease: Lease, said: object, where: str) -> None:
    text = parse_dispute_text(said, needed=True)
    if lease.dispute is not None and (lease.dispute.answer, lease.dispute.answered_by) == (text, person.name):
        return  # a second click
    answered = transitions.answer(lease, text, person.name, parts.clock.now())
    await _save(parts, person, answered, events.Answered(text), where)


async def _keep(parts: Parts, person: Person, lease: Lease, _said: object, where: str) -> None:
    await parts.actions.keep(lease, person.name, where)


async def _extend(parts: Parts, person: Person, lease: Lease, _said: object, where: str) -> None:
    await parts.actions.extend(lease, person.name, where)


async def _plan_end(parts: Parts, person: Person, lease: Lease, minutes: object, where: str) -> None:
    """Store when its user will be done. Only the estimates of those who wait follow from it."""
    seconds = 60.0 * int(str(minutes)) or None
    planned = transitions.plan_end(parts.registry.get(lease.id) or lease, seconds, parts.clock.now())
    await _save(parts, person, planned, events.EndPlanned(seconds), where)


async def _move(parts: Parts, person: Person, lease: Lease, _said: object, where: str) -> None:
    """Stop a workspace whose GPU failed, to start again on another one, at its old place."""
    if lease.phase is Phase.STOPPING:
        raise Conflict("This workspace is stopping already.")
    closed = closed_gpus(parts, lease)
    if not lease.unhealthy and not closed:
        raise Conflict("None of its GPUs is reported as failed: there is nothing to move it from.")
    if why := parts.allocator.offered_no_more(lease):
        raise Conflict(f"It cannot start again: {why} Stop it when you can, and start another from the form.")
    moved = exits.moved(person.name, where, lease.unhealthy)
    how = moved if lease.unhealthy else exits.moved_by(person.name, where, ". ".join(closed))
    await parts.engine.begin_stop(lease.id, how, _may_move)
    await parts.engine.drive(lease.id)


def _may_move(lease: Lease) -> bool:
    return lease.phase in UP


async def _go_on(parts: Parts, person: Person, lease: Lease, _said: object, where: str, *, way: str) -> None:
    """Restart a workspace with the same home, without a GPU or with one."""
    if lease.phase not in UP:
        starts = lease.phase in JOINABLE - WAITING
        then = "try again once it runs" if starts else "change what it asks for on the form"
        raise Conflict(f"It does not run{' yet' if starts else ''}: {then}.")
    if lease.unasked:
        raise Conflict("It was started without the GPU service, which could not start it again. Use the form.")
    if way != way_of(lease):
        raise Conflict("It has no GPU now." if way == WITHOUT else "It has a GPU now.")
    groups = await parts.members.fetch(lease.user, lease.key.owner)
    after = next_of(parts, lease, groups)
    if after is None:
        raise Conflict("It had no GPU before, and its template gives none by default: choose one on the form.")
    parts.allocator.check(after.request, lease.key)
    current = parts.registry.get(lease.id)
    if current is None or current.phase not in UP:
        raise Conflict("This workspace has ended meanwhile.")
    how = exits.goes_on(person.name, where, gpus_asked(after.request, parts.catalog))
    # Without an await between, so that both are stored together.
    noted = parts.registry.save(replace(current, goes_on=after))
    await asyncio.gather(noted, parts.engine.begin_stop(lease.id, how))
    await parts.engine.drive(lease.id)


_OF_AN_END = {"seen": _see, "share": _share, "dispute": _dispute, "answer": _answer}
_OF_A_LIVE_ONE: Mapping[str, Callable[[Parts, Person, Lease, object, str], Awaitable[None]]] = {
    "rename": _rename,
    "came": _come,
    "consent": _consent,
    "take": _take,
    "keep": _keep,
    "extend": _extend,
    "done": _plan_end,
    "stop": _stop,
    "move": _move,
    WITHOUT: partial(_go_on, way=WITHOUT),
    WITH: partial(_go_on, way=WITH),
}
_DONE_BY = {"move": exits.ExitReason.MOVED, WITHOUT: exits.ExitReason.CHANGED, WITH: exits.ExitReason.CHANGED}
