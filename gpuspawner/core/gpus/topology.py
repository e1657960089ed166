"""Topology: several GPUs of one workspace in one NVLink or NUMA domain of their node, where the domains are known.

It concerns whole GPUs. Shares of GPUs, and a single GPU, are placed without it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gpuspawner.core.gpus.fleet import Gpu, GpuKind
from gpuspawner.core.leases.request import Request

PREFER, REQUIRE = "prefer", "require"


def applicable_topology(topology: str, count: int, kind: GpuKind) -> str:
    """Return the topology, or "" if it does not concern this number of GPUs of a kind."""
    return topology if count > 1 and kind.shares == 1 else ""


def requires_domain(request: Request, kind: GpuKind) -> bool:
    """Return whether a request for GPUs of a kind requires one domain."""
    return applicable_topology(request.topology, request.count, kind) == REQUIRE


def group_by_domain(gpus: Iterable[Gpu]) -> dict[str, list[Gpu]]:
    """Return the GPUs of one node by domain. A GPU may be in an NVLink domain and in a NUMA domain."""
    found: dict[str, list[Gpu]] = {}
    for gpu in gpus:
        for domain in gpu.domains:
            found.setdefault(domain, []).append(gpu)
    return found


def largest_domain(gpus: Iterable[Gpu]) -> int:
    """Return the number of these GPUs of one node in its largest domain, 0 if no domain is known."""
    return max(map(len, group_by_domain(gpus).values()), default=0)


def shared_domain(gpus: Sequence[Gpu]) -> str:
    """Return the first domain that all these GPUs of one node share, or "" without a known shared domain."""
    return next((name for name, own in group_by_domain(gpus).items() if len(own) == len(gpus)), "")


def smallest_sufficient_domain(gpus: Iterable[Gpu], count: int) -> Sequence[Gpu]:
    """Return the GPUs of the smallest domain with at least ``count`` of these GPUs of one node, or ().

    So larger domains stay free for larger requests. Of equal domains, an NVLink domain comes first, then the first by
    name.
    """
    groups = group_by_domain(gpus).items()
    fitting = [(len(own), own[0].domains.index(name), name, own) for name, own in groups if len(own) >= count]
    return min(fitting, key=lambda one: one[:3])[3] if fitting else ()
