"""Models of limits, budgets, extra quota and usage: what the API returns and takes. Pages and tables show the same."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, PlainValidator, ValidationInfo, WithJsonSchema, field_validator

from gpuspawner.core.quotas.ledger import QuotaAmount, parse_correction, parse_grant_amount
from gpuspawner.core.quotas.months import read_month
from gpuspawner.service.api.rest import Answer, Body, Query
from gpuspawner.service.quotas.standing import Fullness, rule_id
from gpuspawner.service.web.inputs import (
    MAX_NAME_LETTERS,
    NAME,
    From,
    InputContext,
    ParsedText,
    Reason,
    Until,
    allows,
    refused,
)

GrantAmount = Annotated[QuotaAmount, ParsedText(parse_grant_amount, ("kinds",))]
"""``4 GPUs``, ``+20 GPU h`` or ``2 h100``."""
CorrectionAmount = Annotated[QuotaAmount, ParsedText(parse_correction)]
"""``-3 GPU h``, which credits, or ``+10 cost``."""


def _parse_team(value: object, info: ValidationInfo[InputContext]) -> str | None:
    if not value:
        return None
    if value in info.context.teams:
        return str(value)
    raise refused(", ".join(info.context.teams) or "none", "Name a team of the catalog.")


Team = Annotated[
    str | None,
    PlainValidator(_parse_team),
    WithJsonSchema({"type": ["string", "null"], "maxLength": MAX_NAME_LETTERS}),
]


class QuotaText(Answer):
    """The numbers of a limit or budget as people read them, and when it resets and until when it lasts."""

    soft: str | None
    hard: str | None
    used: str | None
    waiting: str | None = None
    set_aside: str | None = None
    left: str | None
    renews_at: str | None = None
    lasts_until: str | None = None


class Bound(Fullness, Answer):
    """A limit or budget of a user, a team or everybody."""

    entry: str
    whose: str
    limit: str
    what: str
    """Its unit, for example ``GPUs at once`` or ``GPU h a week``."""
    soft: float | None
    hard: float | None
    used: float
    left: float | None
    shown: QuotaText
    words: str
    """All of it in a sentence."""

    @property
    def rule(self) -> str:
        """The anchor of its entry on the page of quotas."""
        return rule_id(self.entry)

    @property
    def title(self) -> str:
        """Its user or team and its unit, as an administrator reads them: ``Team Vision: GPU h a month``."""
        whose = self.whose.removeprefix("you").strip()
        whose = whose[:1].upper() + whose[1:]
        return f"{whose}: {self.what}" if whose else self.what[:1].upper() + self.what[1:]

    def text(self, name: str) -> str:
        """Return an amount or a time as people read it, "" for none, and for no waiting requests."""
        return "" if name == "waiting" and not getattr(self, "waiting", None) else getattr(self.shown, name) or ""


class Limit(Bound):
    """A limit on the amount at one time. Waiting requests are not used, but no longer left. Memory is in bytes."""

    kind: str | None
    unit: str
    waiting: float


class Budget(Bound):
    """A budget of GPU hours or money for a day, week or month."""

    per: str
    granted: float
    set_aside: float
    renews_at: float
    renews_words: str
    lasts_until: float | None


AnyBound = Limit | Budget


class TakenBack(Answer):
    """The administrator who took a grant back, the time and the reason."""

    at: float
    by: str
    why: str


class Grant(Answer):
    """An amount that was granted for a time beyond a limit or budget."""

    id: str
    user: str | None
    team: str | None
    limit: str
    kind: str | None
    amount: float
    since: float
    until: float
    until_words: str
    state: str
    why: str
    by: str
    made_at: float
    now: float
    taken_back: TakenBack | None
    words: str
    note: str


class GrantEffect(Answer):
    """An effect of extra quota: what it raises, what still limits its user, and what to know."""

    kind: Literal["good", "warn", "info"]
    words: str


class GivenGrant(Grant):
    """Extra quota that is given, or with ``dry_run`` would be, with its effects."""

    dry_run: bool
    effects: list[GrantEffect]


class GrantList(Answer):
    """Grants, the newest first."""

    grants: list[Grant]
    next: str | None
    """The cursor of the next part; null where this was the last."""


class Quota(Answer):
    """The limits, budgets and grants of a user."""

    user: str
    teams: list[str]
    now: float
    timezone: str
    contact: str
    limits: list[Limit]
    budgets: list[Budget]
    grants: list[Grant]


class UsageRow(Answer):
    """The usage of one user, team, kind or day. ``name`` is for people, ``key`` is unique."""

    key: str
    name: str
    charged_gpu_hours: float
    """The hours that budgets count: allocated hours and corrections, without credited hours."""
    credited_gpu_hours: float
    cost: float | None
    active_gpu_hours: float | None
    """Allocated, and read as in use. Null for usage that is not your own."""
    idle_gpu_hours: float | None
    """Allocated, and read as not in use."""


class Usage(Answer):
    """The usage from one day to another, in the catalog's time zone."""

    by: str
    since: str
    until: str
    timezone: str
    now: float
    rows: list[UsageRow]
    charged_gpu_hours: float
    credited_gpu_hours: float
    cost: float | None


