"""The events of a lease, as they are stored and shown: one class for each event, with its fields and its words.

An event is stored by its name and its fields (``leases.stored_events``). An older version's event has only its text:
``said``. A new event is a class here. If people get a message of it, its text is in
``service.notifications.messages``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import ClassVar

from gpuspawner.core.units import show_bytes, show_duration


class Audience(Enum):
    """The people who get a message of an event by mail or chat. The pages show every event."""

    NOBODY = "nobody"
    USER = "user"
    ADMINISTRATORS = "administrators"


@dataclass(frozen=True)
class Event:
    """Base of all events.

    ``name`` is how it is stored, ``action`` how the API calls it, ``words`` how the history begins its line. ``told``
    may get a message: ``service.notifications.messages`` says when, and in which words.
    ``marked``: the chart shows it. ``ends_grace``: no grace period goes on after it.
    """

    said: str = field(default="", kw_only=True)

    name: ClassVar[str]
    words: ClassVar[str]
    told: ClassVar[Audience] = Audience.NOBODY
    marked: ClassVar[bool] = False
    ends_grace: ClassVar[bool] = False

    @property
    def action(self) -> str:
        """How the API calls it."""
        return self.name

    @property
    def why(self) -> str:
        """The details that follow its words; "" if the words say everything."""
        return self.said or self._why()

    def _why(self) -> str:
        return ""


@dataclass(frozen=True)
class TextEvent(Event):
    """An event that is told by one text."""

    text: str = ""

    def _why(self) -> str:
        return self.text


@dataclass(frozen=True)
class GpuEvent(Event):
    """An event about GPUs."""

    gpus: tuple[str, ...] = ()

    def _why(self) -> str:
        return ", ".join(self.gpus) or "no GPU"


@dataclass(frozen=True)
class RuleEvent(Event):
    """An event that a rule brings, told by one text."""

    rule: str = ""
    text: str = ""

    def _why(self) -> str:
        return self.text


class Asked(TextEvent):
    """A request was made; ``text`` is its template, GPUs and lifetime."""

    name, words = "asked", "Asked for"


class Granted(GpuEvent):
    """GPUs were granted."""

    name, words, told = "granted", "Granted", Audience.USER


class Placed(GpuEvent):
    """Other GPUs than those granted were given."""

    name, words = "placed", "Placed"


class Allocated(GpuEvent):
    """Which GPUs those are that its slots only count, by UUID."""

    name, words = "allocated", "Allocated"


@dataclass(frozen=True)
class Started(Event):
    """The server answers."""

    name, words = "running", "It runs"


class Requeued(TextEvent):
    """The granted GPUs were not available: the request is back in the queue."""

    name, words = "requeued", "Requeued"


@dataclass(frozen=True)
class Parked(Event):
    """The hub did not carry a start out: back to the queue."""

    tries: int = 0
    name, words = "parked", "Back in the queue"

    def _why(self) -> str:
        return f"the hub did not start it (try {self.tries})"


@dataclass(frozen=True)
class Returned(Event):
    """The lease ``lease``, which ended for ``reason``, waits again at its old place in the queue."""

    lease: str = ""
    reason: str = ""
    name, words = "back in the queue", "Back in the queue"

    def _why(self) -> str:
        return f"{self.lease} was {self.reason}"


class Adopted(TextEvent):
    """Something that ran already got a lease."""

    name, words = "adopted", "Taken over from the hub"


class CannotStart(TextEvent):
    """A waiting request can't start as things are."""

    name, words, told = "can't start now", "Can't start as things are", Audience.USER


@dataclass(frozen=True)
class CanStart(Event):
    """A waiting request can start again."""

    name, words = "can start again", "Can start again"


class HeldBackBy(RuleEvent):
    """A rule holds a waiting request back: ``rule`` as of ``core.rules.HeldBack``, ``text`` its sentence."""

    name, words = "held back", "Held back"


class LetGo(TextEvent):
    """No rule holds it back any more; ``text`` is which did."""

    name, words = "let go", "Held back no more"


@dataclass(frozen=True)
class Substituted(Event):
    """Another kind was given than was asked for, with its user's consent."""

    asked: str = ""
    given: str = ""
    name, words, told = "substituted", "Another GPU was given", Audience.USER

    def _why(self) -> str:
        return f"{self.given} instead of {self.asked}"


@dataclass(frozen=True)
class Consented(Event):
    """Its user said, while it waits, which kinds it may get in place of the one asked for: all of them, or none."""

    kinds: tuple[str, ...] = ()
    name, words = "consented", "Consent to other GPUs"

    def _why(self) -> str:
        return ", ".join(self.kinds) or "none but the one asked for"


@dataclass(frozen=True)
class RequestReduced(Event):
    """Its user asked for fewer GPUs while it waited."""

    count: int = 0
    name, words = "reduced", "Fewer GPUs requested"

    def _why(self) -> str:
        return str(self.count)


class WarnedOfClaim(TextEvent):
    """A stronger claim needs its GPUs; ``text`` names the claimant and the time of the end."""

    name, words, told, marked = "warned of claim", "Warned", Audience.USER, True


