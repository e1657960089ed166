"""Checks whether the driver is new enough for the CUDA version of templates and packages. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from gpuspawner.cli.doctor.findings import Finding, bad, good, unknown

CudaVersion = tuple[int, int]
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


def driver_supports(
    driver: str, supported: CudaVersion, needed: Mapping[str, CudaVersion], where: str = ""
) -> Iterable[Finding]:
    """Judge a driver by what needs CUDA.

    Args:
        driver: its version.
        supported: the highest CUDA version that it supports.
        needed: the CUDA version by what has it, in words, such as "the image of the template pytorch".
        where: in words, such as "on gpu-node". "" on this machine.
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
