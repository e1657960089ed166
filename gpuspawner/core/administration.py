"""Restrictions by administrators, announcements, and the notices in a user's inbox."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from zoneinfo import ZoneInfo

from gpuspawner.core import events
from gpuspawner.core.calendar import Opening, Window, opening_within
from gpuspawner.core.errors import quoted
from gpuspawner.core.events import Audience, Event
from gpuspawner.core.gpus.fleet import Fleet, Gpu
from gpuspawner.core.leases.exits import EXIT_KINDS, ExitReason
from gpuspawner.core.leases.lease import Lease
from gpuspawner.core.rules import Account, ClassHold
from gpuspawner.core.units import BadValue, show_duration

# --- restrictions


EVERYBODY = Account()


class RestrictionKind(str, Enum):
    """The effect of a restriction."""

    DRAIN = "drain"
    QUARANTINE = "quarantine"
    PAUSE = "pause"
    RESERVE = "reserve"
    EXEMPT = "exempt"


@dataclass(frozen=True)
class Restriction:
    """One restriction. Times are seconds since the epoch.

    Args:
        id: identifies the restriction.
        measure: the effect.
        target: the node to drain, the id of the GPU to quarantine, the kind to reserve or to pause
            (``snapshot.ALL_KINDS`` for all), or the id of the exempt workspace ("" for a user).
        reason: the administrator's reason, for display.
        by: the administrator.
        since: when it was made.
        until: when it ends by itself, or None.
        begins_at: when it begins, or 0 for at once.
        count: the number of reserved GPUs.
        account: the account that gets reserved GPUs, or whose workspaces are exempt.
        whom: the name of the account or of the class.
        every: the part of each week in which it holds, or None for all the time.
        node: the only node of the reserved GPUs, "" for any node.
        members: the members of the class that gets reserved GPUs, by their ``created``. None without a class.
        lifted_at: when an administrator lifted it, or None.
    """

    id: str
    measure: RestrictionKind
    target: str
    reason: str
    by: str
    since: float
    until: float | None = None
    begins_at: float = 0.0
    count: int = 0
    account: Account = EVERYBODY
    whom: str = ""
    lifted_at: float | None = None
    lifted_by: str = ""
    lifted_why: str = ""
    every: Window | None = None
    node: str = ""
    members: frozenset[str] | None = None

    @property
    def for_words(self) -> str:
        """The user, team or class that gets reserved GPUs, for display."""
        return f"class {self.whom}" if self.members is not None else self.account.called(self.whom)

    def opening(self, now: float, zone: ZoneInfo) -> Opening | None:
        """Return the present or else the next time in which it holds, or None if it is over."""
        if self.lifted_at is not None:
            return None
        return opening_within(self.every, max(self.since, self.begins_at), self.until, now, zone)

    def is_over(self, now: float) -> bool:
        """Return whether it was lifted or has ended."""
        return self.lifted_at is not None or (self.until is not None and now >= self.until)

    def is_in_force(self, now: float, zone: ZoneInfo) -> bool:
        """Return whether it holds now."""
        found = self.opening(now, zone)
        return found is not None and found.covers(now)

    def closes(self, gpu: Gpu) -> bool:
        """Return whether it closes a GPU to new workspaces."""
        name = {RestrictionKind.DRAIN: gpu.node, RestrictionKind.QUARANTINE: gpu.id}.get(self.measure)
        return name is not None and name == self.target

    def spares(self, lease: Lease) -> bool:
        """Return whether it exempts a workspace from idle stops."""
        if self.measure is not RestrictionKind.EXEMPT:
            return False
        return lease.id == self.target if self.target else lease.key.user_created == self.account.user_created


def close_gpus(fleet: Fleet, restrictions: Iterable[Restriction]) -> Fleet:
    """Return the fleet with the GPUs closed that restrictions close, or the same object without such restrictions."""
    closing = {
        one.target: one for one in restrictions if one.measure in {RestrictionKind.DRAIN, RestrictionKind.QUARANTINE}
    }
    if not closing:
        return fleet
    return replace(fleet, gpus=tuple(_closed(gpu, closing) for gpu in fleet.gpus))


def _closed(gpu: Gpu, closing: Mapping[str, Restriction]) -> Gpu:
    found = (closing.get(name) for name in (gpu.id, gpu.node))
    one = next((x for x in found if x is not None and x.closes(gpu)), None)
    if one is None:
        return gpu
    what = f"{gpu.node} is drained" if one.measure is RestrictionKind.DRAIN else "The GPU is in quarantine"
    return replace(gpu, closed=f"{what}: {one.reason}")


def reservation_holds(restrictions: Iterable[Restriction]) -> tuple[ClassHold, ...]:
    """Return the administrators' reservations and drains as class holds."""
    return tuple(reservation_hold(one) for one in restrictions if one.measure in RESERVING)


