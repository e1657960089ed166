"""Settings and parts of a pod that reach GPUs of other leases. Pure, from JSON of the API or a KubeSpawner setting.

Settings may name keys as the API does (``hostPID``) or as the Kubernetes client does (``host_pid``), and may contain
the client's own models. Each fault is a sentence: it begins with its place (``where``) and ends with the remedy.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from gpuspawner.core.gpus.vendors import VENDORS, exposes_gpus

VISIBLE = "NVIDIA_VISIBLE_DEVICES"
"""The variable by which NVIDIA's container runtime selects a container's GPUs. CUDA images ask for all."""
CUDA = "CUDA_VISIBLE_DEVICES"
"""The variable by which a program selects among its container's GPUs."""
HIDES = frozenset({"", "void", "none"})
"""Values of VISIBLE that show no GPU."""
MOUNTS = "/run/nvidia-container-devices"
"""Mounts below it select GPUs for NVIDIA's container runtime, if that is configured."""
CDI = "cdi.k8s.io/"
"""Prefix of annotations that name devices to the container runtime."""
ALONE = "GPUs come from the lease alone: take it out."
_HOST_PATHS = (
    *(path for vendor in VENDORS for path in vendor.device_files),
    "/etc/cdi",
    "/proc",
    "/run/cdi",
    "/run/containerd",
    "/run/cri-dockerd.sock",
    "/run/crio",
    "/run/docker.sock",
    "/run/k3s/containerd",
    "/var/lib/kubelet",
)
"""Paths of a node: GPU devices, device files of its container runtime, its processes, and sockets."""


def faults_of_pod(where: str, spec: Any, server: str = "") -> Iterator[str]:
    """Yield the GPUs that a pod's spec or a part of it reaches beyond its lease, except GPUs requested by name.

    ``server`` is the name of a container that is checked elsewhere.
    """
    if part(spec, "hostPID"):
        yield (
            f"{where}: hostPID shows a workspace the processes of its whole node, and lets their GPUs count as its "
            "own. Take it out."
        )
    if part(spec, "resourceClaims"):
        yield f"{where}: resourceClaims gives devices that no lease counts. {ALONE}"
    yield from faults_of_volumes(f"{where}: volumes", part(spec, "volumes"))
    for place, container in containers(where, spec):
        if part(container, "name") != server:
            yield from faults_of_container(place, container)


def containers(where: str, spec: Any) -> Iterator[tuple[str, Any]]:
    """Yield each container of a pod's spec with its place."""
    for kind in ("initContainers", "containers"):
        for name, container in named_entries(part(spec, kind)):
            yield f"{where}: {kind}, {name}", container


def faults_of_container(where: str, container: Any) -> Iterator[str]:
    """Yield the GPUs that a container without GPUs can reach."""
    for _, variable in named_entries(part(container, "env")):
        hides = not part(variable, "valueFrom") and str(part(variable, "value") or "") in HIDES
        if part(variable, "name") == VISIBLE and not hides:
            yield f"{where}: env sets {VISIBLE}, which shows it GPUs of others. Take it out."
    yield from _faults_of_any(where, container)


def faults_of_server(where: str, container: Any) -> Iterator[str]:
    """Yield the GPUs that the server's own container can reach beyond its lease."""
    names = [part(variable, "name") for _, variable in named_entries(part(container, "env"))]
    yield from faults_of_variables(f"{where}: env", names)
    yield from _faults_of_any(where, container)


def _faults_of_any(where: str, container: Any) -> Iterator[str]:
    if part(part(container, "resources"), "claims"):
        yield f"{where}: resources: claims gives devices that no lease counts. {ALONE}"
    yield from faults_of_mounts(f"{where}: volumeMounts", part(container, "volumeMounts"))


def faults_of_resources(where: str, container: Any, named: frozenset[str]) -> Iterator[str]:
    """Yield the requested GPUs of a container. ``named`` are resources that the catalog names as GPUs."""
    for kind in ("limits", "requests"):
        amounts = part(part(container, "resources"), kind) or {}
        yield from faults_of_amounts(f"{where}: resources: {kind}", amounts, named)


