"""Change the order of waiting requests. The users of the requests that are passed read the reason."""

from __future__ import annotations

import logging
from dataclasses import replace

from gpuspawner.core import events
from gpuspawner.core.errors import Conflict, RequestRefused, Unavailable
from gpuspawner.core.leases.lease import WAITING, Lease
from gpuspawner.core.queue.moves import QueueMove, plan_move
from gpuspawner.core.units import ordinal
from gpuspawner.service.administration.models import BulkResult, ReorderInput
from gpuspawner.service.administration.restrictions import lease_title, present_affected
from gpuspawner.service.parts import Parts
from gpuspawner.service.web.actor import Actor
from gpuspawner.service.web.endpoint import Router
from gpuspawner.service.web.permissions import Permission

log = logging.getLogger("gpuspawner")

router = Router()


@router.post("/api/v1/admin/workspaces/reorder", Permission.ORDER_QUEUE, repeatable=True, audit="reorder")
async def reorder_request(actor: Actor, *, body: ReorderInput) -> BulkResult:
    """Move a waiting request to another place in the queue. With ``dry_run`` return the effects only.

    It ends no workspace. 409 if the request does not wait, or if another scheduler owns its queue.
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
        await state.allocator.give()
    except Unavailable as error:
        log.warning("what follows from another order of the queue is done later: %s", error)
    return answer


def _plan(state: Parts, lease: Lease, place: int, *, repeated: bool) -> QueueMove:
    """Return the move. Raises Conflict if it is not possible, or changes nothing unless it is ``repeated``."""
    observed = state.allocator.observed
    if lease.phase not in WAITING:
        raise Conflict("It does not wait. Only waiting requests have a place in the queue.")
    if not observed.is_queue_ours(lease):
        raise Conflict(f"{observed.decides(lease)} owns the queue of these GPUs. Change the order there.")
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
