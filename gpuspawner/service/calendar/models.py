"""Models of the calendar."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from gpuspawner.service.api.rest.models import Answer, Query

MOST_DAYS = 28


class CalendarQuery(Query):
    """The days of a calendar."""

    since: str = Field(default="", max_length=20)
    """The first day, for example 2026-11-01. The default is today."""
    days: int = Field(default=7, ge=1, le=MOST_DAYS)


class CalendarEntry(Answer):
    """One reservation or maintenance, or one time of a weekly one."""

    id: str
    """The restriction, "" for a reservation of the catalog."""
    what: Literal["reservation", "maintenance"]
    for_: str = Field(alias="for")
    """For whom. Names of other users are left out for those who may not see them."""
    gpus: str
    """The GPUs, in words."""
    counts: dict[str, int]
    """How many GPUs of each kind."""
    node: str
    """The node, "" for any node and for those who may not see it."""
    begins_at: float
    until: float | None
    repeats: str
    """When it repeats, in words, or ""."""
    reason: str
    by: str
    """The administrator, for those who may see it."""
    yours: bool
    """Whether you may use these GPUs."""


class Calendar(Answer):
    """What is planned between two moments, in order."""

    entries: list[CalendarEntry]
    begins_at: float
    until: float
    timezone: str
    now: float
