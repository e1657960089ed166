"""The rules of the catalog in sentences, for the users that they apply to."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import date, datetime
from fractions import Fraction
from zoneinfo import ZoneInfo

from gpuspawner.catalog import Catalog
from gpuspawner.catalog.requests.visibility import gpu_title, team_title
from gpuspawner.core.calendar import Window
from gpuspawner.core.idle.policies import LifecyclePolicy, PreemptionPolicy
from gpuspawner.core.quotas.budgets import gpu_hours_text as gpu_hours_words
from gpuspawner.core.rules import Budget, BudgetUnit, ClassHold, Hours, Limit, Quota, QuotaScope, Team
from gpuspawner.core.units import show_duration, show_end, show_money
from gpuspawner.service.quotas.presenter import limit_amount_text
from gpuspawner.service.quotas.standing import rule_id, unit_of

DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
HOUR_MINUTES = 60
NOT_READY = "Schedules start no workspace then."
ORDER = (
    "A request that an administrator moved up goes first.",
    "A request with a higher priority goes first.",
    "Then requests that have waited longer than {wait}.",
    "A workspace that stopped for another one, or moved, keeps its old place.",
    "Then requests within the share of their user and team.",
    (
        "Above the share, teams that used less go first. Within a team, users who used less go first. A team's usage "
        "is divided by its weight. Usage counts half as much after a week."
    ),
    "Then the request that came first.",
)
BACKFILL = (
    "A smaller request passes a larger one only if it ends before the larger one starts. It can't be extended then."
)
SUBSTITUTES = "You get another kind of GPU only if you ticked it. It always has the memory that you need."
CLAIMS = (
    "An administrator may claim GPUs for more important work. You are told before your workspace stops for it. It "
    "returns to the queue before later requests if its policy says so."
)


@dataclass(frozen=True)
class RuleWords:
    """One rule: its anchor on the page, its title and its sentences."""

    id: str
    title: str
    sentences: tuple[str, ...]


def entry_words(entry: Quota, catalog: Catalog, *, is_own: bool = False) -> str:
    """Return an entry of quotas in a sentence, as ``Each user may have 2 GPUs at once, and up to 4 while free.``.

    ``is_own`` is for a reader to whom the entry applies.
    """
    found = [*(_of_limit(one, catalog) for one in entry.limits), *(_of_budget(one, catalog) for one in entry.budgets)]
    whom = _reader(entry, catalog) if is_own else _whom(entry, catalog)
    words = f"{whom} may have {', '.join(found)}."
    if entry.whom in {QuotaScope.TEAM, QuotaScope.EVERYBODY} and entry.limits:
        words += " Requests wait while it is full." if entry.full_waits else " Requests are refused while it is full."
    return words


def _whom(entry: Quota, catalog: Catalog) -> str:
    team = team_title(catalog, entry.subject)
    return {
        QuotaScope.EACH_USER: "Each user",
        QuotaScope.EACH_OF_TEAM: f"Each user of {team}, for usage that is charged to {team},",
        QuotaScope.USER: entry.subject,
        QuotaScope.TEAM: f"Team {team} together",
        QuotaScope.EVERYBODY: "Everybody together",
    }[entry.whom]


def _reader(entry: Quota, catalog: Catalog) -> str:
    if entry.whom in {QuotaScope.EACH_USER, QuotaScope.USER}:
        return "You"
    if entry.whom is QuotaScope.EACH_OF_TEAM:
        return f"In team {team_title(catalog, entry.subject)}, you"
    return _whom(entry, catalog)


def _of_limit(limit: Limit, catalog: Catalog) -> str:
    def much(number: Fraction) -> str:
        return f"{limit_amount_text(limit, number)} {unit_of(limit, catalog, number)}"

    if limit.soft is None:
        return f"at most {much(limit.hard or Fraction(0))} at once"
    if limit.hard is None:
        return f"{much(limit.soft)} at once, and more while free"
    return f"{much(limit.soft)} at once, and up to {limit_amount_text(limit, limit.hard)} while free"


def _of_budget(budget: Budget, catalog: Catalog) -> str:
    def much(number: Fraction) -> str:
        if budget.what is BudgetUnit.COST:
            return f"{show_money(float(number), catalog.rules.currency)} of cost".replace(".00 ", " ")
        return gpu_hours_words(number)

    per = f"a {budget.per.value}"
    if budget.soft is None:
        return f"at most {much(budget.hard or Fraction(0))} {per}"
    share = f"{much(budget.soft)} {per} as a share"
    return share if budget.hard is None else f"{share}, at most {much(budget.hard)}"


def window_words(window: Window) -> str:
    """Return a window of the week or its days: ``Mon to Fri 20:00-07:00``."""
    if window.dates:
        return days_words(window.dates)
    days = sorted(window.days)
    if days == list(range(7)):
        named = "every day"
    elif len(days) > 2 and days == list(range(days[0], days[-1] + 1)):  # noqa: PLR2004 - two are named both
        named = f"{DAYS[days[0]]} to {DAYS[days[-1]]}"
    else:
        named = ", ".join(DAYS[day] for day in days)
    return f"{named} {_clock(window.start_minute)}-{_clock(window.end_minute)}"


def days_words(days: Iterable[date]) -> str:
    """Return days: ``Fri 25 Dec 2026, Fri 1 Jan 2027``."""
    return ", ".join(f"{day:%a} {day.day} {day:%b %Y}" for day in sorted(days))


def _clock(minute: int) -> str:
    return f"{minute // HOUR_MINUTES:02}:{minute % HOUR_MINUTES:02}"


def team_words(team: Team) -> str:
    """Return the sentences about a team."""
    words = f"Team {team.title or team.name} is charged for the usage of its members."
    if team.weight != 1:
        words += f" In the queue its usage is divided by {float(team.weight):g}."
    if team.priority:
        words += f" Its requests have priority {team.priority}. Other teams have 0."
    return words


def hours_words(hours: Hours, catalog: Catalog) -> str:
    """Return when another policy applies, in sentences."""
    when, zone = window_words(hours.window), catalog.rules.timezone
    words = f"{when} ({zone}) the policy {hours.policy} applies instead of {hours.instead_of}."
    return words if catalog.policies[hours.policy].ready_at else f"{words} {NOT_READY}"


def hold_words(hold: ClassHold, catalog: Catalog, now: float) -> str:
    """Return the GPUs that are reserved for a class, in sentences."""
    until = "" if hold.until is None else f", until {show_end(hold.until, now, ZoneInfo(catalog.rules.timezone))}"
    are, when = "is" if hold.count == 1 else "are", window_words(hold.window) if hold.window else "always"
    return (
        f"{hold.count} {gpu_title(hold.kind, catalog)} {are} reserved for the group {hold.group}, "
        f"{when} ({catalog.rules.timezone}){until}. Other workspaces on these GPUs end before that."
    )


def make_room_words(catalog: Catalog) -> str:
    """Return the rule of preemption by fair share in sentences, "" without one."""
    room = catalog.rules.make_room
    if room is None:
        return ""
    return (
        "Users above their soft share may have to make room for users below theirs who have waited "
        f"{show_duration(room.after_seconds)}. They are told before, and return to the queue by their share."
    )


def policy_words(policies: Iterable[LifecyclePolicy]) -> Iterator[str]:
    """Yield the sentences of policies about requests with priority. Policies with equal rules share a sentence."""
    alike: dict[PreemptionPolicy, list[str]] = {}
    strict = []
    for policy in policies:
        alike.setdefault(policy.preemption, []).append(policy.name)
        if not policy.extend.others_wait:
            strict.append(policy.name)
    for preemption, names in alike.items():
        then = "It then returns to the queue." if preemption.back_in_queue else "It does not start again by itself."
        yield (
            f"Under {_named(names)}, requests with priority stop no workspace in its first "
            f"{show_duration(preemption.protected_seconds)}. You are told {show_duration(preemption.notice_seconds)} "
            f"before your workspace ends. {then}"
        )
    if strict:
        yield f"Under {_named(strict)}, you can't extend while others wait for the same kind of GPU."


def _named(names: list[str]) -> str:
    return f"the {'policy' if len(names) == 1 else 'policies'} {', '.join(names)}"


def wait_words(catalog: Catalog) -> str:
    """Return the wait after which usage no longer counts: ``12 h``, or the wait of each policy."""
    waits = {name: show_duration(policy.queue.longest_wait_seconds) for name, policy in catalog.policies.items()}
    if len(set(waits.values())) == 1:
        return next(iter(waits.values()))
    return "the policy says (" + ", ".join(f"{name}: {wait}" for name, wait in waits.items()) + ")"


def rules_of(catalog: Catalog, quotas: tuple[Quota, ...], now: float) -> Iterator[RuleWords]:
    """Yield the rules of a catalog, with these entries of quotas, which apply to the reader."""
    rules = catalog.rules
    for entry in quotas:
        yield RuleWords(rule_id(entry.name), f"Quota {entry.name}", (entry_words(entry, catalog, is_own=True),))
    if rules.teams:
        yield RuleWords("teams", "Teams", tuple(team_words(one) for one in rules.teams.values()))
    policies = list(catalog.policies.values())
    yield RuleWords("order", "Order of the queue", tuple(order_rules(catalog)))
    yield RuleWords("backfill", "Smaller requests", (BACKFILL,))
    yield RuleWords("substitutes", "Another GPU instead", (SUBSTITUTES,))
    claims = [CLAIMS, make_room_words(catalog), *policy_words(policies)]
    yield RuleWords("claims", "Requests with priority", tuple(filter(None, claims)))
    today = datetime.fromtimestamp(now, ZoneInfo(rules.timezone)).date()
    if hours := [one for one in rules.hours if not one.window.dates or max(one.window.dates) >= today]:
        yield RuleWords("hours", "Policies by time", tuple(hours_words(one, catalog) for one in hours))
    if coming := [day for day in rules.closed if day >= today]:
        yield RuleWords("closed", "Closed days", (f"{days_words(coming)}. {NOT_READY}",))
    holds = [one for one in rules.holds if one.kind in catalog.gpus and (one.until is None or one.until > now)]
    if holds:
        yield RuleWords("holds", "Reservations", tuple(hold_words(one, catalog, now) for one in holds))


def order_rules(catalog: Catalog) -> list[str]:
    """Return the rules of the order in the queue."""
    return [one.format(wait=wait_words(catalog)) for one in ORDER]
