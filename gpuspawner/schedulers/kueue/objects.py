"""Kueue's objects as values: what a Workload's status says, and what its queues are. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

GROUP = "kueue.x-k8s.io"
VERSION = "v1beta2"
POD_SET = "main"
MULTIKUEUE = "kueue.x-k8s.io/multikueue"
STOPPED = frozenset({"Hold", "HoldAndDrain"})

Json = dict[str, Any]


@dataclass(frozen=True)
class Flavor:
    """A ResourceFlavor: the nodes that it is made of, by their labels, and the taints that its pods tolerate.

    ``nodes`` are the names of those that are there; None for all, where it has no labels.
    """

    name: str
    labels: Mapping[str, str] = field(default_factory=dict)
    tolerations: tuple[Mapping[str, Any], ...] = ()
    nodes: frozenset[str] | None = None


class Pending(NamedTuple):
    """Where a Workload stands in its ClusterQueue, from 1, and with which priority."""

    place: int
    priority: int


@dataclass(frozen=True)
class Queue:
    """A LocalQueue with the ClusterQueue behind it.

    Args:
        name: the LocalQueue's.
        cluster_queue: the ClusterQueue's; "" where the LocalQueue is not there, or names none that is.
        flavors: of each resource that it has a quota of, in the order of preference.
        checks: the controllers of its admission checks.
        stopped: why nothing new is admitted: "Hold" or "HoldAndDrain" of either queue; "" where it is.
        left: how much of its own quota is neither reserved nor lent, by flavor and resource; of whole numbers alone.
        moves: whether it may move what runs to a flavor that it likes better (ConcurrentAdmission).
    """

    name: str
    cluster_queue: str = ""
    flavors: Mapping[str, tuple[Flavor, ...]] = field(default_factory=dict)
    checks: tuple[str, ...] = ()
    stopped: str = ""
    moves: bool = False
    left: Mapping[tuple[str, str], int] = field(default_factory=dict)

    def flavor(self, name: str) -> Flavor | None:
        """Return one of its flavors."""
        return next((one for flavors in self.flavors.values() for one in flavors if one.name == name), None)

    @property
    def why_refused(self) -> str:
        """Return why workspaces can't be in it, in a sentence; "" where they can."""
        if MULTIKUEUE in self.checks:
            return (
                f"The queue {self.name} sends its work to other clusters (MultiKueue), where no workspace would be "
                "reached. Ask your administrator for a queue of this cluster."
            )
        if self.moves:
            return (
                f"The queue {self.name} moves what runs to other GPUs (ConcurrentAdmission), which would end a "
                "workspace under its user. Ask your administrator for a queue without it."
            )
        return ""


def spec_of(one: Json) -> Json:
    """Return the spec of an object: Kueue's kinds may be made without one."""
    found: Json = one.get("spec") or {}
    return found


def to_queue(
    name: str, local: Json | None, cluster: Json | None, flavors: Mapping[str, Flavor], checks: Iterable[Json]
) -> Queue:
    """Return a queue from the objects that make it; None is one that is not there."""
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
    """Return a quantity that is a whole number, 0 for any other: GPUs are counted so."""
    text = str(amount or 0)
    return int(text) if text.isdigit() else 0


def to_flavor(one: Json, nodes: frozenset[str] | None) -> Flavor:
    """Return a ResourceFlavor as a value."""
    spec = one.get("spec") or {}
    labels = dict(spec.get("nodeLabels") or {})
    return Flavor(one["metadata"]["name"], labels, tuple(spec.get("tolerations") or ()), nodes)


class Workload:
    """A Workload as the API server has it."""

    def __init__(self, body: Json) -> None:
        """Keep the object, which is never changed."""
        self.body = body

    @property
    def name(self) -> str:
        """Its name."""
        name: str = self.body["metadata"]["name"]
        return name

    @cached_property
    def annotations(self) -> Mapping[str, str]:
        """Its annotations."""
        return self.body["metadata"].get("annotations") or {}

    @property
    def spec(self) -> Json:
        """Its spec."""
        spec: Json = self.body["spec"]
        return spec

    @property
    def status(self) -> Json:
        """Its status."""
        return self.body.get("status") or {}

    @cached_property
    def conditions(self) -> Mapping[str, Json]:
        """Its conditions, by type."""
        return {one["type"]: one for one in self.status.get("conditions") or ()}

    def holds(self, kind: str) -> bool:
        """Whether a condition is True."""
        return self.conditions.get(kind, {}).get("status") == "True"

    @property
    def active(self) -> bool:
        """Whether it may be admitted."""
        return self.spec.get("active", True) is not False

    @property
    def reserved(self) -> bool:
        """Whether quota is set aside for it."""
        return self.holds("QuotaReserved")

    @property
    def admitted(self) -> bool:
        """Whether its pod may start: quota is set aside, and every check is ready."""
        return self.holds("Admitted") and self.reserved and not self.evicted

    @property
    def evicted(self) -> bool:
        """Whether Kueue wants its quota back; of one whose quota is back already, it says nothing."""
        return self.reserved and self.holds("Evicted")

    @property
    def going(self) -> bool:
        """Whether it is being deleted."""
        return bool(self.body["metadata"].get("deletionTimestamp"))

    @cached_property
    def assignment(self) -> Json:
        """What it was admitted with."""
        found: Sequence[Json] = (self.status.get("admission") or {}).get("podSetAssignments") or ()
        return found[0] if found else {}

    def flavors(self) -> tuple[str, ...]:
        """Return the names of the flavors that it was given, each once."""
        return tuple(dict.fromkeys((self.assignment.get("flavors") or {}).values()))

    def flavor_of(self, resource: str) -> str:
        """Return the flavor that it was given of a resource; "" for none."""
        return str((self.assignment.get("flavors") or {}).get(resource, ""))

    def updates(self) -> tuple[Json, ...]:
        """Return what admission checks want its pod to have."""
        checks = self.status.get("admissionChecks") or ()
        return tuple(one for check in checks for one in check.get("podSetUpdates") or () if one.get("name") == POD_SET)

    def domain(self) -> Mapping[str, str]:
        """Return the labels of the place in the topology that its one pod was given; {} for none."""
        topology = self.assignment.get("topologyAssignment") or {}
        slices = topology.get("slices") or ()
        if not slices:
            return {}
        values = (_first(level) for level in slices[0]["valuesPerLevel"])
        return dict(zip(topology["levels"], values, strict=False))


def _first(level: Json) -> str:
    """Return the value of the first place of a slice, at one level."""
    if level.get("universal"):
        return str(level["universal"])
    one = level["individual"]
    return f"{one.get('prefix', '')}{one['roots'][0]}{one.get('suffix', '')}"
