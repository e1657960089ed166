"""What rules do to one workspace, as JSON: which bounds its end, which holds it back, which policy judges it now."""

from __future__ import annotations

from typing import Any

from gpuspawner.core.leases.lease import Lease
from gpuspawner.core.queue.decisions import BlockingRule
from gpuspawner.core.quotas.ledger import BUDGET_RULE
from gpuspawner.core.units import show_time
from gpuspawner.service.parts import Parts
from gpuspawner.service.rules.policies import policy_now
from gpuspawner.service.tell.sentences import hours_words

ENTRY = "quota "
"""How ``core.rules.HeldBack`` names an entry of ``quotas``: by this and its name."""


def policy_view(parts: Parts, name: str) -> dict[str, Any]:
    """Return which policy judges now what was asked for by the one called so, and until when hours leave it so."""
    now = parts.clock.now()
    policy, instead_of, until = policy_now(parts.catalog, name, now)
    return {
        "name": policy.name,
        "instead_of": instead_of or None,
        "until": until,
        "words": hours_words(policy.name, instead_of, until, now),
    }


def latest_end_view(lease: Lease, now: float) -> dict[str, Any] | None:
    """Return the bound on the end of a workspace that no extension passes, and whose it is; None for none."""
    bound = lease.latest_end
    if bound is None:
        return None
    why = bound.words.rstrip(".")
    if lease.deadline_at is not None and lease.deadline_at < bound.at - 1:
        then = why.partition(", when ")[2]
        sentence = f"No extension goes beyond {show_time(bound.at, now)}{f', when {then}' if then else f': {why}'}."
    else:
        sentence = f"It {why}." if why.startswith("ends ") else f"{why}."
    entry = bound.name if bound.rule == BUDGET_RULE else ""
    return {"at": bound.at, "rule": bound.rule, "entry": entry or None, "words": bound.words, "sentence": sentence}


def held_back_view(lease: Lease, held: BlockingRule | None, owner: str) -> dict[str, Any] | None:
    """Return which rule holds a waiting request back, and its sentence; None where none does.

    ``held`` is what the scheduler says now; since when that is, the lease knows once it is stored. ``owner`` names
    who owns the queue, "" for us: its rules say nothing of the time that we count as waited.
    """
    if held is None:
        return None
    before = lease.held_back
    since = before.since if before is not None and before.rule == held.rule else None
    entry = held.rule.removeprefix(ENTRY) if held.rule.startswith(ENTRY) else ""
    whose = owner if owner and not entry else None
    return {"rule": held.rule, "entry": entry or None, "words": held.words, "since": since, "owner": whose}
