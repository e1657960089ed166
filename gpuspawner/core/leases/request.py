"""The request of a user (DevGPUVMRequest)."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from gpuspawner.core.gpus.fleet import Slot

MEBIBYTE = 2**20


@dataclass(frozen=True)
class Request:
    """A validated request. ``gpu`` is a kind of the catalog or None; ``count`` is 0 exactly when it is None.

    CPU and memory are upper limits, of which a percentage is guaranteed. ``image`` is the container image, "" if the
    hub's configuration names it. ``opens`` are the applications that it opens, the default first. Both are the
    template's at the time of the request, and None in leases of an older version.
    """

    user: str
    template: str
    policy: str
    gpu: str | None
    count: int
    cpu_cores: float
    memory_bytes: int
    lifetime_seconds: int
    cpu_guarantee_percent: float = 100.0
    memory_guarantee_percent: float = 100.0
    image: str | None = None
    opens: tuple[str, ...] | None = None
    team: str = ""
    """The team that is charged, or "" without a team."""
    substitutes: tuple[str, ...] = ()
    """Kinds that its user takes instead, the dearest to them first: each meets what the template needs."""
    needs_memory_bytes: int = 0
    """The least that a GPU must have, whichever kind it is."""
    needs_compute: str = ""
    needs_driver: str = ""
    needs_cuda: str = ""
    priority: int = 0
    """The template's: a higher one goes first."""
    classes: tuple[str, ...] = ()
    """The classes, of those that GPUs are held for, that its user was in when it was asked."""
    repository: str = ""
    """The repository that is cloned into the home if it is not there."""
    own_image: bool = False
    """Whether the user named ``image``. It is pulled at each start, because the user may push another one."""
    tools: tuple[str, ...] = ()
    """The template's tools that its user selected."""
    variables: str = ""
    """The variables that its user adds: lines ``NAME=value``."""
    script: str = ""
    """The script of its user that runs when the workspace has started."""
    least_lifetime_seconds: int = 0
    """The template's: what leaves less is not granted. 0 in what an older version stored."""
    topology: str = ""
    """The template's: whether its GPUs ``prefer`` or ``require`` one NVLink or NUMA domain, "" for neither."""
    place: str = ""
    """The template's: which of the accepted clusters it gets. See ``core.gpus.placement.accepted_kinds``."""
    cluster_order: tuple[str, ...] = ()
    """The template's kinds, those of clusters that are tried first before others. Empty if ``place`` says no order."""

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Request:
        """Return a request from what ``dataclasses.asdict`` made of it, read back from JSON."""
        opens = document.get("opens")
        lists = {name: tuple(document.get(name, ())) for name in ("substitutes", "classes", "tools", "cluster_order")}
        return cls(**{**document, "opens": None if opens is None else tuple(opens), **lists})

    @cached_property
    def guaranteed_cpu_cores(self) -> float:
        """The CPU that is its own, in cores: whole thousandths, rounded up."""
        return min(self.cpu_cores, math.ceil(round(10 * self.cpu_cores * self.cpu_guarantee_percent, 3)) / 1000)

    @cached_property
    def guaranteed_memory_bytes(self) -> int:
        """The memory that is its own: whole MiB, rounded up."""
        mebibytes = math.ceil(round(self.memory_bytes * self.memory_guarantee_percent / 100 / MEBIBYTE, 6))
        return min(self.memory_bytes, mebibytes * MEBIBYTE)

    @cached_property
    def digest(self) -> str:
        """A stable fingerprint: equal digests mean that the same thing was asked by the same user."""
        text = json.dumps(asdict(self), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    def keeps_place_of(self, earlier: Request) -> bool:
        """Return whether a change from ``earlier`` keeps the queue position: same kind and team, and not more GPUs.

        Consent to substitutes may be given and withdrawn at any time.
        """
        return self.gpu == earlier.gpu and self.count <= earlier.count and self.team == earlier.team


@dataclass(frozen=True)
class Next:
    """The request that continues in a workspace's place once that has ended.

    Attributes:
        request: the request.
        options: its options.
        with_gpu: the options of what had a GPU, by which its user goes back to one; None where it has one.
        slots: the GPUs that the workspace holds for it until it has ended; empty if it waits in the queue then.
        asked_at: when a change of size was asked for; None for a request of the moment of the stop.
    """

    request: Request
    options: Mapping[str, Any]
    with_gpu: Mapping[str, Any] | None = None
    slots: tuple[Slot, ...] = ()
    asked_at: float | None = None


@dataclass(frozen=True)
class SizeChange:
    """A new size of a running workspace, which runs on until that size can start.

    ``actor`` asked for it from ``where``. ``restarts_at`` is when the workspace restarts, in seconds since the epoch;
    None while the new size is not free.
    """

    after: Next
    asked_at: float
    actor: str
    where: str
    restarts_at: float | None = None