RESERVING = frozenset({RestrictionKind.RESERVE, RestrictionKind.DRAIN})
"""The restrictions that bound workspaces before they begin."""


def reservation_hold(one: Restriction) -> ClassHold:
    """Return a reservation or a drain as a class hold. It bounds workspaces before it begins."""
    since = max(one.since, one.begins_at)
    if one.measure is RestrictionKind.DRAIN:
        return ClassHold("", "", 0, one.every, one.until, since, node=one.target, members=frozenset())
    account = one.account if one.members is None else None
    return ClassHold(
        one.whom, one.target, one.count, one.every, one.until, since, account, node=one.node, members=one.members
    )


def exemption_of(lease: Lease, restrictions: Iterable[Restriction]) -> Restriction | None:
    """Return the longest exemption of a workspace from idle stops, or None."""
    found = (one for one in restrictions if one.spares(lease) and one.until is not None)
    return max(found, key=lambda one: one.until or 0.0, default=None)


# --- notices


NOTICE_KEPT_SECONDS = 30 * 86400.0
"""How long a notice is kept. Arbitrary: longer than a holiday."""
UNWATCHED_SECONDS = 60.0
"""A grant after a longer wait is a notice, because the user rarely watches that long. Arbitrary."""


@dataclass(frozen=True)
class LeaseStep:
    """A stored step of a lease. ``seen``: its user has read the reason of its end."""

    number: int
    at: float
    lease: str
    server: str
    user: str
    asked_at: float
    seen: bool
    actor: str
    event: Event

    @property
    def why(self) -> str:
        """The details of the event, as people read them."""
        return self.event.describe(self.at)


@dataclass(frozen=True)
class ReadMarks:
    """The notices that a person has read: all until ``until``, and those with ``ids``."""

    until: float = 0.0
    ids: frozenset[str] = frozenset()

    def has(self, name: str, at: float) -> bool:
        """Return whether a notice is read."""
        return at <= self.until or name in self.ids


@dataclass(frozen=True)
class Notice:
    """A notice for a person. ``lease`` is "" if it concerns no workspace, ``by`` if no person caused it.

    ``kind`` is the event's name, or ``message``, ``quota granted``, ``quota taken back``, ``quota requested``,
    ``quota declined``, ``budget``, ``waste``, ``statement``. ``about`` is the address of its page below the service's
    prefix, if that is no workspace's.
    """

    id: str
    at: float
    kind: str
    title: str
    text: str
    unread: bool
    lease: str = ""
    server: str = ""
    by: str = ""
    ends: bool = field(default=False)
    """Whether it is about the end of a workspace. Other pages show that too until it is read."""
    about: str = ""

    @property
    def page(self) -> str:
        """The address of its page below the service's prefix, "" without one."""
        return f"workspaces/{self.lease}" if self.lease else self.about


NOTICE_TITLES: Mapping[type[Event], str] = {
    events.Granted: "Your workspace got its GPU",
    events.WarnedIdle: "Idle warning",
    events.WarnedOfEnd: "End warning",
    events.WarnedOfClaim: "Preemption warning",
    events.WarnedNobodyCame: "Open your workspace, or it stops",
    events.Disrupted: "Cluster warning",
    events.Answered: "Answer to your objection",
    events.Substituted: "You got another GPU",
    events.StartNear: "Your workspace starts soon",
    events.MaintenanceNear: "Maintenance of the node of your workspace",
    events.MovedInQueue: "An administrator moved your request",
    events.PassedByMove: "An administrator moved another request before yours",
    events.SizeChangeNear: "Your workspace restarts with its new size soon",
    events.SizeChangePostponed: "Your workspace does not restart yet",
    events.SizeChangeRefused: "Your workspace keeps its size",
}
"""Titles of events whose own words are too short for an inbox."""
END_EVENTS = (events.Stopped, events.StopperNamed, events.Answered)
SYSTEM_ACTORS = frozenset({"gpuspawner", "hub", "cluster"})


def notices_of(steps: Iterable[LeaseStep], marks: ReadMarks) -> tuple[Notice, ...]:
    """Return the notices for the user of workspaces, the newest first.

    A user's own actions are no notices. Notices from before an action on the same workspace count as read. So do those
    from before an end whose reason the user has read.
    """
    acted: set[str] = set()
    found = []
    for step in sorted(steps, key=lambda x: (-x.at, -x.number)):
        if step.actor == step.user:
            acted.add(step.lease)
        elif _is_told(step):
            if step.seen and isinstance(step.event, END_EVENTS):
                acted.add(step.lease)
            read = marks.has(f"s{step.number}", step.at) or step.lease in acted
            found.append(_notice(step, unread=not read))
    return tuple(found)


def _is_told(step: LeaseStep) -> bool:
    event = step.event
    if event.told is not Audience.USER:
        return False
    return not isinstance(event, events.Granted) or step.at - step.asked_at >= UNWATCHED_SECONDS


