"""Requests for extra quota as models, with the sentences about them. API, pages and messages show the same."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gpuspawner.catalog.requests.visibility import gpu_title
from gpuspawner.core.calendar import show_moment
from gpuspawner.core.quotas.ledger import show_grant
from gpuspawner.core.quotas.limits import Requester
from gpuspawner.core.quotas.quota_requests import LONGEST_SECONDS, MAX_OPEN, REMIND_SECONDS, QuotaRequest
from gpuspawner.core.quotas.usage import QuotaTally
from gpuspawner.core.rules import Account, BudgetUnit, LimitedResource, QuotaGrant
from gpuspawner.core.units import show_duration, show_end, show_money
from gpuspawner.service.parts import Parts
from gpuspawner.service.quota_requests import models
from gpuspawner.service.quotas.models import AnyBound, Limit
from gpuspawner.service.quotas.presenter import grantee, present_bounds, present_budget, present_grant, present_limit
from gpuspawner.service.quotas.standing import budget_standing, limit_standing
from gpuspawner.service.web.permissions import Permission, Person, Reach

OWN_REQUEST = "Nobody answers their own request. Another administrator, or a lead of your team, answers it."
WHOLE_TEAM = "Only administrators answer a request for your own quota or for a whole team."


def sees(person: Person, one: QuotaRequest, state: Parts) -> bool:
    """Return whether a person may see a request: their own, those of their teams, or all."""
    reach = person.reach(Permission.SEE_REQUESTS)
    return is_own(person, one) or reach is Reach.ALL or (reach is Reach.TEAM and _is_of_teams(person, one, state))


def is_own(person: Person, one: QuotaRequest) -> bool:
    """Return whether a person sent a request."""
    return (person.owner.hub, person.owner.user_created) == (one.hub, one.user_created)


def why_not_answer(person: Person, one: QuotaRequest, state: Parts) -> str:
    """Return in a sentence why a person who sees a request may not answer it, "" if they may."""
    reach = person.reach(Permission.ANSWER_REQUESTS)
    if is_own(person, one):
        return OWN_REQUEST
    is_allowed = reach is Reach.ALL or (
        reach is Reach.TEAM and _is_of_teams(person, one, state) and not one.is_for_team
    )
    return "" if is_allowed else WHOLE_TEAM


def count_answerable(state: Parts, person: Person) -> int:
    """Return the number of open requests that a person may answer."""
    if person.reach(Permission.ANSWER_REQUESTS) is None:
        return 0
    now = state.clock.now()
    return sum(one.is_open(now) and not why_not_answer(person, one, state) for one in state.quota_requests.all())


def _is_of_teams(person: Person, one: QuotaRequest, state: Parts) -> bool:
    return one.account.team in person.teams_led(state.catalog.rules)


def present_request(
    state: Parts, one: QuotaRequest, reader: Person, grant: QuotaGrant | None = None
) -> models.QuotaRequest:
    """Return a request as its reader sees it. ``grant`` is its extra quota if that is not stored yet."""
    now = state.clock.now()
    if one.grant and grant is None:
        grant = next((x for x in state.accounting.all_grants() if x.id == one.grant), None)
    return models.QuotaRequest(
        id=one.id,
        user=one.user,
        team=one.account.team or None,
        whole_team=one.is_for_team,
        limit=one.amount.what.value,
        kind=one.amount.kind or None,
        amount=float(one.amount.number),
        what=one.words,
        since=one.since,
        until=one.until,
        until_words=show_end(one.until, now, state.accounting.zone),
        why=one.why,
        made_at=one.made_at,
        state=one.state(now).value,
        answered_at=one.answered_at,
        answered_by=one.answered_by,
        answer=one.answer,
        grant=None if grant is None else present_grant(state, grant),
        given="" if grant is None else show_grant(grant),
        own=is_own(reader, one),
        may_answer=one.is_open(now) and not why_not_answer(reader, one, state),
        words=request_words(state, one),
        now=now,
    )


def request_words(state: Parts, one: QuotaRequest) -> str:
    """Return a request as a sentence without its full stop: ``40 GPU h more for alice until Sunday``."""
    now, zone = state.clock.now(), state.accounting.zone
    since = "" if one.since is None or one.since <= now else f" from {show_moment(one.since, now, zone)}"
    return f"{one.words} more for {grantee(one.grant_of())}{since} until {show_end(one.until, now, zone)}"


# Facts for an answer


def bounds_of(state: Parts, one: QuotaRequest) -> list[AnyBound]:
    """Return the limits and budgets that a request is about, and all budgets of GPU hours that bind its user."""
    limits, budgets = present_bounds(state, [Requester(one.user, one.user_created, one.account.team)])
    what, kind = one.amount.what.value, one.amount.kind or None
    about: list[AnyBound] = [x for x in limits if (x.limit, x.kind) == (what, kind)]
    return about + [x for x in budgets if x.limit in {what, BudgetUnit.GPU_HOURS.value}]


def cost_words(state: Parts, one: QuotaRequest) -> str:
    """Return the highest cost of a request in words, "" if it has no price."""
    prices = {name: kind.price_per_hour for name, kind in state.catalog.gpus.items() if kind.price_per_hour}
    what, kind, number = one.amount
    price = prices.get(kind) if kind else max(prices.values(), default=None)
    if price is None or what not in {BudgetUnit.GPU_HOURS, LimitedResource.GPUS, LimitedResource.KIND}:
        return ""
    paid = f", paid by team {one.account.team}" if one.account.team else ""
    per = "" if what is BudgetUnit.GPU_HOURS else " an hour"
    return f"Up to {show_money(float(number) * price, state.catalog.rules.currency)}{per}{paid}"


def rules_of_requests(state: Parts) -> list[str]:
    """Return the rules of requests in sentences."""
    usual = state.quota_requests.usual_answer_seconds()
    return [
        *filter(None, [rule_words(state)]),
        "Leads answer for their team, within the team's quota.",
        "Administrators answer the rest. Nobody answers their own request.",
        f"Up to {MAX_OPEN} requests of a person are open at a time. The longest is {show_duration(LONGEST_SECONDS)}.",
        f"After {show_duration(REMIND_SECONDS)} without an answer, we remind leads and administrators once.",
        *([f"An answer usually comes within {show_duration(usual)}."] if usual is not None else []),
    ]


def rule_words(state: Parts) -> str:
    """Return the catalog's rule that approves requests at once as a sentence, "" without a rule."""
    rule = state.catalog.rules.approve
    if rule is None:
        return ""
    return f"Up to {float(rule.gpu_hours):g} extra GPU hours of a user and {rule.each.value} are approved at once."


