"""Checks whether the driver is new enough for the CUDA version of templates and packages. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from gpuspawner.adoption.doctor.findings import Finding, bad, good, unknown
from gpuspawner.backends.kubernetes.fleet import cluster_kinds, gpus_of_node
from gpuspawner.backends.kubernetes.nodes import to_node
from gpuspawner.catalog import Catalog

CudaVersion = tuple[int, int]
SHOWN_NODES = 3
_IN_IMAGE = (
    re.compile(r"/cuda:([0-9]{1,2})\.([0-9]{1,2})"),
    re.compile(r"(?<![a-z])cuda[-_.]?([0-9]{1,2})(?:\.([0-9]{1,2}))?"),
    re.compile(r"(?<![a-z0-9])cu([0-9]{2})([0-9])(?![0-9])"),
)
"""How the name of an image tells it: ``nvidia/cuda:12.4.1-base``, ``2.5.1-cuda12.4`` or ``cuda12``, ``cu124``."""


def cuda_of_image(image: str) -> CudaVersion | None:
    """Return the CUDA version that the name of an image tells, None where it tells none. No minor version is 0."""
    found = next((match for form in _IN_IMAGE if (match := form.search(image.lower()))), None)
    return (int(found[1]), int(found[2] or 0)) if found else None


def cuda_of_packages(versions: Mapping[str, str]) -> CudaVersion | None:
    """Return the CUDA version that Python packages bring, of all installed ones by name; None where they bring none."""
    found = [re.match(r"([0-9]{1,2})\.([0-9]{1,2})", versions[name]) for name in versions if _is_runtime(name)]
    return max(((int(match[1]), int(match[2])) for match in found if match), default=None)


def cuda_of_templates(catalog: Catalog, kinds: Iterable[str]) -> dict[str, CudaVersion]:
    """Return the CUDA version of each image of a template that offers one of these kinds, by what it is of."""
    offered = frozenset(kinds)
    images = {name: one.image or "" for name, one in catalog.templates.items() if not offered.isdisjoint(one.gpus)}
    told = {f"the image {image} of the template {name}": cuda_of_image(image) for name, image in images.items()}
    return {what: version for what, version in told.items() if version is not None}


def drivers_of_nodes(nodes: Iterable[Mapping[str, Any]], catalog: Catalog) -> Iterator[Finding]:
    """Judge the drivers of nodes, as GPU Feature Discovery labels them, by the templates that offer their GPUs."""
    kinds = [kind for kind in cluster_kinds(catalog.gpus).values() if kind.claim is None]
    named = frozenset(kind.resource for kind in kinds if kind.resource)
    seen: dict[tuple[str, CudaVersion, tuple[tuple[str, CudaVersion], ...]], list[str]] = {}
    for item in nodes:
        labels = item["metadata"].get("labels") or {}
        driver = labels.get("nvidia.com/cuda.driver-version.full", "")
        version = [str(labels.get(f"nvidia.com/cuda.runtime-version.{part}", "")) for part in ("major", "minor")]
        if not driver or not all(part.isdecimal() for part in version):
            continue
        node = to_node(item, named)
        needed = cuda_of_templates(catalog, (gpu.pool for gpu in gpus_of_node(node, (), kinds, "", ())))
        seen.setdefault((driver, (int(version[0]), int(version[1])), tuple(needed.items())), []).append(node.name)
    for (driver, supported, all_needed), names in seen.items():
        more = f" and {len(names) - SHOWN_NODES} more" if len(names) > SHOWN_NODES else ""
        where = f"on {', '.join(names[:SHOWN_NODES])}{more}"
        yield from driver_supports(driver, supported, dict(all_needed), where)


def driver_supports(
    driver: str, supported: CudaVersion, needed: Mapping[str, CudaVersion], where: str = ""
) -> Iterable[Finding]:
    """Check a driver against the CUDA versions that are needed.

    Args:
        driver: its version.
        supported: the highest CUDA version that it supports.
        needed: CUDA versions by the name of their source, for example "the image of the template pytorch".
        where: the location as shown to users, for example "on gpu-node". "" on this machine.
    """
    driver = f"the driver {driver}{' ' if where else ''}{where}"
    found = []
    for what, version in needed.items():
        too_old = f"{what} has CUDA {shown(version)}, and {driver} supports CUDA up to {shown(supported)}"
        too_old = too_old[0].upper() + too_old[1:]
        remedy = f"Update the driver, or use packages for CUDA {shown(supported)}."
        if version[0] > supported[0]:
            found.append(bad("CUDA", f"{too_old}: its programs find no GPU.", remedy))
        elif version > supported:
            found.append(unknown("CUDA", f"{too_old}: programs that compile GPU code while they run fail.", remedy))
    if not found and needed:
        return [
            good("CUDA", f"{driver[0].upper()}{driver[1:]} supports CUDA up to {shown(supported)}, which is enough.")
        ]
    return found


def shown(version: CudaVersion) -> str:
    """Return a version as people write it."""
    return f"{version[0]}.{version[1]}"


def _is_runtime(package: str) -> bool:
    return re.fullmatch(r"nvidia[-_]cuda[-_]runtime([-_]cu[0-9]+)?", package.lower()) is not None
