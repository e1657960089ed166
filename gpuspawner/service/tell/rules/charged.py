"""What a workspace is charged, and why it ends when it does, as pages, API and command line show it."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from gpuspawner.core.leases.lease import Lease
from gpuspawner.core.quotas.ledger import ledger_lines_until
from gpuspawner.core.rules import BudgetUnit
from gpuspawner.core.units import show_time
from gpuspawner.service.parts import Parts


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
