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

from gpuspawner.core.calendar import show_moment
from gpuspawner.core.units import show_bytes, show_duration, show_time


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
        held = ", held by no process: reading a GPU may wake it" if self.unheld else ""
        peak = "" if self.peak_percent is None else f" (highest {self.peak_percent:g} %{held})"
        return f"{which} been idle for {seconds}{peak}."


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
        begins = "" if self.begins_at is None else f" from {show_time(self.begins_at, at)}"
        until = "" if self.until_at is None else f" until {show_time(self.until_at, at)}"
        effect = {
            "drain": f"No new workspace starts on {self.target}",
            "quarantine": f"No new workspace gets the GPU {self.target}",
            "pause": f"No workspace gets {self.target}" if self.target else "No new workspace starts",
            "reserve": f"{self.count} {self.target} {'is' if self.count == 1 else 'are'} reserved for {self.whom}",
            "exempt": f"{f'{self.target} is' if self.target else f'Workspaces of {self.whom} are'} not stopped as idle",
        }
        every = f", {self.every}," if self.every else ""
        return f"{effect.get(self.measure, self.measure)}{every}{begins}{until}".removesuffix(",")


@dataclass(frozen=True)
class ClaimEvent(Event, details="{count} {kind} for {whom}"):
    """An event about a claim of GPUs in use. ``kind`` is the title of their kind."""

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
        until = show_moment(self.until_at, at, ZoneInfo(self.timezone))
        return f"{self.amount} more for {self.whom} until {until}: {self.reason}"


# --- requests and grants


@dataclass(frozen=True)
class Asked(Event, name="asked", words="Requested", details="{template}, {gpus}, {lifetime_seconds}"):
    """A request was made. ``gpus`` is the number and the title of its GPUs."""

    template: str = ""
    gpus: str = ""
    lifetime_seconds: float = 0.0


class Granted(GpuEvent, name="granted", words="GPU assigned", told=Audience.USER):
    """GPUs were granted."""


class Placed(GpuEvent, name="placed", words="Placed"):
    """Other GPUs than those granted were given."""


class Allocated(GpuEvent, name="allocated", words="Allocated"):
    """The UUIDs of GPUs that the slots only count became known."""


class Started(Event, name="running", words="Started"):
    """The server of the workspace answers."""


@dataclass(frozen=True)
class Requeued(Event, name="requeued", words="Requeued"):
    """The granted GPUs were not available, so the request is back in the queue.

    Args:
        cause: ``no room``, ``no node``, ``queue``, ``expired``, ``closed`` or ``start``.
        waited_seconds: how long it waited for a node, or in the queue of the cluster.
        queue: the name of the scheduler that owns that queue.
        reported: the words of the cluster, the spawner or the administrator.
    """

    cause: str = ""
    waited_seconds: float = 0.0
    queue: str = ""
    reported: str = ""

    def describe(self, at: float) -> str:
        """Return why the GPUs were not available."""
        waited = show_duration(self.waited_seconds)
        words = {
            "no room": "There was no room for it after all",
            "no node": f"No node came within {waited}",
            "queue": f"It waited {waited} in {self.queue}'s queue, and is put into it again",
            "expired": "The scheduler's grant expired before the start took it.",
            "closed": "An administrator closed its GPU",
        }.get(self.cause, "")
        return ": ".join(filter(None, (words, self.reported)))


@dataclass(frozen=True)
class Parked(Event, name="parked", words="Back in the queue", details="the hub did not start it (try {tries})"):
    """The hub did not carry out a start, so the request is back in the queue."""

    tries: int = 0


@dataclass(frozen=True)
class Returned(Event, name="back in the queue", words="Back in the queue", details="{lease} was {reason}"):
    """The lease ``lease``, which ended for ``reason``, waits again at its old place in the queue."""

    lease: str = ""
    reason: str = ""


@dataclass(frozen=True)
class Adopted(Event, name="adopted", words="Taken over from the hub", details="{how}"):
    """A workspace that ran without a lease got one."""

    how: str = ""


@dataclass(frozen=True)
class CannotStart(
    Event, name="can't start now", words="Can't start as things are", details="{refusal}", told=Audience.USER
):
    """A waiting request can't start as things are. ``refusal`` is the answer that a new request would get."""

    refusal: str = ""


