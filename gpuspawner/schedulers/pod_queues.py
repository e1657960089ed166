"""Volcano and KAI own the queue: a workspace's pod is made at once and waits there for a limited time.

The formats are those of Volcano 1.15.1, and of KAI's source of March 2026 (72de64fc, after v0.13.0-rc1).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import count
from typing import Any

from gpuspawner.backends.kubernetes.api import Api, ApiRefused
from gpuspawner.backends.kubernetes.backend import KubernetesBackend
from gpuspawner.backends.kubernetes.settings import ClusterSettings
from gpuspawner.backends.kubernetes.watches import Watch
from gpuspawner.catalog import PodQueues
from gpuspawner.core.gpus.fleet import Fleet, GpuKind, Group, Slot, coming_node_group
from gpuspawner.core.gpus.placement import accepted_kinds, place
from gpuspawner.core.gpus.pools import counting_resource
from gpuspawner.core.leases.lease import Lease, Phase
from gpuspawner.core.leases.reports import sanitize_text
from gpuspawner.core.leases.request import Request
from gpuspawner.core.queue.estimates import QueuePosition
from gpuspawner.core.queue.snapshot import Claim, Snapshot
from gpuspawner.core.units import show_duration
from gpuspawner.schedulers.base import (
    Answer,
    Capabilities,
    Grant,
    Preview,
    Scheduler,
    UnusableScheduler,
    join_answers,
    stop_task,
    unknown_position,
    without_gpu_claims,
)
from gpuspawner.schedulers.delegation import DelegatingScheduler
from gpuspawner.schedulers.own_queue import use_slots

Json = Mapping[str, Any]

NO_ROOM = "No node has enough free resources now."
NOT_TAKEN = "Neither its queue nor the cluster has enough free now."
NO_QUEUE = "The queue does not exist or is closed. Tell your administrator."
SAYS: Sequence[tuple[str, str]] = (
    ("queue resource quota insufficient", "Its queue has reached its quota."),
    ("overlimit", "It would exceed the limit of its queue."),
    ("nonpreemptibleoverquota", "It would exceed the quota of its queue, and it may not be preempted."),
    ("queuedoesnotexist", NO_QUEUE),
    ("once resource is released", "Other workloads are stopping to free resources for it."),
    ("insufficient", NO_ROOM),
    ("no nodes with enough resources", NO_ROOM),
    ("node(s) didn't match", "No free node has the requested GPU kind."),
    ("notenqueued", NOT_TAKEN),
    ("all nodes are unavailable", NO_ROOM),
    ("pod group is not ready", "Its pod group is not ready yet."),
)
"""Parts of the systems' reasons and messages, in lower case, with our sentence. The first match counts."""
MAX_MESSAGE_LENGTH = 300


@dataclass(frozen=True)
class PodQueueSystem:
    """How pods of a system name their queue, and how it reports why they wait.

    Args:
        title: the display name.
        scheduler_name: the name in a pod's specification.
        group_version: API group and version of its PodGroups.
        metadata_field: "labels" or "annotations": where a pod names its queue.
        queue_key: the label or annotation that names the queue.
        default_queue: the queue of pods that name none.
        read_reasons: returns (reason, message) pairs of a PodGroup's status.
    """

    title: str
    scheduler_name: str
    group_version: str
    metadata_field: str
    queue_key: str
    default_queue: str
    read_reasons: Callable[[Json], Iterable[tuple[str, str]]]

    def where(self, queue: str) -> str:
        """Return the queue in which a pod waits, in words."""
        return f"in {self.title}'s queue {queue or self.default_queue}"


def _read_volcano_reasons(status: Json) -> Iterable[tuple[str, str]]:
    for one in status.get("conditions") or ():
        if one.get("type") == "Unschedulable" and one.get("status") == "True":
            message = sanitize_text(str(one.get("message") or ""))
            # Only an event says why a queue does not admit the group.
            held_off = status.get("phase") == "Pending" and "Origin reason" not in message
            yield "NotEnqueued" if held_off else "", message


def _read_kai_reasons(status: Json) -> Iterable[tuple[str, str]]:
    for one in status.get("schedulingConditions") or ():
        if one.get("type") == "UnschedulableOnNodePool" and one.get("status") == "True":
            for reason in one.get("reasons") or ({"reason": one.get("reason"), "message": one.get("message")},):
                yield str(reason.get("reason") or ""), sanitize_text(str(reason.get("message") or ""))


SYSTEMS: Mapping[str, PodQueueSystem] = {
    "volcano": PodQueueSystem(
        title="Volcano",
        scheduler_name="volcano",
        group_version="scheduling.volcano.sh/v1beta1",
        metadata_field="annotations",
        queue_key="scheduling.volcano.sh/queue-name",
        default_queue="default",
        read_reasons=_read_volcano_reasons,
    ),
    "kai": PodQueueSystem(
        title="KAI",
        scheduler_name="kai-scheduler",
        group_version="scheduling.run.ai/v2alpha2",
        metadata_field="labels",
        queue_key="kai.scheduler/queue",
        default_queue="default-queue",
        read_reasons=_read_kai_reasons,
    ),
}


