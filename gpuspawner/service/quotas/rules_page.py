"""Each rule of the catalog in sentences, as the people read it whom it binds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import date, datetime
from fractions import Fraction
from zoneinfo import ZoneInfo

from gpuspawner.catalog import Catalog
from gpuspawner.catalog.visibility import team_title
from gpuspawner.core.calendar import Window, show_moment
from gpuspawner.core.idle.policies import LifecyclePolicy, PreemptionPolicy
from gpuspawner.core.quotas.budgets import gpu_hours_text as gpu_hours_words
from gpuspawner.core.rules import Budget, BudgetUnit, ClassHold, Hours, Limit, Quota, QuotaScope, Team
from gpuspawner.core.units import show_duration, show_money
from gpuspawner.service.quotas.presenter import limit_amount_text
from gpuspawner.service.quotas.standing import rule_id, unit_of
from gpuspawner.service.waiting.presenter import gpu_title

DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
HOUR_MINUTES = 60
NOT_READY = "no workspace is made ready at a time."
ORDER = (
    "A higher priority goes first.",
    "Then who has waited longer than {wait}: beyond that nobody waits because others have used less.",
    "A workspace that ends for others, or moves, returns with them: before what was asked after it.",
    "Then what is within the share: what the soft quotas of the user and of the team leave.",
    (
        "Beyond the share, the team that has used less goes first, then in it the user who has. A team's use is "
        "divided by its weight, and use counts half as much after a week."
    ),
    "Then who asked first.",
)
BACKFILL = (
    "A smaller request passes a larger one only if it ends before the larger one starts. Its end is then fixed: it "
    "can't be extended."
)
SUBSTITUTES = "Another kind of GPU is given to those alone who ticked it, and never one with less than is needed."
CLAIMS = (
    "An administrator may claim GPUs for more important work. Whoever is ended for it is told before, and returns to "
    "the queue before later requests where the policy says so."
)


@dataclass(frozen=True)
class RuleWords:
    """One rule: by what a page links to it, what it is called, and its sentences."""

    id: str
    title: str
    sentences: tuple[str, ...]


def entry_words(entry: Quota, catalog: Catalog) -> str:
    """Return an entry of quotas in a sentence, as ``Each user may have 2 GPUs at once, and up to 4 while free.``."""
    found = [*(_of_limit(one, catalog) for one in entry.limits), *(_of_budget(one, catalog) for one in entry.budgets)]
    words = f"{_whom(entry, catalog)} may have {', '.join(found)}."
    if entry.whom in {QuotaScope.TEAM, QuotaScope.EVERYBODY} and entry.limits:
        words += " Who finds it full waits." if entry.full_waits else " Who finds it full is turned away."
    return words


def _whom(entry: Quota, catalog: Catalog) -> str:
    team = team_title(catalog, entry.subject)
    return {
        QuotaScope.EACH_USER: "Each user",
        QuotaScope.EACH_OF_TEAM: f"Each user of {team}, of what is charged to {team},",
        QuotaScope.USER: entry.subject,
        QuotaScope.TEAM: f"Team {team} together",
        QuotaScope.EVERYBODY: "Everybody together",
    }[entry.whom]


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
    """Return a part of the week: ``Mon to Fri 20:00-07:00``; or days."""
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
    """Return what a team has of its own, in sentences."""
    words = f"Team {team.title or team.name} is charged for what its members use."
    if team.weight != 1:
        words += f" In the queue its use is divided by {float(team.weight):g}."
    if team.priority:
        words += f" Its requests have priority {team.priority}; a team without has 0."
    return words


def hours_words(hours: Hours, catalog: Catalog) -> str:
    """Return when another policy judges, in a sentence."""
    when, zone = window_words(hours.window), catalog.rules.timezone
    words = f"{when} ({zone}) the policy {hours.policy} holds instead of {hours.instead_of}"
    return f"{words}." if catalog.policies[hours.policy].ready_at else f"{words}: {NOT_READY}"


def hold_words(hold: ClassHold, catalog: Catalog, now: float) -> str:
    """Return what is kept free for a class, in a sentence."""
    until = "" if hold.until is None else f", until {show_moment(hold.until, now, ZoneInfo(catalog.rules.timezone))}"
    are, when = "is" if hold.count == 1 else "are", window_words(hold.window) if hold.window else "always"
    return (
        f"{hold.count} {gpu_title(hold.kind, catalog)} {are} kept free for the group {hold.group}, "
        f"{when} ({catalog.rules.timezone}){until}. What others start before ends in time for it."
    )


def make_room_words(catalog: Catalog) -> str:
    """Return when who is over the share gives room, in a sentence; "" where nobody has to."""
    room = catalog.rules.make_room
    if room is None:
        return ""
    return (
        "Who is over the soft share may have to make room for who is under it and has waited "
        f"{show_duration(room.after_seconds)}: told before, and back in the queue by their share."
    )


def policy_words(policies: Iterable[LifecyclePolicy]) -> Iterator[str]:
    """Yield what policies say of stronger claims and of those who wait, those together that say the same."""
    alike: dict[PreemptionPolicy, list[str]] = {}
    strict = []
    for policy in policies:
        alike.setdefault(policy.preemption, []).append(policy.name)
        if not policy.extend.others_wait:
            strict.append(policy.name)
    for preemption, names in alike.items():
        then = "It then returns to the queue." if preemption.back_in_queue else "It does not start again by itself."
        yield (
            f"Under {_named(names)} a workspace is safe from stronger claims in its first "
            f"{show_duration(preemption.protected_seconds)}, and its user is told "
            f"{show_duration(preemption.notice_seconds)} before it ends. {then}"
        )
    if strict:
        yield f"Under {_named(strict)} nobody extends while others wait for the same kind."


def _named(names: list[str]) -> str:
    return f"the {'policy' if len(names) == 1 else 'policies'} {', '.join(names)}"


def wait_words(catalog: Catalog) -> str:
    """Return how long one waits for those who have used less: ``12 h``; by policy where they differ."""
    waits = {name: show_duration(policy.queue.longest_wait_seconds) for name, policy in catalog.policies.items()}
    if len(set(waits.values())) == 1:
        return next(iter(waits.values()))
    return "the policy says (" + ", ".join(f"{name}: {wait}" for name, wait in waits.items()) + ")"


def rules_of(catalog: Catalog, quotas: tuple[Quota, ...], now: float) -> Iterator[RuleWords]:
    """Yield the rules that bind whom these quotas bind; the catalog as it is shown to them."""
    rules = catalog.rules
    for entry in quotas:
        yield RuleWords(rule_id(entry.name), f"Quota {entry.name}", (entry_words(entry, catalog),))
    if rules.teams:
        yield RuleWords("teams", "Teams", tuple(team_words(one) for one in rules.teams.values()))
    policies = list(catalog.policies.values())
    yield RuleWords("order", "Who goes first", tuple(order_rules(catalog)))
    yield RuleWords("backfill", "Who may pass", (BACKFILL,))
    yield RuleWords("substitutes", "Another GPU instead", (SUBSTITUTES,))
    claims = [CLAIMS, make_room_words(catalog), *policy_words(policies)]
    yield RuleWords("claims", "Stronger claims", tuple(filter(None, claims)))
    today = datetime.fromtimestamp(now, ZoneInfo(rules.timezone)).date()
    if hours := [one for one in rules.hours if not one.window.dates or max(one.window.dates) >= today]:
        yield RuleWords("hours", "Hours", tuple(hours_words(one, catalog) for one in hours))
    if coming := [day for day in rules.closed if day >= today]:
        yield RuleWords("closed", "Closed days", (f"{days_words(coming)}: {NOT_READY}",))
    holds = [one for one in rules.holds if one.kind in catalog.gpus and (one.until is None or one.until > now)]
    if holds:
        yield RuleWords("holds", "Classes", tuple(hold_words(one, catalog, now) for one in holds))


def order_rules(catalog: Catalog) -> list[str]:
    """Return the rules of the order in the queue."""
    return [one.format(wait=wait_words(catalog)) for one in ORDER]
