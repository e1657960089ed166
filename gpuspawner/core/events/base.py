"""The table of events: each kind with its fields, and how a history shows it.

The audit stores an event by its name and its fields, and no sentence. :meth:`Event.describe` makes the sentence when
the event is shown. A new kind is a class here. If people get a message of it, ``service.notifications.messages`` has
its text.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from enum import Enum
from typing import Any, ClassVar
from zoneinfo import ZoneInfo

from gpuspawner.core.units import show_duration, show_end, show_time


class Audience(Enum):
    """The people who get a message of an event by mail or chat. The pages show every event."""

    NOBODY = "nobody"
    USER = "user"
    ADMINISTRATORS = "administrators"


EVENTS: dict[str, type[Event]] = {}
"""Every kind of event by its name."""


@dataclass(frozen=True)
class Event:
    """Base of all events. A subclass without a name is the base of several kinds with the same fields.

    Attributes:
        name: how it is stored.
        words: how a history begins its line.
        details: the text that follows the words. ``{field}`` stands for the value of a field.
        told: the people who may get a message.
        marked: whether the chart shows it.
        ends_grace: whether no grace period goes on after it.
    """

    name: ClassVar[str] = ""
    words: ClassVar[str] = ""
    details: ClassVar[str] = ""
    told: ClassVar[Audience] = Audience.NOBODY
    marked: ClassVar[bool] = False
    ends_grace: ClassVar[bool] = False

    def __init_subclass__(cls, **attributes: Any) -> None:
        """Set the attributes that stand behind the base class."""
        for attribute, value in attributes.items():
            setattr(cls, attribute, value)
        if attributes.get("name"):
            EVENTS[cls.name] = cls

    @property
    def action(self) -> str:
        """How the API calls it."""
        return self.name

    def describe(self, at: float) -> str:
        """Return the text that follows the words, "" if they say everything. ``at`` is when it happened."""
        return self.details.format(**{name: _show(name, value, at) for name, value in vars(self).items()})


def _show(field: str, value: Any, at: float) -> str:
    """Return the value of a field for display, by the unit in its name."""
    if field.endswith("seconds"):
        return show_duration(value)
    if field.endswith("_at"):
        return show_time(value, at)
    return ", ".join(value) if isinstance(value, tuple) else str(value)


def show_span(begins_at: float | None, until_at: float | None, at: float) -> str:
    """Return when something begins and ends: `` from 18:00 until 20:00``. Each is left out if it is None."""
    begins = "" if begins_at is None else f" from {show_time(begins_at, at)}"
    return begins if until_at is None else f"{begins} until {show_end(until_at, at)}"


@dataclass(frozen=True)
class Other(Event, words="Other"):
    """An event of a kind that this version does not know, or whose fields are damaged."""

    called: str = ""

    @property
    def action(self) -> str:
        """Its name."""
        return self.called


def fields_of(event: Event) -> dict[str, Any]:
    """Return the fields of an event as they are stored."""
    return asdict(event)


def event_of(name: str, stored: object) -> Event:
    """Return a stored event. Fields that this version does not know are left out."""
    kind = EVENTS.get(name)
    if kind is None or not isinstance(stored, Mapping):
        return Other(called=name)
    known = {one.name: stored[one.name] for one in fields(kind) if one.name in stored}
    return kind(**{key: tuple(value) if isinstance(value, list) else value for key, value in known.items()})


# --- bases of several kinds


@dataclass(frozen=True)
class GpuEvent(Event):
    """An event about GPUs."""

    gpus: tuple[str, ...] = ()

    def describe(self, at: float) -> str:
        """Return the GPUs."""
        return ", ".join(self.gpus) or "no GPU"


@dataclass(frozen=True)
class IdleEvent(Event):
    """An event about measured idleness.

    Args:
        gpus: the number of its GPUs.
        idle_seconds: for how long it has been idle.
        because: why the last sample counts as idle, without a GPU.
        peak_percent: the highest utilization in this time; None if it is not known.
        unheld: whether that is above the threshold, and no process held the GPU.
    """

    gpus: int = 0
    idle_seconds: float = 0.0
    because: str = ""
    peak_percent: float | None = None
    unheld: bool = False

    def describe(self, at: float) -> str:
        """Return the measured idleness in a sentence."""
        seconds = show_duration(round(self.idle_seconds))
        if not self.gpus:
            return f"Nothing has run in it for {seconds} ({self.because})."
        which = {1: "The GPU has", 2: "Both GPUs have"}.get(self.gpus, f"All {self.gpus} GPUs have")
        words = f"{which} been idle for {seconds}."
        if self.peak_percent is None:
            return words
        words = f"{words} {'Its' if self.gpus == 1 else 'Their'} highest use was {self.peak_percent:g} %"
        return f"{words}, but no process held a GPU. Reading a GPU can wake it." if self.unheld else f"{words}."


@dataclass(frozen=True)
class RestrictionEvent(Event):
    """An event about a restriction.

    Args:
        measure: its effect, as of ``core.administration.RestrictionKind``.
        target: the node, the GPU or the title of the kind. "" for all kinds, and for all workspaces of a user.
        count: the number of reserved GPUs.
        whom: the users that get reserved GPUs or are exempt.
        begins_at: when it begins; None if it has begun.
        until_at: when it ends; None if it does not end by itself.
        reason: the administrator's reason.
        every: the part of each week in which it holds, "" for all the time.
    """

    measure: str = ""
    target: str = ""
    count: int = 0
    whom: str = ""
    begins_at: float | None = None
    until_at: float | None = None
    reason: str = ""
    every: str = ""

    def describe(self, at: float) -> str:
        """Return the effect, the time and the reason."""
        return f"{self.effect(at)}: {self.reason}"

    def effect(self, at: float) -> str:
        """Return the effect and the time, without the full stop."""
        effect = {
            "drain": f"No new workspace starts on {self.target}",
            "quarantine": f"No new workspace gets the GPU {self.target}",
            "pause": f"No workspace gets {self.target}" if self.target else "No new workspace starts",
            "reserve": f"{self.count} {self.target} {'is' if self.count == 1 else 'are'} reserved for {self.whom}",
            "exempt": f"{f'{self.target} is' if self.target else f'Workspaces of {self.whom} are'} not stopped as idle",
        }
        every = f", {self.every}," if self.every else ""
        span = show_span(self.begins_at, self.until_at, at)
        return f"{effect.get(self.measure, self.measure)}{every}{span}".removesuffix(",")


@dataclass(frozen=True)
class ClaimEvent(Event, details="{count} {kind} for {whom}"):
    """An event about GPUs for others than their holders: ``count`` GPUs of the kind with the title ``kind``."""

    count: int = 0
    kind: str = ""
    whom: str = ""


@dataclass(frozen=True)
class ScheduleEvent(Event, details="{times}"):
    """An event about a schedule: its days and its time."""

    times: str = ""


@dataclass(frozen=True)
class QuotaEvent(Event):
    """An event about an amount that an administrator adds to a quota or a budget for a time, in the catalog's zone."""

    amount: str = ""
    whom: str = ""
    until_at: float = 0.0
    timezone: str = "UTC"
    reason: str = ""

    def describe(self, at: float) -> str:
        """Return the amount, its end and the reason."""
        until = show_end(self.until_at, at, ZoneInfo(self.timezone))
        how = "less" if self.amount.startswith("-") else "more"
        return f"{self.amount.removeprefix('-')} {how} for {self.whom} until {until}: {self.reason}"
