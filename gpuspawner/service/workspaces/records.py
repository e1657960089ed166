"""A workspace's readings, audit entries, output, charges and rules as JSON."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from gpuspawner.core.gpus.pools import counting_resource
from gpuspawner.core.gpus.vendors import measurement_note
from gpuspawner.core.leases.lease import Lease
from gpuspawner.core.leases.stored_events import fields_of
from gpuspawner.core.queue.decisions import BlockingRule
from gpuspawner.core.quotas.ledger import BUDGET_RULE, ledger_lines_until
from gpuspawner.core.rules import BudgetUnit
from gpuspawner.core.units import show_time
from gpuspawner.schedulers.base import Offer
from gpuspawner.service.api.base import Person
from gpuspawner.service.parts import Parts
from gpuspawner.service.rules.policies import policy_now
from gpuspawner.service.store import AuditLine, ReadingRow
from gpuspawner.service.waiting.presenter import hours_words


def reading_view(row: ReadingRow) -> dict[str, Any]:
    """Return a stored reading as JSON."""
    return {
        "at": row.at,
        "seconds": row.seconds,
        "gpu": row.gpu,
        "utilization_percent": row.utilization_percent,
        "memory_used_bytes": row.memory_used_bytes,
        "memory_total_bytes": row.memory_total_bytes,
        "kind": row.kind,
        "because": row.because,
        "cpu_cores": row.cpu_cores,
        "soft": row.soft,
    }


def audit_view(line: AuditLine) -> dict[str, Any]:
    """Return an audit line as JSON."""
    event = line.event
    told = {"at": line.at, "user": line.user, "actor": line.actor, "action": event.action, "why": event.why}
    return {**told, "fields": fields_of(event)}


def offer_view(offer: Offer, parts: Parts) -> dict[str, Any]:
    """Return an offer as JSON: null is unknown, never 0 for that."""
    kind = parts.catalog.gpus[offer.kind]
    return {
        "kind": offer.kind,
        "title": kind.title,
        "memory_bytes": kind.memory_bytes,
        "memory_enforced": bool(kind.own_memory_bytes),
        "price_per_hour": kind.price_per_hour,
        "spot": kind.spot,
        "free": offer.free,
        "total": offer.total,
        "waiting": offer.waiting,
        "simulated": offer.simulated,
        "note": offer.note,
        "measured": measurement_note(counting_resource(kind, parts.scheduler.fleet)),
    }


async def output_view(parts: Parts, lease: Lease, person: Person) -> dict[str, Any]:
    """Return it as JSON: ``there`` says whether any is kept, ``text`` is null where it is not for this person."""
    row = await parts.store.read(parts.store.outputs.get, lease.id, parts.clock.now())
    if row is None:
        return {"there": False, "text": None, "shared": False}
    return {"there": True, "text": row.text if row.shared or person.owns(lease) else None, "shared": row.shared}


def charged_view(parts: Parts, lease: Lease) -> dict[str, Any] | None:
    """Return what a workspace that runs has used so far, less what is given back; None for any other.

    ``cost`` is None where its GPUs have no price.
    """
    if lease.rate is None or lease.running_at is None or lease.deadline_at is None or not lease.live:
        return None
    lines = ledger_lines_until(lease, parts.clock.now(), parts.allocator.accounting.zone)
    hours, cost = (sum((line.amount(used) for line in lines), Fraction(0)) for used in BudgetUnit)
    return {"gpu_hours": float(hours), "cost": float(cost) if lease.rate.price_per_hour else None}


def why_it_ends(lease: Lease, deadline_at: float, now: float) -> str:
    """Return when and why a workspace ends at its deadline, in a sentence."""
    bound = lease.latest_end
    if bound is None or deadline_at < bound.at:
        return f"The lifetime of this workspace ends at {show_time(deadline_at, now)}."
    if deadline_at == bound.at:
        return f"This workspace {bound.words}."
    return f"This workspace ends at {show_time(deadline_at, now)}: its time is over, and you were to be warned before."


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
