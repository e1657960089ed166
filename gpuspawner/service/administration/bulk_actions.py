"""Stop, move or extend several workspaces at once, or move a request in the queue. A dry run answers the same.

All are checked before the first is changed. The workspaces that can't be changed are listed with the reason.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from gpuspawner.core import events
from gpuspawner.core.errors import Conflict, RequestRefused, Unavailable
from gpuspawner.core.gpus.placement import is_grantable
from gpuspawner.core.leases import exits
from gpuspawner.core.leases.lease import UP, WAITING, Lease, Phase
from gpuspawner.core.leases.transitions import stops_to_start_again
from gpuspawner.core.queue.changes import QueueMove, plan_move
from gpuspawner.core.rules import EndNotice
from gpuspawner.core.units import ordinal, show_count, show_duration, show_end, show_time
from gpuspawner.service.administration.models import BulkResult, ExtendInput, ReorderInput, StopInput
from gpuspawner.service.administration.restriction_effects import lease_title, present_affected
from gpuspawner.service.parts import Parts
from gpuspawner.service.rules.policies import policy_of
from gpuspawner.service.web.actor import Actor
from gpuspawner.service.web.endpoint import Router
from gpuspawner.service.web.permissions import Permission, Reach

router = Router()
log = logging.getLogger("gpuspawner")

Action = Literal["stop", "move", "extend"]
DONE = {"stop": "stopped", "move": "moved", "extend": "extended"}
LOST = "Running kernels are lost; files stay."


@router.post("/api/v1/admin/workspaces/stop", Permission.MANAGE_WORKSPACES, repeatable=True, audit="stop")
async def stop_workspaces(actor: Actor, *, body: StopInput) -> BulkResult:
    """Stop several workspaces. With ``dry_run`` return the effects only. 409 if no workspace can be stopped."""
    return await _act_on_each(actor, "stop", body, lambda lease: _plan_stop(actor, lease, body.reason, now=body.now))


@router.post("/api/v1/admin/workspaces/move", Permission.MANAGE_WORKSPACES, repeatable=True, audit="move")
async def move_workspaces(actor: Actor, *, body: StopInput) -> BulkResult:
    """Move several workspaces. With ``dry_run`` return the effects only. 409 if no workspace can be moved."""
    return await _act_on_each(actor, "move", body, lambda lease: _plan_move(actor, lease, body.reason, now=body.now))


@router.post("/api/v1/admin/workspaces/extend", Permission.MANAGE_WORKSPACES, repeatable=True, audit="extend")
async def extend_workspaces(actor: Actor, *, body: ExtendInput) -> BulkResult:
    """Extend several workspaces. With ``dry_run`` return the effects only. 409 if no workspace can be extended."""
    extended: dict[str, Lease] = {}
    return await _act_on_each(
        actor, "extend", body, lambda lease: _plan_extension(actor, lease, body.until, body.reason, extended)
    )


@dataclass(frozen=True)
class Plan:
    """An act on one workspace, in a sentence. ``ends_at`` is its end then, None if it waits or has no known end."""

    lease: Lease
    words: str
    ends_at: float | None
    do: Callable[[], Awaitable[object]] | None = None


@dataclass(frozen=True)
class Refusal:
    """A workspace that can't be changed, and why, in a sentence."""

    lease: Lease
    why: str


async def _act_on_each(
    actor: Actor, action: Action, body: StopInput | ExtendInput, plan: Callable[[Lease], Plan]
) -> BulkResult:
    """Plan for all workspaces, then carry the plans out. Raises Conflict if none can be changed."""
    planned, refused = _plan_each(await actor.find_leases(body.ids, Permission.MANAGE_WORKSPACES), plan)
    if not body.dry_run:
        planned = [one for one in planned if await _succeeds(one, refused)]
    if not planned:
        raise Conflict(_none_words(action, refused))
    return BulkResult(
        action=action,
        dry_run=body.dry_run,
        now=actor.now,
        reason=body.reason,
        words=_words(action, planned, refused, dry_run=body.dry_run),
        affected=[present_affected(actor.state, one.lease, one.words, one.ends_at) for one in planned],
        refused=[present_affected(actor.state, one.lease, one.why, None) for one in refused],
    )


