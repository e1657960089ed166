"""What has been used: the ledger's sums in memory, and the grants on quotas and budgets that administrators give."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from zoneinfo import ZoneInfo

from gpuspawner.catalog import Catalog
from gpuspawner.core.calendar.periods import Span, milliseconds, period_of
from gpuspawner.core.leases.lease import Lease
from gpuspawner.core.quotas.charges import HALF_LIFE_SECONDS, Line, charged_by, decayed_gpu_seconds, lines_of_end
from gpuspawner.core.quotas.entries import accounts_of
from gpuspawner.core.rules import Account, Accounts, Per, QuotaGrant, Used
from gpuspawner.service.clock import Clock
from gpuspawner.service.leases.book import Book
from gpuspawner.service.store import AuditLine
from gpuspawner.service.store.ledger import GrantRow

REMEMBERED_SECONDS = 20 * HALF_LIFE_SECONDS
"""Older use counts less than a millionth in the order."""


@dataclass(frozen=True)
class _Sums:
    """Of the ledger: what is charged in the present ``periods`` of ``zone``, and faded use as of ``faded_at``."""

    zone: ZoneInfo
    periods: Mapping[Per, Span]
    charged: Mapping[tuple[Account, Used, Per], Fraction]
    faded: Mapping[Account, float]
    faded_at: float


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
    """Hears each end of charging from the book, which writes its lines with it, and keeps the sums equal to the store.

    What it remembers is read from the store when it is first asked, and anew after :meth:`forget`.
    """

    def __init__(self, book: Book, clock: Clock, catalog: Callable[[], Catalog]) -> None:
        """Know nothing yet."""
        self._book, self._clock, self._catalog = book, clock, catalog
        self._sums: _Sums | None = None
        self._grants: list[GrantRow] | None = None
        book.charges, book.charged = self.lines_of, self.add

    @property
    def zone(self) -> ZoneInfo:
        """The catalog's time zone."""
        return ZoneInfo(self._catalog().rules.timezone)

    def forget(self) -> None:
        """Read everything from the store again when it is next asked."""
        self._sums = self._grants = None

    def lines_of(self, before: Lease | None, after: Lease) -> Sequence[Line]:
        """Return the lines that a step of a lease writes."""
        return () if before is None else lines_of_end(before, after, self.zone)

    def add(self, lines: Sequence[Line]) -> None:
        """Count lines that are written."""
        if not lines or self._sums is None:
            return
        sums, now = self._rolled(self._sums), self._clock.now()
        charged = {**sums.charged}
        for key, more in charged_by(lines, now, sums.zone).items():
            charged[key] = charged.get(key, Fraction(0)) + more
        back = 1 / self._factor(sums, now)
        faded = {**sums.faded}
        for account, more_faded in _faded_by(lines, now).items():
            faded[account] = faded.get(account, 0.0) + more_faded * back
        self._sums = replace(sums, charged=charged, faded=faded)

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
        return tuple(row.grant for row in self._rows() if row.taken_back_at is None and now < row.until)

    def rows(self) -> list[GrantRow]:
        """Return all grants that there were, the oldest first."""
        return list(self._rows())

    def give(self, row: GrantRow, line: AuditLine) -> None:
        """Store a new grant, which counts at once."""
        rows = self._rows()
        self._book.store.ledger.grant(row, [line])
        self._grants = [*rows, row]

    def take_back(self, row: GrantRow, line: AuditLine) -> None:
        """Store that a grant is taken back: ``row`` says when, by whom and why. Nothing that runs ends earlier."""
        rows = self._rows()
        self._book.store.ledger.take_back(row, [line])
        self._grants = [row if one.id == row.id else one for one in rows]

    def correct(self, line: Line, audit: AuditLine) -> None:
        """Store a correction of the ledger."""
        self._book.store.save((), [audit], charges=[line])
        self.add([line])

    def _rows(self) -> list[GrantRow]:
        if self._grants is None:
            self._grants = self._book.store.ledger.grants()
        return self._grants

    def _known(self) -> _Sums:
        if self._sums is None or self._sums.zone.key != self._catalog().rules.timezone:
            self._sums = self._read()
        return self._sums

    def _read(self) -> _Sums:
        now, zone = self._clock.now(), self.zone
        periods = {per: period_of(milliseconds(now), per, zone) for per in Per}
        since_ms = min(milliseconds(now - REMEMBERED_SECONDS), *(period.start_ms for period in periods.values()))
        lines = list(self._book.store.ledger.since(since_ms))
        return _Sums(zone, periods, charged_by(lines, now, zone), _faded_by(lines, now), now)

    def _rolled(self, sums: _Sums) -> _Sums:
        """Return the sums of the periods of now: a new one begins with nothing, as what is written has ended before."""
        now_ms = milliseconds(self._clock.now())
        over = {per for per, period in sums.periods.items() if now_ms >= period.end_ms}
        if not over:
            return sums
        periods = {per: period_of(now_ms, per, sums.zone) if per in over else sums.periods[per] for per in Per}
        charged = {key: value for key, value in sums.charged.items() if key[2] not in over}
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
