"""Kueue's objects as values: queues, flavors, the status of a Workload, and writes. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import Any, NamedTuple

GROUP = "kueue.x-k8s.io"
VERSION = "v1beta2"
UPGRADE = "Install 0.19 or newer."
POD_SET = "main"
MULTIKUEUE = "kueue.x-k8s.io/multikueue"
STOPPED = frozenset({"Hold", "HoldAndDrain"})

Json = dict[str, Any]


@dataclass(frozen=True)
class Flavor:
    """A ResourceFlavor: the labels of its nodes, and the tolerations that its pods get.

    ``nodes`` are the names of its nodes, None for all nodes if it has no labels.
    """

    name: str
    labels: Mapping[str, str] = field(default_factory=dict)
    tolerations: tuple[Mapping[str, Any], ...] = ()
    nodes: frozenset[str] | None = None


class Pending(NamedTuple):
    """The position of a Workload in its ClusterQueue, from 1, and its priority."""

    position: int
    priority: int


@dataclass(frozen=True)
class Queue:
    """A LocalQueue with the ClusterQueue behind it.

    Args:
        name: name of the LocalQueue.
    cluster_queue: name of the ClusterQueue, "" if it or the LocalQueue does not exist.
    flavors: flavors by resource, in the order of preference.
    checks: the controllers of its admission checks.
    stopped: "Hold" or "HoldAndDrain" if either queue admits nothing new, else "".
    moves: it may move running work to a preferred flavor (ConcurrentAdmission).
    left: its own quota that is neither reserved nor lent, by flavor and resource. Whole numbers only.
    """

    name: str
    cluster_queue: str = ""
    flavors: Mapping[str, tuple[Flavor, ...]] = field(default_factory=dict)
    checks: tuple[str, ...] = ()
    stopped: str = ""
    moves: bool = False
    left: Mapping[tuple[str, str], int] = field(default_factory=dict)

    def flavor(self, name: str) -> Flavor | None:
        """Return one of its flavors by name."""
        return next((one for flavors in self.flavors.values() for one in flavors if one.name == name), None)

    @property
    def why_refused(self) -> str:
        """Return why workspaces cannot use it, in a sentence. "" if they can."""
        if MULTIKUEUE in self.checks:
            return (
                f"The queue {self.name} sends its work to other clusters (MultiKueue), where a workspace could not be "
                "reached. Ask your administrator for a queue of this cluster."
            )
        if self.moves:
            return (
                f"The queue {self.name} moves running work to other GPUs (ConcurrentAdmission), which would stop a "
                "running workspace. Ask your administrator for a queue without it."
            )
        return ""


def spec_of(one: Json) -> Json:
    """Return the spec of an object, {} without one."""
    found: Json = one.get("spec") or {}
    return found


def to_queue(
    name: str, local: Json | None, cluster: Json | None, flavors: Mapping[str, Flavor], checks: Iterable[Json]
) -> Queue:
    """Return a queue from its objects. A missing object is None."""
    if local is None or cluster is None:
        return Queue(name)
    spec = spec_of(cluster)
    groups = spec.get("resourceGroups") or ()
    of: dict[str, tuple[Flavor, ...]] = {}
    for group in groups:
        known = tuple(flavors[one["name"]] for one in group.get("flavors") or () if one["name"] in flavors)
        of.update(dict.fromkeys(group.get("coveredResources") or (), known))
    left = {
        (one["name"], resource["name"]): _whole(resource.get("nominalQuota"))
        for group in groups
        for one in group.get("flavors") or ()
        for resource in one.get("resources") or ()
    }
    for one in (cluster.get("status") or {}).get("flavorsReservation") or ():
        for resource in one.get("resources") or ():
            key = one["name"], resource["name"]
            left[key] = left.get(key, 0) - _whole(resource.get("total"))
    stops = (spec_of(one).get("stopPolicy") or "None" for one in (cluster, local))
    return Queue(
        name,
        cluster["metadata"]["name"],
        of,
        tuple(str(spec_of(one).get("controllerName") or "") for one in checks),
        next((stop for stop in stops if stop in STOPPED), ""),
        bool(spec.get("concurrentAdmissionPolicy")),
        left,
    )


def _whole(amount: object) -> int:
    """Return a whole-number quantity, as GPUs have, and 0 for any other."""
    text = str(amount or 0)
    return int(text) if text.isdigit() else 0


def to_flavor(one: Json, nodes: frozenset[str] | None) -> Flavor:
    """Return a ResourceFlavor."""
    spec = one.get("spec") or {}
    labels = dict(spec.get("nodeLabels") or {})
    return Flavor(one["metadata"]["name"], labels, tuple(spec.get("tolerations") or ()), nodes)


class Workload:
    """A Workload of the API server. The object is never changed."""

    def __init__(self, body: Json) -> None:
        self.body = body

    @property
    def name(self) -> str:
        """Name of the Workload."""
        name: str = self.body["metadata"]["name"]
        return name

    @cached_property
    def annotations(self) -> Mapping[str, str]:
        """Annotations of the Workload."""
        return self.body["metadata"].get("annotations") or {}

    @property
    def spec(self) -> Json:
        """Specification of the Workload."""
        spec: Json = self.body["spec"]
        return spec

    @property
    def status(self) -> Json:
        """Status of the Workload."""
        return self.body.get("status") or {}

    @cached_property
    def conditions(self) -> Mapping[str, Json]:
        """Conditions by type."""
        return {one["type"]: one for one in self.status.get("conditions") or ()}

    def holds(self, kind: str) -> bool:
        """Return whether a condition is True."""
        return self.conditions.get(kind, {}).get("status") == "True"

    @property
    def active(self) -> bool:
        """Kueue may admit it."""
        return self.spec.get("active", True) is not False

    @property
    def reserved(self) -> bool:
        """Quota is reserved for it."""
        return self.holds("QuotaReserved")

    @property
    def admitted(self) -> bool:
        """Its pod may start: quota is reserved and every check is ready."""
        return self.holds("Admitted") and self.reserved and not self.evicted

    @property
    def evicted(self) -> bool:
        """Kueue reclaims its quota. False once the quota is returned."""
        return self.reserved and self.holds("Evicted")

    @property
    def going(self) -> bool:
        """Deletion of the Workload has begun."""
        return bool(self.body["metadata"].get("deletionTimestamp"))

    @cached_property
    def assignment(self) -> Json:
        """The assignment of its one pod set."""
        found: Sequence[Json] = (self.status.get("admission") or {}).get("podSetAssignments") or ()
        return found[0] if found else {}

    def flavors(self) -> tuple[str, ...]:
        """Return the names of its flavors, each once."""
        return tuple(dict.fromkeys((self.assignment.get("flavors") or {}).values()))

    def flavor_of(self, resource: str) -> str:
        """Return its flavor of a resource, "" for none."""
        return str((self.assignment.get("flavors") or {}).get(resource, ""))

    def updates(self) -> tuple[Json, ...]:
        """Return the pod changes that admission checks require."""
        checks = self.status.get("admissionChecks") or ()
        return tuple(one for check in checks for one in check.get("podSetUpdates") or () if one.get("name") == POD_SET)

    def domain(self) -> Mapping[str, str]:
        """Return the node labels of its pod's place in the topology, {} for none."""
        topology = self.assignment.get("topologyAssignment") or {}
        slices = topology.get("slices") or ()
        if not slices:
            return {}
        values = (_first(level) for level in slices[0]["valuesPerLevel"])
        return dict(zip(topology["levels"], values, strict=False))