def _plan_stop(actor: Actor, lease: Lease, reason: str, *, now: bool) -> Plan:
    by, where = actor.person.name, actor.origin
    if not lease.live:
        raise Conflict("It has ended already.")
    if lease.phase is Phase.STOPPING:
        how = exits.stopped_by(by, where, reason)
        words = "The workspace does not start again." if stops_to_start_again(lease) else "The workspace stops already."
        return Plan(lease, words, None, lambda: actor.state.actions.end_for_good(lease, how))
    if lease.phase in WAITING:
        withdrawn = exits.withdrawn(by, where, reason)
        return Plan(lease, "Its request is withdrawn.", None, lambda: _end(actor.state, lease, withdrawn))
    how = exits.stopped_by(by, where, reason)
    if lease.phase not in UP:
        return Plan(lease, "Its start is stopped.", None, lambda: _end(actor.state, lease, how))
    if now:
        return Plan(lease, f"It ends now. {LOST}", actor.now, lambda: _end(actor.state, lease, how))
    return _plan_notice(actor, lease, reason)


def _plan_move(actor: Actor, lease: Lease, reason: str, *, now: bool) -> Plan:
    if lease.phase not in UP:
        raise Conflict("It does not run: there is nothing to move.")
    if lease.unasked:
        raise Conflict("It was started without the GPU service, which could not start it again. Stop it instead.")
    if why := actor.state.allocator.offered_no_more(lease):
        raise Conflict(f"It would not start again: {why} Stop it instead.")
    target = _move_target(actor.state, lease)
    if not now:
        return _plan_notice(actor, lease, reason, target)
    how = exits.moved_by(actor.person.name, actor.origin, reason)

    async def move() -> None:
        await actor.state.registry.save(_placed_elsewhere(actor.state, actor.state.registry.get(lease.id) or lease))
        await _end(actor.state, lease, how)

    words = f"It ends now, and starts again by itself at its old queue position, {target}. {LOST}"
    return Plan(lease, words, actor.now, move)


def _move_target(state: Parts, lease: Lease) -> str:
    """Return where a moved workspace starts again.

    Raises:
        Conflict: only its present GPUs could be granted to it.
    """
    fleet = state.allocator.observed.fleet
    own = {slot.gpu for slot in lease.slots}
    held = [gpu for gpu in fleet.gpus if gpu.id in own]
    if not any(is_grantable(gpu) for gpu in held):
        return "elsewhere"
    pools, nodes = {gpu.pool for gpu in held}, {gpu.node for gpu in held}
    others = [gpu for gpu in fleet.gpus if gpu.pool in pools and gpu.id not in own and is_grantable(gpu)]
    if any(gpu.node not in nodes for gpu in others):
        return "on another node if one has room, else perhaps on the same GPUs"
    if others:
        return "perhaps on the same GPUs, since no other node has this kind. Quarantine a GPU to exclude it"
    raise Conflict("It would get the same GPUs again: no other GPU of this kind can be granted. Stop it instead.")


def _plan_notice(actor: Actor, lease: Lease, reason: str, target: str = "") -> Plan:
    """Plan an end after the notice of its policy. ``target`` is where it starts again, "" if it does not."""
    now = actor.now
    at = now + policy_of(actor.state.catalog, lease, now).preemption.notice_seconds
    announced = lease.notice
    if announced is not None and actor.idempotency_key and (announced.by, announced.why) == (actor.person.name, reason):
        return Plan(lease, f"It ends at {show_time(announced.at, now)}.", announced.at)  # a repeated request
    if lease.notice is not None and lease.notice.at <= at:
        raise Conflict(f"It ends at {show_time(lease.notice.at, now)} already. End it now, or leave it.")
    event = events.EndAnnounced(at, target, reason)

    async def announce() -> None:
        newest = actor.state.registry.get(lease.id)
        if newest is None or newest.phase not in UP:
            return  # it ended meanwhile
        notice = EndNotice("", at, reason, actor.person.name, actor.origin, bool(target))
        told = replace(_placed_elsewhere(actor.state, newest) if target else newest, notice=notice)
        await actor.state.registry.save(told, audit=[actor.audit_entry_of(told, event)])

    return Plan(lease, f"{event.end(now)}. {LOST}", at, announce)