class ClaimGone(TextEvent):
    """No stronger claim needs its GPUs any more."""

    name, words, told = "claim gone", "Left running", Audience.USER


class Bounded(RuleEvent):
    """Its end is bounded by a rule, as of ``core.rules.LatestEnd``."""

    name, words = "bounded", "Ends earlier"


class ReachesInto(TextEvent):
    """It runs into a time for which its GPUs are held for a class; ``text`` is which. Nothing ends it for that."""

    name, words, told, marked = "reaches into", "Asked to make room for a class", Audience.USER, True


class WarnedIdle(TextEvent):
    """It was idle, and its grace period begins; ``text`` is what was measured."""

    name, words, told, marked = "warned", "Warned", Audience.USER, True


@dataclass(frozen=True)
class WarnedOfEnd(Event):
    """Its time is over in ``seconds``."""

    seconds: float = 0.0
    name, words, told, marked = "warned of end", "Warned", Audience.USER, True

    @property
    def action(self) -> str:
        """How the API calls every warning."""
        return WarnedIdle.name

    def _why(self) -> str:
        return f"ends in {show_duration(self.seconds)}"


class WarnedNobodyCame(TextEvent):
    """It came while its user was away, and half of the time to come to it has passed; ``text`` says until when."""

    name, words, told, marked = "warned nobody came", "Warned", Audience.USER, True


class Came(TextEvent):
    """Somebody came to it; ``text`` is what was seen of them."""

    name, words, marked = "came", "Claimed", True


class NobodyCameYet(TextEvent):
    """Its user was not seen in time, and its GPUs are not released for that: idle time counts from here on."""

    name, words, marked = "nobody came yet", "Nobody came yet", True


class GraceEnded(TextEvent):
    """It is used again, or no longer judged; ``text`` is why."""

    name, words, marked, ends_grace = "grace ended", "No longer idle", True, True


class WouldWarn(TextEvent):
    """A policy that only records would have warned."""

    name, words, marked = "would warn", "Would have warned (this policy only records)", True


class WouldStop(TextEvent):
    """A policy that only records or warns would have stopped it."""

    name, words, marked = "would stop", "Would have stopped (this policy only records or warns)", True


@dataclass(frozen=True)
class Kept(Event):
    """Its user keeps it for ``seconds``."""

    seconds: float = 0.0
    name, words, marked, ends_grace = "kept", "Kept", True, True

    def _why(self) -> str:
        return f"for {show_duration(self.seconds)}"


@dataclass(frozen=True)
class Extended(Event):
    """Its deadline moves by ``seconds``; ``reason`` is an administrator's."""

    seconds: float = 0.0
    reason: str = ""
    name, words, told, marked = "extended", "Extended", Audience.USER, True

    def _why(self) -> str:
        return f"by {show_duration(self.seconds)}{f': {self.reason}' if self.reason else ''}"


@dataclass(frozen=True)
class Stopped(Event):
    """Its end begins: the reason, as of ``endings.Reason``, and what its user reads."""

    reason: str = ""
    message: str = ""
    name, words, told, marked, ends_grace = "stop", "Stop", Audience.USER, True, True

    def _why(self) -> str:
        return self.message


class StopperNamed(TextEvent):
    """The hub reported after the end which person stopped it."""

    name, words, told = "stopper", "Who stopped it", Audience.USER


class Disrupted(TextEvent):
    """The cluster is about to end it."""

    name, words, told = "disrupted", "To be ended by the cluster", Audience.USER


@dataclass(frozen=True)
class Spared(Event):
    """The cluster ends it no more."""

    name, words = "spared", "Left running"

    def _why(self) -> str:
        return "The cluster ends it no more."


@dataclass(frozen=True)
class Health(Event):
    """Which of its GPUs the backend calls unhealthy now."""

    unhealthy: tuple[str, ...] = ()
    name, words = "health", "Health"

    def _why(self) -> str:
        names = ", ".join(self.unhealthy)
        return f"{names} reported as unhealthy" if names else "its GPUs reported as healthy again"


@dataclass(frozen=True)
class KilledForMemory(Event):
    """Processes of it were killed because it had used all of its memory. Its server lives on."""

    count: int = 0
    memory_bytes: int = 0
    name, words, told = "killed for memory", "A program was killed for want of memory", Audience.USER

    def _why(self) -> str:
        programs = "1 program" if self.count == 1 else f"{self.count} programs"
        return f"{programs} killed: the workspace had used all of its {show_bytes(self.memory_bytes)}"


@dataclass(frozen=True)
class OutputShared(Event):
    """Its user lets administrators read its last output."""

    name, words = "shared", "Its last output was shared with administrators"


class Disputed(TextEvent):
    """Its user calls its end wrong; ``text`` is what they wrote."""

    name, words, told = "disputed", "Called wrong", Audience.ADMINISTRATORS


class Answered(TextEvent):
    """An administrator answers that; ``text`` is the answer."""

    name, words, told = "answered", "Answered", Audience.USER
