"""What has been used: the ledger's sums in memory, and the grants on quotas and budgets that administrators give."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from zoneinfo import ZoneInfo

from gpuspawner.catalog import Catalog
from gpuspawner.core.calendar import Per, Span, milliseconds, period_of
from gpuspawner.core.leases.lease import Lease
from gpuspawner.core.quotas.ledger import HALF_LIFE_SECONDS, Line, charged_by, decayed_gpu_seconds, lines_of_end
from gpuspawner.core.quotas.limits import accounts_of
from gpuspawner.core.rules import Account, Accounts, QuotaGrant, Used
from gpuspawner.service.clock import Clock
from gpuspawner.service.engine.registry import LeaseRegistry
from gpuspawner.service.rules.accounting import NodeOf, part_of_reclaim, parts_of_lines, parts_of_step
from gpuspawner.service.store import AuditLine, ReadingRow
from gpuspawner.service.store.usage_sums import UsagePart

STATES = ("active", "idle", "not_measured")
"""What allocated time is one of, as ``use_sums.Amounts`` calls it."""
REMEMBERED_SECONDS = 20 * HALF_LIFE_SECONDS
"""Older use counts less than a millionth in the order."""


@dataclass(frozen=True)
class _Sums:
    """Of the ledger: what is charged in the present ``periods`` of ``zone``, and faded use as of ``faded_at``.

    ``ahead`` are lines of later periods, where the clock went back since they were written.
    """

    zone: ZoneInfo
    periods: Mapping[Per, Span]
    charged: Mapping[tuple[Account, Used, Per], Fraction]
    faded: Mapping[Account, float]
    faded_at: float
    ahead: tuple[Line, ...] = ()


class _Faded(Mapping[Account, float]):
    """Faded use as it counts later, without a new mapping at each look."""

    def __init__(self, of: Mapping[Account, float], factor: float) -> None:
        self._of, self._factor = of, factor

    def __getitem__(self, account: Account) -> float:
        return self._of[account] * self._factor

    def __iter__(self) -> Iterator[Account]:
        return iter(self._of)

    def __len__(self) -> int:
        return len(self._of)


class Accounting:
    """Hears each end of charging from the registry, which writes its lines with it, and keeps the sums equal to the store.

    Lines count from the step that charges them; where that can't be stored, the sums are again those of the store.
    """

    def __init__(self, registry: LeaseRegistry, clock: Clock, catalog: Callable[[], Catalog], node_of: NodeOf) -> None:
        """Know nothing yet."""
        self._book, self._clock, self._catalog, self._node_of = registry, clock, catalog, node_of
        self._sums: _Sums | None = None
        self._as_stored: _Sums | None = None
        self._grants: list[QuotaGrant] = []
        self._added = 0
        """How many times lines were counted, since this service started."""
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
        self._grants = await self._book.store.read(self._book.store.ledger.grants)
        await self._load_sums()

    async def follow(self) -> None:
        """Sum up anew where another time zone is in force: its days are others."""
        if self._sums is None or self._sums.zone.key != self._catalog().rules.timezone:
            await self._load_sums()

    async def _load_sums(self) -> None:
        while True:
            await self._book.settled()
            added = self._added
            sums = await self._book.store.read(self._read)
            if added == self._added:  # nothing was charged while it was read
                self._sums = self._as_stored = sums
                return

    def lines_of(self, before: Lease | None, after: Lease) -> Sequence[Line]:
        """Return the lines that a step of a lease writes."""
        return () if before is None else lines_of_end(before, after, self.zone)

    def used_by(
        self, steps: Sequence[tuple[Lease | None, Lease]], lines: Sequence[Line], readings: Sequence[ReadingRow]
    ) -> Sequence[UsagePart]:
        """Return what some steps of leases, with their lines and readings, add to the sums of use."""
        zone, leases = self.zone, {lease.id: lease for _, lease in steps}
        parts = [*parts_of_lines(lines, leases, self._node_of)]
        for before, after in steps:
            rows = [row for row in readings if row.lease == after.id]
            parts += parts_of_step(before, after, rows, zone, self._node_of)
            reclaimed = part_of_reclaim(before, after, zone, self._node_of)
            parts += [reclaimed] if reclaimed is not None else []
        return parts

    def add(self, lines: Sequence[Line]) -> None:
        """Count lines from now on."""
        if lines:
            self._added += 1
            self._sums = self._with(self._known(), lines)

    def keep(self, lines: Sequence[Line], parts: Sequence[UsagePart]) -> None:
        """Note that lines are stored, and what they and their steps added to the sums of use."""
        for part in parts:
            for state in STATES:
                if hours := getattr(part.amounts, state):
                    self.gpu_seconds[part.team, part.kind, state] += 3600 * hours
                    self.user_gpu_seconds[part.user, part.kind, state] += 3600 * hours
        if lines and self._as_stored is not None:
            self._as_stored = self._with(self._as_stored, lines)

    def go_back(self) -> None:
        """Count nothing any more that is not stored."""
        self._sums = self._as_stored

    def _with(self, sums: _Sums, lines: Sequence[Line]) -> _Sums:
        sums, now = self._rolled(sums), self._clock.now()
        charged = {**sums.charged}
        for key, more in charged_by(lines, now, sums.zone).items():
            charged[key] = charged.get(key, Fraction(0)) + more
        back = 1 / self._factor(sums, now)
        faded = {**sums.faded}
        for account, more_faded in _faded_by(lines, now).items():
            faded[account] = faded.get(account, 0.0) + more_faded * back
        return replace(sums, charged=charged, faded=faded)

    @property
    def accounts(self) -> Accounts:
        """What ended workspaces have used, as of now."""
        sums = self._rolled(self._known())
        self._sums = sums
        return Accounts(sums.charged, _Faded(sums.faded, self._factor(sums, self._clock.now())))

    @property
    def grants(self) -> tuple[QuotaGrant, ...]:
        """The grants that are in force, or will be."""
        now = self._clock.now()
        return tuple(grant for grant in self._grants if grant.is_live(now))

    def all_grants(self) -> list[QuotaGrant]:
        """Return all grants, the oldest first."""
        return list(self._grants)

    async def give(self, grant: QuotaGrant, audit: AuditLine) -> None:
        """Store a new grant, which counts from then on."""
        await self._book.store.write(self._book.store.ledger.add_grant, grant, [audit])
        self._grants = [*self._grants, grant]

    async def take_back(self, grant: QuotaGrant, audit: AuditLine) -> None:
        """Store that a grant is taken back. No running workspace ends earlier."""
        await self._book.store.write(self._book.store.ledger.take_grant_back, grant, [audit])
        self._grants = [grant if one.id == grant.id else one for one in self._grants]

    async def correct(self, line: Line, audit: AuditLine) -> None:
        """Store a correction of the ledger."""
        await self._book.save(audit=[audit], charges=[line])

    def _known(self) -> _Sums:
        return self._summed([]) if self._sums is None else self._sums

    def _read(self) -> _Sums:
        """Sum up what is stored. It blocks for the time of a read."""
        now, zone = self._clock.now(), self.zone
        starts_ms = (period_of(milliseconds(now), per, zone).start_ms for per in Per)
        since_ms = min(milliseconds(now - REMEMBERED_SECONDS), *starts_ms)
        return self._summed(self._book.store.ledger.since(since_ms))

    def _summed(self, lines: Sequence[Line]) -> _Sums:
        now, zone = self._clock.now(), self.zone
        periods = {per: period_of(milliseconds(now), per, zone) for per in Per}
        ahead = tuple(line for line in lines if any(line.end_ms >= period.end_ms for period in periods.values()))
        return _Sums(zone, periods, charged_by(lines, now, zone), _faded_by(lines, now), now, ahead)

    def _rolled(self, sums: _Sums) -> _Sums:
        """Return the sums of the periods of now: a new one begins with what is ``ahead``, as a rule with nothing."""
        now = self._clock.now()
        now_ms = milliseconds(now)
        over = {per for per, period in sums.periods.items() if now_ms >= period.end_ms}
        if not over:
            return sums
        periods = {per: period_of(now_ms, per, sums.zone) if per in over else sums.periods[per] for per in Per}
        charged = {key: value for key, value in sums.charged.items() if key[2] not in over}
        charged |= {key: value for key, value in charged_by(sums.ahead, now, sums.zone).items() if key[2] in over}
        return replace(sums, periods=periods, charged=charged)

    @staticmethod
    def _factor(sums: _Sums, now: float) -> float:
        return float(2.0 ** ((sums.faded_at - now) / HALF_LIFE_SECONDS))


def _faded_by(lines: Iterable[Line], now: float) -> dict[Account, float]:
    found: dict[Account, float] = defaultdict(float)
    for line in lines:
        for account in accounts_of(line.account.user_created, line.account.team):
            found[account] += decayed_gpu_seconds([line], now)
    return found
