"""What Kueue's answers mean here: places and their sentences, the pod's patch, the GPUs of a flavor's nodes. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

from gpuspawner.backends.kubernetes.reading.models import HOSTNAME
from gpuspawner.core.gpus.fleet import GpuKind, Slot
from gpuspawner.core.gpus.placement import place
from gpuspawner.core.queue.decisions import Held
from gpuspawner.core.queue.estimates import Place
from gpuspawner.core.queue.snapshot import Claim, Snapshot
from gpuspawner.core.text_fields import plain_text
from gpuspawner.schedulers.kueue.models import Flavor, Json, Pending, Queue, Workload

TITLE = "Kueue"
WAITS_FOR_QUOTA = "WaitingForQuota"
SENTENCES: Mapping[str, str] = {
    "NoMatchingFlavor": "No kind of node in this queue fits what was asked for.",
    "ExceedsMaxQuota": "It asks for more than this queue may ever have.",
    WAITS_FOR_QUOTA: "It waits for quota that others use.",
    "WaitingForPreemptedWorkloads": "Others are making room for it.",
    "TopologyPlacementFailed": "No node has enough of it free at one place now.",
    "Misconfigured": "The queue can't take it as it is set up: tell your administrator.",
    "Suspended": "The queue is on hold: nothing new starts from it until its administrator opens it again.",
    "PendingEvaluation": "Kueue has not looked at it yet.",
    "WaitingForPodsReady": "Kueue waits until what it admitted before is ready.",
    "OnHold": "It is on hold.",
    "Deactivated": "It is not offered to the queue now: it backs off, or waits until its hub answers.",
    "AdmissionGated": "Somebody holds it back by an annotation.",
}
"""Of each reason of `QuotaReserved=False`.

