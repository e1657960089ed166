"""Events of administrators, and of what users set up for themselves."""

from __future__ import annotations

from dataclasses import dataclass

from gpuspawner.core.events.base import Audience, ClaimEvent, Event, QuotaEvent, RestrictionEvent, ScheduleEvent
from gpuspawner.core.units import show_duration, show_time


@dataclass(frozen=True)
class EndAnnounced(Event, name="end announced", words="End announced", told=Audience.USER, marked=True):
    """An administrator announced the end of a workspace. ``elsewhere`` is where it starts again, "" if it does not."""

    ends_at: float = 0.0
    elsewhere: str = ""
    reason: str = ""

    def describe(self, at: float) -> str:
        """Return the end of the workspace and the reason."""
        return f"{self.end(at)}: {self.reason}"

    def end(self, at: float) -> str:
        """Return the time of the end, and whether it starts again."""
        then = f", and starts again by itself at its old queue position, {self.elsewhere}" if self.elsewhere else ""
        return f"It ends at {show_time(self.ends_at, at)}, in {show_duration(self.ends_at - at)}{then}"


class GpuClosed(RestrictionEvent, name="gpu closed", words="Its GPU is taken out of service", told=Audience.USER):
    """A GPU of the workspace, or its node, takes no new workspaces."""


class Drained(RestrictionEvent, name="drained", words="Drained a node"):
    """An administrator drained a node."""


class Quarantined(RestrictionEvent, name="quarantined", words="Put a GPU in quarantine"):
    """An administrator put a GPU in quarantine."""


class GrantsPaused(RestrictionEvent, name="grants paused", words="Paused grants"):
    """An administrator paused a GPU kind or all grants."""


class GpusReserved(RestrictionEvent, name="gpus reserved", words="Reserved GPUs"):
    """An administrator reserved GPUs for a user or a team."""


class Exempted(RestrictionEvent, name="exempted", words="Exempted from idle stops"):
    """An administrator exempted a workspace or a user from idle stops."""


class Lifted(RestrictionEvent, name="lifted", words="Lifted a restriction"):
    """An administrator lifted a restriction."""


@dataclass(frozen=True)
class CatalogChanged(Event, name="catalog changed", words="Changed the catalog"):
    """Another catalog is in force, or was saved in the console. ``changes`` lists the entries that differ.

    ``number`` is the version that was saved, and ``reason`` is its author's.
    """

    changes: str = ""
    number: int = 0
    reason: str = ""

    def describe(self, at: float) -> str:
        """Return the entries that differ, and the reason of the person who saved them."""
        return f"version {self.number}: {self.changes}: {self.reason}" if self.number else self.changes


@dataclass(frozen=True)
class ActionRefused(Event, name="refused", words="Refused", details="{act}: {refusal}"):
    """An action of an administrator was refused, with this answer."""

    act: str = ""
    refusal: str = ""


class ClaimMade(ClaimEvent, name="claim made", words="Claimed GPUs"):
    """An administrator claimed GPUs in use."""


class ClaimGivenUp(ClaimEvent, name="claim given up", words="Gave up a claim"):
    """An administrator gave up a claim."""


class ClaimServed(ClaimEvent, name="claim served", words="Used claimed GPUs"):
    """The claimed GPUs are in use by the claimant."""


@dataclass(frozen=True)
class AnnouncementSent(
    Event, name="message sent", words="Sent an announcement", details="to {to} until {until_at}: {text}"
):
    """An administrator sent an announcement."""

    to: str = ""
    until_at: float = 0.0
    text: str = ""


@dataclass(frozen=True)
class AnnouncementWithdrawn(
    Event, name="message withdrawn", words="Withdrew an announcement", details="to {to}: {text}"
):
    """An administrator withdrew an announcement."""

    to: str = ""
    text: str = ""


class QuotaGranted(QuotaEvent, name="quota granted", words="Granted more"):
    """An administrator adds to a quota or a budget for a time."""


class QuotaTakenBack(QuotaEvent, name="quota taken back", words="Took a grant back"):
    """An administrator takes that back."""


class QuotaLimitSet(QuotaEvent, name="quota limit set", words="Set a limit"):
    """A lead or an administrator sets a limit of a user or a team for a time."""

    def describe(self, at: float) -> str:
        """Return the limit, its end and the reason."""
        return super().describe(at).replace(" more for ", " for ", 1)


class QuotaMoved(QuotaEvent, name="quota moved", words="Moved quota"):
    """A lead or an administrator moves hours or money from the budget of one member to that of another."""


class QuotaRequested(QuotaEvent, name="quota requested", words="Asked for more"):
    """A user asks for more of a quota or a budget for a time."""


class QuotaRequestApproved(QuotaEvent, name="quota request approved", words="Approved a request for more"):
    """A lead, an administrator or a rule approves that. ``amount`` is what was given."""


class QuotaRequestDeclined(QuotaEvent, name="quota request declined", words="Declined a request for more"):
    """A lead or an administrator declines that."""


class QuotaRequestWithdrawn(QuotaEvent, name="quota request withdrawn", words="Withdrew a request for more"):
    """The user withdraws that."""


@dataclass(frozen=True)
class UsageCorrected(Event, name="usage corrected", words="Corrected the use"):
    """An administrator corrects what was charged to a user."""

    amount: str = ""
    credited: bool = False
    user: str = ""
    reason: str = ""

    def describe(self, at: float) -> str:
        """Return the correction and the reason."""
        return f"{self.correction}: {self.reason}"

    @property
    def correction(self) -> str:
        """The amount, and whether it is charged or credited."""
        return f"{self.amount} {'credited to' if self.credited else 'charged to'} {self.user}"


@dataclass(frozen=True)
class MonthClosed(Event, name="month closed", words="Closed a month", details="{month}"):
    """The service closed a month. Its charges and statements never change after that."""

    month: str = ""


@dataclass(frozen=True)
class BudgetReached(Event, name="budget reached", words="Told of a budget", details="{percent} % of {budget}"):
    """The service told leads and administrators how much of a budget of money is used."""

    percent: int = 0
    budget: str = ""


@dataclass(frozen=True)
class WasteFound(
    Event, name="waste found", words="Told of idle GPUs", details="{percent} % idle in the week of {week}"
):
    """The service told leads and administrators of the idle share of a team's GPU hours."""

    percent: int = 0
    week: str = ""


@dataclass(frozen=True)
class StatementMailed(Event, name="statement mailed", words="Sent a statement", details="{number} to {leads}"):
    """The statement of a team was sent to its leads, and to its chat if it has one."""

    number: str = ""
    leads: tuple[str, ...] = ()


@dataclass(frozen=True)
class PersonForgotten(
    Event, name="person forgotten", words="Forgot a person", details="{how} as {pseudonym}: {reason}"
):
    """An administrator deleted what is stored of a person, or put it under a pseudonym. Their name is not here."""

    how: str = ""
    pseudonym: str = ""
    reason: str = ""


@dataclass(frozen=True)
class PersonExported(Event, name="person exported", words="Exported what is stored", details="{entries} entries"):
    """An administrator exported what is stored of another person."""

    entries: int = 0


# --- what users set up for themselves: schedules, secrets and sign-in


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
