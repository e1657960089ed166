"""The GPUs of the reference scheduler: clusters, nodes and devices, from a file; and what is free where."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import yaml

DEFAULT = """
clusters:
  - name: onsite
    near: true   # where the homes are
    price: {a100: 2.10, h100: 4.00, t4: 0.35}
    nodes:
      onsite-1: {a100: 4}
      onsite-2: {h100: 1, t4: 2}
  - name: cloud
    near: false
    price: {a100: 3.40, h100: 5.90, t4: 0.60}
    nodes:
      cloud-1: {a100: 4, h100: 2}
quotas: {vision: 2, speech: 4}   # GPUs at once, from which on a team is warned
"""
INSTEAD = {"a100": ("h100", "t4"), "h100": ("a100", "t4"), "t4": ("a100", "h100")}
"""Substitutes of each kind, the best first, if the claim allows them."""


@dataclass(frozen=True)
class Gpu:
    """One device. ``name`` is its node's name for it; None where the node picks."""

    id: str
    kind: str
    cluster: str
    node: str
    name: str | None


@dataclass(frozen=True)
class Cluster:
    """``near`` is where homes are; ``price`` is of one GPU for an hour, by kind."""

    name: str
    near: bool
    price: Mapping[str, float]


@dataclass(frozen=True)
class Inventory:
    """All there is. ``quotas`` are the GPUs at once, by team, from which on a team is warned."""

    clusters: Mapping[str, Cluster]
    gpus: Mapping[str, Gpu]
    quotas: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def read(cls, text: str) -> Inventory:
        """Make it of YAML as in ``DEFAULT``; a node's GPUs of a kind are a number, or a list of names."""
        document: dict[str, Any] = yaml.safe_load(text)
        clusters, gpus = {}, {}
        for one in document["clusters"]:
            clusters[one["name"]] = Cluster(one["name"], bool(one["near"]), one["price"])
            for node, kinds in one["nodes"].items():
                for kind, told in kinds.items():
                    for index, name in enumerate([None] * told if isinstance(told, int) else told):
                        gpu = Gpu(f"{one['name']}/{node}/{name or f'{kind}-{index}'}", kind, one["name"], node, name)
                        gpus[gpu.id] = gpu
        return cls(clusters, gpus, document.get("quotas", {}))

    @property
    def kinds(self) -> list[str]:
        """All kinds, as written."""
        return list(dict.fromkeys(gpu.kind for gpu in self.gpus.values()))

    def of(self, kind: str, cluster: str | None = None) -> list[Gpu]:
        """The GPUs of a kind, in a cluster or anywhere."""
        return [gpu for gpu in self.gpus.values() if gpu.kind == kind and cluster in (None, gpu.cluster)]

    def nodes(self, kind: str, cluster: str | None = None) -> Iterator[list[Gpu]]:
        """The GPUs of a kind node by node: near before far, cheap before dear."""
        found = defaultdict(list)
        for gpu in self.of(kind, cluster):
            found[gpu.cluster, gpu.node].append(gpu)
        for name, node in sorted(found, key=lambda one: self._dearness(one[0], kind)):
            yield found[name, node]

    def _dearness(self, cluster: str, kind: str) -> tuple[bool, float]:
        one = self.clusters[cluster]
        return (not one.near, one.price[kind])

    def place(
        self,
        kinds: Sequence[str],
        count: int,
        used: Collection[str],
        accepted: Collection[tuple[str, str]],
    ) -> list[Gpu] | None:
        """Return free GPUs of one node: of the first kind that has them, in the first cluster, on the fullest node.

        ``accepted`` are the kinds with the clusters in which they may be.
        """
        for kind in kinds:
            best: dict[str, list[Gpu]] = {}
            for node in self.nodes(kind):
                free = [gpu for gpu in node if gpu.id not in used]
                cluster = node[0].cluster
                if (kind, cluster) not in accepted or len(free) < count:
                    continue
                if cluster not in best or len(free) < len(best[cluster]):
                    best[cluster] = free
            for free in best.values():
                return free[:count]
        return None

    def largest(self, kind: str) -> int:
        """Return the number of GPUs of a kind on the largest node, or 0 without a matching node."""
        return max((len(node) for node in self.nodes(kind)), default=0)

    def find(self, node: str, name: str) -> Gpu | None:
        """The GPU with this name on a node, None if unknown."""
        return next((gpu for gpu in self.gpus.values() if (gpu.node, gpu.name) == (node, name)), None)


def slots_of(gpus: Sequence[Gpu]) -> list[dict[str, Any]]:
    """Return GPUs of one node as the contract's slots."""
    if not gpus:
        return []
    names = [gpu.name for gpu in gpus if gpu.name is not None]
    return [{"node": gpus[0].node, "gpus": names or None, "count": len(gpus)}]
