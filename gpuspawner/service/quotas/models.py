"""Models of limits, budgets, extra quota and usage: what the API returns and takes. Pages and tables show the same."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, PlainValidator, ValidationInfo, WithJsonSchema, field_validator

from gpuspawner.core.quotas.grant_text import Amount, parse_correction, parse_grant
from gpuspawner.service.api.rest import Answer, Body, Query
from gpuspawner.service.quotas.standing import part_of, rule_id, tag_of
from gpuspawner.service.web.inputs import (
    MAX_NAME_LETTERS,
    NAME,
    InputContext,
    ParsedText,
    Reason,
    Until,
    allows,
    refused,
)

GrantAmount = Annotated[Amount, ParsedText(parse_grant, ("kinds",))]
"""``4 GPUs``, ``+20 GPU h`` or ``2 h100``."""
CorrectionAmount = Annotated[Amount, ParsedText(parse_correction)]
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


class Bound(Answer):
    """A limit or budget of a user, a team or everybody."""

    entry: str
    whose: str
    limit: str
    what: str
    """What it counts, such as ``GPUs at once`` or ``GPU h a week``."""
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
    def taken(self) -> float:
        """The amount that is used or reserved."""
        return self.used

    @property
    def part(self) -> float | None:
        """The part that is used or reserved, None without a bound."""
        return part_of(self)

    @property
    def tag(self) -> str:
        """``full``, ``over the share`` or ""."""
        return tag_of(self)

    def text(self, name: str) -> str:
        """Return an amount or a time as people read it, "" for none, and for no waiting requests."""
        return "" if name == "waiting" and not getattr(self, "waiting", None) else getattr(self.shown, name) or ""


class Limit(Bound):
    """How much at one time. What its user waits for is not used, but no longer left. Memory is in bytes."""

    kind: str | None
    unit: str
    waiting: float


class Budget(Bound):
    """How much in a day, week or month: GPU hours, or money."""

    per: str
    granted: float
    set_aside: float
    renews_at: float
    renews_words: str
    lasts_until: float | None

    @property
    def taken(self) -> float:
        """The amount that is used or reserved."""
        return self.used + self.set_aside


AnyBound = Limit | Budget


class TakenBack(Answer):
    """Who took a grant back, when and why."""

    at: float
    by: str
    why: str


class Grant(Answer):
    """What was granted beyond a limit or budget, for a time."""

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


class GrantList(Answer):
    """Grants, the newest first."""

    grants: list[Grant]
    next: str | None
    """The cursor of the next part; null where this was the last."""


class Quota(Answer):
    """All that bounds a user."""

    user: str
    teams: list[str]
    now: float
    timezone: str
    contact: str
    limits: list[Limit]
    budgets: list[Budget]
    grants: list[Grant]


class UsageRow(Answer):
    """What one of them used. ``name`` is what people read, ``key`` what it is told apart by."""

    key: str
    name: str
    charged_gpu_hours: float
    """What budgets count: allocated, less what was credited, with what administrators charged besides."""
    credited_gpu_hours: float
    cost: float | None


class Usage(Answer):
    """What was used from one day to another, in the catalog's time zone."""

    by: str
    since: str
    until: str
    timezone: str
    now: float
    rows: list[UsageRow]
    charged_gpu_hours: float
    credited_gpu_hours: float
    cost: float | None


class Correction(Answer):
    """A line of the ledger that was written by hand."""

    user: str
    team: str | None
    amount: float
    limit: str
    why: str
    by: str
    at: float
    words: str
    note: str
    """What it leaves as it was: the cost, or the use of the user's teams."""


class ReasonInput(Body):
    """Why something is done."""

    why: Reason
    """The reason, which is stored."""


class GrantInput(Body):
    """What is granted, to whom, until when: for a user, a team, a user in a team, or everybody."""

    user: str | None = allows(*NAME, default=None, max_length=MAX_NAME_LETTERS)
    team: Team = None
    everybody: bool = Field(default=False, validate_default=True)
    why: Reason
    """The reason, which is stored."""
    what: GrantAmount
    """How much more: ``4 GPUs``, ``+20 GPU h``, ``2 h100``."""
    until: Until
    """``Friday``, ``2026-12-24``, ``this month``, ``3d``."""
    since: Until | None = None
    """From when, as ``until`` (default: now)."""

    @field_validator("everybody")
    @classmethod
    def _is_for_somebody(cls, everybody: bool, info: ValidationInfo) -> bool:
        if everybody or info.data.get("user", "?") or info.data.get("team", "?"):
            return everybody
        raise refused("user, team or everybody", "Say for whom it is.", "for whom", "nobody")

    @field_validator("since")
    @classmethod
    def _begins_before_it_ends(cls, since: float | None, info: ValidationInfo) -> float | None:
        if since is None or since < info.data.get("until", since + 1):
            return since
        raise refused("before until", "Begin it before it ends.")


class CorrectionInput(Body):
    """What somebody is charged besides."""

    user: str | None = allows(*NAME, default=None, max_length=MAX_NAME_LETTERS, validate_default=True)
    team: Team = None
    why: Reason
    amount: CorrectionAmount
    """``-3 GPU h``, which credits, or ``+10 cost``."""

    @field_validator("user")
    @classmethod
    def _is_named(cls, user: str | None) -> str:
        if user:
            return user
        raise refused("a user of the hub", "Say whose use is corrected.", "user", "nobody")


class QuotaQuery(Query):
    """Whose."""

    user: str = ""
    """Of this user, for administrators (default: one's own)."""


class UsageQuery(Query):
    """Which use."""

    since: str = ""
    """The first day, such as ``2026-11-01`` (default: of this month)."""
    until: str = ""
    """The last day (default: today)."""
    by: str = "day"
    """One of ``user``, ``team``, ``kind``, ``day``."""
    all: bool = False
    """That of all users, for administrators."""
