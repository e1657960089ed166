"""Accounting: the sums of the ledger in memory, extra quota, and the usage that each step of a lease adds."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from zoneinfo import ZoneInfo

from gpuspawner.catalog import Catalog
from gpuspawner.core.calendar import HOUR_MS, Per, TimeSpan, date_of, milliseconds, period_of, split_by_period
from gpuspawner.core.leases.exits import ExitReason
from gpuspawner.core.leases.lease import UP, Lease
from gpuspawner.core.quotas.ledger import (
    HALF_LIFE_SECONDS,
    LedgerKind,
    LedgerLine,
    decayed_gpu_seconds,
    ledger_lines_of_step,
    sum_charges,
)
from gpuspawner.core.quotas.limits import accounts_of
from gpuspawner.core.quotas.months import next_month
from gpuspawner.core.rules import Account, Accounts, BudgetUnit, QuotaGrant, Rate
from gpuspawner.service.clock import Clock
from gpuspawner.service.engine.registry import LeaseRegistry
from gpuspawner.service.store import AuditLine, ReadingRow
from gpuspawner.service.store.usage_sums import UsageAmounts, UsagePart

STATES = ("active", "idle", "not_measured")
"""The states of allocated time, as in ``usage_sums.UsageAmounts``."""
REMEMBERED_SECONDS = 20 * HALF_LIFE_SECONDS
"""Older usage has a weight of less than a millionth in the order of the queue."""


@dataclass(frozen=True)
class _Sums:
    """Sums of the ledger.

    ``charged`` are the charges in the present ``periods`` of ``zone``. ``decayed`` is the usage at ``decayed_at``.
    ``ahead`` are lines of later periods. They exist if the clock was set back after they were written.
    """

    zone: ZoneInfo
    periods: Mapping[Per, TimeSpan]
    charged: Mapping[tuple[Account, BudgetUnit, Per], Fraction]
    decayed: Mapping[Account, float]
    decayed_at: float
    ahead: tuple[LedgerLine, ...] = ()


class _DecayedUsage(Mapping[Account, float]):
    """Decayed usage at a later time, without a new mapping for each call."""

    def __init__(self, of: Mapping[Account, float], factor: float) -> None:
        self._of, self._factor = of, factor

    def __getitem__(self, account: Account) -> float:
        return self._of[account] * self._factor

    def __iter__(self) -> Iterator[Account]:
        return iter(self._of)

    def __len__(self) -> int:
        return len(self._of)


class Accounting:
    """Computes the charges of lease steps for the registry, and keeps the sums equal to the store.

    Lines count from the step that charges them. If the step can't be stored, the sums are again those of the store.
    """

    def __init__(self, registry: LeaseRegistry, clock: Clock, catalog: Callable[[], Catalog], node_of: NodeOf) -> None:
        """Start empty. :meth:`load` reads the stored sums."""
        self._registry, self._clock, self._catalog, self._node_of = registry, clock, catalog, node_of
        self._sums: _Sums | None = None
        self._as_stored: _Sums | None = None
        self._grants: list[QuotaGrant] = []
        self.closed_month = ""
        """The last closed month. No usage is added to it or to earlier months."""
        self.correcting = asyncio.Lock()
        """Held from the check of a correction until it is stored, so that limits hold for simultaneous ones."""
        self._added = 0
        """How many times lines were counted since this service started."""
        self.gpu_seconds: dict[tuple[str, str, str], float] = defaultdict(float)
        """Allocated time of GPUs in seconds, since this service started: by team, kind and state, one of STATES."""
        self.user_gpu_seconds: dict[tuple[str, str, str], float] = defaultdict(float)
        """The same by user, kind and state."""
        registry.charging = self

    @property
    def zone(self) -> ZoneInfo:
        """The catalog's time zone."""
        return ZoneInfo(self._catalog().rules.timezone)

    async def load(self) -> None:
        """Read everything from the store."""
        self._grants = await self._registry.store.read(self._registry.store.ledger.grants)
        self.closed_month = await self._registry.store.read(self._registry.store.statements.last_closed)
        await self._load_sums()

    async def follow(self) -> None:
        """Compute the sums again if the time zone changed, because its days differ."""
        if self._sums is None or self._sums.zone.key != self._catalog().rules.timezone:
            await self._load_sums()

    async def _load_sums(self) -> None:
        while True:
            await self._registry.settled()
            added = self._added
            sums = await self._registry.store.read(self._read)
            if added == self._added:  # no charge was made meanwhile
                self._sums = self._as_stored = sums
                return

    def lines_of(self, before: Lease | None, after: Lease) -> Sequence[LedgerLine]:
        """Return the lines that a step of a lease writes."""
        lines = () if before is None else ledger_lines_of_step(before, after, self.zone)
        return [replace(line, day=self._open_day(line.day)) for line in lines]

    def _open_day(self, day: str) -> str:
        """Return a day, or the first day after a closed month: another time zone may have other days."""
        return max(day, f"{next_month(self.closed_month)}-01") if self.closed_month else day

    def used_by(
        self, steps: Sequence[tuple[Lease | None, Lease]], lines: Sequence[LedgerLine], readings: Sequence[ReadingRow]
    ) -> Sequence[UsagePart]:
        """Return the usage that lease steps add to the sums, with their ledger lines and readings."""
        zone, leases = self.zone, {lease.id: lease for _, lease in steps}
        parts = [*parts_of_lines(lines, leases, self._node_of)]
        for before, after in steps:
            rows = [row for row in readings if row.lease == after.id]
            parts += parts_of_step(before, after, rows, zone, self._node_of)
            reclaimed = part_of_reclaim(before, after, zone, self._node_of)
            parts += [reclaimed] if reclaimed is not None else []
        return [replace(part, day=self._open_day(part.day)) for part in parts]

    def add(self, lines: Sequence[LedgerLine]) -> None:
        """Count lines from now on."""
        if lines:
            self._added += 1
            self._sums = self._with(self._known(), lines)

    def keep_stored(self, lines: Sequence[LedgerLine], parts: Sequence[UsagePart]) -> None:
        """Add stored lines, and the usage of their steps, to the sums."""
        for part in parts:
            for state in STATES:
                if hours := getattr(part.amounts, state):
                    self.gpu_seconds[part.team, part.kind, state] += 3600 * hours
                    self.user_gpu_seconds[part.user, part.kind, state] += 3600 * hours
        if lines and self._as_stored is not None:
            self._as_stored = self._with(self._as_stored, lines)

    def roll_back(self) -> None:
        """Forget lines that are not stored."""
        self._sums = self._as_stored

    def _with(self, sums: _Sums, lines: Sequence[LedgerLine]) -> _Sums:
        sums, now = self._rolled(sums), self._clock.now()
        charged = {**sums.charged}
        for key, more in sum_charges(lines, now, sums.zone).items():
            charged[key] = charged.get(key, Fraction(0)) + more
        back = 1 / self._factor(sums, now)
        decayed = {**sums.decayed}
        for account, used in _decayed_by(lines, now).items():
            decayed[account] = decayed.get(account, 0.0) + used * back
        return replace(sums, charged=charged, decayed=decayed)

    @property
    def accounts(self) -> Accounts:
        """The charged and decayed usage of ended workspaces, up to now."""
        sums = self._rolled(self._known())
        self._sums = sums
        return Accounts(sums.charged, _DecayedUsage(sums.decayed, self._factor(sums, self._clock.now())))

    @property
    def grants(self) -> tuple[QuotaGrant, ...]:
        """Extra quota that is in force now or later."""
        now = self._clock.now()
        return tuple(grant for grant in self._grants if grant.is_live(now))

    def all_grants(self) -> list[QuotaGrant]:
        """Return all extra quota, oldest first."""
        return list(self._grants)

    async def add_grants(self, grants: Sequence[QuotaGrant], audit: Sequence[AuditLine]) -> None:
        """Store extra quota, which counts from then on."""
        await self._registry.store.write(self._registry.store.ledger.add_grants, grants, audit)
        self.count_grants(grants)

    def count_grants(self, grants: Sequence[QuotaGrant]) -> None:
        """Count extra quota that was just stored."""
        self._grants = [*self._grants, *grants]

    async def take_back(self, grants: Sequence[QuotaGrant], audit: Sequence[AuditLine]) -> None:
        """Store that extra quota is taken back. No running workspace ends earlier. Raises Conflict if it was before."""
        await self._registry.store.write(self._registry.store.ledger.take_grants_back, grants, audit)
        taken = {one.id: one for one in grants}
        self._grants = [taken.get(one.id, one) for one in self._grants]

    async def correct(self, line: LedgerLine, audit: AuditLine) -> None:
        """Store a correction of the ledger. If its month was closed meanwhile, it counts in the next one."""
        await self._registry.save(audit=[audit], charges=[replace(line, day=self._open_day(line.day))])

    def _known(self) -> _Sums:
        return self._summed([]) if self._sums is None else self._sums

    def _read(self) -> _Sums:
        """Sum up the stored lines. It blocks for the time of a read."""
        now, zone = self._clock.now(), self.zone
        starts_ms = (period_of(milliseconds(now), per, zone).start_ms for per in Per)
        since_ms = min(milliseconds(now - REMEMBERED_SECONDS), *starts_ms)
        return self._summed(self._registry.store.ledger.since(since_ms))

    def _summed(self, lines: Sequence[LedgerLine]) -> _Sums:
        now, zone = self._clock.now(), self.zone
        periods = {per: period_of(milliseconds(now), per, zone) for per in Per}
        ahead = tuple(line for line in lines if any(line.end_ms >= period.end_ms for period in periods.values()))
        return _Sums(zone, periods, sum_charges(lines, now, zone), _decayed_by(lines, now), now, ahead)

    def _rolled(self, sums: _Sums) -> _Sums:
        """Return the sums of the present periods. A new period begins with the lines ``ahead``, which are rare."""
        now = self._clock.now()
        now_ms = milliseconds(now)
        over = {per for per, period in sums.periods.items() if now_ms >= period.end_ms}
        if not over:
            return sums
        periods = {per: period_of(now_ms, per, sums.zone) if per in over else sums.periods[per] for per in Per}
        charged = {key: value for key, value in sums.charged.items() if key[2] not in over}
        charged |= {key: value for key, value in sum_charges(sums.ahead, now, sums.zone).items() if key[2] in over}
        return replace(sums, periods=periods, charged=charged)

    @staticmethod
    def _factor(sums: _Sums, now: float) -> float:
        return float(2.0 ** ((sums.decayed_at - now) / HALF_LIFE_SECONDS))


