"""The writes that keep Kueue's Workloads equal to the leases. Pure.

``next_write`` returns at most one write for each lease and sync, and each write is safe to repeat. No controller of
Kueue owns our Workloads, so only we release the quota of an evicted one, once nothing of it runs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpuspawner.core.leases.lease import UP, WAITING, Lease, Phase
from gpuspawner.schedulers.kueue.models import Json, Verb, Workload, Write
from gpuspawner.schedulers.kueue.workloads import (
    FAILURES,
    HELD,
    POD_SET_DIGEST,
    REVISION,
    WorkloadRequest,
    failures,
)

REQUEUE_AT_ONCE = frozenset({"Preempted", "NodeFailures"})
"""Evictions after which a job waits again at once, as Kueue's own controllers do. After others, Kueue decides when."""
MAX_MESSAGE_LENGTH = 1000


@dataclass(frozen=True)
class SyncTime:
    """Time of a sync: ``now`` in seconds of the service's clock, ``wall`` in the format of Kubernetes."""

    now: float
    wall: str
    hub_answers: bool = True


def next_write(lease: Lease, workload: Workload | None, wanted: WorkloadRequest, at: SyncTime) -> Write | None:
    """Return the next write for a lease, None if nothing must be written."""
    if workload is None:
        return Write(Verb.CREATE, wanted.body(active=not _is_suspended(lease, at)))
    if workload.going:
        return None
    if workload.holds("Finished"):  # Another client finished it. It can never be admitted again.
        return Write(Verb.DELETE, workload.body)
    if lease.phase in WAITING:
        return _write_waiting(lease, workload, wanted, at)
    return _write_holding(lease, workload, wanted, at)


def finish_write(workload: Workload, at: SyncTime) -> Write | None:
    """Return the write that finishes a Workload without a lease, for Kueue's accounting, and then deletes it."""
    if workload.going:
        return None
    if workload.holds("Finished"):
        return Write(Verb.DELETE, workload.body)
    done = _with_condition(workload.status, workload, "Finished", "True", "Succeeded", "The workspace has ended.", at)
    return Write(Verb.STATUS, {**workload.body, "status": done})


def _is_suspended(lease: Lease, at: SyncTime) -> bool:
    """Return whether nothing may be granted now: the lease backs off, or its hub does not answer."""
    return lease.not_before > at.now or (lease.phase is Phase.PARKED and not at.hub_answers)


def _write_waiting(lease: Lease, workload: Workload, wanted: WorkloadRequest, at: SyncTime) -> Write | None:
    """Return the next write for a waiting lease. Quota that an earlier attempt used is released."""
    same = workload.annotations.get(POD_SET_DIGEST) == wanted.digest
    if workload.evicted:
        return Write(Verb.STATUS, {**workload.body, "status": _cleared(workload, at)})
    if workload.reserved:
        if same and HELD not in workload.annotations and not _is_suspended(lease, at):
            if workload.annotations.get(REVISION) == wanted.revision:
                return None
            return _replaced(workload, labels=wanted.labels, annotations=wanted.annotations(workload.annotations))
        annotations = _count_failure(lease, workload, wanted.resource)
        return _replaced(workload, annotations=annotations, active=False) if workload.active else None
    active = not _is_suspended(lease, at)
    annotations = {k: v for k, v in wanted.annotations(workload.annotations).items() if k != HELD}
    spec = wanted.spec(active=active)
    unchanged = (
        same
        and workload.active is active
        and HELD not in workload.annotations
        and workload.annotations.get(REVISION) == wanted.revision
        and workload.spec.get("priority") == wanted.priority
        and wanted.labels.items() <= (workload.body["metadata"].get("labels") or {}).items()
    )
    return None if unchanged else _replaced(workload, labels=wanted.labels, annotations=annotations, spec=spec)


def _write_holding(lease: Lease, workload: Workload, wanted: WorkloadRequest, at: SyncTime) -> Write | None:
    """Record the attempt that took the admission, and report whether its pod is ready."""
    held = str(lease.attempt)
    if workload.annotations.get(HELD) != held:
        annotations = {**workload.annotations, HELD: held, REVISION: wanted.revision}
        return _replaced(workload, labels=wanted.labels, annotations=annotations)
    if not workload.active and not workload.reserved:  # created again while suspended
        return _replaced(workload, active=True)
    ready = lease.phase in UP
    if not workload.reserved or lease.phase is Phase.STOPPING or workload.holds("PodsReady") is ready:
        return None
    reason, message = ("Started", "The workspace runs.") if ready else ("WaitForStart", "The workspace starts.")
    status = _with_condition(workload.status, workload, "PodsReady", _value(is_so=ready), reason, message, at)
    return Write(Verb.STATUS, {**workload.body, "status": status})


def _count_failure(lease: Lease, workload: Workload, resource: str) -> dict[str, str]:
    """Return the annotations, with one more failure of the flavor if an earlier attempt's pod found no node."""
    annotations, flavor = dict(workload.annotations), workload.flavor_of(resource)
    held = annotations.get(HELD, "")
    if flavor and held in map(str, range(1, lease.attempt)):
        counted = failures(annotations)
        counted[flavor] = counted.get(flavor, 0) + 1
        annotations[FAILURES] = json.dumps(counted, sort_keys=True)
    return annotations


def _replaced(
    workload: Workload,
    *,
    active: bool | None = None,
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    spec: Mapping[str, Any] | None = None,
) -> Write:
    body, metadata = workload.body, dict(workload.body["metadata"])
    if labels is not None:
        metadata["labels"] = {**(metadata.get("labels") or {}), **labels}
    if annotations is not None:
        metadata["annotations"] = dict(annotations)
    written = dict(workload.spec if spec is None else spec)
    if active is not None:
        written["active"] = active
    return Write(Verb.REPLACE, {**body, "metadata": metadata, "spec": written})


def _cleared(workload: Workload, at: SyncTime) -> Json:
    """Return the status that releases an evicted Workload's quota, as Kueue's own controllers write it for jobs."""
    evicted = workload.conditions["Evicted"]
    reason, message = str(evicted["reason"]), str(evicted.get("message") or "")
    status = {k: v for k, v in workload.status.items() if k != "admission"}
    status = _with_condition(status, workload, "QuotaReserved", "False", "Pending", message, at)
    no_quota = "The workload has no reservation"
    status = _with_condition(status, workload, "Admitted", "False", "NoReservation", no_quota, at)
    status = _with_condition(status, workload, "PodsReady", "False", "WaitForStart", "The workspace waits.", at)
    return _with_condition(status, workload, "Requeued", _value(is_so=reason in REQUEUE_AT_ONCE), reason, message, at)


def _value(*, is_so: bool) -> str:
    return "True" if is_so else "False"


def _with_condition(
    status: Json, workload: Workload, kind: str, value: str, reason: str, message: str, at: SyncTime
) -> Json:
    """Return a status with a condition. Its time changes only with its value."""
    conditions = list(status.get("conditions") or ())
    before = next((one for one in conditions if one["type"] == kind), None)
    if before is None and value == "False" and kind in {"Admitted", "PodsReady"}:
        return status
    since = before["lastTransitionTime"] if before is not None and before["status"] == value else at.wall
    one = {
        "type": kind,
        "status": value,
        "reason": reason,
        "message": message[:MAX_MESSAGE_LENGTH],
        "lastTransitionTime": since,
        "observedGeneration": workload.body["metadata"].get("generation", 1),
    }
    return {**status, "conditions": [*(x for x in conditions if x["type"] != kind), one]}