@dataclass(frozen=True)
class StartNear(
    Event, name="start near", words="Starts soon", details="probably in about {in_seconds}", told=Audience.USER
):
    """The estimated start of a waiting request is near. ``in_seconds`` are whole minutes."""

    in_seconds: float = 0.0


@dataclass(frozen=True)
class EstimateMoved(Event, name="estimate moved", words="Estimated start moved"):
    """The estimated start of a waiting request moved by at least ten minutes.

    Args:
        moved_seconds: by how much it is later, negative if it is sooner.
        reasons: what happened to its GPUs since the earlier estimate.
    """

    moved_seconds: float = 0.0
    reasons: str = ""

    def describe(self, at: float) -> str:
        """Return the reasons, and by how much it moved."""
        by = show_duration(60 * round(abs(self.moved_seconds) / 60))
        return f"{self.reasons}: about {by} {'later' if self.moved_seconds > 0 else 'sooner'}"


class CanStart(Event, name="can start again", words="Can start again"):
    """A waiting request can start again."""


@dataclass(frozen=True)
class WaitReasonNoted(Event, name="held back", words="Held back", details="{explanation}"):
    """A rule holds a waiting request back, with the explanation of the owner of that rule."""

    rule: str = ""
    explanation: str = ""


@dataclass(frozen=True)
class WaitReasonGone(Event, name="let go", words="Held back no more", details="{rule}"):
    """The rule does not hold the request back any more."""

    rule: str = ""


@dataclass(frozen=True)
class Passed(Event, name="passed", words="A later request went first", details="{explanation}"):
    """A later request was granted GPUs first, by a rule of the order."""

    explanation: str = ""


@dataclass(frozen=True)
class MovedInQueue(
    Event,
    name="moved in queue",
    words="An administrator moved the request",
    details="From {place} to {to} in the order of its GPUs: {reason}",
    told=Audience.USER,
):
    """An administrator changed the place of a waiting request. ``place`` and ``to`` count from 1."""

    place: int = 0
    to: int = 0
    reason: str = ""


@dataclass(frozen=True)
class PassedByMove(
    Event,
    name="passed by move",
    words="An administrator moved another request before this one",
    details="{reason}",
    told=Audience.USER,
):
    """An administrator moved another request before this one."""

    reason: str = ""


@dataclass(frozen=True)
class Substituted(
    Event, name="substituted", words="Another GPU was given", details="{given} instead of {asked}", told=Audience.USER
):
    """Another GPU kind was granted than requested, with the user's consent."""

    asked: str = ""
    given: str = ""


@dataclass(frozen=True)
class Consented(Event, name="consented", words="Consent to other GPUs"):
    """The user of a waiting request chose which kinds it may get in place of the one asked for."""

    kinds: tuple[str, ...] = ()

    def describe(self, at: float) -> str:
        """Return the kinds."""
        return ", ".join(self.kinds) or "none but the one asked for"


@dataclass(frozen=True)
class RequestReduced(Event, name="reduced", words="Fewer GPUs requested", details="{count}"):
    """The user of a waiting request asked for fewer GPUs."""

    count: int = 0


@dataclass(frozen=True)
class Renamed(Event, name="renamed", words="Renamed", details="{title}"):
    """The user gave the workspace another name for people. "" is the name of its server again."""

    title: str = ""


@dataclass(frozen=True)
class SizeChangeAsked(Event, name="size change", words="New size requested", details="{size}"):
    """The user of a running workspace asked for another size. ``size`` are its GPUs, CPU and memory."""

    size: str = ""


class SizeChangeWithdrawn(Event, name="size change withdrawn", words="New size no longer requested"):
    """The user of a running workspace no longer wants the new size."""


@dataclass(frozen=True)
class SizeChangeRefused(
    Event, name="size change refused", words="New size refused", details="{refusal}", told=Audience.USER
):
    """The new size of a running workspace is not allowed any more. The workspace runs on."""

    refusal: str = ""


# --- warnings


@dataclass(frozen=True)
class WarnedOfClaim(Event, name="warned of claim", words="Warned", told=Audience.USER, marked=True):
    """A stronger claim needs the GPUs of the workspace.

    Args:
        need: who needs them, in a sentence.
        ends_at: when it ends for that.
        late: whether the claim was told only when its time was over.
    """

    need: str = ""
    ends_at: float = 0.0
    late: bool = False

    def describe(self, at: float) -> str:
        """Return the claim and the time of the end."""
        return f"{self.need} It ends {'now' if self.late else f'at {show_time(self.ends_at, at)}'}."