def _placed_elsewhere(state: Parts, lease: Lease) -> Lease:
    """Return a lease that is placed elsewhere next, where there is room."""
    known = state.scheduler.fleet.by_id
    here = dict.fromkeys(known[slot.gpu].node for slot in lease.slots if slot.gpu in known)
    return replace(lease, tried_nodes=(*(x for x in lease.tried_nodes if x not in here), *here))


def _plan_extension(actor: Actor, lease: Lease, until: float, reason: str, extended: dict[str, Lease]) -> Plan:
    """Plan an extension. ``extended`` are the leases that this act extends, since they share a budget."""
    _refuse_lead_s_own(actor, lease)
    now, deadline_at = actor.now, lease.deadline_at
    if lease.phase not in UP or deadline_at is None:
        raise Conflict("It does not run, or has no end. There is nothing to extend.")
    seconds = until - deadline_at
    if actor.idempotency_key and until == deadline_at == lease.granted_until:
        return Plan(lease, f"It runs until {show_end(until, now)}.", until)  # a repeated request
    if seconds <= 0:
        raise Conflict(f"It runs until {show_end(deadline_at, now)} already. Name a later time, or stop it.")
    if lease.notice is not None and lease.notice.at < until:
        raise Conflict(
            f"It ends at {show_time(lease.notice.at, now)}, as was announced. Another run time does not change that."
        )
    latest = actor.state.allocator.bounds.of_extension(lease, seconds, extended)
    if latest is not None and latest.at < until:
        raise Conflict(f"It {latest.words}. Grant more first, or name an earlier time.")
    extended[lease.id] = replace(lease, deadline_at=until)

    async def extend() -> None:
        await actor.state.allocator.scheduler.extend(lease, until)
        newest = actor.state.registry.get(lease.id)
        if newest is None or newest.phase not in UP or newest.deadline_at is None or newest.deadline_at >= until:
            return  # it ended meanwhile, or runs as long by now
        more = until - newest.deadline_at
        latest = actor.state.allocator.bounds.of_extension(newest, more)
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
        await actor.state.registry.save(longer, audit=[actor.audit_entry_of(longer, events.Extended(more, reason))])

    words = f"{show_end(deadline_at, now)} → {show_end(until, now)}, {show_duration(seconds)} more."
    if lease.phase is Phase.RECLAIMING:
        words += " It still stops before if its user does not use or keep it."
    return Plan(lease, words, until, extend)


def _refuse_lead_s_own(actor: Actor, lease: Lease) -> None:
    """Raise Conflict if a team lead would extend their own workspace beyond the bounds of its policy."""
    if actor.person.owns(lease) and actor.person.reach(Permission.MANAGE_WORKSPACES) is Reach.TEAM:
        raise Conflict("It is your own workspace. Extend it on its page, or ask another lead or an operator.")


async def _end(state: Parts, lease: Lease, how: exits.Exit) -> None:
    newest = state.registry.get(lease.id)
    if newest is None or newest.phase is Phase.STOPPING:
        return  # it ended meanwhile
    await state.engine.begin_stop(lease.id, how)
    await state.engine.drive(lease.id)


def _plan_each(leases: Sequence[Lease], plan: Callable[[Lease], Plan]) -> tuple[list[Plan], list[Refusal]]:
    """Return the plans for the workspaces that can be changed, and the refusals for the others."""
    planned: list[Plan] = []
    refused: list[Refusal] = []
    for lease in leases:
        try:
            planned.append(plan(lease))
        except Conflict as error:
            refused.append(Refusal(lease, str(error)))
    return planned, refused


async def _succeeds(one: Plan, refused: list[Refusal]) -> bool:
    """Carry a plan out. If it is not possible any more, add the refusal and return False."""
    try:
        if one.do is not None:
            await one.do()
    except Conflict as error:
        refused.append(Refusal(one.lease, str(error)))
        return False
    return True


