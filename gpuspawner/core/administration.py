"""What administrators set for everybody: restrictions and announcements, and the notices of an inbox."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

from gpuspawner.core.errors import quoted
from gpuspawner.core.gpus.fleet import Fleet, Gpu
from gpuspawner.core.leases import events
from gpuspawner.core.leases.events import Audience, Event
from gpuspawner.core.leases.exits import EXIT_KINDS, ExitReason
from gpuspawner.core.leases.lease import Lease
from gpuspawner.core.rules import Account, ClassHold
from gpuspawner.core.units import BadValue, show_duration

# --- restrictions


EVERYBODY = Account()


class RestrictionKind(str, Enum):
    """What a restriction does."""

    DRAIN = "drain"
    QUARANTINE = "quarantine"
    PAUSE = "pause"
    RESERVE = "reserve"
    EXEMPT = "exempt"


@dataclass(frozen=True)
class Restriction:
    """One restriction. Times are seconds since the epoch.

    Args:
        id: its own.
        measure: what it does.
        target: a node to drain; a GPU, by id, to quarantine; a kind to reserve, or to pause (``snapshot.ALL_KINDS``:
            everything); a workspace, by id, that is exempt, "" where a user is.
        reason: why, as people read it.
        by: who made it.
        since: when it was made.
        until: when it is over by itself; None until it is lifted.
        begins_at: from when on it holds; 0 for as soon as it is made.
        count: how many GPUs are reserved.
        account: for whom they are reserved, or whose workspaces are exempt.
        whom: how people call the account.
        lifted_at: when it was lifted, by ``lifted_by``, for ``lifted_why``; None where it was not.
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

    def is_over(self, now: float) -> bool:
        """Whether it holds no more: somebody has lifted it, or its time is over."""
        return self.lifted_at is not None or (self.until is not None and now >= self.until)

    def is_in_force(self, now: float) -> bool:
        """Whether it holds: it has begun, and is not over."""
        return self.begins_at <= now and not self.is_over(now)

    def closes(self, gpu: Gpu) -> bool:
        """Whether a GPU is given to nobody new by it."""
        name = {RestrictionKind.DRAIN: gpu.node, RestrictionKind.QUARANTINE: gpu.id}.get(self.measure)
        return name is not None and name == self.target

    def spares(self, lease: Lease) -> bool:
        """Whether a workspace is not judged as idle by it."""
        if self.measure is not RestrictionKind.EXEMPT:
            return False
        return lease.id == self.target if self.target else lease.key.user_created == self.account.user_created


def close_gpus(fleet: Fleet, restrictions: Iterable[Restriction]) -> Fleet:
    """Return the fleet with the GPUs closed that restrictions close; the same object where there are none."""
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
    what = f"{gpu.node} is drained" if one.measure is RestrictionKind.DRAIN else "It is in quarantine"
    return replace(gpu, closed=f"{what}: {one.reason}")


def reservation_holds(restrictions: Iterable[Restriction]) -> tuple[ClassHold, ...]:
    """Return the GPUs that administrators reserve for somebody, as the catalog's holds for classes."""
    return tuple(reservation_hold(one) for one in restrictions if one.measure is RestrictionKind.RESERVE)


def reservation_hold(one: Restriction) -> ClassHold:
    """Return a reservation as a hold, also one that has not begun: what would run into it is known before."""
    return ClassHold(one.whom, one.target, one.count, None, one.until, max(one.since, one.begins_at), one.account)


def exemption_of(lease: Lease, restrictions: Iterable[Restriction]) -> Restriction | None:
    """Return the restriction by which a workspace is not judged as idle for longest; None where nothing spares it."""
    found = (one for one in restrictions if one.spares(lease) and one.until is not None)
    return max(found, key=lambda one: one.until or 0.0, default=None)


# --- notices


NOTICE_KEPT_SECONDS = 30 * 86400.0
"""How long a notice can be read. Arbitrary: somebody who was on holiday finds it."""
UNWATCHED_SECONDS = 60.0
"""Who waited for longer did not watch, as a rule: that it came is a notice. Arbitrary."""


@dataclass(frozen=True)
class LeaseStep:
    """A step of a lease as stored. ``user`` is its user, ``seen``: who has read of its end."""

    number: int
    at: float
    lease: str
    server: str
    user: str
    asked_at: float
    seen: bool
    actor: str
    event: Event


@dataclass(frozen=True)
class ReadMarks:
    """What a person has read: all until ``until``, and besides ``ids``."""

    until: float = 0.0
    ids: frozenset[str] = frozenset()

    def has(self, name: str, at: float) -> bool:
        """Whether they have read it."""
        return at <= self.until or name in self.ids