def _notice(step: LeaseStep, *, unread: bool) -> Notice:
    event, text = step.event, step.why
    title = NOTICE_TITLES.get(type(event), event.words)
    if isinstance(event, events.Stopped):
        title = _of_end(event)
    elif isinstance(event, events.Granted):
        text = f"The wait was {show_duration(step.at - step.asked_at)}."
    by = "" if step.actor in SYSTEM_ACTORS else step.actor
    ends = isinstance(event, END_EVENTS)
    return Notice(f"s{step.number}", step.at, event.name, title, text, unread, step.lease, step.server, by, ends)


def _of_end(event: events.Stopped) -> str:
    if event.reason not in {one.value for one in ExitReason}:
        return "Workspace ended"
    return EXIT_KINDS[ExitReason(event.reason)].words


def merge_notices(*kinds: Collection[Notice]) -> tuple[Notice, ...]:
    """Return notices from several sources, the newest first."""
    return tuple(sorted((one for kind in kinds for one in kind), key=lambda x: (-x.at, x.id)))


# --- announcements


LONGEST_CHARACTERS = 500
"""The most characters of an announcement. It must be read at a glance."""
LONGEST_NAME = 255
MOST_NAMED = 3
"""The most recipients that are named. The others are counted. Arbitrary: what fits on a line."""
AUDIENCE_HELP = "write all, user:NAME or group:NAME"


class AnnouncementAudience(str, Enum):
    """The recipients of an announcement."""

    ALL = "all"
    USER = "user"
    USERS = "users"
    """Several users, chosen one by one in the console."""
    GROUP = "group"


@dataclass(frozen=True)
class Announcement:
    """An announcement by an administrator. Times are seconds since the epoch.

    ``recipients`` are the users by their ``created``: those in the group when it was sent, or none if it is for all.
    ``name`` is the user's or the group's name. For several users it is a summary.
    """

    id: str
    whom: AnnouncementAudience
    name: str
    recipients: frozenset[str]
    text: str
    by: str
    made_at: float
    until: float
    withdrawn_at: float | None = None
    withdrawn_by: str = ""

    @property
    def to(self) -> str:
        """The audience as an administrator writes it."""
        return self.whom.value if self.whom is AnnouncementAudience.ALL else f"{self.whom.value}:{self.name}"

    @property
    def to_words(self) -> str:
        """The audience for display."""
        named = {AnnouncementAudience.ALL: "everybody", AnnouncementAudience.GROUP: f"the group {self.name}"}
        return named.get(self.whom, self.name)

    def is_for(self, user_created: str) -> bool:
        """Return whether a user is a recipient."""
        return self.whom is AnnouncementAudience.ALL or user_created in self.recipients

    def is_shown(self, now: float) -> bool:
        """Return whether pages show it."""
        return self.withdrawn_at is None and now < self.until

    def state(self, now: float) -> str:
        """Return ``shown``, ``over`` or ``withdrawn``."""
        return "withdrawn" if self.withdrawn_at is not None else "shown" if now < self.until else "over"

    def notice(self, marks: ReadMarks) -> Notice:
        """Return the announcement as a notice."""
        name = f"m{self.id}"
        read = marks.has(name, self.made_at)
        return Notice(name, self.made_at, "message", f"Announcement from {self.by}", self.text, not read, by=self.by)


def summarize_names(names: Sequence[str]) -> str:
    """Return several names for display: ``alice, bob, carol and 4 more``."""
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return f"{', '.join(name[: LONGEST_NAME // (MOST_NAMED + 1)] for name in names[:MOST_NAMED])}{more}"


def parse_audience(value: object) -> tuple[AnnouncementAudience, str]:
    """Read the audience of an announcement.

    Raises:
        BadValue: it names no audience.
    """
    if isinstance(value, str) and value == AnnouncementAudience.ALL.value:
        return AnnouncementAudience.ALL, ""
    if isinstance(value, str):
        kind, _, name = value.partition(":")
        named = {AnnouncementAudience.USER.value, AnnouncementAudience.GROUP.value}
        if kind in named and 0 < len(name) <= LONGEST_NAME:
            return AnnouncementAudience(kind), name
    raise BadValue(f"{quoted(value)} is not an audience", AUDIENCE_HELP)


def parse_announcement(value: object) -> str:
    """Read the text of an announcement: plain text on one or more lines.

    Raises:
        BadValue: it is empty, too long, or has control characters.
    """
    right = f"write 1 to {LONGEST_CHARACTERS} characters of plain text"
    if not isinstance(value, str) or not value.strip():
        raise BadValue("the announcement has no text", right)
    text = "\n".join(line.strip() for line in value.strip().splitlines())
    if len(text) > LONGEST_CHARACTERS:
        raise BadValue(f"a text of {len(text)} characters is too long", right)
    if not all(one.isprintable() or one == "\n" for one in text):
        raise BadValue(f"{quoted(value)} holds characters that cannot be shown", right)
    return text