def _words(action: Action, planned: Sequence[Plan], refused: Sequence[Refusal], *, dry_run: bool) -> str:
    rest = f" {len(refused)} can't be." if refused else ""
    if dry_run:
        return f"{show_count(len(planned))} would be {DONE[action]}.{rest} Nothing was done."
    return f"{show_count(len(planned))} {'is' if len(planned) == 1 else 'are'} {DONE[action]}.{rest}"


def _none_words(action: Action, refused: Sequence[Refusal]) -> str:
    """Return why nothing was done, with a line for each workspace."""
    if len(refused) == 1:
        return refused[0].why
    lines = [f"{lease_title(one.lease)}: {one.why}" for one in refused]
    return "\n".join([f"None of {show_count(len(refused))} can be {DONE[action]}.", *lines])


# The order of the queue


@router.post("/api/v1/admin/workspaces/reorder", Permission.ORDER_QUEUE, repeatable=True, audit="reorder")
async def reorder_request(actor: Actor, *, body: ReorderInput) -> BulkResult:
    """Move a waiting request to another place in the queue. With ``dry_run`` return the effects only.

    No workspace ends. 409 if the request does not wait, or if another scheduler owns its queue.
    """
    if len(body.ids) != 1:
        raise RequestRefused("ids", f"{len(body.ids)} requests", "one request", "Move one after the other.")
    (lease,), state = await actor.find_leases(body.ids, Permission.ORDER_QUEUE), actor.state
    # From here to the save nothing is awaited, so the order does not change meanwhile.
    move = _plan(state, lease, body.place, repeated=bool(actor.idempotency_key))
    passed = [one for name in move.passed if (one := state.registry.get(name)) is not None]
    answer = _present(actor, lease, move, passed, body)
    if body.dry_run or not move.values:
        return answer
    changed = {name: one for name in {*move.values, *move.passed} if (one := state.registry.get(name)) is not None}
    changed = {name: replace(one, queue_move=move.values.get(name, one.queue_move)) for name, one in changed.items()}
    changed |= {one.id: replace(changed[one.id], passed_why=body.reason) for one in passed}
    lines = [actor.audit_entry_of(lease, events.MovedInQueue(move.place, move.to, body.reason))]
    lines += [actor.audit_entry_of(one, events.PassedByMove(body.reason)) for one in passed]
    await state.registry.save(*changed.values(), audit=lines)
    try:
        await state.allocator.grant_waiting()
    except Unavailable as error:
        log.warning("what follows from another order of the queue is done later: %s", error)
    return answer


def _plan(state: Parts, lease: Lease, place: int, *, repeated: bool) -> QueueMove:
    """Return the move. Raises Conflict if it is not possible, or changes nothing unless it is ``repeated``."""
    observed = state.allocator.observed
    if lease.phase not in WAITING:
        raise Conflict("It does not wait. Only waiting requests have a place in the queue.")
    if not observed.is_queue_ours(lease):
        raise Conflict(f"{observed.queue_owner(lease)} owns the queue of these GPUs. Change the order there.")
    seen = observed.snapshot()
    move = plan_move(seen, lease.id, place, observed.holdings(seen))
    if move.place == move.to and not repeated:
        raise Conflict(f"It is {ordinal(move.place)} of {move.of} in the order already. Nothing was changed.")
    return move


def _present(actor: Actor, lease: Lease, move: QueueMove, passed: list[Lease], body: ReorderInput) -> BulkResult:
    would = "would be" if body.dry_run else "is"
    words = f"{lease_title(lease)} {would} {ordinal(move.to)} of {move.of} in the order."
    goes_up = move.to < move.place
    told = f"{f'It goes after {lease_title(lease)}' if goes_up else 'Another request goes before it'} then."
    told = f"{told} Its user reads the reason."
    moved = f"From {ordinal(move.place)} to {ordinal(move.to)}. No workspace ends for it."
    return BulkResult(
        action="reorder",
        dry_run=body.dry_run,
        now=actor.now,
        reason=body.reason,
        words=f"{words} Nothing was done." if body.dry_run else words,
        affected=[
            present_affected(actor.state, lease, moved, None),
            *(present_affected(actor.state, one, told, None) for one in passed if one.id != lease.id),
        ],
        refused=[],
    )
