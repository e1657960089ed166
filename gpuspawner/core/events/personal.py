"""Events of what users do for themselves: schedules, secrets and sign-in."""

from __future__ import annotations

from dataclasses import dataclass

from gpuspawner.core.events.base import Audience, Event, ScheduleEvent


@dataclass(frozen=True)
class SecretSaved(Event, name="secret saved", words="Saved a secret", details="{variable}"):
    """A user saved a secret. No event has its value."""

    variable: str = ""


@dataclass(frozen=True)
class SecretDeleted(Event, name="secret deleted", words="Deleted a secret", details="{variable}"):
    """A user deleted a secret."""

    variable: str = ""


class ScheduleAdded(ScheduleEvent, name="ready wished", words="Added a schedule"):
    """A user added a schedule."""


class ScheduleResumed(ScheduleEvent, name="ready resumed", words="Resumed a schedule"):
    """A user resumed a paused schedule."""


class SchedulePaused(ScheduleEvent, name="ready halted", words="Paused a schedule"):
    """A user paused a schedule."""


class ScheduleRemoved(ScheduleEvent, name="ready removed", words="Removed a schedule"):
    """A user removed a schedule."""


@dataclass(frozen=True)
class ScheduleSuspended(ScheduleEvent, name="ready paused", words="Schedule paused: you missed it", told=Audience.USER):
    """The service paused a schedule because the user missed several days in a row."""

    missed: int = 0

    def describe(self, at: float) -> str:
        """Return the schedule and the missed days."""
        return f"{self.times}: on {self.missed} days in a row you did not open it. It is paused until you resume it."


@dataclass(frozen=True)
class SignedIn(Event, name="signed in", words="Let the command line act"):
    """A user let the command line of a machine act for them."""

    device: str = ""
    roles: str = ""
    """The roles beyond that of users, with commas between them."""

    def describe(self, at: float) -> str:
        """Return the machine and the roles."""
        return f"{self.device} as {self.roles}" if self.roles else self.device


class CalendarShared(Event, name="calendar shared", words="Made a calendar address"):
    """A user made an address by which a calendar program reads their calendar."""


class SignedOut(Event, name="signed out", words="Ended a token of the command line"):
    """A user ended a token of the command line."""
