"""Who used what: the page, CSV and JSON of one view."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from gpuspawner.core.calendar import parse_day
from gpuspawner.core.quotas.ledger import ledger_lines_until
from gpuspawner.service.parts import Parts
from gpuspawner.service.quotas.snapshot import bounds_near_their_end
from gpuspawner.service.rules.accounting import counted_until, parts_of_lines, parts_of_rest
from gpuspawner.service.store.statistics import WaitingTimes
from gpuspawner.service.store.usage_sums import UsageAmounts, UsagePart, UsageSum
from gpuspawner.service.usage import report as use
from gpuspawner.service.usage.chart import columns_of
from gpuspawner.service.usage.report import Days
from gpuspawner.service.waiting.queue_snapshot import let_others
from gpuspawner.service.web.admin_page import ConsolePage
from gpuspawner.service.web.lists import chosen, listed, read_wanted
from gpuspawner.service.web.parsing import refused_as

WASTED_SHOWN, NEAR_SHOWN = 10, 10
AT_A_TIME = 50
"""So many workspaces are counted before anything else has its turn."""


@dataclass(frozen=True)
class _Read:
    """What was read of the store, and what runs."""

    stored: list[UsageSum]
    daily: list[UsageSum]
    by_user: list[UsageSum]
    waits: WaitingTimes
    disputes: int
    running: list[UsagePart]


class UsePage(ConsolePage):
    """GET [?by=&since=&until=]: use of some days, by user, team, kind, template, node, day or week."""

    here = "use"

    async def get(self, form: str) -> None:
        """Answer it in the form asked for."""
        parts, asked = self.parts, self.asked()
        priced = any(kind.price_per_hour is not None for kind in parts.catalog.gpus.values())
        by = use.read_by(self.get_query_argument("by", ""))
        wanted = read_wanted(use.table_of(by, priced=priced), asked)
        days = self._days(wanted.kept)
        read = await self._read(by, days)
        sums = use.summed(by, read.stored, read.running, days)
        rows = use.use_rows(by, sums, parts.catalog, f"{parts.prefix}console/people/", priced=priced)
        if form == ".csv":
            self.send_csv(f"use-by-{by}-{days.first}-{days.last}", wanted.table.columns, chosen(rows, wanted))
            return
        total = use.total_of(sums)
        told = {
            "timezone": parts.catalog.rules.timezone,
            "currency": parts.catalog.rules.currency,
            "total": {**use.amounts_row(total, priced=priced), **_of_all(total)},
            "waits": asdict(read.waits),
            "called_wrong": read.disputes,
        }
        if form == ".json":
            self.answer(use.document_of(wanted, by, days, chosen(rows, wanted), {"now": parts.clock.now(), **told}))
            return
        by_day = use.summed("day", read.daily, read.running, days)
        series = use.series_of(by_day, days)
        names = use.summed("user", read.by_user, read.running, days)
        self.show(
            "console_use.html",
            by=by,
            choices=use.BY,
            days=days,
            spans=_spans(self.today()),
            listing=listed(rows, wanted),
            chart=columns_of(series, weekly=days.count > use.DAYS_CHARTED),
            series=series,
            wasted=use.wasted(names, WASTED_SHOWN),
            quotas=await parts.queue.seldom_beside("quotas near", lambda: bounds_near_their_end(parts, NEAR_SHOWN)),
            priced=priced,
            **told,
        )

    def _days(self, asked: Mapping[str, str]) -> Days:
        now, zone = self.parts.clock.now(), self.parts.allocator.accounting.zone

        def read(name: str, text: str) -> str:
            day: str = refused_as(name, parse_day, text, now, zone)
            return day

        return use.read_days(asked.get("since", ""), asked.get("until", ""), self.today(), read)

    async def _read(self, by: str, days: Days) -> _Read:
        store, zone = self.parts.store, self.parts.allocator.accounting.zone
        since = datetime.fromisoformat(days.first).replace(tzinfo=zone).timestamp()
        until = (datetime.fromisoformat(days.last) + timedelta(days=1)).replace(tzinfo=zone).timestamp()
        of_days = store.usage_sums.of_days
        by_day, by_user, waits, disputes = await asyncio.gather(
            store.read(of_days, "all", days.first, days.last, daily=True),
            store.read(of_days, "user", days.first, days.last),
            store.read(store.estimates.waiting_times, since, until),
            store.read(store.audit_log.count_disputes, since, until),
        )
        known = {"user": by_user} | dict.fromkeys(use.OF_TIME, by_day)
        stored = known[by] if by in known else await store.read(of_days, by, days.first, days.last)
        # Read after the store: what ended meanwhile is told once, or not yet, and never twice.
        return _Read(stored, by_day, by_user, waits, disputes, await running_parts(self.parts))


async def running_parts(parts: Parts) -> list[UsagePart]:
    """Return what runs has used so far, which the ledger and its sums get at the end.

    It is counted once in some seconds for all who look. What has ended meanwhile is left out: it is told once.
    """
    counted = await parts.queue.seldom_beside("running parts", lambda: _running_parts(parts))
    now, zone, node_of = parts.clock.now(), parts.allocator.accounting.zone, parts.scheduler.fleet.node_of
    found = []
    for lease in parts.registry:
        one = counted.get(lease.id)
        if one is None:
            continue
        # What a sample has added to the sums meanwhile is told once.
        same = one.counted_until == counted_until(lease)
        found += [*one.charged, *(one.rest if same else parts_of_rest(lease, now, zone, node_of))]
    return found


class _Running(NamedTuple):
    """What a workspace that runs has used and the sums do not have: what it is charged, and its time since a sample."""

    counted_until: float
    charged: list[UsagePart]
    rest: list[UsagePart]


async def _running_parts(parts: Parts) -> dict[str, _Running]:
    """Return them by the id of their lease. All else goes on meanwhile."""
    now, zone, node_of = parts.clock.now(), parts.allocator.accounting.zone, parts.scheduler.fleet.node_of
    found = {}
    for number, x in enumerate(tuple(parts.registry)):
        if number % AT_A_TIME == 0:
            await let_others()
        charged = list(parts_of_lines(ledger_lines_until(x, now, zone), {x.id: x}, node_of))
        found[x.id] = _Running(counted_until(x), charged, list(parts_of_rest(x, now, zone, node_of)))
    return found


def _of_all(total: UsageAmounts) -> dict[str, Any]:
    """Return what is told of the whole alone: how much was measured, and how many stops saved what."""
    known = total.active + total.idle
    return {
        "measured_percent": 100 * known / total.allocated if total.allocated > 0 else None,
        "reclaims": round(total.reclaims),
    }


def _spans(today: str) -> list[tuple[str, str, str]]:
    """Return the spans to choose at once: words, first and last day."""
    last = datetime.fromisoformat(today).date()
    month = last.replace(day=1)
    before = (month - timedelta(days=1)).replace(day=1)
    monday = last - timedelta(days=last.weekday())
    return [
        ("This week", monday.isoformat(), today),
        ("Last week", (monday - timedelta(days=7)).isoformat(), (monday - timedelta(days=1)).isoformat()),
        ("This month", month.isoformat(), today),
        ("Last month", before.isoformat(), (month - timedelta(days=1)).isoformat()),
        ("A year", (last - timedelta(days=365)).isoformat(), today),
    ]