Without the feature gate UnadmittedWorkloadsObservability, Kueue says no more than Pending and Inadmissible, and what it
means stands in the message."""
SAID_IN: Sequence[tuple[str, str]] = (
    ("is stopped", "Suspended"),
    ("pending the preemption", "WaitingForPreemptedWorkloads"),
    ("maximum capacity", "ExceedsMaxQuota"),
    ("insufficient unused quota", WAITS_FOR_QUOTA),
    ("topology", "TopologyPlacementFailed"),
    ("didn't match", "NoMatchingFlavor"),
    ("untolerated taint", "NoMatchingFlavor"),
    ("inactive", "Misconfigured"),
    ("doesn't exist", "Misconfigured"),
)
"""What messages say, in lower case, and the reason that it is: the first that is found."""
RULES = frozenset({"NoMatchingFlavor", "ExceedsMaxQuota", "Misconfigured", "Suspended", "OnHold", "AdmissionGated"})
"""Reasons that others' ends don't change: waiting for them is no waiting for GPUs."""
EVICTED: Mapping[str, str] = {
    "Preempted": "Kueue gives its GPUs to others who have a right to them.",
    "ClusterQueueStopped": "The administrator empties its queue.",
    "LocalQueueStopped": "The administrator empties its queue.",
    "AdmissionCheck": "A check of its queue failed.",
    "PodsReadyTimeout": "It was not ready in the time that Kueue allows.",
    "NodeFailures": "Its node failed.",
    "Deactivated": "Somebody took it out of the queue.",
}
RECLAIMED = "InCohortReclamation"
PLACED = "kueue.x-k8s.io/podset-unconstrained-topology"
"""An annotation of pods whose Workload has a place in the topology: Kueue takes all others for foreign use of the node,
and would count these twice."""


def code_of(workload: Workload, queue: Queue) -> str:
    """Return why it is not admitted: a key of SENTENCES."""
    if not workload.active:
        return "Deactivated"
    if queue.stopped:
        return "Suspended"
    if not queue.cluster_queue:
        return "Misconfigured"
    told = workload.conditions.get("QuotaReserved", {})
    if told.get("reason") in SENTENCES:
        return str(told["reason"])
    message = str(told.get("message") or "").lower()
    return next((code for part, code in SAID_IN if part in message), "PendingEvaluation")


def held_by(workload: Workload, queue: Queue) -> Held | None:
    """Return what holds a request back that is no want of quota; None where its turn has not come."""
    code = code_of(workload, queue)
    return Held(f"queue {queue.name}", SENTENCES[code]) if code in RULES else None


def place_of(workload: Workload | None, queue: Queue, stands: Pending | None, told: str) -> Place:
    """Return where a claim stands; ``told`` is why that is not known."""
    where = f"in the cluster's queue {queue.cluster_queue or queue.name}"
    if workload is None:
        return Place(None, None, None, None, says=f"{TITLE} has not taken it yet. {told}".rstrip())
    if workload.evicted:
        return Place(None, None, None, None, says=f"{TITLE}: what it had goes back; then it waits {where}.")
    if workload.admitted:
        says = f"{TITLE} admitted it {where}. It waits until GPUs are free on the nodes that it was given."
        return Place(1, None, None, None, says=says)
    if workload.reserved:
        return Place(1, None, None, None, says=f"{TITLE} set quota aside for it {where}: {_checks(workload)}")
    number = None if stands is None else stands.place
    at = f"it waits {where}" if number is None else f"place {number} {where}"
    message = plain_text(str(workload.conditions.get("QuotaReserved", {}).get("message") or "")).rstrip(". ")
    code = code_of(workload, queue)
    more = f" ({message}.)" if message and code not in {"Deactivated", "Suspended"} else ""
    beside = f" {told}" if told and number is None else ""
    return Place(number, None, None, None, says=f"{TITLE} says: {at}. {SENTENCES[code]}{more}{beside}")


def _checks(workload: Workload) -> str:
    """Return which checks of its queue it waits for, in a sentence."""
    waits = [one["name"] for one in workload.status.get("admissionChecks") or () if one.get("state") != "Ready"]
    return f"it waits for {', '.join(waits)}." if waits else "it waits for its place in the topology."


def why_evicted(workload: Workload) -> str:
    """Return why Kueue wants it back, in sentences for its user."""
    told, preempted = workload.conditions["Evicted"], workload.conditions.get("Preempted", {})
    if told.get("reason") == "Preempted" and preempted.get("reason") == RECLAIMED:
        return f"{TITLE}: its GPUs were borrowed, and those who lent them need them back."
    return f"{TITLE}: {EVICTED.get(str(told.get('reason')), plain_text(str(told.get('message') or 'it was evicted.')))}"


def given(
    workload: Workload | None,
    claim: Claim,
    kinds: Sequence[GpuKind],
    flavor: Flavor | None,
    seen: Snapshot,
    used: Mapping[str, Fraction],
) -> tuple[GpuKind, tuple[Slot, ...]] | None:
    """Return the kind and the GPUs of what it was admitted with; None while none is free on those nodes."""
    fleet, nodes = seen.gpus_as_held, None if flavor is None else flavor.nodes
    host = None if workload is None else workload.domain().get(HOSTNAME)
    within = replace(
        fleet,
        gpus=tuple(
            gpu
            for gpu in fleet.gpus
            if (nodes is None or gpu.node_there in nodes or gpu.is_coming) and host in {None, gpu.node_there}
        ),
    )
    for kind in kinds:
        slots = place(kind, claim.request.count, within, used, claim.tried_nodes)
        if slots is not None:
            return kind, slots
    return None


def beside(workload: Workload, flavors: Iterable[Flavor]) -> Json:
    """Return what its pod gets beside its GPUs: of its flavors, its checks and its place in the topology."""
    selector: dict[str, str] = {}
    tolerations: list[Mapping[str, Any]] = []
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    for flavor in flavors:
        selector |= flavor.labels
        tolerations += flavor.tolerations
    for update in workload.updates():
        selector |= update.get("nodeSelector") or {}
        tolerations += update.get("tolerations") or ()
        labels |= update.get("labels") or {}
        annotations |= update.get("annotations") or {}
    if place := workload.domain():
        selector |= place
        annotations[PLACED] = "true"
    found = {"nodeSelector": selector, "tolerations": tolerations, "labels": labels, "annotations": annotations}
    return {name: value for name, value in found.items() if value}
