"""Limits and budgets as rows of the pages' tables: one's own, and of each entry of the catalog."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any

from gpuspawner.catalog.visibility import team_title
from gpuspawner.core.calendar.periods import show_moment
from gpuspawner.core.quotas.bounds import Who
from gpuspawner.core.quotas.budgets import Asker, Balance, Balances
from gpuspawner.core.quotas.quotas import Taken, Tally
from gpuspawner.core.rules import Quota, Used, Whom
from gpuspawner.service.parts import Parts
from gpuspawner.service.tell.console.ruled import NEAR_SHARE, state_of
from gpuspawner.service.tell.queue_view import let_others
from gpuspawner.service.tell.rules.quota_lines import limit_view
from gpuspawner.service.tell.rules.quota_view import budget_view
from gpuspawner.service.tell.rules.rule_words import entry_words, rule_id

AT_A_TIME = 20
"""So many people's are looked at between two turns of all else: some milliseconds."""
BEFORE = " (before)"
"""What is added to the name of who had it before somebody else."""
USERS_SHOWN = 20
"""Of an entry for each user: those who have used most of it."""


@dataclass(frozen=True)
class Row:
    """One limit or budget of somebody. Amounts are texts, "" for none; ``part`` is how much is taken, of 1."""

    entry: str
    rule: str
    who: str
    what: str
    used: str
    aside: str
    waits: str
    share: str
    most: str
    left: str
    renews: str
    lasts: str
    part: float | None
    tag: str


def rows_of(parts: Parts, view: dict[str, Any]) -> list[Row]:
    """Return the rows of what ``quota_view`` tells of somebody."""
    order = {entry.name: number for number, entry in enumerate(parts.catalog.rules.quotas)}
    rows = [
        *(_of_limit(one, one["whose"]) for one in view["limits"]),
        *(_of_budget(parts, one, one["whose"]) for one in view["budgets"]),
    ]
    return sorted(rows, key=lambda row: order[row.entry])


def _of_limit(one: dict[str, Any], who: str) -> Row:
    shown = {name: text or "" for name, text in one["shown"].items()}
    what, waits = f"{one['unit']} at once", shown["waiting"] if one["waiting"] else ""
    return Row(
        one["entry"], rule_id(one["entry"]), who, what, shown["used"], "", waits, shown["soft"], shown["hard"],
        shown["left"], "", "", part_of(one["used"], one), state_of(one["used"], one["soft"], one["hard"]),
    )  # fmt: skip


def _of_budget(parts: Parts, one: dict[str, Any], who: str) -> Row:
    def much(name: str) -> str:
        value = one[name]
        if value is None:
            return ""
        return f"{value:.2f}" if one["limit"] == Used.COST.value else f"{value:.1f}".removesuffix(".0")

    now, zone, lasts = parts.clock.now(), parts.allocator.accounting.zone, one["lasts_until"]
    what = f"{'cost' if one['limit'] == Used.COST.value else 'GPU h'} a {one['per']}"
    taken = one["used"] + one["set_aside"]
    return Row(
        one["entry"],
        rule_id(one["entry"]),
        who,
        what,
        much("used"),
        much("set_aside"),
        "",
        much("soft"),
        much("hard"),
        much("left"),
        one["renews_words"],
        "" if lasts is None else show_moment(lasts, now, zone),
        part_of(taken, one),
        state_of(taken, one["soft"], one["hard"]),
    )


def part_of(taken: float, one: dict[str, Any]) -> float | None:
    """Return how much of a limit or budget is taken, of 1; None where it has no end."""
    most = one["soft"] if one["hard"] is None else one["hard"]
    return None if not most else min(1.0, taken / most)


@dataclass(frozen=True)
class Entry:
    """One entry of ``quotas`` with its sentence, and the rows of those whom it counts; ``more`` are not shown."""

    name: str
    id: str
    words: str
    rows: list[Row]
    more: int


@dataclass(frozen=True)
class Seen:
    """How everything stands at one instant. ``names`` is what users are called, by their ``created``."""

    parts: Parts
    tally: Tally
    balances: Balances
    names: dict[str, str]

    @classmethod
    def of(cls, parts: Parts, names: dict[str, str]) -> Seen:
        """Return how everything stands now."""
        return cls(parts, Tally(parts.allocator.observed.snapshot()), parts.allocator.bounds.balances(), names)


async def entries_shown(parts: Parts) -> list[Entry]:
    """Return every entry of the catalog. Of those for each user who uses something of it, the most first."""
    seen = Seen.of(parts, await names_of(parts))
    return [_entry(seen, entry) for entry in parts.catalog.rules.quotas]


async def near_their_end(parts: Parts, count: int) -> list[Row]:
    """Return the limits and budgets that are nearly used up, or run out before they renew: the fullest first."""
    rows = await parts.queue.seldom_beside("quotas near", lambda: _near(parts, count))
    return rows[:count]