def _decayed_by(lines: Iterable[LedgerLine], now: float) -> dict[Account, float]:
    found: dict[Account, float] = defaultdict(float)
    for line in lines:
        for account in accounts_of(line.account.user_created, line.account.team):
            found[account] += decayed_gpu_seconds([line], now)
    return found


RECLAIMS = frozenset({ExitReason.IDLE, ExitReason.NOBODY_CAME})
"""The exit reasons by which idle GPUs return to the pool."""
NodeOf = Callable[[str], str]
"""Returns the node of a GPU, or "" if it is not known."""


def parts_of_lines(lines: Iterable[LedgerLine], leases: Mapping[str, Lease], node_of: NodeOf) -> Iterator[UsagePart]:
    """Yield the usage that ledger lines charge. ``leases`` has their leases by id. A correction has no lease."""
    for line in lines:
        lease = leases.get(line.lease)
        charged, cost = (float(line.amount(used)) for used in (BudgetUnit.GPU_HOURS, BudgetUnit.COST))
        is_credit = line.what is LedgerKind.REFUND or (line.what is LedgerKind.CORRECTION and line.milliseconds < 0)
        yield UsagePart(
            line.day,
            line.account.user_created,
            line.user,
            line.account.team,
            line.kind,
            lease.request.template if lease else "",
            _node(lease, node_of) if lease else "",
            UsageAmounts(charged=charged, credited=-charged if is_credit else 0.0, cost=cost),
            price_of(lease.rate) if lease else "",
            line.lease,
        )


