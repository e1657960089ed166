"""Messages to users about lease events, sent outside the pages. They use the words of the pages."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from gpuspawner.catalog.titles import given_instead, gpu_title
from gpuspawner.core import action_events
from gpuspawner.core.action_events import ScheduleSuspended
from gpuspawner.core.leases import events
from gpuspawner.core.leases.events import Audience
from gpuspawner.core.leases.exits import EXIT_KINDS, HUB, ExitReason
from gpuspawner.core.leases.lease import Lease
from gpuspawner.service.notifications.sender import Message
from gpuspawner.service.parts import Parts
from gpuspawner.service.store import AuditLine
from gpuspawner.service.waiting.reasons import return_words
from gpuspawner.service.workspaces.ends import present_end
from gpuspawner.service.workspaces.presenter import present_workspace
from gpuspawner.service.workspaces.warnings import claim_words, warnings_of

ASKS = "Opening the page does nothing by itself: it asks."


def message_of(parts: Parts, lease: Lease, line: AuditLine) -> Message | None:
    """Return the message about an event that was just stored, None if it needs no message.

    An event is stored once, so its message is sent once. A warning is stored once for each deadline and threshold.
    """
    event = line.event
    told = None if event.told is Audience.NOBODY else _TEXTS[type(event)](parts, lease, line)
    if told is None:
        return None
    page = f"{parts.public_url}/workspaces/{lease.id}"
    to_admins = event.told is Audience.ADMINISTRATORS
    return Message(lease.id, lease.user, told.kind, told.title, f"{told.text}\n\n{page}\n", to_admins=to_admins)


class _Told(NamedTuple):
    """A message's text. ``kind`` is what the same workspace gets one of at a time."""

    kind: str
    title: str
    text: str


def _warning(parts: Parts, lease: Lease, kind: str, title: str) -> _Told | None:
    found = next((one for one in warnings_of(parts, lease) if one.kind == kind), None)
    if found is None:
        return None
    return _Told(kind, title, f"{found.text}\n\nWhat you can do is on its page. {ASKS}")


def _warned_idle(parts: Parts, lease: Lease, _line: AuditLine) -> _Told | None:
    return _warning(parts, lease, "idle", "Your workspace is idle")


def _warned_of_end(parts: Parts, lease: Lease, line: AuditLine) -> _Told | None:
    return _warning(parts, lease, "expiry", f"Your workspace {line.event.why}")


def _nobody_came(parts: Parts, lease: Lease, _line: AuditLine) -> _Told | None:
    return _warning(parts, lease, "unclaimed", "Your workspace waits for you")


def _disrupted(parts: Parts, lease: Lease, _line: AuditLine) -> _Told | None:
    return _warning(parts, lease, "preempted", "Your workspace is about to be ended")


def _killed_for_memory(parts: Parts, lease: Lease, _line: AuditLine) -> _Told | None:
    return _warning(parts, lease, "memory", "A program in your workspace was killed for want of memory")


def _warned_of_claim(parts: Parts, lease: Lease, _line: AuditLine) -> _Told | None:
    return _warning(parts, lease, "claim", "Your workspace has to make room")


def _reaches_into(parts: Parts, lease: Lease, _line: AuditLine) -> _Told | None:
    return _warning(parts, lease, "hold", "Your workspace runs into the time of a class")


def _announced(parts: Parts, lease: Lease, _line: AuditLine) -> _Told | None:
    return _warning(parts, lease, "claim", "Your workspace is about to be ended")


def _gpu_closed(parts: Parts, lease: Lease, _line: AuditLine) -> _Told | None:
    return _warning(parts, lease, "closed", "The GPU of your workspace is taken out of service")


def _extended(_parts: Parts, lease: Lease, line: AuditLine) -> _Told | None:
    by_another = isinstance(line.event, events.Extended) and line.event.reason
    if not by_another or lease.deadline_at is None:
        return None
    return _Told("extended", "Your workspace runs longer", f"{line.actor} extended it {line.event.why}.")


def _claim_gone(_parts: Parts, _lease: Lease, line: AuditLine) -> _Told | None:
    return _Told("claim gone", "Your workspace goes on", f"{line.event.why} It goes on as before.")


_BY_PEOPLE = frozenset({ExitReason.STOPPED, ExitReason.MOVED, ExitReason.CANCELLED})


def _end(parts: Parts, lease: Lease, _line: AuditLine) -> _Told | None:
    if lease.reason is None:
        return None
    by_another = lease.reason in _BY_PEOPLE and lease.ended_by not in {lease.user, HUB}
    unseen = lease.reason is ExitReason.FAILED and (lease.unattended or lease.unwatched)
    if not EXIT_KINDS[lease.reason].by_others and not by_another and not unseen:
        return None
    then = f" {return_words(parts, lease)}." if parts.allocator.returns(lease) else ""
    end = present_end(lease, parts.clock.now())
    why = end.why if end else ""
    return _Told(
        "ended", "Your workspace was ended", f"{why}{then} Your files are kept.\n\nWhy, with what was measured:"
    )


def _granted(parts: Parts, lease: Lease, _line: AuditLine) -> _Told | None:
    if not lease.unattended:
        return None
    words, name = present_workspace(parts, lease).words, lease.key.server or "default workspace"
    text = f"{words}. It starts by itself ({name}).{claim_words(parts, lease)}"
    return _Told("granted", "Your workspace's turn has come", text)


def _substituted(parts: Parts, lease: Lease, _line: AuditLine) -> _Told | None:
    if not lease.unattended or lease.request.gpu is None:
        return None
    given = given_instead(parts.catalog, lease.request.gpu, lease.given)
    return _Told("substituted", "You get another GPU", f"You get {gpu_title(lease.given, parts.catalog)}{given}.")


def _cannot_start(parts: Parts, lease: Lease, _line: AuditLine) -> _Told | None:
    queue = present_workspace(parts, lease).queue
    sentence = queue.sentence if queue else ""
    return _Told("impossible", "Your request can't start as things are", sentence)


def _disputed(_parts: Parts, lease: Lease, line: AuditLine) -> _Told | None:
    said = f"“{line.event.why}”" if line.event.why else "They did not say why."
    title = f"{lease.user} calls the end of a workspace wrong"
    return _Told("disputed", title, f"{said}\n\nThe readings, and the place to answer:")


def _answered(_parts: Parts, _lease: Lease, line: AuditLine) -> _Told | None:
    return _Told("answered", "You called the end of your workspace wrong", f"{line.actor} answered: {line.event.why}")


def _ready_paused(_parts: Parts, _lease: Lease, line: AuditLine) -> _Told | None:
    return _Told("ready paused", "A workspace is made ready for you no more", line.event.why)


_TEXTS: Mapping[type[events.Event], Callable[[Parts, Lease, AuditLine], _Told | None]] = {
    events.WarnedIdle: _warned_idle,
    events.WarnedOfEnd: _warned_of_end,
    events.WarnedNobodyCame: _nobody_came,
    events.Disrupted: _disrupted,
    events.KilledForMemory: _killed_for_memory,
    events.WarnedOfClaim: _warned_of_claim,
    events.ClaimGone: _claim_gone,
    action_events.EndAnnounced: _announced,
    action_events.GpuClosed: _gpu_closed,
    events.Extended: _extended,
    events.ReachesInto: _reaches_into,
    events.Stopped: _end,
    events.StopperNamed: _end,
    events.Granted: _granted,
    events.Substituted: _substituted,
    events.CannotStart: _cannot_start,
    events.Disputed: _disputed,
    events.Answered: _answered,
    ScheduleSuspended: _ready_paused,
}
"""The text of each event that has a message."""
