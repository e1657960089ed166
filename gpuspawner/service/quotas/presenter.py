"""Limits, budgets, grants and usage as models. API, pages, exports and command line show these models."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from fractions import Fraction

from gpuspawner.catalog import Catalog
from gpuspawner.core.calendar import Per, date_of, milliseconds, show_moment
from gpuspawner.core.events import QuotaEvent
from gpuspawner.core.leases.lease import Owner
from gpuspawner.core.quotas.budgets import BudgetBalance, BudgetBalances, bare_amount_text, budget_text, decimal_text
from gpuspawner.core.quotas.ledger import LedgerKind, LedgerLine, charged_amount, ledger_lines_until, show_grant
from gpuspawner.core.quotas.limits import Amount, Requester, counted_account, entries_in_force, limit_line
from gpuspawner.core.quotas.usage import LimitTotals, QuotaTally
from gpuspawner.core.rules import Account, BudgetUnit, Limit, LimitedResource, Quota, QuotaGrant, QuotaScope, Rate
from gpuspawner.core.units import show_bytes, show_end
from gpuspawner.service.parts import Parts
from gpuspawner.service.quotas import models
from gpuspawner.service.quotas.standing import Standing, budget_standing, limit_standing, unit_of
from gpuspawner.service.store.rows import Whose, is_of
from gpuspawner.service.store.usage_sums import UsageAmounts

NO_TEAM, NO_KIND = "no team", "no GPU"


def is_priced(catalog: Catalog) -> bool:
    """Return whether the catalog has prices."""
    return any(kind.price_per_hour is not None for kind in catalog.gpus.values())


def present_quota(state: Parts, name: str, owner: Owner, teams: Sequence[str]) -> models.Quota:
    """Return every limit and budget that binds a user, for each team that their usage may be charged to."""
    limits, budgets = present_bounds(state, [Requester(name, owner.user_created, team) for team in teams or ("",)])
    accounts = {Account(team, created) for team in ("", *teams) for created in ("", owner.user_created)}
    now = state.clock.now()
    grants = [one for one in state.accounting.all_grants() if one.is_live(now) and one.account in accounts]
    return models.Quota(
        user=name,
        teams=list(teams),
        now=now,
        timezone=state.catalog.rules.timezone,
        contact=state.catalog.rules.contact,
        limits=limits,
        budgets=budgets,
        grants=[present_grant(state, one) for one in grants],
    )


def present_bounds(state: Parts, users: Sequence[Requester]) -> tuple[list[models.Limit], list[models.Budget]]:
    """Return all limits and budgets that bind the requests of these users, each once."""
    seen = state.allocator.observed.snapshot()
    tally = QuotaTally(seen, state.allocator.observed.holdings(seen))
    balances = state.allocator.bounds.balances()
    taken = {one.bound.limit_key: one for user in users for one in tally.uses(user)}
    limits = [present_limit(one, limit_standing(one, state.catalog), state.catalog) for one in taken.values()]
    budgets = [
        present_budget(one, budget_standing(one, state.catalog, balances.now), state, balances.now)
        for one in _each_balance(balances, users)
    ]
    return [one for one in limits if one.words], budgets


def _each_balance(balances: BudgetBalances, users: Iterable[Requester]) -> Iterable[BudgetBalance]:
    found = (one for user in users for one in balances.of(Requester(*user)))
    return {(one.entry.name, one.account, one.budget): one for one in found}.values()


def present_limit(taken: LimitTotals, standing: Standing, catalog: Catalog) -> models.Limit:
    """Return a limit with its sentences."""
    bound, held, waiting = taken
    limit = bound.limit

    def text(number: float | None) -> str | None:
        return None if number is None else limit_amount_text(limit, number)

    return models.Limit(
        entry=standing.entry,
        whose=standing.whose,
        limit=standing.limit,
        what=standing.what,
        kind=limit.kind or None,
        unit=unit_of(limit, catalog),
        shown=models.QuotaText(
            soft=text(standing.soft),
            hard=text(standing.hard),
            used=text(standing.used),
            waiting=text(standing.waiting),
            left=text(standing.left),
        ),
        words=limit_line(bound, held, waiting, catalog.gpus),
        soft=standing.soft,
        hard=standing.hard,
        used=standing.used,
        waiting=standing.waiting or 0.0,
        left=standing.left,
    )


def present_budget(balance: BudgetBalance, standing: Standing, state: Parts, now: float) -> models.Budget:
    """Return a budget with its sentences: when it resets, and until when it lasts."""
    what, renews, until = balance.budget.what, _reset_text(balance, now), standing.lasts_until
    lasts = None if until is None else show_moment(until, now, balance.zone)

    def text(number: float | None) -> str | None:
        return None if number is None else _budget_amount_text(what, number)

    return models.Budget(
        entry=standing.entry,
        whose=standing.whose,
        limit=standing.limit,
        what=standing.what,
        per=balance.budget.per.value,
        granted=float(balance.added),
        renews_at=balance.period.end,
        renews_words=renews,
        lasts_until=until,
        shown=models.QuotaText(
            soft=text(standing.soft),
            hard=text(standing.hard),
            used=text(standing.used),
            set_aside=text(standing.set_aside),
            left=text(standing.left),
            renews_at=renews,
            lasts_until=lasts,
        ),
        words=_budget_words(balance, lasts, now, state.catalog.rules.contact),
        soft=standing.soft,
        hard=standing.hard,
        used=standing.used,
        set_aside=standing.set_aside or 0.0,
        left=standing.left,
    )


def _budget_words(balance: BudgetBalance, lasts: str | None, now: float, contact: str) -> str:
    """Return how much of a budget is left, in sentences without the last full stop."""
    reserved = ""
    if balance.reserved:
        reserved = f"{bare_amount_text(balance.reserved, balance)} reserved by running workspaces"
    if balance.hard is None:
        share = budget_text(balance, now, balance.soft or Fraction(0))
        words = [f"{decimal_text(max(balance.used, Fraction(0)))} used of a share of {share}", reserved]
        return ". ".join(filter(None, words))
    left = bare_amount_text(balance.left or Fraction(0), balance)
    credited = f"{bare_amount_text(-balance.used, balance)} credited" if balance.used < 0 else ""
    words = [f"{left} left of {budget_text(balance, now)}", credited, reserved]
    sentences = [*filter(None, words), f"Resets {_reset_text(balance, now)}"]
    if lasts is not None:
        sentences.append(f"At this rate they last until {lasts}")
    if not balance.left:
        sentences.append(f"Nothing can start with them until then. For more, ask {contact or 'an administrator'}")
    return ". ".join(one[:1].upper() + one[1:] for one in sentences)


def _reset_text(balance: BudgetBalance, now: float) -> str:
    """Return when a budget resets, after the word "resets": ``at midnight``, ``on Monday``, ``on 1 Dec``."""
    last_day, today = (datetime.fromtimestamp(at, balance.zone).date() for at in (balance.period.end - 1, now))
    if last_day == today:
        return "at midnight"
    first_day = last_day + timedelta(days=1)
    return f"on {first_day:%A}" if first_day - today < timedelta(days=7) else f"on {first_day.day} {first_day:%b}"


def _budget_amount_text(what: BudgetUnit, number: float) -> str:
    return f"{number:.2f}" if what is BudgetUnit.COST else f"{number:.1f}".removesuffix(".0")


def limit_amount_text(limit: Limit, number: Amount | float) -> str:
    """Return an amount as people read it, memory with its unit."""
    if limit.what is LimitedResource.MEMORY:
        return show_bytes(float(number))
    return f"{float(number):.3f}".rstrip("0").rstrip(".")


# Grants


def present_grant(state: Parts, grant: QuotaGrant) -> models.Grant:
    """Return a grant, with what it adds in words."""
    now = state.clock.now()
    until = show_end(grant.until, now, state.accounting.zone)
    taken_back = None
    if grant.taken_back_at is not None:
        taken_back = models.TakenBack(at=grant.taken_back_at, by=grant.taken_back_by, why=grant.taken_back_why)
    return models.Grant(
        id=grant.id,
        user=grant.user or None,
        team=grant.account.team or None,
        limit=grant.what.value,
        kind=grant.kind or None,
        amount=float(grant.amount),
        since=grant.since,
        until=grant.until,
        until_words=until,
        state=grant.state(now),
        why=grant.why,
        by=grant.by,
        made_at=grant.made_at,
        now=now,
        taken_back=taken_back,
        words=f"{amount_words(grant)} for {grantee(grant)} until {until}",
        note="" if raises_a_bound(state, grant) else NO_EFFECT.format(grantee(grant)),
    )


def amount_words(grant: QuotaGrant) -> str:
    """Return the amount of extra quota as people read it: ``20 GPU h more``, or ``20 GPU h less`` if it was moved."""
    how = "more" if grant.amount > 0 else "less"
    return f"{show_grant(replace(grant, amount=abs(grant.amount)))} {how}"


def event_of_grant(state: Parts, grant: QuotaGrant, kind: type[QuotaEvent], reason: str) -> QuotaEvent:
    """Return an event about a grant."""
    return kind(show_grant(grant), grantee(grant), grant.until, state.catalog.rules.timezone, reason)


NO_EFFECT = "No quota of the catalog limits this for {}, so it changes nothing now."


def grantee(grant: QuotaGrant) -> str:
    """Return the grantee as people read it."""
    team = grant.account.team
    if grant.user:
        return f"{grant.user} in {team}" if team else grant.user
    return f"team {team}" if team else "everybody"


def raises_a_bound(state: Parts, grant: QuotaGrant) -> bool:
    """Return whether extra quota would add to a limit or budget of the catalog."""
    return any(True for _ in _raised(state, grant))


def shortest_period_raised(state: Parts, grant: QuotaGrant) -> Per:
    """Return the shortest period of the budgets that extra quota adds to, a month if there are none."""
    budgets = (budget for entry in _raised(state, grant) for budget in entry.budgets if budget.what is grant.what)
    return min((budget.per for budget in budgets), key=list(Per).index, default=Per.MONTH)


def _raised(state: Parts, grant: QuotaGrant) -> Iterator[Quota]:
    """Yield the entries of the catalog with a limit or budget that extra quota adds to."""
    rules, account = state.catalog.rules, grant.account
    teams = {account.team} if account.team else {"", *rules.teams, *(entry.subject for entry in rules.quotas)}
    for team in teams:
        for entry in entries_in_force(rules.quotas, grant.user, team):
            of_user = entry.whom not in {QuotaScope.TEAM, QuotaScope.EVERYBODY}
            if of_user is not bool(account.user_created) or not _bounds(entry, grant):
                continue
            if counted_account(entry, account.user_created, team) == account or (of_user and not account.team):
                yield entry


def _bounds(entry: Quota, grant: QuotaGrant) -> bool:
    if isinstance(grant.what, LimitedResource):
        return any((limit.what, limit.kind) == (grant.what, grant.kind) for limit in entry.limits)
    return any(budget.what is grant.what for budget in entry.budgets)


# Usage


CORRECTIONS, OLD_WORKSPACES = "Corrections", "Older workspaces"


@dataclass
class _Usage:
    user: str = ""
    charged: dict[BudgetUnit, Fraction] = field(default_factory=lambda: defaultdict(Fraction))
    credited: Fraction = Fraction(0)
    measured: UsageAmounts | None = None

    def join(self, other: _Usage) -> None:
        if other.measured is not None:
            self.measured = other.measured.plus(self.measured or UsageAmounts())
        self.user = other.user or self.user
        for used, amount_used in other.charged.items():
            self.charged[used] += amount_used
        self.credited += other.credited

    def add(self, user: str, what: LedgerKind, milliseconds: int, rate: Rate) -> None:
        self.user = user or self.user
        for used in BudgetUnit:
            self.charged[used] += charged_amount(milliseconds, rate, used)
        if what is LedgerKind.REFUND or (what is LedgerKind.CORRECTION and milliseconds < 0):
            self.credited -= charged_amount(milliseconds, rate, BudgetUnit.GPU_HOURS)


async def present_usage(state: Parts, by: str, since: str, until: str, whose: Whose) -> models.Usage:
    """Return the usage from one day to another, by user, team, kind, day or workspace.

    Running workspaces are included, up to now. Days are those of the catalog's time zone.
    """
    groups: dict[str, _Usage] = defaultdict(_Usage)
    measured = await _measured(state, by, since, until, whose)
    for one in await state.store.read(state.store.ledger.sums, by, since, until, whose):
        groups[one.key].add(one.user, one.what, one.milliseconds, one.rate)
    # The store is read first. A workspace that ends meanwhile is counted once or not yet, never twice.
    for line in _running(state, whose):
        if since <= line.day <= until:
            group = groups[_key(line, by)]
            group.add(group.user or line.user, line.what, line.milliseconds, line.rate)
    for key, group in groups.items():
        group.measured = measured.get(key)
    priced = is_priced(state.catalog)
    names, named = dict[str, str](), not isinstance(whose, Owner)
    if by == "workspace":
        names = {name: await _workspace_name(state, name, named=named) for name in groups}
        groups = _by_name(groups, names)
    rows = [_usage_row(by, key, used, priced=priced) for key, used in groups.items()]
    rows.sort(key=lambda row: (0.0 if by == "day" else -row.charged_gpu_hours, row.name))
    return models.Usage(
        by=by,
        since=since,
        until=until,
        timezone=state.catalog.rules.timezone,
        now=state.clock.now(),
        rows=rows,
        charged_gpu_hours=float(sum(row.charged_gpu_hours for row in rows)),
        credited_gpu_hours=float(sum(row.credited_gpu_hours for row in rows)),
        cost=float(sum(row.cost or 0.0 for row in rows)) if priced else None,
    )


async def _measured(state: Parts, by: str, since: str, until: str, whose: Whose) -> dict[str, UsageAmounts]:
    """Return the active and idle hours of a user by key. They are known for one's own usage only."""
    if not isinstance(whose, Owner):
        return {}
    store, created = state.store, whose.user_created
    if by in {"user", "day"}:
        days = await store.read(store.usage_sums.of_days, "user", since, until, daily=by == "day", keys=[created])
        return {one.day if by == "day" else one.key: one.amounts for one in days}
    workspaces = await store.read(store.usage_sums.of_workspaces, created, since, until)
    key_of = await store.read(store.ledger.groups_of_workspaces, by, since, until, whose)
    key_of |= {line.lease: _key(line, by) for line in _running(state, whose)}
    found: dict[str, UsageAmounts] = defaultdict(UsageAmounts)
    for lease, amounts in workspaces.items():
        if lease in key_of:
            found[key_of[lease]] = found[key_of[lease]].plus(amounts)
    return found


