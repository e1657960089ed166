"""Presents the end of a workspace in sentences, for its user or for another reader: what happened and why."""

from __future__ import annotations

import time
from dataclasses import asdict

from gpuspawner.core.leases.exits import EXIT_KINDS, GPUSPAWNER, HUB, UNKNOWN, ExitReason
from gpuspawner.core.leases.lease import Lease
from gpuspawner.core.units import show_duration, show_time
from gpuspawner.service.workspaces import models

SECONDS_TOLD_BELOW = 1800.0
"""The times of a workspace that ran for less than this carry seconds: its minutes alone would not tell its story."""


def present_end(lease: Lease, now: float, *, mine: bool = True) -> models.End | None:
    """Return the end of a workspace, None if it has not ended. ``mine`` is whether its user reads it."""
    if lease.reason is None:
        return None
    sentence, short = _sentences(lease, now, "You" if mine else lease.user)
    details = _details(lease)
    return models.End(
        reason=lease.reason.value,
        words=EXIT_KINDS[lease.reason].words,
        message=lease.message,
        why=f"{sentence} {details}".strip(),
        by=lease.ended_by,
        at=lease.ended_at,
        sentence=sentence,
        details=details,
        short=short,
        seen=lease.seen_by_user,
        disputable=lease.disputable,
        dispute=models.Dispute(**asdict(lease.dispute)) if lease.dispute else None,
    )


def exact_time(at: float, now: float, lived_seconds: float) -> str:
    """Return a time, with seconds if the workspace lived only for a short time."""
    text = show_time(at, now)
    is_short = lived_seconds < SECONDS_TOLD_BELOW and text.count(":") == 1
    return f"{text}{time.strftime(':%S', time.localtime(at))}" if is_short else text


_WORDS = {
    ExitReason.IDLE: ("We stopped it{at} because {idle}.", "Stopped: {idle}"),
    ExitReason.EXPIRED: ("It reached the end of its run time{at}.", "Reached its end time"),
    ExitReason.PREEMPTED: ("The cluster ended it{at}.", "Ended by the cluster"),
    ExitReason.MOVED: ("{by} moved it to other GPUs{at}.", "{by} moved it to other GPUs"),
    ExitReason.CHANGED: ("{by} restarted it {way}{at}.", "{by} restarted it {way}"),
    ExitReason.FAILED: ("{failed}{at}.", "{failed}"),
    ExitReason.ORPHANED: ("The hub lost track of it{at}.", "Lost by the hub"),
    ExitReason.BUDGET: ("It stopped{at} because a budget was used up.", "Stopped: a budget was used up"),
    ExitReason.MADE_ROOM: ("It made room for a request with priority{at}.", "Made room for a request with priority"),
    ExitReason.NOT_ALLOWED: ("The request ended{at} because {user} may no longer make it.", "No longer allowed"),
    ExitReason.NOBODY_CAME: ("We released its GPU{at} because nobody opened it in time.", "Released: nobody opened it"),
}
"""The end of each reason in a sentence and in a few words, but for those that people decide."""


def _sentences(lease: Lease, now: float, reader: str) -> tuple[str, str]:
    """Return the sentence about an end with its time, and a short form."""
    at = ""
    if lease.ended_at is not None:
        at = f" at {exact_time(lease.ended_at, now, lease.ended_at - (lease.running_at or lease.asked_at))}"
    by = reader if lease.ended_by == lease.user else lease.ended_by
    if lease.reason in {ExitReason.STOPPED, ExitReason.CANCELLED, None}:
        sentence, short = _by_people(lease)
    else:
        sentence, short = _WORDS[lease.reason]
    did_nothing = "nothing ran in it"
    if lease.slots:
        did_nothing = "its GPU was idle" if len(lease.slots) == 1 else f"its {len(lease.slots)} GPUs were idle"
    words = {
        "at": at,
        "by": by,
        "user": "you" if reader == "You" else reader,
        "idle": f"{did_nothing} for {show_duration(round(lease.streak.idle_seconds))}",
        "way": way_words(lease),
        "failed": "It failed to start" if lease.running_at is None else "It failed",
    }
    return sentence.format(**words), short.format(**words)


def way_words(lease: Lease) -> str:
    """Return how a workspace that its user restarts goes on."""
    after = lease.goes_on.request if lease.goes_on is not None else None
    if after is not None and bool(after.gpu) is bool(lease.request.gpu):
        return "in another size"
    return "without a GPU" if lease.request.gpu else "with a GPU"


def _by_people(lease: Lease) -> tuple[str, str]:
    if lease.reason is ExitReason.CANCELLED:
        if lease.ended_by in {HUB, GPUSPAWNER}:
            return "Its start was cancelled{at}.", "Start cancelled"
        what = "withdrew the request" if lease.message.startswith("The request") else "cancelled its start"
        return f"{{by}} {what}{{at}}.", f"{{by}} {what}"
    stopper = HUB if lease.message == UNKNOWN else lease.ended_by
    return _NOT_PEOPLE.get(stopper, ("{by} stopped it{at}.", "{by} stopped it"))


_KEPT = " Nobody kept it"
_BY = "It was stopped by"
_NOT_PEOPLE = {
    HUB: ("Somebody stopped it from the hub{at}.", "Stopped from the hub"),
    "its own server": (
        "It was shut down from inside{at}, for example from JupyterLab's menu.",
        "Shut down from inside",
    ),
    "hub shutdown": ("It stopped{at} because the hub was shut down.", "Stopped with the hub"),
}
"""The words for those that stop a workspace and are not people."""


def _details(lease: Lease) -> str:
    """Return the details of an end that its sentence does not contain."""
    message = lease.message
    if lease.reason is ExitReason.IDLE and _KEPT in message:
        peak = lease.streak.peak_percent
        busy = "" if peak is None or not lease.slots else f"Its highest use in that time was {peak:g} %."
        _, kept, rest = message.partition(_KEPT)
        return f"{busy}{kept}{rest}".strip()
    if lease.reason in {ExitReason.STOPPED, ExitReason.CANCELLED} and message.startswith(
        (_BY, "The request was withdrawn")
    ):
        _, said, why = message.partition(": ")
        return f"The reason: “{why.rstrip('.')}”." if said else ""
    if lease.reason is ExitReason.CHANGED or (lease.reason is ExitReason.STOPPED and lease.ended_by in _NOT_PEOPLE):
        return message.partition(". ")[2]  # the sentence of the end says the rest
    return message
