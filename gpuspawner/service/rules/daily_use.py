"""What each step of a lease adds to the sums of use: what it charges, what samples read, what a reclaim saved. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from zoneinfo import ZoneInfo

from gpuspawner.core.calendar import HOUR_MS, Per, Span, day_of, milliseconds, split
from gpuspawner.core.leases.exits import ExitReason
from gpuspawner.core.leases.lease import UP, Lease
from gpuspawner.core.quotas.ledger import Charge, Line
from gpuspawner.core.rules import Used
from gpuspawner.service.store import ReadingRow
from gpuspawner.service.store.usage_sums import UsageAmounts, UsagePart

RECLAIMS = frozenset({ExitReason.IDLE, ExitReason.NOBODY_CAME})
"""The ends by which GPUs that did nothing return to the pool."""
NodeOf = Callable[[str], str]
"""Says on which node a GPU is; "" where that is not known."""


def parts_of_lines(lines: Iterable[Line], leases: Mapping[str, Lease], node_of: NodeOf) -> Iterator[UsagePart]:
    """Yield what lines of the ledger charge. ``leases`` are theirs, by id; a correction has none."""
    for line in lines:
        lease = leases.get(line.lease)
        charged, cost = (float(line.amount(used)) for used in (Used.GPU_HOURS, Used.COST))
        is_credit = line.what is Charge.REFUND or (line.what is Charge.CORRECTION and line.milliseconds < 0)
        yield UsagePart(
            line.day,
            line.account.user_created,
            line.user,
            line.account.team,
            line.kind,
            lease.request.template if lease else "",
            _node(lease, node_of) if lease else "",
            UsageAmounts(charged=charged, credited=-charged if is_credit else 0.0, cost=cost),
        )


def counted_until(lease: Lease) -> float:
    """Return until when the allocated time of a workspace that runs is in the sums: until its last sample."""
    return max(lease.running_at or 0.0, lease.sampled_at or 0.0)


def parts_of_step(
    before: Lease | None, after: Lease, rows: Iterable[ReadingRow], zone: ZoneInfo, node_of: NodeOf
) -> Iterator[UsagePart]:
    """Yield what a step adds to the allocated time of a lease: until its new sample, or its end.

    What no reading covers was not measured. So active, idle and not measured are always all that was allocated.
    """
    ran = before is not None and before.phase in UP
    lease = before if before is not None and ran and after.phase not in UP else after
    if lease.phase not in UP or lease.running_at is None:
        return
    since = counted_until(before) if before is not None and ran else lease.running_at
    until = counted_until(after) if after.phase in UP else after.phase_since
    yield from _parts_of_time(lease, since, until, rows, zone, node_of)


def parts_of_rest(lease: Lease, now: float, zone: ZoneInfo, node_of: NodeOf) -> Iterator[UsagePart]:
    """Yield the allocated time of a workspace that runs which is not in the sums yet: it is not measured so far."""
    if lease.phase in UP and lease.running_at is not None:
        yield from _parts_of_time(lease, counted_until(lease), now, (), zone, node_of)


def _parts_of_time(
    lease: Lease, since: float, until: float, rows: Iterable[ReadingRow], zone: ZoneInfo, node_of: NodeOf
) -> Iterator[UsagePart]:
    gpus = {slot.gpu for slot in lease.slots}
    start_ms, end_ms, each = milliseconds(since), milliseconds(until), _each(lease)
    if not gpus or not each or end_ms <= start_ms:
        return
    read = [(row.kind, milliseconds(row.at - row.seconds), milliseconds(row.at)) for row in rows if row.gpu in gpus]
    for span, _ in split(start_ms, end_ms, Per.DAY, zone):
        active, idle = (_hours(span, read, kind) * each for kind in ("busy", "idle"))
        whole = len(lease.slots) * each * (span.end_ms - span.start_ms) / HOUR_MS
        amounts = UsageAmounts(active=active, idle=idle, not_measured=max(0.0, whole - active - idle))
        yield _of_lease(lease, day_of(span.start_ms, zone), amounts, node_of)


def _hours(span: Span, read: Iterable[tuple[str, int, int]], kind: str) -> float:
    return sum(span.overlap(start_ms, end_ms) for what, start_ms, end_ms in read if what == kind) / HOUR_MS


def _each(lease: Lease) -> float:
    """Return how much each GPU of a lease counts in quotas and hours; its share where no rate was granted."""
    if lease.rate is None:
        return float(sum(slot.share for slot in lease.slots)) / max(1, len(lease.slots))
    return float(lease.rate.gpus) / max(1, len(lease.slots))


def part_of_reclaim(before: Lease | None, after: Lease, zone: ZoneInfo, node_of: NodeOf) -> UsagePart | None:
    """Return what a reclaim saves: from then to the end that was asked for; None of any other step."""
    if before is None or before.phase not in UP or after.phase in UP or after.reason not in RECLAIMS:
        return None
    left = max(0.0, (after.deadline_at or 0.0) - after.phase_since)
    hours = len(before.slots) * _each(before) * left * 1000 / HOUR_MS
    reclaimed = UsageAmounts(reclaimed=hours, reclaims=1.0)
    return _of_lease(before, day_of(milliseconds(after.phase_since), zone), reclaimed, node_of)


def _of_lease(lease: Lease, day: str, amounts: UsageAmounts, node_of: NodeOf) -> UsagePart:
    request = lease.request
    whose = (lease.key.user_created, lease.user, request.team)
    return UsagePart(day, *whose, lease.kind or "", request.template, _node(lease, node_of), amounts)


def _node(lease: Lease, node_of: NodeOf) -> str:
    return next(filter(None, (node_of(slot.gpu) for slot in lease.slots)), "")
