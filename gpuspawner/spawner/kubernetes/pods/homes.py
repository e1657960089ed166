"""Which workspace keeps another from starting: a volume that one pod, or one node, mounts at a time.

Pure: from pods and claims, as plain JSON of the Kubernetes API.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpuspawner.backends.kubernetes.nodes import seconds_of
from gpuspawner.backends.kubernetes.pods import LEASE_LABEL

Json = Mapping[str, Any]

ONE_POD = "ReadWriteOncePod"
BLOCKED_SECONDS = 120.0
"""So long a start waits for its volume, and keeps the GPU that it was granted: for its user to stop the other one.
Arbitrary: time to read and to decide, and a grace to end in."""
_USER, _SERVER = "hub.jupyter.org/username", "hub.jupyter.org/servername"


@dataclass(frozen=True)
class Holder:
    """The pod that mounts a claim: whose workspace it is, by name, and since when, in seconds since the epoch.

    ``lease`` is its lease's id; ``node`` where it is. "" of each that is not known.
    """

    claim: str
    user: str
    server: str
    lease: str
    since: float
    node: str


def claims_of(pod: Json) -> frozenset[str]:
    """Return the names of the claims that a pod mounts."""
    volumes = (volume.get("persistentVolumeClaim") for volume in pod["spec"].get("volumes") or ())
    return frozenset(claim["claimName"] for claim in volumes if claim)


def for_one_pod(claim: Json) -> bool:
    """Whether a claim lets one pod alone mount it: the scheduler then lets a second one wait without end.

    A claim of ReadWriteOnce may be mounted by many pods of a node, and by some storage on many nodes: what mounts such
    a one is known to be blocked where its node says so (:func:`is_attached_elsewhere`).
    """
    return ONE_POD in (claim.get("spec", {}).get("accessModes") or ())


def is_attached_elsewhere(events: Sequence[Json]) -> bool:
    """Whether a pod's node cannot have its volume, as it is attached to another; ``events`` are the pod's."""
    reasons = {"FailedMount", "FailedAttachVolume", "Pulling", "Pulled"}
    last = next((event for event in reversed(events) if event.get("reason") in reasons), {})
    return "Multi-Attach" in str(last.get("message", ""))


def holder_of(pod: Json, claims: Collection[str], pods: Iterable[Json]) -> Holder | None:
    """Return what mounts one of these ``claims`` of a pod beside it, the oldest first; None where nothing does."""
    own = pod["metadata"]
    found = []
    for one in pods:
        meta, shared = one["metadata"], sorted(claims_of(one) & claims_of(pod) & set(claims))
        is_itself = (meta["namespace"], meta["name"]) == (own.get("namespace", meta["namespace"]), own["name"])
        is_over = one.get("status", {}).get("phase") in {"Succeeded", "Failed"}
        if not shared or is_itself or is_over:
            continue
        told = meta.get("annotations") or {}
        found.append(
            Holder(
                shared[0],
                told.get(_USER, ""),
                told.get(_SERVER, ""),
                (meta.get("labels") or {}).get(LEASE_LABEL, ""),
                seconds_of(meta.get("creationTimestamp")),
                one["spec"].get("nodeName") or "",
            )
        )
    return min(found, key=lambda holder: (holder.since, holder.lease), default=None)


def holder_words(holder: Holder, user: str, since: str) -> str:
    """Return in a sentence why ``user``'s start waits; ``since`` is when the other one was made, as people read it."""
    whose = "another pod"
    if holder.user == user:
        whose = f"your workspace {holder.server}" if holder.server else "your default workspace"
    where = f", on {holder.node}" if holder.node else ""
    return f"Your home is mounted by one workspace at a time, and {whose} has it since {since}{where}."