class CorrectedSide(Answer):
    """The charges of a user or team in a month, or the used part of a budget, before and after a correction."""

    whose: str
    what: str
    before: float
    after: float
    words: str


class Correction(Answer):
    """A line of the ledger that is written by hand, or with ``dry_run`` would be."""

    dry_run: bool
    month: str
    """The month in which it counts."""
    sides: list[CorrectedSide]

    user: str
    team: str | None
    amount: float
    limit: str
    why: str
    by: str
    at: float
    words: str
    note: str
    """The amounts that it does not change: the cost, or the usage of the user's teams."""


class ReasonInput(Body):
    """Why something is done."""

    why: Reason
    """The reason, which is stored."""


class GrantInput(Body):
    """A grant for a user, a team, a user in a team, or everybody."""

    user: str | None = allows(*NAME, default=None, max_length=MAX_NAME_LETTERS)
    team: Team = None
    everybody: bool = Field(default=False, validate_default=True)
    why: Reason
    """The reason, which is stored."""
    what: GrantAmount
    """The amount: ``4 GPUs``, ``+20 GPU h``, ``2 h100``."""
    until: Until
    """``Friday``, ``2026-12-24``, ``this month``, ``3d``."""
    since: From | None = None
    """From when, as ``until``. A day means its beginning (default: now)."""
    as_limit: bool = False
    """Whether ``what`` is the whole limit or budget until then, instead of an addition. It may be lower than now."""
    dry_run: bool = False
    """Return the effects, and give nothing."""

    @field_validator("everybody")
    @classmethod
    def _is_for_somebody(cls, everybody: bool, info: ValidationInfo) -> bool:
        if everybody or info.data.get("user", "?") or info.data.get("team", "?"):
            return everybody
        raise refused("user, team or everybody", "Name a user, a team or everybody.", "for whom", "nobody")

    @field_validator("since")
    @classmethod
    def _begins_before_it_ends(cls, since: float | None, info: ValidationInfo) -> float | None:
        if since is None or since < info.data.get("until", since + 1):
            return since
        raise refused("before until", "Give a time before the end.")


class MoveInput(Body):
    """Hours or money that are moved from the budget of one member of a team to that of another."""

    source: str = allows(*NAME, max_length=MAX_NAME_LETTERS)
    """The member who has less then."""
    user: str = allows(*NAME, max_length=MAX_NAME_LETTERS)
    """The member who has more then."""
    team: Team = None
    """The team whose budgets of its members are meant (default: the budgets of the users themselves)."""
    why: Reason
    """The reason, which both read."""
    what: GrantAmount
    """The amount: ``20 GPU h`` or ``10 cost``."""
    until: Until | None = None
    """Until when (default: until the budget resets)."""
    dry_run: bool = False
    """Return the effects, and move nothing."""


class QuotaMove(Answer):
    """A move between two members, with both sides, or with ``dry_run`` what it would be."""

    dry_run: bool
    words: str
    less: Grant
    more: Grant
    effects: list[GrantEffect]


class CorrectionInput(Body):
    """A correction of the usage of a user."""

    user: str | None = allows(*NAME, default=None, max_length=MAX_NAME_LETTERS, validate_default=True)
    team: Team = None
    why: Reason
    amount: CorrectionAmount
    """``-3 GPU h``, which credits, or ``+10 cost``."""
    month: Annotated[str, ParsedText(read_month)] = ""
    """The month that it corrects, for example ``2026-10`` (default: the present one). A correction of a closed
    month counts in the present one."""
    dry_run: bool = False
    """Return the effects, and do nothing."""

    @field_validator("user")
    @classmethod
    def _is_named(cls, user: str | None) -> str:
        if user:
            return user
        raise refused("a user of the hub", "Name the user whose usage is corrected.", "user", "nobody")


class QuotaQuery(Query):
    """The user of a quota."""

    user: str = ""
    """Of this user, for administrators (default: one's own)."""


class UsageQuery(Query):
    """The days and the grouping of a usage report."""

    since: str = ""
    """The first day, for example ``2026-11-01`` (default: of this month)."""
    until: str = ""
    """The last day (default: today)."""
    by: str = "day"
    """One of ``user``, ``team``, ``kind``, ``day``, ``workspace``."""
    all: bool = False
    """The usage of all users, for administrators."""
