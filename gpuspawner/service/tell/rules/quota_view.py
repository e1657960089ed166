"""Quotas, budgets, use and grants as JSON: what pages, API and command line show, one source for all."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from gpuspawner.core.calendar.periods import show_moment
from gpuspawner.core.leases.lease import Owner
from gpuspawner.core.quotas.bounds import Who
from gpuspawner.core.quotas.budgets import Asker, Balance, Balances, amount_words, shown, used_words
from gpuspawner.core.quotas.charges import Charge, Line, amount, lines_until
from gpuspawner.core.quotas.entries import account_of, entries_in_force
from gpuspawner.core.quotas.grant_text import Amount, amount_text
from gpuspawner.core.rules import Account, Quota, QuotaGrant, Rate, Used, What, Whom
from gpuspawner.service.parts import Parts
from gpuspawner.service.store.ledger import GrantRow
from gpuspawner.service.tell.rules.quota_lines import quota_lines, whose

NO_TEAM, NO_KIND = "no team", "no GPU"


def quota_view(parts: Parts, name: str, owner: Owner, teams: Sequence[str]) -> dict[str, Any]:
    """Return every limit and budget that binds a user, for each of their teams: used, set aside, left, renews.

    Args:
        parts: the service.
        name: the user's.
        owner: who that is.
        teams: those that their use may be charged to; none for a user without.
    """
    balances = parts.allocator.bounds.balances()
    whos = [Who(name, owner.user_created, team) for team in teams or ("",)]
    return {
        "user": name,
        "teams": list(teams),
        "now": parts.clock.now(),
        "timezone": parts.catalog.rules.timezone,
        "contact": parts.catalog.rules.contact,
        "limits": quota_lines(parts, whos),
        "budgets": [budget_view(parts, one, balances.now) for one in _each_once(balances, whos)],
        "grants": [grant_view(parts, row) for row in _grants_of(parts, owner, teams)],
    }


def bounds_view(parts: Parts, whos: Sequence[Who]) -> list[dict[str, Any]]:
    """Return all limits, then all budgets, as :func:`quota_view` does, of those that somebody's requests may be."""
    balances = parts.allocator.bounds.balances()
    budgets = [budget_view(parts, one, balances.now) for one in _each_once(balances, whos)]
    return [*quota_lines(parts, whos), *budgets]


def _each_once(balances: Balances, whos: Iterable[Who]) -> list[Balance]:
    found = (balance for who in whos for balance in balances.of(Asker(*who)))
    return list({(one.entry.name, one.account, one.budget): one for one in found}.values())


def budget_view(parts: Parts, balance: Balance, now: float) -> dict[str, Any]:
    """Return one budget: used, set aside, left, when it renews and until when it lasts."""
    lasts_until, what = balance.lasts_until(now), balance.budget.what
    return {
        "entry": balance.entry.name,
        "whose": whose(balance.entry, balance.account, parts.catalog),
        "limit": what.value,
        "per": balance.budget.per.value,
        "soft": _number(balance.soft),
        "hard": _number(balance.hard),
        "granted": float(balance.added),
        "used": float(balance.used),
        "set_aside": float(balance.set_aside),
        "left": _number(balance.left),
        "renews_at": balance.period.end,
        "renews_words": balance.renews(now),
        "lasts_until": lasts_until,
        "words": _budget_words(balance, lasts_until, now, parts.catalog.rules.contact),
    }


def _budget_words(balance: Balance, lasts_until: float | None, now: float, contact: str) -> str:
    aside = f", {used_words(balance.set_aside, balance)} set aside for what runs" if balance.set_aside else ""
    if balance.hard is None:
        share = balance.soft or Fraction(0)
        return f"{shown(balance.used)} used of a share of {amount_words(balance, now, share)}{aside}"
    words = (
        f"{used_words(balance.used, balance)} used of {amount_words(balance, now)}{aside}; renews {balance.renews(now)}"
    )
    if lasts_until is not None:
        words += f"; at the present use they last until {show_moment(lasts_until, now, balance.zone)}"
    if not balance.left:
        words += f". Nothing can be started with them before; more: {contact or 'ask an administrator'}"
    return words


def _number(value: Fraction | None) -> float | None:
    return None if value is None else float(value)


# Use


@dataclass
class _Use:
    user: str = ""
    amounts: dict[tuple[bool, Used], Fraction] = field(default_factory=lambda: defaultdict(Fraction))
    """By whether it was given back, and what it is."""

    def add(self, what: Charge, number_ms: int, rate: Rate) -> None:
        """Count what a line charges."""
        given_back = what is Charge.REFUND or (what is Charge.CORRECTION and number_ms < 0)
        for used in Used:
            self.amounts[given_back, used] += amount(number_ms, rate, used)


