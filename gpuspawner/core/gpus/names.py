"""What GPUs are called: the one place where names are made of fields, and fields read from names.

A device with a name of its own, such as a UUID, is known by that alone. Of the others only the number is known that a
node advertises as one resource: they are ``NODE/RESOURCE/INDEX``, of the group (NODE, RESOURCE); in a cluster that is
not the hub's own, ``CLUSTER:NODE/RESOURCE/INDEX``. Stored leases, pods and readings hold such names; decisions take the
fields.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

_MIG_PROFILE = re.compile(r"\bmig[- ]([1-7])g\.[0-9]+gb", re.IGNORECASE)
_MIG_SLICES = 7
"""Compute slices of a GPU in MIG mode (NVIDIA's MIG user guide): a profile begins with how many it has, as 3g.40gb."""
_COMING = "~"
"""Begins the name of a node that is coming, which is made up: no real one can have it."""


class Group(NamedTuple):
    """The GPUs that a node advertises as one resource: they are only counted. ``cluster`` "" is the hub's own."""

    node: str
    resource: str
    cluster: str = ""

    def gpu(self, index: int) -> str:
        """Return the name of one of them."""
        return f"{node_in(self.cluster, self.node)}/{self.resource}/{index}"

    @property
    def is_coming(self) -> bool:
        """Whether the node is one that is coming: see ``gpus.autoscale``."""
        return self.node.startswith(_COMING)

    @property
    def coming_kind(self) -> str:
        """The kind for which the node is started, "" where it is there."""
        return self.node.removeprefix(_COMING).rpartition("-")[0] if self.is_coming else ""


def node_in(cluster: str, node: str) -> str:
    """Return what a node is called among those of several clusters; ``cluster`` "" is the hub's own."""
    return f"{cluster}:{node}" if cluster else node


def nodes_of(cluster: str, nodes: Iterable[str]) -> set[str]:
    """Return those of these nodes that are a cluster's, as it calls them itself."""
    parts = (node.rpartition(":") for node in nodes)
    return {name for where, _, name in parts if where == cluster}


def name_in(cluster: str, kind: str) -> str:
    """Return what the kind that the catalog calls so is called in a cluster that is not the first to have it."""
    return f"{kind}@{cluster}"


def written_name(kind: str) -> str:
    """Return what the catalog calls a kind, whichever cluster has it."""
    return kind.partition("@")[0]


def coming_group(kind: str, number: int, resource: str) -> Group:
    """Return the group of a node that is coming, the ``number``-th that is started for a kind."""
    return Group(f"{_COMING}{kind}-{number}", resource)


@lru_cache(maxsize=65536)
def group_of(gpu: str) -> Group | None:
    """Return the group of a GPU, None where it has a name of its own."""
    where, _, rest = gpu.partition("/")
    resource, slash, _index = rest.rpartition("/")
    cluster, _, node = where.rpartition(":")
    return Group(node, resource, cluster) if slash else None


def mig_part(*names: str) -> Fraction:
    """Return how much of a GPU a MIG device is by its compute slices, as its profile in a name says; 1 for others.

    Names are a resource (``nvidia.com/mig-1g.10gb``), or a product (``NVIDIA H100 80GB HBM3 MIG 3g.40gb``).
    """
    found = next((one for name in names if (one := _MIG_PROFILE.search(name)) is not None), None)
    return Fraction(1) if found is None else Fraction(int(found[1]), _MIG_SLICES)