@dataclass(frozen=True)
class QuotaChoice:
    """A quota that a user can ask more of. ``team`` and ``whole_team`` are as in a request."""

    limit: str
    unit: str
    title: str
    now: str
    team: str
    whole_team: bool

    @property
    def value(self) -> str:
        """The choice as a form sends it."""
        return f"{self.unit}/{self.team}/{'1' if self.whole_team else ''}"


UNITS = {
    LimitedResource.GPUS.value: ("GPUs", "GPUs at once"),
    LimitedResource.WORKSPACES.value: ("workspaces", "Workspaces at once"),
    LimitedResource.CPU.value: ("CPU", "CPU cores at once"),
    LimitedResource.MEMORY.value: ("GiB", "GiB of memory at once"),
    BudgetUnit.GPU_HOURS.value: ("GPU h", "GPU hours"),
    BudgetUnit.COST.value: ("cost", "Cost"),
}


def choices_of(state: Parts, name: str, user_created: str, teams: Sequence[str]) -> list[QuotaChoice]:
    """Return the quotas that a user can ask more of: their own, their own in a team, and those of a team."""
    found: dict[str, QuotaChoice] = {}
    for team in teams or ("",):
        for account, bound in _bounds(state, Requester(name, user_created, team)):
            if account == Account() or not bound.words:
                continue
            kind = bound.kind if isinstance(bound, Limit) else None
            unit, title = UNITS.get(bound.limit, (kind or "", f"{gpu_title(kind or '', state.catalog)} at once"))
            title = title if bound.whose == "you" else f"{title}, {bound.whose}"
            one = QuotaChoice(bound.limit, unit, title, bound.words, account.team, not account.user_created)
            found.setdefault(one.value, one)
    return list(found.values())


def _bounds(state: Parts, user: Requester) -> Iterator[tuple[Account, AnyBound]]:
    """Yield the limits and budgets that bind a user, each with the account that it counts."""
    for taken in QuotaTally(state.allocator.observed.snapshot()).uses(user):
        standing = limit_standing(taken, state.catalog)
        yield taken.bound.limit_key.account, present_limit(taken, standing, state.catalog)
    balances = state.allocator.bounds.balances()
    for balance in balances.of(user):
        standing = budget_standing(balance, state.catalog, balances.now)
        yield balance.account, present_budget(balance, standing, state, balances.now)