def _first(level: Json) -> str:
    """Return the first value of a slice at one level."""
    if level.get("universal"):
        return str(level["universal"])
    one = level["individual"]
    return f"{one.get('prefix', '')}{one['roots'][0]}{one.get('suffix', '')}"


GATE = "kueue.x-k8s.io/admission"
"""The scheduling gate of pods that Kueue manages."""
DRY_RUN = {"dryRun": "All"}


class Verb(Enum):
    """The kind of a write."""

    CREATE = "create"
    REPLACE = "replace"
    STATUS = "replace the status"
    DELETE = "delete"


@dataclass(frozen=True)
class Write:
    """A write of a whole object, which names the version that it was made from."""

    verb: Verb
    body: Json


def explain_unusable(group: Mapping[str, Any] | None) -> str:
    """Return why Kueue's API group cannot be used, in a sentence. "" if it can. None means it does not exist."""
    if group is None:
        return "The catalog names Kueue's queues, but the cluster has no Kueue. " + UPGRADE
    served = [one["version"] for one in group.get("versions") or ()]
    if VERSION in served:
        return ""
    return f"The cluster's Kueue serves {', '.join(served) or 'no version'}, and gpuspawner needs {VERSION}. {UPGRADE}"


def trial_pod() -> Json:
    """Return a pod for a dry run, which shows what Kueue does to workspaces. It meets every pod standard."""
    safe = {
        "runAsNonRoot": True,
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    takes = {"cpu": "1m", "memory": "1Mi"}
    container = {
        "name": "notebook",
        "image": "none",
        "resources": {"requests": takes, "limits": takes},
        "securityContext": safe,
    }
    labels = {"app": "jupyterhub", "component": "singleuser-server"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"generateName": "gpuspawner-dry-run-", "labels": labels},
        "spec": {"containers": [container], "automountServiceAccountToken": False},
    }


def explain_gate(made: Mapping[str, Any], namespace: str) -> str:
    """Return why pods of a namespace cannot be workspaces, by a dry run's result. "" if they can."""
    if GATE not in {gate.get("name") for gate in made["spec"].get("schedulingGates") or ()}:
        return ""
    return (
        f"Kueue manages the pods of namespace {namespace} itself, so each workspace would wait and count twice. "
        f"Leave {namespace} out of managedJobsNamespaceSelector in Kueue's configuration, or set "
        "manageJobsWithoutQueueName: false there. A LocalQueue called default in the namespace also gates its pods."
    )
