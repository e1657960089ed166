"""Workspaces that are to be ready at a time of some weekdays."""

from __future__ import annotations

from typing import Any

from gpuspawner.service.api.rest.models import Answer, Body
from gpuspawner.service.api.rest.shapes.options import StartBody


class ReadyBody(StartBody):
    """When it is to be ready, and the options of a start."""

    at: str
    """A time of day in the catalog's time zone, such as ``8:00``."""
    on: str
    """``weekdays``, ``weekend``, ``daily``, or days such as ``mon, wed``."""


class ReadyChange(Body):
    """What is to be changed: at least one of these."""

    paused: bool | None = None
    """False has it asked for again, also where nobody came for days."""
    at: str | None = None
    on: str | None = None


class Ready(Answer):
    """A workspace that is to be ready at a time."""

    id: str
    words: str
    """When, such as ``weekdays 8:00``."""
    server: str
    options: dict[str, Any]
    at: str
    """The time of day, such as ``08:00``."""
    days: list[str]
    """``monday`` and so on."""
    next_at: float | None
    """For when it is asked for next, in seconds since the epoch; null while it is paused."""
    asked_for_at: float | None
    """When it is asked for, as the queue is now; null while it is paused, or asked for already."""
    paused: bool
    """By its user, or since nobody came on three days in a row: it is asked for no more until it is resumed."""
    missed_days: int
    sentence: str
    lease: str | None
    """What was asked for last, until its user came or it ended."""
    now: float


class ReadyList(Answer):
    """One's own, the oldest first, and how many there may be."""

    ready: list[Ready]
    most: int


class Removed(Answer):
    """The id of what was removed."""

    id: str