def queue_of(request: Request, queues: PodQueues) -> str:
    """Return the queue of a request's team or user, else the common queue, "" for the system's default."""
    return queues.teams.get(request.team) or queues.users.get(request.user) or queues.queue


def pod_fields(request: Request, queues: PodQueues) -> dict[str, Any]:
    """Return the fields that make a pod wait in its queue, with the priority class of its team."""
    system, queue = SYSTEMS[queues.system], queue_of(request, queues)
    found: dict[str, Any] = {"schedulerName": system.scheduler_name}
    if queue:
        found[system.metadata_field] = {system.queue_key: queue}
    if priority := queues.priority_classes.get(request.team) or queues.priority_class:
        found["priorityClassName"] = priority
    return found


def explain_wait(system: PodQueueSystem, status: Json, pod_message: str) -> str:
    """Return why a pod waits by its PodGroup's ``status``, else by the pod's own message. "" if unknown."""
    reasons = [*system.read_reasons(status), *([("", pod_message)] if pod_message else [])]
    return next((sentence for one in reasons if (sentence := explain_reason(*one))), "")


def explain_reason(reason: str, message: str) -> str:
    """Return our sentence for a known reason or message, else the system's own message as a sentence."""
    low = f"{reason} {message}".lower()
    known = next((sentence for part, sentence in SAYS if part in low), "")
    if known:
        return known
    own = " ".join((message or reason).split())
    own = own if len(own) <= MAX_MESSAGE_LENGTH else f"{own[: MAX_MESSAGE_LENGTH - 1]}…"
    return own if not own or own.endswith((".", "…")) else f"{own}."


NOT_FOUND = 404
MANIFEST = "hub_config/kubernetes-podgroups-rbac.yaml"


@dataclass(frozen=True)
class PodGroup:
    """The ids of the pods that own a PodGroup, and its status."""

    owners: frozenset[str]
    status: Json


class PodGroups:
    """Watches the PodGroups in the namespaces of workspaces."""

    def __init__(self, api: Api, settings: ClusterSettings, system: PodQueueSystem) -> None:
        self._api, self._system = api, system
        there = "" if settings.all_namespaces else f"namespaces/{settings.namespace}/"
        path = f"/apis/{system.group_version}/{there}podgroups"
        self._watch: Watch[PodGroup] = Watch(api, path, {}, _trim, lambda _before, _after: None, settings)
        self._following: asyncio.Task[None] | None = None

    @property
    def unseen(self) -> tuple[str, ...]:
        """A sentence for the administrator if the PodGroups cannot be observed."""
        seen = f"The cluster does not let the service see {self._system.title}'s PodGroups ({self._watch.refused})"
        told = f"{seen}. Only the pod itself says why a workspace waits. {MANIFEST} contains the right."
        return (told,) if self._watch.refused else ()

    async def connect(self) -> None:
        """Check that the cluster has this scheduler. Raises UnusableScheduler, or Unavailable without an answer."""
        title, version = self._system.title, self._system.group_version
        try:
            await self._api.get(f"/apis/{version}")
        except ApiRefused as error:
            if error.status == NOT_FOUND:
                remedy = f"Install {title}, or remove it from the catalog's scheduler."
                raise UnusableScheduler(
                    f"The catalog names {title}, but the cluster does not serve {version}. {remedy}"
                ) from error

    def start(self) -> None:
        """Start to watch."""
        if self._following is None:
            self._following = asyncio.create_task(self._watch.run())

    def status_of(self, pods: Iterable[str]) -> Json:
        """Return the status of the PodGroup owned by one of these pods (uids), {} if unknown."""
        wanted = set(pods)
        return next((one.status for one in self._watch.objects.values() if not wanted.isdisjoint(one.owners)), {})

    async def close(self) -> None:
        """Stop to watch."""
        await stop_task(self._following)


def _trim(one: Mapping[str, Any]) -> PodGroup:
    owners = (owner["uid"] for owner in one["metadata"].get("ownerReferences") or () if owner.get("kind") == "Pod")
    return PodGroup(frozenset(owners), one.get("status") or {})


Placement = tuple[GpuKind, tuple[Slot, ...]]


