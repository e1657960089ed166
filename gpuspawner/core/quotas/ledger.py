"""Charges to budgets: rates, ledger lines, uncharged time, decayed usage, and amounts as people write them.

Amounts are exact fractions: whole milliseconds times GPUs, or times money for an hour. A workspace is charged from the
first answer of its server until its end is decided. The start and the time of a stop are not charged.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from fractions import Fraction
from itertools import pairwise
from typing import NamedTuple
from zoneinfo import ZoneInfo

from gpuspawner.core.calendar import HOUR_MS, Per, TimeSpan, date_of, milliseconds, period_of, split_by_period
from gpuspawner.core.errors import quoted
from gpuspawner.core.gpus.fleet import GpuKind
from gpuspawner.core.leases.lease import UP, Lease, Phase
from gpuspawner.core.quotas.limits import accounts_of
from gpuspawner.core.rules import Account, BudgetUnit, LimitedResource, QuotaGrant, Rate
from gpuspawner.core.units import LONGEST, BadValue, OutOfRange, parse_bytes, show_bytes

HALF_LIFE_SECONDS = 7 * 86400.0
"""Usage counts half as much in the queue order after a week."""


class LedgerKind(Enum):
    """The kind of a ledger line."""

    USE = "use"
    OVERRUN = "overrun"
    """Use after a budget was used up, because the warning before the end was late."""
    REFUND = "refund"
    CORRECTION = "correction"


@dataclass(frozen=True)
class LedgerLine:
    """One line of the ledger. A credit has negative ``milliseconds``.

    Args:
        at: when it was written, in seconds since the epoch.
        lease: the workspace, or "" for a correction without one.
        account: the team ("" for none) and the user by ``created``.
        hub: the hub of that user.
        user: the user's name at that time.
        kind: the kind of GPU, or "".
        what: the kind of line.
        day: the date in the catalog's zone in ISO 8601. A line is within one day.
        start_ms: its beginning, in milliseconds since the epoch.
        end_ms: its end. It equals the beginning for a correction.
        milliseconds: the charged time.
        rate: the charge for each hour of that time.
        by: the person or the part that wrote it.
        why: the reason, or "" if ``what`` is sufficient.
    """

    at: float
    lease: str
    account: Account
    hub: str
    user: str
    kind: str
    what: LedgerKind
    day: str
    start_ms: int
    end_ms: int
    milliseconds: int
    rate: Rate
    by: str
    why: str = ""

    def amount(self, used: BudgetUnit) -> Fraction:
        """Return the charge in GPU hours or money."""
        return charged_amount(self.milliseconds, self.rate, used)

    def within(self, period: TimeSpan) -> int:
        """Return its milliseconds in a period."""
        if self.end_ms == self.start_ms:
            return self.milliseconds if period.start_ms <= self.start_ms < period.end_ms else 0
        sign = -1 if self.milliseconds < 0 else 1
        return sign * period.overlap(self.start_ms, self.end_ms)


def charged_amount(number_ms: int, rate: Rate, used: BudgetUnit) -> Fraction:
    """Return the charge for some milliseconds, in GPU hours or money."""
    return amount_per_hour(rate, used) * number_ms / HOUR_MS


def amount_per_hour(rate: Rate, used: BudgetUnit) -> Fraction:
    """Return the charge for an hour, in GPU hours or money."""
    return rate.gpus if used is BudgetUnit.GPU_HOURS else rate.price_per_hour


def rate_of(kind: GpuKind | None, count: int) -> Rate:
    """Return the rate of this number of GPUs of a kind."""
    if kind is None:
        return Rate()
    each = kind.share if kind.counts is None else kind.counts
    price = Fraction(0) if kind.price_per_hour is None else Fraction(str(kind.price_per_hour))
    return Rate(count * each, count * price)


class UnchargedTime(NamedTuple):
    """Time of a workspace that is not charged, or only in part: ``share`` of its rate is credited."""

    start_ms: int
    end_ms: int
    share: Fraction
    why: str


def uncharged_times(lease: Lease, until_ms: int) -> list[UnchargedTime]:
    """Return the uncharged times of a lease before a moment, in order and without overlap.

    If two reasons overlap, the larger share counts.
    """
    if lease.unbilled_since is None:
        return []
    since_ms = milliseconds(lease.unbilled_since)
    lost = [
        UnchargedTime(
            max(since_ms, milliseconds(one.since)),
            until_ms if one.until is None else min(until_ms, milliseconds(one.until)),
            one.share,
            one.why,
        )
        for one in lease.lost
    ]
    edges = sorted({edge for one in lost for edge in (one.start_ms, one.end_ms)})
    found: list[UnchargedTime] = []
    for start_ms, end_ms in pairwise(edges):
        over = [one for one in lost if one.start_ms <= start_ms and end_ms <= one.end_ms]
        if not over:
            continue
        most = max(over, key=lambda one: one.share)
        if found and (found[-1].end_ms, found[-1][2:]) == (start_ms, most[2:]):
            found[-1] = found[-1]._replace(end_ms=end_ms)
        else:
            found.append(UnchargedTime(start_ms, end_ms, most.share, most.why))
    return found


def charged_ms(lease: Lease, until_ms: int, within: TimeSpan | None = None) -> Fraction | int:
    """Return the milliseconds of a lease that are charged and not billed yet, optionally ``within`` a period."""
    if lease.unbilled_since is None:
        return 0
    since_ms = milliseconds(lease.unbilled_since)
    period = within or TimeSpan(since_ms, until_ms)
    if not lease.lost:
        return period.overlap(since_ms, until_ms)
    lost = sum(
        (one.share * period.overlap(one.start_ms, one.end_ms) for one in uncharged_times(lease, until_ms)), Fraction(0)
    )
    return period.overlap(since_ms, until_ms) - lost


def ledger_lines_of_step(before: Lease, after: Lease, zone: ZoneInfo) -> list[LedgerLine]:
    """Return the ledger lines of a step that ends a running workspace or bills it at the close of a month.

    They are stored in the same transaction as the step, so each line is written once.
    """
    if after.phase not in UP:
        return ledger_lines_until(before, after.phase_since, zone)
    billed = after.billed_until
    return [] if billed is None or billed == before.billed_until else ledger_lines_until(before, billed, zone)


def ledger_lines_until(lease: Lease, now: float, zone: ZoneInfo) -> list[LedgerLine]:
    """Return the unbilled ledger lines of a running workspace as if it ended now: use and credits of each day.

    A workspace with a rate of 0 has no lines.
    """
    if lease.phase not in UP or lease.unbilled_since is None or lease.rate is None or lease.rate == Rate():
        return []
    start_ms = milliseconds(lease.unbilled_since)
    end_ms = max(start_ms, milliseconds(now))
    over_ms = _overrun_since_ms(lease, start_ms, end_ms)
    parts = [
        (LedgerKind.USE, start_ms, over_ms, lease.rate, ""),
        (LedgerKind.OVERRUN, over_ms, end_ms, lease.rate, OVERRUN_REASON),
    ]
    for gap in uncharged_times(lease, end_ms):
        given_back = Rate(lease.rate.gpus * gap.share, lease.rate.price_per_hour * gap.share)
        parts.append((LedgerKind.REFUND, gap.start_ms, gap.end_ms, given_back, gap.why))
    return [
        LedgerLine(
            now,
            lease.id,
            Account(lease.request.team, lease.key.user_created),
            lease.key.hub,
            lease.user,
            lease.kind or "",
            what,
            date_of(part.start_ms, zone),
            part.start_ms,
            part.end_ms,
            (-1 if what is LedgerKind.REFUND else 1) * (part.end_ms - part.start_ms),
            rate,
            LEDGER_AUTHOR,
            why,
        )
        for what, from_ms, until_ms, rate, why in parts
        for part, _ in split_by_period(from_ms, until_ms, Per.DAY, zone)
    ]


def _overrun_since_ms(lease: Lease, start_ms: int, end_ms: int) -> int:
    bound = lease.latest_end
    if bound is None or bound.rule != BUDGET_RULE or lease.deadline_at is None or lease.deadline_at <= bound.at:
        return end_ms  # it ended in time, but for the moment that an end takes
    return max(start_ms, min(end_ms, milliseconds(bound.at)))


def sum_charges(
    lines: Iterable[LedgerLine], now: float, zone: ZoneInfo
) -> dict[tuple[Account, BudgetUnit, Per], Fraction]:
    """Return the charges of lines to each account in the present day, week and month."""
    periods = {per: period_of(milliseconds(now), per, zone) for per in Per}
    sums: dict[tuple[Account, BudgetUnit, Per], Fraction] = defaultdict(Fraction)
    for line in lines:
        for per, period in periods.items():
            number_ms = line.within(period)
            if not number_ms:
                continue
            for account in accounts_of(line.account.user_created, line.account.team):
                for used in BudgetUnit:
                    sums[account, used, per] += charged_amount(number_ms, line.rate, used)
    return sums


LEDGER_AUTHOR = "gpuspawner"
"""The author of the lines of an end."""
BUDGET_RULE = "budget"
"""The rule of a :class:`LatestEnd` by a budget."""
OVERRUN_REASON = "The warning of its end was waited for."


def decayed_seconds(start: float, end: float, now: float) -> float:
    """Return the weight of a past interval now. Each moment loses half of its weight in each half-life."""
    return (
        HALF_LIFE_SECONDS / math.log(2) * (_decayed_since(now - min(end, now)) - _decayed_since(now - min(start, now)))
    )


def _decayed_since(ago_seconds: float) -> float:
    return math.pow(2.0, -ago_seconds / HALF_LIFE_SECONDS)


def decayed_gpu_seconds(lines: Iterable[LedgerLine], now: float) -> float:
    """Return the usage of lines as the queue order counts it now."""
    return sum(map(float, _decayed(lines, now)))


def _decayed(lines: Iterable[LedgerLine], now: float) -> Iterator[float]:
    for line in lines:
        gpus = float(line.rate.gpus)
        if line.end_ms == line.start_ms:
            yield gpus * line.milliseconds / 1000 * _decayed_since(now - min(now, line.start_ms / 1000))
        else:
            sign = -1 if line.milliseconds < 0 else 1
            yield sign * gpus * decayed_seconds(line.start_ms / 1000, line.end_ms / 1000, now)


def decayed_gpu_seconds_of(lease: Lease, now: float) -> float:
    """Return the usage of a running lease as the queue order counts it now, without reserved amounts."""
    since = lease.unbilled_since
    if lease.phase not in UP or since is None or lease.rate is None:
        return 0.0
    now_ms = milliseconds(now)
    lost = sum(
        float(x.share) * decayed_seconds(x.start_ms / 1000, x.end_ms / 1000, now)
        for x in uncharged_times(lease, now_ms)
    )
    return float(lease.rate.gpus) * (decayed_seconds(since, now, now) - lost)


# --- amounts as people write them


_UNITS: dict[str, LimitedResource | BudgetUnit] = {
    **dict.fromkeys(("gpu", "gpus"), LimitedResource.GPUS),
    **dict.fromkeys(("workspace", "workspaces"), LimitedResource.WORKSPACES),
    **dict.fromkeys(("cpu", "cpus", "core", "cores"), LimitedResource.CPU),
    **dict.fromkeys(("h", "hour", "hours", "gpu h", "gpu hour", "gpu hours", "gpuh"), BudgetUnit.GPU_HOURS),
    **dict.fromkeys(("cost", "money"), BudgetUnit.COST),
}
_AMOUNT = re.compile(r"([+-]?) ?([0-9]{1,9}(?:\.[0-9]{1,3})?) ?(.+)")
AMOUNT_HELP = (
    "write a number with its unit, for example 4 GPUs, +20 GPU h, 2 h100, 3 workspaces, 16 CPU, 64GiB or 100 cost"
)


class QuotaAmount(NamedTuple):
    """An amount of a resource. ``kind`` is set if ``what`` is KIND."""

    what: LimitedResource | BudgetUnit
    kind: str
    number: Fraction


def parse_grant_amount(value: object, kinds: Collection[str]) -> QuotaAmount:
    """Read the amount of a grant: ``4 GPUs``, ``+20 h``, ``64GiB``.

    Raises:
        BadValue: it is not an amount above 0.
    """
    text = _text(value).removeprefix("+").strip()
    try:
        size = parse_bytes(text) if not text.isdigit() else 0
    except BadValue:
        size = 0
    if size:
        return QuotaAmount(LimitedResource.MEMORY, "", Fraction(size))
    found = _read(value, kinds)
    if found.number <= 0:
        raise OutOfRange(f"{quoted(value)} adds nothing", AMOUNT_HELP)
    return found


def parse_correction(value: object) -> QuotaAmount:
    """Read a correction in GPU hours or money. A minus is a credit.

    Raises:
        BadValue: it is not an amount, or 0.
    """
    found = _read(value, ())
    if not isinstance(found.what, BudgetUnit) or not found.number:
        raise BadValue(
            f"{quoted(value)} is not GPU hours or cost",
            "write GPU hours or cost, for example -3 GPU h, +2.5 GPU h or -10 cost",
        )
    return found


def _read(value: object, kinds: Collection[str]) -> QuotaAmount:
    parts = _AMOUNT.fullmatch(_text(value))
    if parts is None:
        raise BadValue(f"{quoted(value)} is not an amount", AMOUNT_HELP)
    sign, number, unit = parts.groups()
    much = Fraction(number) * (-1 if sign == "-" else 1)
    if (what := _UNITS.get(" ".join(unit.lower().split()))) is not None:
        return QuotaAmount(what, "", much)
    if unit.strip() in kinds:
        return QuotaAmount(LimitedResource.KIND, unit.strip(), much)
    known = f"; the catalog's kinds are {', '.join(kinds)}" if kinds else ""
    raise BadValue(f"{quoted(unit)} is not a known unit", f"{AMOUNT_HELP}{known}")


def _text(value: object) -> str:
    if not isinstance(value, str) or len(value) > LONGEST:
        raise BadValue(f"{quoted(value)} is not an amount", AMOUNT_HELP)
    return value.strip()


def show_grant_amount(amount: QuotaAmount) -> str:
    """Return an amount for display: ``4 GPUs``, ``2 h100``, ``20 GPU h``."""
    what, kind, number = amount
    if what is LimitedResource.MEMORY:
        return show_bytes(int(number))
    text = f"{float(number):.3f}".rstrip("0").rstrip(".")
    one = number == 1
    names = {
        LimitedResource.GPUS: "GPU" if one else "GPUs",
        LimitedResource.KIND: kind,
        LimitedResource.WORKSPACES: "workspace" if one else "workspaces",
        LimitedResource.CPU: "CPU core" if one else "CPU cores",
        BudgetUnit.GPU_HOURS: "GPU h",
        BudgetUnit.COST: "of cost",
    }
    return f"{text} {names[what]}"


def show_grant(grant: QuotaGrant) -> str:
    """Return the amount of a grant for display."""
    return show_grant_amount(QuotaAmount(grant.what, grant.kind, grant.amount))


def expected_end(lease: Lease, now: float) -> float | None:
    """Return when the charges of a lease end, or None if it holds nothing.

    A workspace that starts is expected to run its whole time from now on. Without a deadline nothing is reserved.
    """
    if lease.phase in UP:
        return now if lease.deadline_at is None else lease.deadline_at
    if lease.phase not in {Phase.RESERVED, Phase.STARTING}:
        return None
    seconds = float(lease.request.lifetime_seconds)
    bound = lease.latest_end
    if bound is not None and bound.rule == BUDGET_RULE and lease.granted_at is not None:
        return now + min(seconds, bound.at - lease.granted_at)
    return min(now + seconds, bound.at) if bound is not None else now + seconds