@dataclass(frozen=True)
class ClaimGone(Event, name="claim gone", words="Left running", told=Audience.USER):
    """No stronger claim needs the GPUs any more. ``scheduler`` made the claim, or "" if a person did."""

    scheduler: str = ""

    def describe(self, at: float) -> str:
        """Return a sentence about the end of the claim."""
        whose = f"{self.scheduler} does not need" if self.scheduler else "Nobody with a stronger claim needs"
        return f"{whose} its GPUs any more."


@dataclass(frozen=True)
class Bounded(Event, name="bounded", words="Ends earlier", details="It {bound}."):
    """A rule bounds the end of the workspace (``core.rules.LatestEnd``). ``bound`` are the words of that rule."""

    rule: str = ""
    bound: str = ""


@dataclass(frozen=True)
class ReachesInto(Event, name="reaches into", words="Asked to make room for a class", told=Audience.USER, marked=True):
    """The workspace runs into a time for which its GPUs are reserved for a class. Nothing ends it for that.

    Args:
        count: how many GPUs are reserved.
        kind: the title of their kind.
        whom: the class, or the account of an administrator's reservation.
        begins_at: when the reservation begins; None if it has begun.
        until_at: when it ends; None if it never does.
    """

    count: int = 0
    kind: str = ""
    whom: str = ""
    begins_at: float | None = None
    until_at: float | None = None

    def describe(self, at: float) -> str:
        """Return the reservation."""
        begins = "" if self.begins_at is None else f" from {show_time(self.begins_at, at)}"
        until = "" if self.until_at is None else f" until {show_time(self.until_at, at)}"
        return f"{self.count} {self.kind} {'is' if self.count == 1 else 'are'} reserved for {self.whom}{begins}{until}."


@dataclass(frozen=True)
class MaintenanceNear(Event, name="maintenance near", words="Told of maintenance", told=Audience.USER, marked=True):
    """The workspace runs on a node that has maintenance before the workspace ends.

    Args:
        node: the node.
        begins_at: when the maintenance begins; None if it has begun.
        until_at: when it ends; None if that is not known.
    """

    node: str = ""
    begins_at: float | None = None
    until_at: float | None = None

    def describe(self, at: float) -> str:
        """Return the node and the time of its maintenance."""
        begins = "" if self.begins_at is None else f" from {show_time(self.begins_at, at)}"
        until = "" if self.until_at is None else f" until {show_time(self.until_at, at)}"
        return f"{self.node} has maintenance{begins}{until}."


class WarnedIdle(IdleEvent, name="warned", words="Warned", told=Audience.USER, marked=True):
    """The workspace was idle. Its grace period begins."""


@dataclass(frozen=True)
class WarnedOfEnd(
    Event, name="warned of end", words="Warned", details="ends in {left_seconds}", told=Audience.USER, marked=True
):
    """The run time of the workspace is over in ``left_seconds``."""

    left_seconds: float = 0.0

    @property
    def action(self) -> str:
        """How the API calls every warning."""
        return WarnedIdle.name


@dataclass(frozen=True)
class WarnedNobodyCame(
    Event,
    name="warned nobody came",
    words="Warned",
    details="Nobody has come to it yet; somebody has to by {claim_by_at}.",
    told=Audience.USER,
    marked=True,
):
    """The workspace became ready while its user was away. Half of the time to open it has passed."""

    claim_by_at: float = 0.0


@dataclass(frozen=True)
class Came(Event, name="came", words="Claimed", details="{how}", marked=True):
    """The user came to the workspace. ``how`` is what was seen of the user."""

    how: str = ""


@dataclass(frozen=True)
class NobodyCameYet(Event, name="nobody came yet", words="Nobody came yet", marked=True):
    """The user was not seen in ``claim_seconds``, or an administrator exempts the workspace.

    Idle time counts from here on.
    """

    claim_seconds: float = 0.0
    exempt: bool = False

    def describe(self, at: float) -> str:
        """Return why its GPUs are not released."""
        if self.exempt:
            return "An administrator exempts it from idleness: nobody has to come."
        return f"Within {show_duration(self.claim_seconds)} nobody was seen. Idle time counts from here on."


@dataclass(frozen=True)
class GraceEnded(Event, name="grace ended", words="No longer idle", details="{because}", marked=True, ends_grace=True):
    """The workspace is used again, or its policy no longer judges it."""

    because: str = ""