async def _near(parts: Parts, count: int) -> list[Row]:
    """Return the fullest; of budgets, of which there may be thousands, only these are put into words."""
    seen = Seen.of(parts, await names_of(parts))
    now, rows, budgets = seen.balances.now, [], []
    async for entry, asker, who in everybody(seen):
        rows += [row for row in _limits(seen, entry, asker, who) if (row.part or 0.0) >= NEAR_SHARE]
        found = [(_taken(one), one, who) for one in balances_of(seen, entry, asker)]
        budgets += [one for one in found if one[0] >= NEAR_SHARE or one[1].lasts_until(now) is not None]
    budgets.sort(key=lambda found: -found[0])
    rows += [_of_budget(parts, budget_view(parts, one, now), who) for _, one, who in budgets[:count]]
    return sorted(rows, key=lambda row: -(row.part or 0.0))[:count]


async def everybody(seen: Seen) -> AsyncIterator[tuple[Quota, Asker, str]]:
    """Yield every entry with each whose use it counts, and what they are called. All else goes on meanwhile."""
    for entry in seen.parts.catalog.rules.quotas:
        for number, (asker, who) in enumerate(whom_of(seen, entry)):
            if number % AT_A_TIME == 0:
                await let_others()
            yield entry, asker, who


async def names_of(parts: Parts) -> dict[str, str]:
    """Return what users are called, as far as they have or had something; who had a name before says so."""
    used = await parts.store.read(parts.store.usage_sums.latest_names)
    live = {lease.key.user_created: lease.user for lease in parts.book}
    now = {name: created for created, name in sorted({**used, **live}.items())} | {v: k for k, v in live.items()}
    earlier = {created: f"{name}{BEFORE}" for created, name in used.items() if now[name] != created}
    return {**used, **live, **earlier}


def _entry(seen: Seen, entry: Quota) -> Entry:
    found = [_rows(seen, entry, asker, who) for asker, who in whom_of(seen, entry)]
    found.sort(key=lambda rows: -max((row.part or 0.0 for row in rows), default=0.0))
    rows = [row for rows in found[:USERS_SHOWN] for row in rows]
    words = entry_words(entry, seen.parts.catalog)
    return Entry(entry.name, rule_id(entry.name), words, rows, max(0, len(found) - USERS_SHOWN))


def _rows(seen: Seen, entry: Quota, asker: Asker, who: str) -> list[Row]:
    """Return the rows of somebody in an entry."""
    parts, now = seen.parts, seen.balances.now
    budgets = balances_of(seen, entry, asker)
    of_budgets = [_of_budget(parts, budget_view(parts, one, now), who) for one in budgets]
    return [*_limits(seen, entry, asker, who), *of_budgets]


def _limits(seen: Seen, entry: Quota, asker: Asker, who: str) -> list[Row]:
    return [_of_limit(limit_view(seen.parts, one), who) for one in taken_of(seen, entry, asker)]


def taken_of(seen: Seen, entry: Quota, asker: Asker) -> list[Taken]:
    """Return what is taken of the limits of an entry, of those that bind somebody."""
    uses = seen.tally.uses(Who(asker.user, asker.user_created, asker.team))
    return [one for one in uses if one.bound.entry is entry]


def balances_of(seen: Seen, entry: Quota, asker: Asker) -> list[Balance]:
    """Return how the budgets of an entry stand, of those that bind somebody."""
    return [one for one in seen.balances.of(asker) if one.entry is entry]


def _taken(one: Balance) -> float:
    """Return how much of a budget is taken, of 1; 0 where it has no end."""
    most = one.soft if one.hard is None else one.hard
    return min(1.0, float((one.used + one.set_aside) / most)) if most else 0.0


def whom_of(seen: Seen, entry: Quota) -> Iterator[tuple[Asker, str]]:
    """Yield whose use an entry counts, and what they are called."""
    parts, names = seen.parts, seen.names
    if entry.whom is Whom.EVERYBODY:
        yield Asker("", "", ""), "everybody"
    elif entry.whom is Whom.TEAM:
        yield Asker("", "", entry.subject), f"team {team_title(parts.catalog, entry.subject)}"
    elif entry.whom is Whom.USER:
        created = next((created for created, name in names.items() if name == entry.subject), "")
        yield Asker(entry.subject, created, ""), entry.subject
    else:
        team = entry.subject if entry.whom is Whom.EACH_OF_TEAM else ""
        charged = parts.allocator.accounting.accounts.charged
        users = {account.user_created for (account, _, _), much in charged.items() if much and account.team == team}
        users |= {lease.key.user_created for lease in parts.book if not team or lease.request.team == team}
        for created in sorted(users & names.keys(), key=names.__getitem__):
            yield Asker(names[created], created, team), names[created]