def counted_until(lease: Lease) -> float:
    """Return the time until which the sums include a running workspace: its last sample, or the close of a month."""
    return max(lease.unbilled_since or 0.0, lease.sampled_at or 0.0)


def parts_of_step(
    before: Lease | None, after: Lease, rows: Iterable[ReadingRow], zone: ZoneInfo, node_of: NodeOf
) -> Iterator[UsagePart]:
    """Yield the allocated time that a step adds to a lease, until its new sample or its end.

    Time without a reading is not measured. So active, idle and not measured time add up to the allocated time.
    """
    ran = before is not None and before.phase in UP
    lease = before if before is not None and ran and after.phase not in UP else after
    if lease.phase not in UP or lease.running_at is None:
        return
    since = counted_until(before) if before is not None and ran else lease.running_at
    until = counted_until(after) if after.phase in UP else after.phase_since
    yield from _parts_of_time(lease, since, until, rows, zone, node_of)


def parts_of_rest(lease: Lease, now: float, zone: ZoneInfo, node_of: NodeOf) -> Iterator[UsagePart]:
    """Yield the allocated time of a running workspace that is not in the sums yet. It is not measured."""
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
    for span, _ in split_by_period(start_ms, end_ms, Per.DAY, zone):
        active, idle = (_hours(span, read, kind) * each for kind in ("busy", "idle"))
        whole = len(lease.slots) * each * (span.end_ms - span.start_ms) / HOUR_MS
        amounts = UsageAmounts(active=active, idle=idle, not_measured=max(0.0, whole - active - idle))
        yield _of_lease(lease, date_of(span.start_ms, zone), amounts, node_of)