class WouldWarn(IdleEvent, name="would warn", words="Would have warned (this policy only records)", marked=True):
    """A policy that only records would have sent a warning."""


class WouldStop(
    IdleEvent, name="would stop", words="Would have stopped (this policy only records or warns)", marked=True
):
    """A policy that only records or warns would have stopped it."""


# --- running and ending


@dataclass(frozen=True)
class Kept(Event, name="kept", words="Kept", details="for {kept_seconds}", marked=True, ends_grace=True):
    """The user keeps the workspace for ``kept_seconds``."""

    kept_seconds: float = 0.0


@dataclass(frozen=True)
class Extended(Event, name="extended", words="Extended", told=Audience.USER, marked=True):
    """The deadline moves by ``more_seconds``. ``reason`` is the reason of an administrator."""

    more_seconds: float = 0.0
    reason: str = ""

    def describe(self, at: float) -> str:
        """Return the time and the reason."""
        return f"by {show_duration(self.more_seconds)}{f': {self.reason}' if self.reason else ''}"


@dataclass(frozen=True)
class EndPlanned(Event, name="end planned", words="Planned end"):
    """The user said when they will be done, for the estimates of those who wait. None is: not soon."""

    done_seconds: float | None = None

    def describe(self, at: float) -> str:
        """Return the time."""
        return "not soon" if self.done_seconds is None else f"in {show_duration(self.done_seconds)}"


@dataclass(frozen=True)
class Stopped(
    Event, name="stop", words="Stopped", details="{message}", told=Audience.USER, marked=True, ends_grace=True
):
    """The end begins, with the reason (``exits.ExitReason``) and the message of the exit."""

    reason: str = ""
    message: str = ""


@dataclass(frozen=True)
class StopperNamed(Event, name="stopper", words="Who stopped it", details="{message}", told=Audience.USER):
    """The hub reported after the end which person stopped it."""

    message: str = ""


@dataclass(frozen=True)
class Disrupted(Event, name="disrupted", words="To be ended by the cluster", details="{reported}", told=Audience.USER):
    """The cluster is about to end the workspace, and reported why."""

    reported: str = ""


class Spared(Event, name="spared", words="Left running", details="The cluster ends it no more."):
    """The cluster does not end the workspace any more."""


@dataclass(frozen=True)
class Health(Event, name="health", words="Health"):
    """The backend reported other GPUs of the workspace as unhealthy than before."""

    unhealthy: tuple[str, ...] = ()

    def describe(self, at: float) -> str:
        """Return the unhealthy GPUs."""
        names = ", ".join(self.unhealthy)
        return f"{names} reported as unhealthy" if names else "its GPUs reported as healthy again"


@dataclass(frozen=True)
class KilledForMemory(
    Event, name="killed for memory", words="A program was killed for want of memory", told=Audience.USER
):
    """Processes were killed because the workspace had used all of its memory. Its server lives on."""

    count: int = 0
    memory_bytes: int = 0

    def describe(self, at: float) -> str:
        """Return the number of programs and the memory."""
        programs = "1 program" if self.count == 1 else f"{self.count} programs"
        return f"{programs} killed: the workspace had used all of its {show_bytes(self.memory_bytes)}"


class OutputShared(Event, name="shared", words="Its last output was shared with administrators"):
    """The user lets administrators read the last output."""


@dataclass(frozen=True)
class Disputed(Event, name="disputed", words="Called wrong", details="{text}", told=Audience.ADMINISTRATORS):
    """The user disputes the end of the workspace, and wrote ``text``."""

    text: str = ""


@dataclass(frozen=True)
class Answered(Event, name="answered", words="Answered", details="{text}", told=Audience.USER):
    """An administrator answers a dispute."""

    text: str = ""


# --- actions of administrators


@dataclass(frozen=True)
class EndAnnounced(Event, name="end announced", words="End announced", told=Audience.USER, marked=True):
    """An administrator announced the end of a workspace. ``elsewhere`` is where it starts again, "" if it does not."""

    ends_at: float = 0.0
    elsewhere: str = ""
    reason: str = ""

    def describe(self, at: float) -> str:
        """Return the end and the reason."""
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
class StatementMailed(Event, name="statement mailed", words="Mailed a statement", details="{number} to {leads}"):
    """The service mailed the statement of a team to its leads."""

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


# --- schedules, secrets and sign-in


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
