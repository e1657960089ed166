"""Which write comes next so that Kueue's side is equal to a lease: at most one a look, each safe to repeat. Pure.

Nobody but us frees the quota of a Workload that no controller of Kueue owns: it is cleared once nothing of it runs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from gpuspawner.core.leases.lease import UP, WAITING, Lease, Phase
from gpuspawner.schedulers.kueue.models import Json, Workload
from gpuspawner.schedulers.kueue.workloads import ASKS, FAILED, HELD, REVISION, Wanted, failures

BACK_AT_ONCE = frozenset({"Preempted", "NodeFailures"})
"""Evictions after which Kueue's own controllers have a job wait again at once; after others Kueue itself says when."""
MOST_MESSAGE = 1000


class Verb(Enum):
    """What is done with an object."""

    CREATE = "create"
    REPLACE = "replace"
    STATUS = "replace the status"
    DELETE = "delete"


@dataclass(frozen=True)
class Write:
    """One write: the whole object, which names the version that it was made of."""

    verb: Verb
    body: Json


@dataclass(frozen=True)
class Moment:
    """When it is looked: ``now`` in seconds of the service's clock, ``wall`` as Kubernetes writes it."""

    now: float
    wall: str
    hub_answers: bool = True


def next_write(lease: Lease, workload: Workload | None, wanted: Wanted, at: Moment) -> Write | None:
    """Return what is written next for a lease, None where nothing is to be."""
    if workload is None:
        return Write(Verb.CREATE, wanted.body(active=not _rests(lease, at)))
    if workload.going:
        return None
    if workload.holds("Finished"):  # somebody finished it under us: it can never be admitted again
        return Write(Verb.DELETE, workload.body)
    if lease.phase in WAITING:
        return _waiting(lease, workload, wanted, at)
    return _holding(lease, workload, wanted, at)


def finishing(workload: Workload, at: Moment) -> Write | None:
    """Return what ends a Workload that no lease has any more: it is finished, for Kueue's books, and then deleted."""
    if workload.going:
        return None
    if workload.holds("Finished"):
        return Write(Verb.DELETE, workload.body)
    done = _with(workload.status, workload, "Finished", "True", "Succeeded", "The workspace has ended.", at)
    return Write(Verb.STATUS, {**workload.body, "status": done})


def _rests(lease: Lease, at: Moment) -> bool:
    """Whether nothing may be given now: it backs off, or its hub is away and could start nothing."""
    return lease.not_before > at.now or (lease.phase is Phase.PARKED and not at.hub_answers)


def _waiting(lease: Lease, workload: Workload, wanted: Wanted, at: Moment) -> Write | None:
    """Nothing of a lease that waits runs: what was taken of it before goes back."""
    same = workload.annotations.get(ASKS) == wanted.digest
    if workload.evicted:
        return Write(Verb.STATUS, {**workload.body, "status": _cleared(workload, at)})
    if workload.reserved:
        if same and HELD not in workload.annotations and not _rests(lease, at):
            if workload.annotations.get(REVISION) == wanted.revision:
                return None
            return _replaced(workload, labels=wanted.labels, annotations=wanted.annotations(workload.annotations))
        annotations = _counted(lease, workload, wanted.resource)
        return _replaced(workload, annotations=annotations, active=False) if workload.active else None
    active = not _rests(lease, at)
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


def _holding(lease: Lease, workload: Workload, wanted: Wanted, at: Moment) -> Write | None:
    """Note that a lease took what it was given, and tell Kueue whether its pod is ready."""
    held = str(lease.attempt)
    if workload.annotations.get(HELD) != held:
        annotations = {**workload.annotations, HELD: held, REVISION: wanted.revision}
        return _replaced(workload, labels=wanted.labels, annotations=annotations)
    if not workload.active and not workload.reserved:  # made anew while it rested
        return _replaced(workload, active=True)
    ready = lease.phase in UP
    if not workload.reserved or lease.phase is Phase.STOPPING or workload.holds("PodsReady") is ready:
        return None
    reason, words = ("Started", "The workspace runs.") if ready else ("WaitForStart", "The workspace starts.")
    return Write(
        Verb.STATUS,
        {
            **workload.body,
            "status": _with(workload.status, workload, "PodsReady", _value(is_so=ready), reason, words, at),
        },
    )


def _counted(lease: Lease, workload: Workload, resource: str) -> dict[str, str]:
    """Return the annotations with the flavor counted with which the pod of an attempt that is over found no place."""
    annotations, flavor = dict(workload.annotations), workload.flavor_of(resource)
    held = annotations.get(HELD, "")
    if flavor and held in map(str, range(1, lease.attempt)):
        counted = failures(annotations)
        counted[flavor] = counted.get(flavor, 0) + 1
        annotations[FAILED] = json.dumps(counted, sort_keys=True)
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


def _cleared(workload: Workload, at: Moment) -> Json:
    """Return the status of an evicted Workload whose quota goes back, as Kueue's own controllers write it of jobs."""
    evicted = workload.conditions["Evicted"]
    reason, message = str(evicted["reason"]), str(evicted.get("message") or "")
    status = {k: v for k, v in workload.status.items() if k != "admission"}
    status = _with(status, workload, "QuotaReserved", "False", "Pending", message, at)
    status = _with(status, workload, "Admitted", "False", "NoReservation", "The workload has no reservation", at)
    status = _with(status, workload, "PodsReady", "False", "WaitForStart", "The workspace waits.", at)
    return _with(status, workload, "Requeued", _value(is_so=reason in BACK_AT_ONCE), reason, message, at)


def _value(*, is_so: bool) -> str:
    return "True" if is_so else "False"


def _with(status: Json, workload: Workload, kind: str, value: str, reason: str, message: str, at: Moment) -> Json:
    """Return a status with a condition; the moment changes with its being so alone."""
    conditions = list(status.get("conditions") or ())
    before = next((one for one in conditions if one["type"] == kind), None)
    if before is None and value == "False" and kind in {"Admitted", "PodsReady"}:
        return status
    since = before["lastTransitionTime"] if before is not None and before["status"] == value else at.wall
    one = {
        "type": kind,
        "status": value,
        "reason": reason,
        "message": message[:MOST_MESSAGE],
        "lastTransitionTime": since,
        "observedGeneration": workload.body["metadata"].get("generation", 1),
    }
    return {**status, "conditions": [*(x for x in conditions if x["type"] != kind), one]}
