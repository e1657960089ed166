"""Requests of users for extra quota, and the extra quota that an approved request gives."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from enum import Enum
from fractions import Fraction
from zoneinfo import ZoneInfo

from gpuspawner.core.calendar import Per, TimeSpan, milliseconds, split_by_period
from gpuspawner.core.quotas.ledger import QuotaAmount, show_grant_amount
from gpuspawner.core.rules import Account, ApprovalRule, BudgetUnit, QuotaGrant

MAX_OPEN = 5
"""The most open requests of one person. Arbitrary: enough for each kind of quota, and few enough to answer."""
MAX_A_DAY = 20
"""The most requests that a person sends in a day, withdrawn ones included. Arbitrary."""
LONGEST_SECONDS = 30 * 86400.0
"""How far ahead a requested time may end. Arbitrary: the next weeks can be planned."""

REMIND_SECONDS = 2 * 86400.0
"""After this time without an answer the people who answer are reminded once. Arbitrary: a weekend."""


class RequestOutcome(str, Enum):
    """The state of a request for extra quota."""

    OPEN = "open"
    APPROVED = "approved"
    DECLINED = "declined"
    WITHDRAWN = "withdrawn"
    EXPIRED = "expired"
    """Its time passed without an answer."""


@dataclass(frozen=True)
class QuotaRequest:
    """A request for extra quota. Times are seconds since the epoch.

    Args:
        id: identifies the request.
        hub: the hub of the user.
        user_created: the user's ``created``.
        user: the user's name when the request was sent.
        account: the account that gets the extra quota: the user's, the user's in a team, or a whole team's.
        amount: the requested amount.
        since: from when; None for the time of the answer.
        until: until when.
        why: the user's reason.
        made_at: when it was sent.
        outcome: OPEN, APPROVED, DECLINED or WITHDRAWN. :meth:`state` also knows EXPIRED.
        answered_at: when it was answered or withdrawn.
        answered_by: the person who answered, "" if it was approved by a rule.
        answer: the sentence of the answer.
        grant: the id of the extra quota that was given.
        reminded_at: when the people who answer were reminded.
    """

    id: str
    hub: str
    user_created: str
    user: str
    account: Account
    amount: QuotaAmount
    since: float | None
    until: float
    why: str
    made_at: float
    outcome: RequestOutcome = RequestOutcome.OPEN
    answered_at: float | None = None
    answered_by: str = ""
    answer: str = ""
    grant: str = ""
    reminded_at: float | None = None

    @property
    def is_for_team(self) -> bool:
        """Whether it asks for a whole team."""
        return not self.account.user_created

    @property
    def is_answered(self) -> bool:
        """Whether a person approved or declined it."""
        return bool(self.answered_by) and self.outcome in {RequestOutcome.APPROVED, RequestOutcome.DECLINED}

    @property
    def is_by_rule(self) -> bool:
        """Whether a rule of the catalog approved it."""
        return self.outcome is RequestOutcome.APPROVED and not self.answered_by

    @property
    def words(self) -> str:
        """The amount as people read it: ``40 GPU h``."""
        return show_grant_amount(self.amount)

    def state(self, now: float) -> RequestOutcome:
        """Return the state. An open request expires at the end of the requested time."""
        return RequestOutcome.EXPIRED if self.outcome is RequestOutcome.OPEN and now >= self.until else self.outcome

    def is_open(self, now: float) -> bool:
        """Return whether it waits for an answer."""
        return self.state(now) is RequestOutcome.OPEN

    def is_reminder_due(self, now: float) -> bool:
        """Return whether the people who answer are reminded now."""
        return self.is_open(now) and self.reminded_at is None and now >= self.made_at + REMIND_SECONDS

    def close(self, outcome: RequestOutcome, now: float, by: str, answer: str = "", grant: str = "") -> QuotaRequest:
        """Return the request once it is answered or withdrawn."""
        return replace(self, outcome=outcome, answered_at=now, answered_by=by, answer=answer, grant=grant)

    def grant_of(
        self, amount: QuotaAmount | None = None, since: float | None = None, until: float | None = None
    ) -> QuotaGrant:
        """Return the extra quota that it asks for, with another amount or other times if they are given.

        It has no id, and begins at 0 unless a time is given or requested.
        """
        what, kind, number = amount or self.amount
        begins = since if since is not None else self.since or 0.0
        user = "" if self.is_for_team else self.user
        return QuotaGrant("", self.account, what, number, begins, until or self.until, kind, user, self.why)


def is_approved_by_rule(
    rule: ApprovalRule | None,
    asked: QuotaGrant,
    given: Iterable[QuotaGrant],
    period_of_budgets: Callable[[QuotaGrant], Per],
    zone: ZoneInfo,
) -> bool:
    """Return whether a rule approves extra quota of one user at once.

    Args:
        rule: the rule of the catalog.
        asked: the extra quota, with its beginning.
        given: the extra quota that the rule gave to the user before. Extra quota of the same periods counts.
        period_of_budgets: returns the shortest period of the budgets that extra quota raises. It raises each of them.
        zone: the catalog's time zone.
    """
    if rule is None or asked.what is not BudgetUnit.GPU_HOURS or not asked.account.user_created:
        return False
    in_force = (one for one in given if one.what is BudgetUnit.GPU_HOURS and one.taken_back_at is None)
    counted = [(one, period_of_budgets(one)) for one in (asked, *in_force)]
    periods = split_by_period(milliseconds(asked.since), milliseconds(asked.until), rule.each, zone)
    return all(
        sum(_hours_within(one, per, period, zone) for one, per in counted) <= rule.gpu_hours for _, period in periods
    )


def _hours_within(grant: QuotaGrant, per: Per, period: TimeSpan, zone: ZoneInfo) -> Fraction:
    """Return the GPU hours that extra quota gives in a period: its amount for each budget period that it reaches."""
    start_ms, end_ms = max(milliseconds(grant.since), period.start_ms), min(milliseconds(grant.until), period.end_ms)
    return grant.amount * sum(1 for _ in split_by_period(start_ms, end_ms, per, zone))
