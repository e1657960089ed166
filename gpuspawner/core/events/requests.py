"""Events of requests and grants."""

from __future__ import annotations

from dataclasses import dataclass

from gpuspawner.core.events.base import Audience, Event, GpuEvent
from gpuspawner.core.units import show_duration


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
class WaitReasonGone(Event, name="no longer held back", words="Not held back any more", details="{rule}"):
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
class SizeChangeNear(
    Event, name="size change near", words="Restarts with its new size", details="in {in_seconds}", told=Audience.USER
):
    """The new size of a running workspace is free and held for it. It restarts in ``in_seconds``."""

    in_seconds: float = 0.0


class SizeChangePostponed(Event, name="size change postponed", words="New size no longer free", told=Audience.USER):
    """The GPUs of an announced new size are not free any more. The workspace runs on, and the change waits again."""


@dataclass(frozen=True)
class SizeChangeRefused(
    Event, name="size change refused", words="New size refused", details="{refusal}", told=Audience.USER
):
    """The new size of a running workspace is not allowed any more. The workspace runs on."""

    refusal: str = ""
