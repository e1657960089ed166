"""Which steps of one's workspaces are notices, in which words, and whether they are read."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from gpuspawner.core.leases import events
from gpuspawner.core.leases.events import Audience, Event
from gpuspawner.core.leases.exits import EXIT_KINDS, ExitReason
from gpuspawner.core.units import show_duration

KEPT_SECONDS = 30 * 86400.0
"""How long a notice can be read. Arbitrary: somebody who was on holiday finds it."""
UNWATCHED_SECONDS = 60.0
"""Who waited for longer did not watch, as a rule: that it came is a notice. Arbitrary."""


@dataclass(frozen=True)
class Step:
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
class Marks:
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


TITLES: Mapping[type[Event], str] = {
    events.Granted: "Its turn came",
    events.WarnedIdle: "Warned: it was idle",
    events.WarnedOfEnd: "Warned: its time was nearly over",
    events.WarnedOfClaim: "Warned: it had to make room",
    events.Disrupted: "Warned: the cluster was about to end it",
    events.Answered: "An answer to what you called wrong",
    events.Substituted: "You got another GPU",
}
"""Of events whose own words are too short to stand alone."""
OF_ENDS = (events.Stopped, events.StopperNamed, events.Answered)
BY_PARTS = frozenset({"gpuspawner", "hub", "cluster"})


def notices_of(steps: Iterable[Step], marks: Marks) -> tuple[Notice, ...]:
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
            if step.seen and isinstance(step.event, OF_ENDS):
                acted.add(step.lease)
            read = marks.has(f"s{step.number}", step.at) or step.lease in acted
            found.append(_notice(step, unread=not read))
    return tuple(found)


def _is_told(step: Step) -> bool:
    event = step.event
    if event.told is not Audience.USER:
        return False
    return not isinstance(event, events.Granted) or step.at - step.asked_at >= UNWATCHED_SECONDS


def _notice(step: Step, *, unread: bool) -> Notice:
    event, text = step.event, step.event.why
    title = TITLES.get(type(event), event.words)
    if isinstance(event, events.Stopped):
        title = _of_end(event)
    elif isinstance(event, events.Granted):
        text = f"It waited {show_duration(step.at - step.asked_at)}."
    by = "" if step.actor in BY_PARTS else step.actor
    ends = isinstance(event, OF_ENDS)
    return Notice(f"s{step.number}", step.at, event.name, title, text, unread, step.lease, step.server, by, ends)


def _of_end(event: events.Stopped) -> str:
    if event.reason not in {one.value for one in ExitReason}:
        return "It ended"
    return EXIT_KINDS[ExitReason(event.reason)].words


def in_order(*kinds: Collection[Notice]) -> tuple[Notice, ...]:
    """Return notices of several kinds, the newest first."""
    return tuple(sorted((one for kind in kinds for one in kind), key=lambda x: (-x.at, x.id)))
