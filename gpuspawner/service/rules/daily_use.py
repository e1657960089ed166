"""What each step of a lease adds to the sums of use: what it charges, what samples read, what a reclaim saved. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from fractions import Fraction
from zoneinfo import ZoneInfo

from gpuspawner.core.calendar.periods import day_of, milliseconds
from gpuspawner.core.leases.endings import Reason
from gpuspawner.core.leases.lease import UP, Lease
from gpuspawner.core.quotas.charges import Charge, Line
from gpuspawner.core.rules import Used
from gpuspawner.service.store import ReadingRow
from gpuspawner.service.store.reports.use_sums import Amounts, Part

HOUR_SECONDS = 3600.0
NodeOf = Callable[[str], str]
"""Says on which node a GPU is; "" where that is not known."""


def parts_of_lines(lines: Iterable[Line], leases: Mapping[str, Lease], node_of: NodeOf) -> Iterator[Part]:
    """Yield what lines of the ledger charge. ``leases`` are theirs, by id; a correction has none."""
    for line in lines:
        lease = leases.get(line.lease)
        held, cost = (float(line.amount(used)) for used in (Used.GPU_HOURS, Used.COST))
        back = line.what is Charge.REFUND or (line.what is Charge.CORRECTION and line.milliseconds < 0)
        yield Part(
            line.day,
            line.account.user_created,
            line.user,
            line.account.team,
            line.kind,
            lease.request.template if lease else "",
            _node(lease, node_of) if lease else "",
            Amounts(held=held, given_back=-held if back else 0.0, cost=cost),
        )


def part_of_readings(lease: Lease, rows: Iterable[ReadingRow], zone: ZoneInfo, node_of: NodeOf) -> Part | None:
    """Return what one sample read of the GPUs that a lease holds, in their shares; None of a lease without one.

    It counts on the day on which it was taken.
    """
    shares = {slot.gpu: slot.share for slot in lease.slots}
    hours, at = {"busy": 0.0, "idle": 0.0, "unknown": 0.0}, None
    for row in rows:
        if row.gpu in shares:
            name = row.kind if row.kind in hours else "unknown"
            hours[name] += float(shares[row.gpu]) * row.seconds / HOUR_SECONDS
            at = row.at
    return None if at is None else _of_lease(lease, day_of(milliseconds(at), zone), Amounts(**hours), node_of)


def part_of_reclaim(before: Lease | None, after: Lease, zone: ZoneInfo, node_of: NodeOf) -> Part | None:
    """Return what a stop for idleness saves: from then to the end that was asked for; None of any other step."""
    if before is None or before.phase not in UP or after.phase in UP or after.reason is not Reason.IDLE:
        return None
    left = max(0.0, (after.deadline_at or 0.0) - after.phase_since)
    shares = sum((slot.share for slot in before.slots), Fraction(0))
    saved = Amounts(saved=float(shares) * left / HOUR_SECONDS, idle_stops=1.0)
    return _of_lease(before, day_of(milliseconds(after.phase_since), zone), saved, node_of)


def _of_lease(lease: Lease, day: str, amounts: Amounts, node_of: NodeOf) -> Part:
    request = lease.request
    whose = (lease.key.user_created, lease.user, request.team)
    return Part(day, *whose, lease.kind or "", request.template, _node(lease, node_of), amounts)


def _node(lease: Lease, node_of: NodeOf) -> str:
    return next(filter(None, (node_of(slot.gpu) for slot in lease.slots)), "")