async def _workspace_name(state: Parts, lease_id: str, *, named: bool) -> str:
    """Return the name under which the usage of a workspace is summed up, with its user's if ``named``."""
    lease = await state.registry.find(lease_id) if lease_id else None
    if lease is None:
        return CORRECTIONS if not lease_id else OLD_WORKSPACES
    name = lease.name
    return f"{lease.user}: {name}" if named else name


def _by_name(groups: Mapping[str, _Usage], names: Mapping[str, str]) -> dict[str, _Usage]:
    """Return usage by the names of workspaces, which several workspaces may have had one after the other."""
    found: dict[str, _Usage] = defaultdict(_Usage)
    for key, used in groups.items():
        found[names[key]].join(used)
    return found


def today_of(state: Parts) -> str:
    """Return the day in the catalog's time zone."""
    return date_of(milliseconds(state.clock.now()), state.accounting.zone)


def title_usage(state: Parts, usage: models.Usage) -> models.Usage:
    """Return usage with the titles of kinds and teams."""
    titles: dict[str, dict[str, str]] = {
        "kind": {name: kind.title for name, kind in state.catalog.gpus.items()},
        "team": {name: team.title for name, team in state.catalog.rules.teams.items()},
    }
    known = titles.get(usage.by, {})
    rows = [row.model_copy(update={"name": known.get(row.key) or row.name}) for row in usage.rows]
    return usage.model_copy(update={"rows": rows})


def _running(state: Parts, whose: Whose) -> Iterable[LedgerLine]:
    for lease in state.registry:
        if is_of(lease, whose):
            yield from ledger_lines_until(lease, state.clock.now(), state.accounting.zone)


def _key(line: LedgerLine, by: str) -> str:
    named = {
        "user": line.account.user_created,
        "team": line.account.team,
        "kind": line.kind,
        "day": line.day,
        "workspace": line.lease,
    }
    return named[by]


def _usage_row(by: str, key: str, used: _Usage, *, priced: bool) -> models.UsageRow:
    names = {"user": used.user, "team": key or NO_TEAM, "kind": key or NO_KIND, "day": key, "workspace": key}
    return models.UsageRow(
        key=key,
        name=names[by],
        charged_gpu_hours=float(used.charged[BudgetUnit.GPU_HOURS]),
        credited_gpu_hours=float(used.credited),
        cost=float(used.charged[BudgetUnit.COST]) if priced else None,
        active_gpu_hours=None if used.measured is None else used.measured.active,
        idle_gpu_hours=None if used.measured is None else used.measured.idle,
    )
