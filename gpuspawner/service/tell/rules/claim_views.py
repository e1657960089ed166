"""Stronger claims as JSON: what API, pages and command line show of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gpuspawner.core.leases.lease import HOLDING, UP, Lease
from gpuspawner.core.placement.placement import used_shares
from gpuspawner.core.queue.preemption import Preemption
from gpuspawner.core.units import show_bytes, show_duration
from gpuspawner.service.parts import Parts
from gpuspawner.service.tell.rules.claims import claim_title, state_words

ONLY_OURS = (
    "Only gpuspawner's own queue keeps these GPUs: pods that others make may take them first. Make the work that needs "
    "them as soon as the state is “held”."
)


def claim_view(
    parts: Parts, claim: Preemption, victims: Sequence[Lease] | None = None, *, dry_run: bool = False
) -> dict[str, Any]:
    """Return one claim. ``victims`` are those that it would end; None for those that are under notice for it."""
    now = parts.clock.now()
    ends = parts.preemptions.under_notice(claim) if victims is None else victims
    used = used_shares(parts.book)
    known = parts.scheduler.fleet.by_id
    free = {slot.gpu for slot in claim.slots if used.get(slot.gpu, 0) + slot.share <= 1}
    return {
        "id": None if dry_run else claim.id,
        "state": claim.state.value,
        "words": _would(claim, ends, parts) if dry_run else state_words(claim, len(ends), now),
        "dry_run": dry_run,
        "kind": claim.kind,
        "title": claim_title(claim.kind, parts.catalog),
        "count": claim.asked,
        "for": _whom(claim),
        "by": claim.by,
        "key": claim.key,
        "now": now,
        "made_at": claim.made_at,
        "ends_at": claim.ends_at,
        "free_at": claim.free_at,
        "kept_until": claim.kept_until,
        "over_at": claim.over_at,
        "gpus": [
            {
                "id": slot.gpu,
                "node": known[slot.gpu].node if slot.gpu in known else "",
                "share": str(slot.share),
                "free": slot.gpu in free,
            }
            for slot in claim.slots
        ],
        "victims": [_victim(parts, lease, now) for lease in ends],
        "note": "" if parts.scheduler.capabilities_of(claim.kind).keeps_from_all or not claim.live else ONLY_OURS,
    }


def _would(claim: Preemption, ends: Sequence[Lease], parts: Parts) -> str:
    title = claim_title(claim.kind, parts.catalog)
    if not ends:
        return f"{claim.asked} {title} can be had without ending anything. Nothing was done."
    who = "1 workspace" if len(ends) == 1 else f"{len(ends)} workspaces"
    return f"{claim.asked} {title} can be had by ending {who}. Nothing was done."


def _whom(claim: Preemption) -> dict[str, str]:
    if claim.external:
        return {"external": claim.external}
    return {"team": claim.account.team} if claim.account and claim.account.team else {"user": claim.user}


def _victim(parts: Parts, lease: Lease, now: float) -> dict[str, Any]:
    """Return a workspace that ends for a claim, and what its user loses."""
    return {
        "id": lease.id,
        "user": lease.user,
        "server": lease.key.server,
        "gpus": [slot.gpu for slot in lease.slots],
        "ends_at": None if lease.notice is None or lease.phase not in UP else lease.notice.at,
        "running_seconds": None if lease.running_at is None else now - lease.running_at,
        "idle_seconds": lease.streak.idle_seconds,
        "loses": _loses(parts, lease, now),
        "returns": lease.phase in HOLDING and parts.allocator.returns(lease),
    }


def _loses(parts: Parts, lease: Lease, now: float) -> str:
    """Return in a sentence what is lost with a workspace, as far as it was measured last."""
    newest = parts.sampler.newest(lease.id)
    ran = "" if lease.running_at is None else f" of {show_duration(now - lease.running_at)}"
    found = [f"running kernels{ran}"]
    used = [row.memory_used_bytes for row in newest.values() if row.memory_used_bytes is not None]
    if used:
        found.append(f"{show_bytes(sum(used))} on its GPUs")
    row = next(iter(newest.values()), None)
    active = [str(one["words"]) for one in (row.soft or {}).values() if one.get("active")] if row else []
    if active:
        found.append("; ".join(active))
    idle = lease.streak.idle_seconds
    then = f" Idle for {show_duration(idle)}." if idle else ""
    words = ", ".join(found)
    return f"{words[0].upper()}{words[1:]}; files stay.{then}"
