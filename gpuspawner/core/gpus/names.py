"""What GPUs are called: the one place where names are made of fields, and fields read from names.

A device with a name of its own, such as a UUID, is known by that alone. Of the others only the number is known that a
node advertises as one resource: they are ``NODE/RESOURCE/INDEX``, of the group (NODE, RESOURCE). Stored leases, pods
and readings hold such names; decisions take the fields.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

_COMING = "~"
"""Begins the name of a node that is coming, which is made up: no real one can have it."""


class Group(NamedTuple):
    """The GPUs that a node advertises as one resource: they are only counted. A cluster will be one more field."""

    node: str
    resource: str

    def gpu(self, index: int) -> str:
        """Return the name of one of them."""
        return f"{self.node}/{self.resource}/{index}"

    @property
    def is_coming(self) -> bool:
        """Whether the node is one that is coming: see ``gpus.autoscale``."""
        return self.node.startswith(_COMING)

    @property
    def coming_kind(self) -> str:
        """The kind for which the node is started, "" where it is there."""
        return self.node.removeprefix(_COMING).rpartition("-")[0] if self.is_coming else ""


def coming_group(kind: str, number: int, resource: str) -> Group:
    """Return the group of a node that is coming, the ``number``-th that is started for a kind."""
    return Group(f"{_COMING}{kind}-{number}", resource)


@lru_cache(maxsize=65536)
def group_of(gpu: str) -> Group | None:
    """Return the group of a GPU, None where it has a name of its own."""
    node, _, rest = gpu.partition("/")
    resource, slash, _index = rest.rpartition("/")
    return Group(node, resource) if slash else None