class PodQueueScheduler(DelegatingScheduler):
    """Grants each GPU request at once, so that its pod waits in the cluster's queue.

    It grants free GPUs, else GPUs that do not exist yet. The service observes which GPUs the pod got and corrects the
    lease. Only the cluster's scheduler knows which pod is next.
    """

    def __init__(self, backend: KubernetesBackend, groups: PodGroups, own_queue: Scheduler, queues: PodQueues) -> None:
        super().__init__(own_queue)
        self._backend, self._groups, self._queues = backend, groups, queues
        self._system = SYSTEMS[queues.system]

    @property
    def capabilities(self) -> Capabilities:
        """Abilities of these systems. They report neither positions nor estimates."""
        return Capabilities(
            name=self._queues.system,
            owns_queue=True,
            tells_positions=False,
            pod_waits_seconds=self._queues.wait_seconds,
            substitutes=True,
            keeps_from_all=False,
            title=self._system.title,
            version=self._system.group_version.rpartition("/")[2],
        )

    @property
    def unseen(self) -> tuple[str, ...]:
        """Sentences about GPUs and PodGroups that cannot be observed."""
        return (*super().unseen, *self._groups.unseen)

    async def connect(self) -> None:
        """Check that the cluster has the system. Raises UnusableScheduler, Unavailable."""
        await self._groups.connect()

    async def close(self) -> None:
        """Stop to watch."""
        await self._groups.close()

    async def observe(self, now: float) -> Fleet:
        """Return the newest view of the GPUs."""
        self._groups.start()
        return await self._own_queue.observe(now)

    async def sync(self, seen: Snapshot) -> Answer:
        """Grant all waiting GPU requests, so that their pods are made."""
        without = await self._own_queue.sync(without_gpu_claims(seen))
        own = Answer(
            seen.now,
            lambda: self._grants(seen),
            lambda: {x.id: self._place(x.request) for x in seen.claims if x.request.gpu},
            dict,
        )
        return join_answers(seen.now, [without, own])

    async def _preview(self, seen: Snapshot, claim: Claim) -> Preview:
        """Return which kind is free and where the pod would wait. The systems tell no more before a request."""
        free = _place_free(seen, claim, seen.used)
        instead = "" if free is None or free[0].name == claim.request.gpu else free[0].name
        most = show_duration(self._queues.wait_seconds)
        says = f"Its pod waits there for at most {most}. Then a new pod is made, at the end of the queue."
        return Preview(self._place(claim.request), kind=instead, says=says)

    def _place(self, request: Request) -> QueuePosition:
        """Return a place without a position: the systems report none."""
        where = self._system.where(queue_of(request, self._queues))
        return unknown_position(f"{self._system.title} decides when it starts, {where}.")

    def _grants(self, seen: Snapshot) -> list[Grant]:
        found, used = list[Grant](), dict(seen.used)
        taken = {slot.group for lease in seen.leases for slot in lease.slots if slot.group}
        for claim in seen.claims:
            if claim.request.gpu is None or not seen.may_grant(claim):
                continue
            placement = _place_free(seen, claim, used) or _place_coming(seen, claim, taken)
            if placement is None:
                continue
            kind, slots = placement
            found.append(Grant(claim, slots, kind="" if kind.name == claim.request.gpu else kind.name))
            use_slots(used, slots)
            taken |= {slot.group for slot in slots if slot.group}
        return found

    def patch(
        self,
        lease: Lease,
        off: Collection[str] = (),
        instead: Sequence[GpuKind] = (),  # noqa: ARG002 - the system chooses the kind
    ) -> dict[str, Any]:
        """Return the pod's patch with its queue, and the queue's name as ``waits_in``."""
        patch = self._own_queue.patch(lease, off)
        if not patch.get("pod"):
            return patch
        where = self._system.where(queue_of(lease.request, self._queues))
        pod = {**patch["pod"], "beside": pod_fields(lease.request, self._queues)}
        return {**patch, "pod": pod, "waits_in": where}

    def start_words(self, lease: Lease) -> str:
        """Return where the pod of a start waits and why, by its PodGroup and its own condition."""
        pods = [x for x in self._backend.pods_of(lease.id) if x.attempt == lease.attempt and not x.ended]
        if lease.phase is not Phase.STARTING or not pods or any(pod.node for pod in pods):
            return ""
        status = self._groups.status_of(pod.uid for pod in pods)
        why = explain_wait(self._system, status, pods[0].refusal)
        waits = f"it waits {self._system.where(queue_of(lease.request, self._queues))}."
        return f"{waits} {why}".rstrip()


def _accepted_kinds(seen: Snapshot, claim: Claim) -> list[GpuKind]:
    return [kind for kind in accepted_kinds(claim.request, seen.kinds) if not seen.paused_words(kind.name)]


def _place_free(seen: Snapshot, claim: Claim, used: Mapping[str, Fraction]) -> Placement | None:
    """Return free GPUs of the first accepted kind that has enough."""
    for kind in _accepted_kinds(seen, claim):
        slots = place(
            kind, claim.request.count, seen.placement_fleet, used, claim.tried_nodes, topology=claim.request.topology
        )
        if slots is not None:
            return kind, slots
    return None


def _place_coming(seen: Snapshot, claim: Claim, taken: Collection[Group]) -> Placement | None:
    """Return GPUs of the requested kind that its pod waits for. None if the cluster has no GPU of the kind."""
    kind = next((kind for kind in _accepted_kinds(seen, claim) if kind.name == claim.request.gpu), None)
    if kind is None or not any(not gpu.is_coming for gpu in seen.fleet.gpus_by_pool.get(kind.pool, ())):
        return None
    groups = (coming_node_group(kind.name, number, counting_resource(kind, seen.fleet)) for number in count())
    group = next(group for group in groups if group not in taken)
    return kind, tuple(Slot(group.gpu(index), kind.share) for index in range(claim.request.count))
