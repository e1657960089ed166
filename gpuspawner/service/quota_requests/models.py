"""Models of requests for extra quota: what the API returns and takes."""

from __future__ import annotations

from pydantic import ValidationInfo, field_validator

from gpuspawner.core.quotas.quota_requests import LONGEST_SECONDS
from gpuspawner.core.units import show_duration
from gpuspawner.service.api.rest import Answer, Body, PageQuery
from gpuspawner.service.quotas.models import Grant, GrantAmount, GrantEffect, Team
from gpuspawner.service.web.inputs import From, InputContext, Reason, Until, refused


class QuotaRequest(Answer):
    """A request for extra quota, and its answer."""

    id: str
    user: str
    team: str | None
    whole_team: bool
    """Whether it asks for the whole team."""
    limit: str
    kind: str | None
    amount: float
    what: str
    """The amount as people read it, for example ``40 GPU h``."""
    since: float | None
    """From when; null for the time of the answer."""
    until: float
    until_words: str
    why: str
    made_at: float
    state: str
    """``open``, ``approved``, ``declined``, ``withdrawn`` or ``expired``."""
    answered_at: float | None
    answered_by: str
    """The person who answered, "" for an approval by a rule."""
    answer: str
    grant: Grant | None
    """The extra quota that it was given."""
    given: str
    """The amount of that as people read it, "" without any."""
    own: bool
    may_answer: bool
    """Whether the reader may answer it."""
    words: str
    now: float


class Approval(QuotaRequest):
    """A request that is approved, or with ``dry_run`` would be, with the effects of its extra quota."""

    dry_run: bool
    effects: list[GrantEffect]


class QuotaRequestList(Answer):
    """Requests for extra quota, the newest first."""

    requests: list[QuotaRequest]
    next: str | None
    """The cursor of the next part; null where this was the last."""


class RequestsQuery(PageQuery):
    """The requests to list."""

    all: bool = False
    """All requests that you may see as a team lead or administrator (default: your own)."""
    open: bool = False
    """Only requests that wait for an answer."""


def _check_times(until: float | None, info: ValidationInfo[InputContext]) -> float | None:
    if until is None:
        return None
    if until > info.context.now + LONGEST_SECONDS:
        raise refused(f"an end within {show_duration(LONGEST_SECONDS)}", "Ask again before it ends.")
    if (since := info.data.get("since")) is not None and since >= until:
        raise refused("a time after the beginning", "Give a later end.")
    return until


class RequestInput(Body):
    """A request for extra quota."""

    what: GrantAmount
    """The amount: ``4 GPUs``, ``+20 GPU h``, ``2 h100``."""
    team: Team = None
    """The team whose quota it is about (default: your own quota)."""
    whole_team: bool = False
    """For the whole team, not only for you."""
    why: Reason
    """The reason, for the people who answer."""
    since: From | None = None
    """From when, for example ``Monday`` (default: from the answer on)."""
    until: Until
    """Until when: ``Friday``, ``2026-12-24``, ``this month``, ``3d``."""

    _times = field_validator("until")(_check_times)


class ApprovalInput(Body):
    """An approval, with what is changed of the request."""

    what: GrantAmount | None = None
    """Another amount (default: as requested)."""
    since: From | None = None
    """Another beginning."""
    until: Until | None = None
    """Another end."""
    why: Reason | None = None
    """A sentence that the user reads. Required if something is changed."""
    dry_run: bool = False
    """Return the effects, and approve nothing."""

    _times = field_validator("until")(_check_times)