@dataclass(frozen=True)
class Notice:
    """Something a person is told. ``lease`` is "" where it is of no workspace, ``by`` where no person did it.

    ``kind`` is the event's name, or ``message``, ``quota granted``, ``quota taken back``.
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
    """It tells of an end, which other pages tell of too until it is read."""


NOTICE_TITLES: Mapping[type[Event], str] = {
    events.Granted: "Its turn came",
    events.WarnedIdle: "Warned: it was idle",
    events.WarnedOfEnd: "Warned: its time was nearly over",
    events.WarnedOfClaim: "Warned: it had to make room",
    events.Disrupted: "Warned: the cluster was about to end it",
    events.Answered: "An answer to what you called wrong",
    events.Substituted: "You got another GPU",
}
"""Of events whose own words are too short to stand alone."""
END_EVENTS = (events.Stopped, events.StopperNamed, events.Answered)
SYSTEM_ACTORS = frozenset({"gpuspawner", "hub", "cluster"})


def notices_of(steps: Iterable[LeaseStep], marks: ReadMarks) -> tuple[Notice, ...]:
    """Return what the user of workspaces is told, the newest first.

    What they did themselves is none. What came before an act of theirs on the same workspace is read, as they were
    there; and who has read why it ended has read what led to it.
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
    event, text = step.event, step.event.why
    title = NOTICE_TITLES.get(type(event), event.words)
    if isinstance(event, events.Stopped):
        title = _of_end(event)
    elif isinstance(event, events.Granted):
        text = f"It waited {show_duration(step.at - step.asked_at)}."
    by = "" if step.actor in SYSTEM_ACTORS else step.actor
    ends = isinstance(event, END_EVENTS)
    return Notice(f"s{step.number}", step.at, event.name, title, text, unread, step.lease, step.server, by, ends)


def _of_end(event: events.Stopped) -> str:
    if event.reason not in {one.value for one in ExitReason}:
        return "It ended"
    return EXIT_KINDS[ExitReason(event.reason)].words


def merge_notices(*kinds: Collection[Notice]) -> tuple[Notice, ...]:
    """Return notices of several kinds, the newest first."""
    return tuple(sorted((one for kind in kinds for one in kind), key=lambda x: (-x.at, x.id)))


# --- announcements


LONGEST_CHARACTERS = 500
"""A message is read at a glance, above whatever its reader came for."""
LONGEST_NAME = 255
MOST_NAMED = 3
"""Of several whom a message is to, so many are named, and the others are counted. Arbitrary: what a line holds."""
AUDIENCE_HELP = "write all, user:NAME or group:NAME"


class AnnouncementAudience(str, Enum):
    """To whom a message is."""

    ALL = "all"
    USER = "user"
    USERS = "users"
    """Several, chosen one by one: in the console alone."""
    GROUP = "group"


@dataclass(frozen=True)
class Announcement:
    """A message. Times in seconds since the epoch.

    ``recipients`` are when they were created whom it reaches, those who were in the group when it was sent; it is empty
    where it is to all. ``name`` is the user's or the group's; of several users, how people read who they are.
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
        """To whom, as it is written."""
        return self.whom.value if self.whom is AnnouncementAudience.ALL else f"{self.whom.value}:{self.name}"

    @property
    def to_words(self) -> str:
        """To whom, as people read it."""
        named = {AnnouncementAudience.ALL: "everybody", AnnouncementAudience.GROUP: f"the group {self.name}"}
        return named.get(self.whom, self.name)

    def is_for(self, user_created: str) -> bool:
        """Whether it is to a user."""
        return self.whom is AnnouncementAudience.ALL or user_created in self.recipients

    def is_shown(self, now: float) -> bool:
        """Whether pages show it."""
        return self.withdrawn_at is None and now < self.until

    def state(self, now: float) -> str:
        """Return ``shown``, ``over`` or ``withdrawn``."""
        return "withdrawn" if self.withdrawn_at is not None else "shown" if now < self.until else "over"

    def notice(self, marks: ReadMarks) -> Notice:
        """Return it as its reader's inbox has it."""
        name = f"m{self.id}"
        read = marks.has(name, self.made_at)
        return Notice(name, self.made_at, "message", f"Announcement from {self.by}", self.text, not read, by=self.by)


def summarize_names(names: Sequence[str]) -> str:
    """Return how people read who several users are: ``alice, bob, carol and 4 more``."""
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return f"{', '.join(name[: LONGEST_NAME // (MOST_NAMED + 1)] for name in names[:MOST_NAMED])}{more}"


def parse_audience(value: object) -> tuple[AnnouncementAudience, str]:
    """Read to whom a message is.

    Raises:
        BadValue: it is nobody, or not written so.
    """
    if isinstance(value, str) and value == AnnouncementAudience.ALL.value:
        return AnnouncementAudience.ALL, ""
    if isinstance(value, str):
        kind, _, name = value.partition(":")
        named = {AnnouncementAudience.USER.value, AnnouncementAudience.GROUP.value}
        if kind in named and 0 < len(name) <= LONGEST_NAME:
            return AnnouncementAudience(kind), name
    raise BadValue(f"{quoted(value)} is nobody", AUDIENCE_HELP)


def parse_announcement(value: object) -> str:
    """Read a message's text: plain, on one or several lines.

    Raises:
        BadValue: it is empty, too long, or holds what moves a terminal's cursor or turns its direction.
    """
    right = f"write 1 to {LONGEST_CHARACTERS} characters of plain text"
    if not isinstance(value, str) or not value.strip():
        raise BadValue("a message without a text says nothing", right)
    text = "\n".join(line.strip() for line in value.strip().splitlines())
    if len(text) > LONGEST_CHARACTERS:
        raise BadValue(f"a text of {len(text)} characters is too long", right)
    if not all(one.isprintable() or one == "\n" for one in text):
        raise BadValue(f"{quoted(value)} holds characters that cannot be shown", right)
    return text
