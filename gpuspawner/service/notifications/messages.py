"""Messages about lease events outside of pages. They use the sentences of the pages."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from gpuspawner.catalog.requests.visibility import given_instead, gpu_title
from gpuspawner.core import events
from gpuspawner.core.events import Audience, ScheduleSuspended
from gpuspawner.core.leases.exits import EXIT_KINDS, HUB, ExitReason
from gpuspawner.core.leases.lease import Lease
from gpuspawner.service.notifications.sender import Message
from gpuspawner.service.parts import Parts
from gpuspawner.service.preemption.words import return_words
from gpuspawner.service.store import AuditLine
from gpuspawner.service.workspaces.ends import present_end
from gpuspawner.service.workspaces.presenter import present_workspace
from gpuspawner.service.workspaces.warnings import claim_words, warnings_of

CHANGES_NOTHING = "Opening the page changes nothing."


def message_of(parts: Parts, lease: Lease, line: AuditLine) -> Message | None:
    """Return the message about a stored event, None if it needs no message.

    An event is stored once, so its message is sent once. A warning is stored once for each deadline and threshold.
    """
    event = line.event
    told = None if event.told is Audience.NOBODY else _TEXTS[type(event)](parts, lease, line)
    if told is None:
        return None
    page = f"{parts.public_url}/workspaces/{lease.id}"
    to_admins = event.told is Audience.ADMINISTRATORS
    return Message(lease.id, lease.user, told.kind, told.title, f"{told.text}\n\n{page}\n", to_admins=to_admins)


class _Text(NamedTuple):
    """A message's text. A workspace gets one message of a ``kind`` at a time."""

    kind: str
    title: str
    text: str


_TextBuilder = Callable[[Parts, Lease, AuditLine], _Text | None]


def _warning(parts: Parts, lease: Lease, kind: str, title: str) -> _Text | None:
    found = next((one for one in warnings_of(parts, lease) if one.kind == kind), None)
    if found is None:
        return None
    return _Text(kind, title, f"{found.text}\n\nIts page shows what you can do. {CHANGES_NOTHING}")


def _warned(kind: str, title: str) -> _TextBuilder:
    return lambda parts, lease, _line: _warning(parts, lease, kind, title)


def _written(kind: str, title: str, text: str) -> _TextBuilder:
    """Return a builder of a text with the workspace's ``name``, the ``actor``, and ``why``, the event's details."""
    return lambda _, lease, line: _Text(kind, title, text.format(name=lease.name, actor=line.actor, why=line.why))


def _warned_of_end(parts: Parts, lease: Lease, line: AuditLine) -> _Text | None:
    return _warning(parts, lease, "expiry", f"Your workspace {line.why}")


def _extended(_parts: Parts, lease: Lease, line: AuditLine) -> _Text | None:
    by_another = isinstance(line.event, events.Extended) and line.event.reason
    if not by_another or lease.deadline_at is None:
        return None
    return _Text("extended", "Your workspace runs longer", f"{line.actor} extended it {line.why}.")


_BY_PEOPLE = frozenset({ExitReason.STOPPED, ExitReason.MOVED, ExitReason.CANCELLED})


def _end(parts: Parts, lease: Lease, _line: AuditLine) -> _Text | None:
    if lease.reason is None:
        return None
    by_another = lease.reason in _BY_PEOPLE and lease.ended_by not in {lease.user, HUB}
    unseen = lease.reason is ExitReason.FAILED and (lease.unattended or lease.unwatched)
    if not EXIT_KINDS[lease.reason].by_others and not by_another and not unseen:
        return None
    then = f" {return_words(parts.scheduler, lease)}." if parts.allocator.returns(lease) else ""
    end = present_end(lease, parts.clock.now())
    why = end.why if end else ""
    return _Text(
        "ended", "Your workspace was ended", f"{why}{then} Your files are kept.\n\nThe reason and the measurements:"
    )


def _granted(parts: Parts, lease: Lease, _line: AuditLine) -> _Text | None:
    if not lease.unattended:
        return None
    words, name = present_workspace(parts, lease).words, lease.name
    text = f"{words}. It starts by itself ({name}).{claim_words(parts, lease)}"
    return _Text("granted", "Your workspace starts now", text)


def _substituted(parts: Parts, lease: Lease, _line: AuditLine) -> _Text | None:
    if not lease.unattended or lease.request.gpu is None:
        return None
    given = given_instead(parts.catalog, lease.request.gpu, lease.given)
    return _Text("substituted", "You get another GPU", f"You get {gpu_title(lease.given, parts.catalog)}{given}.")


def _cannot_start(parts: Parts, lease: Lease, _line: AuditLine) -> _Text | None:
    queue = present_workspace(parts, lease).queue
    sentence = queue.sentence if queue else ""
    return _Text("impossible", "Your request can't start as things are", sentence)


def _disputed(_parts: Parts, lease: Lease, line: AuditLine) -> _Text | None:
    said = f"“{line.why}”" if line.why else "The report gives no reason."
    title = f"{lease.user} reports the end of a workspace as wrong"
    return _Text("disputed", title, f"{said}\n\nSee the readings and answer here:")


_TEXTS: Mapping[type[events.Event], _TextBuilder] = {
    events.WarnedIdle: _warned("idle", "Your workspace is idle"),
    events.WarnedOfEnd: _warned_of_end,
    events.WarnedNobodyCame: _warned("unclaimed", "Your workspace waits for you"),
    events.Disrupted: _warned("preempted", "Your workspace is about to be ended"),
    events.KilledForMemory: _warned("memory", "A program in your workspace was killed because memory ran out"),
    events.WarnedOfClaim: _warned("claim", "Your workspace has to make room"),
    events.ClaimGone: _written("claim gone", "Your workspace goes on", "{why} It goes on as before."),
    events.EndAnnounced: _warned("claim", "Your workspace is about to be ended"),
    events.GpuClosed: _warned("closed", "The GPU of your workspace is taken out of service"),
    events.Extended: _extended,
    events.ReachesInto: _warned("hold", "Your workspace runs into the time of a class"),
    events.MaintenanceNear: _warned("hold", "The node of your workspace has maintenance"),
    events.Stopped: _end,
    events.StopperNamed: _end,
    events.Granted: _granted,
    events.Substituted: _substituted,
    events.StartNear: _written(
        "start near",
        "Your workspace starts soon",
        "Your workspace ({name}) starts soon, {why}. It starts by itself, and you need not do anything.",
    ),
    events.SizeChangeNear: _warned("size", "Your workspace restarts with its new size soon"),
    events.SizeChangePostponed: _written(
        "size",
        "Your workspace does not restart yet",
        "Your workspace ({name}) does not restart yet. The GPUs of its new size are not free any more. It runs on as "
        "before, and the change waits again.",
    ),
    events.SizeChangeRefused: _written(
        "size",
        "Your workspace keeps its size",
        "The new size of your workspace ({name}) is no longer possible. It runs on as before. {why}",
    ),
    events.MovedInQueue: _written(
        "moved in queue", "Your request has another place in the queue", "{actor} moved it. {why}"
    ),
    events.PassedByMove: _written(
        "passed by move",
        "An administrator moved another request before yours",
        "{actor}: “{why}”\n\nYour request stays in the queue:",
    ),
    events.CannotStart: _cannot_start,
    events.Disputed: _disputed,
    events.Answered: _written(
        "answered", "Your report about the end of your workspace was answered", "{actor} answered: {why}"
    ),
    ScheduleSuspended: _written("ready paused", "A workspace is no longer made ready for you", "{why}"),
}
"""The text of each event that has a message."""
