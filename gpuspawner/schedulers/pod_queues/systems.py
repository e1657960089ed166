"""The schedulers in whose queues pods wait: how a pod names its queue, and what they say of it. Pure.

Of Volcano by its 1.15.1; of KAI by its source of March 2026 (72de64fc, after v0.13.0-rc1): its podgroup_types.go.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpuspawner.catalog import PodQueues
from gpuspawner.core.leases.request import Request
from gpuspawner.core.text_fields import plain_text

Json = Mapping[str, Any]

NO_ROOM = "No node has enough of it free now."
NOT_TAKEN = "Neither its queue nor the cluster has enough to give now."
NO_QUEUE = "There is no such queue, or it is closed: tell your administrator."
SAYS: Sequence[tuple[str, str]] = (
    ("queue resource quota insufficient", "Its queue has no more to give now."),
    ("overlimit", "It would take its queue beyond its limit."),
    ("nonpreemptibleoverquota", "It would take its queue beyond its quota, and may not be preempted."),
    ("queuedoesnotexist", NO_QUEUE),
    ("once resource is released", "Others are making room for it."),
    ("insufficient", NO_ROOM),
    ("no nodes with enough resources", NO_ROOM),
    ("node(s) didn't match", "No node that is free now is of the kind that was asked for."),
    ("notenqueued", NOT_TAKEN),
    ("all nodes are unavailable", NO_ROOM),
    ("pod group is not ready", "Its turn has not come yet."),
)
"""What their reasons and messages say, in lower case, and the sentence for it: the first that is found."""
LONGEST = 300


@dataclass(frozen=True)
class System:
    """One of them.

    ``names_queue`` is the label or annotation by which a pod names its queue, ``default_queue`` the one of pods that
    name none. ``told`` returns what a PodGroup's status says of why it waits, as (reason, message) pairs.
    """

    title: str
    scheduler_name: str
    group_version: str
    kind_of_name: str
    names_queue: str
    default_queue: str
    told: Callable[[Json], Iterable[tuple[str, str]]]

    def where(self, queue: str) -> str:
        """Return in which queue a pod waits, in words."""
        return f"in {self.title}'s queue {queue or self.default_queue}"


def _told_by_volcano(status: Json) -> Iterable[tuple[str, str]]:
    for one in status.get("conditions") or ():
        if one.get("type") == "Unschedulable" and one.get("status") == "True":
            message = plain_text(str(one.get("message") or ""))
            # Why a queue does not take it stands in an event alone.
            held_off = status.get("phase") == "Pending" and "Origin reason" not in message
            yield "NotEnqueued" if held_off else "", message


def _told_by_kai(status: Json) -> Iterable[tuple[str, str]]:
    for one in status.get("schedulingConditions") or ():
        if one.get("type") == "UnschedulableOnNodePool" and one.get("status") == "True":
            for reason in one.get("reasons") or ({"reason": one.get("reason"), "message": one.get("message")},):
                yield str(reason.get("reason") or ""), plain_text(str(reason.get("message") or ""))


SYSTEMS: Mapping[str, System] = {
    "volcano": System(
        title="Volcano",
        scheduler_name="volcano",
        group_version="scheduling.volcano.sh/v1beta1",
        kind_of_name="annotations",
        names_queue="scheduling.volcano.sh/queue-name",
        default_queue="default",
        told=_told_by_volcano,
    ),
    "kai": System(
        title="KAI",
        scheduler_name="kai-scheduler",
        group_version="scheduling.run.ai/v2alpha2",
        kind_of_name="labels",
        names_queue="kai.scheduler/queue",
        default_queue="default-queue",
        told=_told_by_kai,
    ),
}


def queue_of(request: Request, queues: PodQueues) -> str:
    """Return the queue of a request: its team's, else its user's, else the one of all, "" for the default one."""
    return queues.teams.get(request.team) or queues.users.get(request.user) or queues.queue


def beside(request: Request, queues: PodQueues) -> dict[str, Any]:
    """Return what its pod gets so that it waits in its queue, with the priority of its team."""
    system, queue = SYSTEMS[queues.system], queue_of(request, queues)
    found: dict[str, Any] = {"schedulerName": system.scheduler_name}
    if queue:
        found[system.kind_of_name] = {system.names_queue: queue}
    if priority := queues.priority_classes.get(request.team) or queues.priority_class:
        found["priorityClassName"] = priority
    return found


def why_it_waits(system: System, status: Json, of_pod: str) -> str:
    """Return why a pod waits, "" where nobody says: by its PodGroup's ``status``, else by what is said ``of_pod``."""
    told = [*system.told(status), *([("", of_pod)] if of_pod else [])]
    return next((sentence for one in told if (sentence := sentence_of(*one))), "")


def sentence_of(reason: str, message: str) -> str:
    """Return a reason and its message as a sentence: of one that is not known, what it says itself."""
    low = f"{reason} {message}".lower()
    known = next((sentence for part, sentence in SAYS if part in low), "")
    if known:
        return known
    own = " ".join((message or reason).split())
    own = own if len(own) <= LONGEST else f"{own[: LONGEST - 1]}…"
    return own if not own or own.endswith((".", "…")) else f"{own}."