def _hours(span: TimeSpan, read: Iterable[tuple[str, int, int]], kind: str) -> float:
    return sum(span.overlap(start_ms, end_ms) for what, start_ms, end_ms in read if what == kind) / HOUR_MS


def _each(lease: Lease) -> float:
    """Return the weight of each GPU of a lease in quotas and hours, or its share without a granted rate."""
    if lease.rate is None:
        return float(sum(slot.share for slot in lease.slots)) / max(1, len(lease.slots))
    return float(lease.rate.gpus) / max(1, len(lease.slots))


def part_of_reclaim(before: Lease | None, after: Lease, zone: ZoneInfo, node_of: NodeOf) -> UsagePart | None:
    """Return the GPU time between a reclaim and the planned end of the lease. Return None for other steps."""
    if before is None or before.phase not in UP or after.phase in UP or after.reason not in RECLAIMS:
        return None
    left = max(0.0, (after.deadline_at or 0.0) - after.phase_since)
    hours = len(before.slots) * _each(before) * left * 1000 / HOUR_MS
    reclaimed = UsageAmounts(reclaimed=hours, reclaims=1.0)
    return _of_lease(before, date_of(milliseconds(after.phase_since), zone), reclaimed, node_of)


def _of_lease(lease: Lease, day: str, amounts: UsageAmounts, node_of: NodeOf) -> UsagePart:
    request = lease.request
    whose = (lease.key.user_created, lease.user, request.team)
    return UsagePart(
        day, *whose, lease.kind or "", request.template, _node(lease, node_of), amounts, price_of(lease.rate), lease.id
    )


def price_of(rate: Rate | None) -> str:
    """Return the price of a GPU hour at a rate, as a fraction, "" without a price."""
    return str(rate.price_per_hour / rate.gpus) if rate is not None and rate.gpus and rate.price_per_hour else ""


def _node(lease: Lease, node_of: NodeOf) -> str:
    return next(filter(None, (node_of(slot.gpu) for slot in lease.slots)), "")