def faults_of_amounts(where: str, amounts: Iterable[str], named: frozenset[str]) -> Iterator[str]:
    """Yield the GPUs among resources by name."""
    for name in amounts:
        if exposes_gpus(name, named):
            yield f"{where} names {name}. {ALONE}"


def faults_of_variables(where: str, names: Iterable[Any]) -> Iterator[str]:
    """Yield the variables of a server that show it other GPUs than its lease's."""
    for name in dict.fromkeys(names):
        if name == VISIBLE:
            yield f"{where} sets {VISIBLE}, which shows a workspace other GPUs than its own. Take it out."
        if name == CUDA:
            yield f"{where} sets {CUDA}, which hides GPUs of the lease or renumbers them. Take it out."


def faults_of_volumes(where: str, volumes: Any) -> Iterator[str]:
    """Yield the paths of the node that lead to its GPUs."""
    for name, volume in named_entries(volumes):
        path = part(part(volume, "hostPath"), "path")
        if path and _reaches_gpus(str(path)):
            yield (
                f"{where}, {name}: hostPath {path} reaches GPUs or containers of its whole node. Take it out, or give "
                "a path outside of those."
            )


def faults_of_mounts(where: str, mounts: Any) -> Iterator[str]:
    """Yield mounts that request GPUs from NVIDIA's container runtime."""
    for _, mount in named_entries(mounts):
        path = str(part(mount, "mountPath") or "")
        if _plain(path).startswith(MOUNTS):
            yield f"{where}: {path} asks NVIDIA's container runtime for GPUs. {ALONE}"


def faults_of_annotations(where: str, annotations: Any) -> Iterator[str]:
    """Yield annotations that request devices from the container runtime (CDI)."""
    for key in annotations if isinstance(annotations, Mapping) else ():
        if str(key).startswith(CDI):
            yield f"{where}: {key} asks the container runtime for devices. {ALONE}"


def is_privileged(container: Any) -> bool:
    """Return whether a container is privileged: then it reaches every device of its node."""
    return bool(part(part(container, "securityContext"), "privileged"))


def hidden_variables(container: Any) -> bool:
    """Return whether VISIBLE may be set by variables from elsewhere, whose names are unknown here."""
    return any(
        VISIBLE.startswith(part(source, "prefix") or "") for _, source in named_entries(part(container, "envFrom"))
    )


def part(whole: Any, key: str) -> Any:
    """Return a part of an object of the API or of the Kubernetes client, or None."""
    pythonic = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", key).lower()
    if isinstance(whole, Mapping):
        return whole.get(key, whole.get(pythonic))
    return getattr(whole, pythonic, None)


def named_entries(parts: Any) -> Iterator[tuple[str, Any]]:
    """Yield each entry with its name, of a list or of a mapping as KubeSpawner accepts it."""
    if callable(parts):
        return  # a function's result is checked in the finished pod
    each = parts.values() if isinstance(parts, Mapping) else parts or ()
    for number, one in enumerate(each, 1):
        yield str(part(one, "name") or number), one


def _plain(path: str) -> str:
    """Return the shortest absolute form of a path, as the kubelet reads it. /var/run is /run."""
    path = posixpath.normpath(f"/{path.lstrip('/')}")
    return f"/run{path.removeprefix('/var/run')}" if f"{path}/".startswith("/var/run/") else path


def _reaches_gpus(path: str) -> bool:
    """Return whether a path of a node is one of these paths, below it or above it."""
    path = _plain(path)
    around = f"{path.rstrip('/')}/"
    for pattern in _HOST_PATHS:
        start = pattern.removesuffix("*")
        inside = path.startswith(start) if pattern != start else around.startswith(f"{start}/")
        if inside or start.startswith(around):
            return True
    return False
