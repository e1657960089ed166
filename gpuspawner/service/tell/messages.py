"""What people are told outside the pages: of which steps of a lease, and in which words: those of the pages."""

from __future__ import annotations

from gpuspawner.core.leases.endings import ENDINGS, Reason
from gpuspawner.core.leases.lease import Lease
from gpuspawner.service.leases.lifecycle import COMING_END
from gpuspawner.service.leases.stoppers import NAMED
from gpuspawner.service.parts import Parts
from gpuspawner.service.store import AuditLine
from gpuspawner.service.tell.notifier import Message
from gpuspawner.service.tell.views import lease_view, warnings_of

ASKS = "Opening the page does nothing by itself: it asks."


def message_of(parts: Parts, lease: Lease, line: AuditLine) -> Message | None:
    """Return what is to be told of a step that was just stored; None where nobody needs telling.

    A step is stored once, and a warning is a step once for each deadline and threshold: so is its message.
    """
    name = lease.key.server or "default workspace"
    told = _warning(parts, lease, line) or _end(parts, lease, line) or _other(parts, lease, line, name)
    if told is None:
        return None
    kind, title, text = told
    page = f"{parts.public_url}/workspaces/{lease.id}"
    return Message(lease.id, lease.user, kind, title, f"{text}\n\n{page}\n", to_admins=kind == "disputed")


def _warning(parts: Parts, lease: Lease, line: AuditLine) -> tuple[str, str, str] | None:
    if line.action == "warned":
        kind = "expiry" if line.why.startswith(COMING_END) else "idle"
    elif line.action == "disrupted":
        kind = "preempted"
    else:
        return None
    found = next((one for one in warnings_of(parts, lease) if one["kind"] == kind), None)
    if found is None:
        return None
    title = {
        "idle": "Your workspace is idle",
        "expiry": f"Your workspace {line.why}",
        "preempted": "Your workspace is about to be ended",
    }[kind]
    return kind, title, f"{found['text']}\n\nWhat you can do is on its page. {ASKS}"


def _end(parts: Parts, lease: Lease, line: AuditLine) -> tuple[str, str, str] | None:
    if line.action not in {"stop", NAMED} or lease.reason is None:
        return None
    by_another = lease.reason is Reason.STOPPED and lease.ended_by not in {lease.user, "hub"}
    unseen = lease.reason is Reason.FAILED and (lease.unattended or lease.unwatched)
    if not ENDINGS[lease.reason].by_others and not by_another and not unseen:
        return None
    back = " It goes back to its place in the queue, and starts again by itself."
    asked = lease.reason is Reason.MOVED  # by its user
    then = back if not asked and parts.allocator.returns(lease) else ""
    why = lease_view(parts, lease)["end"]["why"]
    return "ended", "Your workspace was ended", f"{why}{then} Your files are kept.\n\nWhy, with what was measured:"


def _other(parts: Parts, lease: Lease, line: AuditLine, name: str) -> tuple[str, str, str] | None:
    if line.action == "granted" and lease.unattended:
        words = lease_view(parts, lease)["words"]
        return "granted", "Your workspace has its place", f"{words}. It starts by itself ({name})."
    if line.action == "can't start now":
        return "impossible", "Your request can't start as things are", lease_view(parts, lease)["queue"]["sentence"]
    if line.action == "disputed":
        said = f"“{line.why}”" if line.why else "They did not say why."
        title = f"{lease.user} calls the end of a workspace wrong"
        return "disputed", title, f"{said}\n\nThe readings, and the place to answer:"
    if line.action == "answered":
        return "answered", "You called the end of your workspace wrong", f"{line.actor} answered: {line.why}"
    return None