async def usage_view(parts: Parts, by: str, first_day: str, last_day: str, owner: Owner | None) -> dict[str, Any]:
    """Return what was used on some days, by user, team, kind or day; of ``owner``, or of all (None).

    What runs is in it, up to now. Days are those of the catalog's time zone.
    """
    groups: dict[str, _Use] = defaultdict(_Use)
    for one in await parts.store.read(parts.store.ledger.sums, by, first_day, last_day, owner):
        groups[one.key].user = one.user
        groups[one.key].add(one.what, one.milliseconds, one.rate)
    for line in _running(parts, owner):
        if first_day <= line.day <= last_day:
            key = _key(line, by)
            groups[key].user = groups[key].user or line.user
            groups[key].add(line.what, line.milliseconds, line.rate)
    priced = any(kind.price_per_hour is not None for kind in parts.catalog.gpus.values())
    rows = [_usage_row(by, key, use, priced=priced) for key, use in groups.items()]
    rows.sort(key=lambda row: row["name"] if by == "day" else (-row["charged_gpu_hours"], row["name"]))
    return {
        "by": by,
        "since": first_day,
        "until": last_day,
        "timezone": parts.catalog.rules.timezone,
        "now": parts.clock.now(),
        "rows": rows,
        "charged_gpu_hours": sum(row["charged_gpu_hours"] for row in rows),
        "credited_gpu_hours": sum(row["credited_gpu_hours"] for row in rows),
        "cost": sum(row["cost"] for row in rows) if priced else None,
    }


def _running(parts: Parts, owner: Owner | None) -> Iterable[Line]:
    zone, now = parts.allocator.accounting.zone, parts.clock.now()
    for lease in parts.book:
        if owner is None or lease.key.owner == owner:
            yield from lines_until(lease, now, zone)


def _key(line: Line, by: str) -> str:
    named = {"user": line.account.user_created, "team": line.account.team, "kind": line.kind, "day": line.day}
    return named[by]


def _usage_row(by: str, key: str, use: _Use, *, priced: bool) -> dict[str, Any]:
    names = {"user": use.user, "team": key or NO_TEAM, "kind": key or NO_KIND, "day": key}
    hours, money = (float(use.amounts[False, used] + use.amounts[True, used]) for used in (Used.GPU_HOURS, Used.COST))
    back = float(-use.amounts[True, Used.GPU_HOURS])
    row = {"key": key, "name": names[by], "charged_gpu_hours": hours, "credited_gpu_hours": back}
    return {**row, "cost": money if priced else None}


# Grants


def grant_view(parts: Parts, row: GrantRow) -> dict[str, Any]:
    """Return a grant as JSON, with what it adds in words."""
    now, grant = parts.clock.now(), row.grant
    zone = parts.allocator.accounting.zone
    words = amount_text(Amount(grant.what, grant.kind, grant.amount))
    state = "in force" if row.since <= now else "to come"
    if row.taken_back_at is not None:
        state = "taken back"
    elif now >= row.until:
        state = "over"
    return {
        "id": row.id,
        "user": row.user or None,
        "team": row.team or None,
        "limit": row.what,
        "kind": row.kind or None,
        "amount": float(grant.amount),
        "since": row.since,
        "until": row.until,
        "until_words": show_moment(row.until, now, zone),
        "state": state,
        "why": row.why,
        "by": row.by,
        "made_at": row.made_at,
        "now": now,
        "taken_back": None
        if row.taken_back_at is None
        else {"at": row.taken_back_at, "by": row.taken_back_by, "why": row.taken_back_why},
        "words": f"{words} more for {whom(row)} until {show_moment(row.until, now, zone)}",
        "note": "" if raises_something(parts, grant, row.user) else _no_effect(row),
    }


def whom(row: GrantRow) -> str:
    """Return whom a grant is for, as people read it."""
    if row.user:
        return f"{row.user} in {row.team}" if row.team else row.user
    return f"team {row.team}" if row.team else "everybody"


def _no_effect(row: GrantRow) -> str:
    return f"No entry of quotas bounds this for {whom(row)}: it adds nothing as the catalog stands."


def raises_something(parts: Parts, grant: QuotaGrant, user: str) -> bool:
    """Whether an entry of the present catalog is raised by a grant."""
    rules, account = parts.catalog.rules, grant.account
    teams = {account.team} if account.team else {"", *rules.teams, *(entry.subject for entry in rules.quotas)}
    for team in teams:
        for entry in entries_in_force(rules.quotas, user, team):
            counted = account_of(entry, account.user_created, team)
            of_user = entry.whom not in {Whom.TEAM, Whom.EVERYBODY}
            if of_user is not bool(account.user_created) or not _bounds(entry, grant):
                continue
            if counted == account or (of_user and not account.team):
                return True
    return False


def _bounds(entry: Quota, grant: QuotaGrant) -> bool:
    if isinstance(grant.what, What):
        return any((limit.what, limit.kind) == (grant.what, grant.kind) for limit in entry.limits)
    return any(budget.what is grant.what for budget in entry.budgets)


def _grants_of(parts: Parts, owner: Owner, teams: Sequence[str]) -> list[GrantRow]:
    now = parts.clock.now()
    accounts = {Account(team, who) for team in ("", *teams) for who in ("", owner.user_created)}
    return [
        row
        for row in parts.allocator.accounting.rows()
        if row.taken_back_at is None and now < row.until and Account(row.team, row.user_created) in accounts
    ]
