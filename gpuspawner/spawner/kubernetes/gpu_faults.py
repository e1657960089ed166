"""What in a pod reaches GPUs that are not its lease's. Pure, of JSON of the API or of a KubeSpawner setting.

Settings may name keys as the API does (``hostPID``) or as the Kubernetes client does (``host_pid``), and may hold the
client's own models. Each fault is a sentence that begins with ``where`` it was found, and ends with the remedy.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from gpuspawner.core.gpus.vendors import VENDORS, exposes_gpus

VISIBLE = "NVIDIA_VISIBLE_DEVICES"
"""By this variable NVIDIA's container runtime decides which GPUs a container sees; the images of CUDA ask for all."""
CUDA = "CUDA_VISIBLE_DEVICES"
"""Which of the GPUs that it sees a program uses."""
HIDES = frozenset({"", "void", "none"})
"""Values of VISIBLE that show no GPU."""
MOUNTS = "/run/nvidia-container-devices"
"""What is mounted below it names GPUs to NVIDIA's container runtime, where that is set up so."""
CDI = "cdi.k8s.io/"
"""Annotations that begin so name devices to the container runtime."""
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
"""Of a node: its GPUs, what names them to its container runtime, its processes, and the sockets of that."""


def faults_of_pod(where: str, spec: Any, server: str = "") -> Iterator[str]:
    """Yield what a pod's spec, or a part of it, reaches beyond its lease, but for the GPUs it asks for by name.

    ``server`` is the name of a container that is judged elsewhere.
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
    """Yield each container of a pod's spec, with where it is written."""
    for kind in ("initContainers", "containers"):
        for name, container in listed(part(spec, kind)):
            yield f"{where}: {kind}, {name}", container


def faults_of_container(where: str, container: Any) -> Iterator[str]:
    """Yield what a container that may see no GPU sees of them."""
    for _, variable in listed(part(container, "env")):
        hides = not part(variable, "valueFrom") and str(part(variable, "value") or "") in HIDES
        if part(variable, "name") == VISIBLE and not hides:
            yield f"{where}: env sets {VISIBLE}, which shows it GPUs of others. Take it out."
    yield from _faults_of_any(where, container)


def faults_of_server(where: str, container: Any) -> Iterator[str]:
    """Yield what the server's own container sees of GPUs, beside its lease's."""
    names = [part(variable, "name") for _, variable in listed(part(container, "env"))]
    yield from faults_of_variables(f"{where}: env", names)
    yield from _faults_of_any(where, container)


def _faults_of_any(where: str, container: Any) -> Iterator[str]:
    if part(part(container, "resources"), "claims"):
        yield f"{where}: resources: claims gives devices that no lease counts. {ALONE}"
    yield from faults_of_mounts(f"{where}: volumeMounts", part(container, "volumeMounts"))


def faults_of_resources(where: str, container: Any, named: frozenset[str]) -> Iterator[str]:
    """Yield the GPUs that a container asks for; ``named`` are resources that the catalog names as GPUs."""
    for kind in ("limits", "requests"):
        amounts = part(part(container, "resources"), kind) or {}
        yield from faults_of_amounts(f"{where}: resources: {kind}", amounts, named)


def faults_of_amounts(where: str, amounts: Iterable[str], named: frozenset[str]) -> Iterator[str]:
    """Yield the GPUs among resources, by name."""
    for name in amounts:
        if exposes_gpus(name, named):
            yield f"{where} names {name}. {ALONE}"


def faults_of_variables(where: str, names: Iterable[Any]) -> Iterator[str]:
    """Yield the variables of a server that show it other GPUs than its lease's."""
    for name in dict.fromkeys(names):
        if name == VISIBLE:
            yield f"{where} sets {VISIBLE}, which shows a workspace other GPUs than its own. Take it out."
        if name == CUDA:
            yield f"{where} sets {CUDA}, which hides GPUs of the lease, or counts them anew. Take it out."


def faults_of_volumes(where: str, volumes: Any) -> Iterator[str]:
    """Yield the paths of the node by which its GPUs can be reached."""
    for name, volume in listed(volumes):
        path = part(part(volume, "hostPath"), "path")
        if path and _reaches_gpus(str(path)):
            yield (
                f"{where}, {name}: hostPath {path} reaches GPUs or containers of its whole node. Take it out, or give "
                "a path beside those."
            )


def faults_of_mounts(where: str, mounts: Any) -> Iterator[str]:
    """Yield mounts by which NVIDIA's container runtime gives GPUs."""
    for _, mount in listed(mounts):
        path = str(part(mount, "mountPath") or "")
        if _plain(path).startswith(MOUNTS):
            yield f"{where}: {path} asks NVIDIA's container runtime for GPUs. {ALONE}"


def faults_of_annotations(where: str, annotations: Any) -> Iterator[str]:
    """Yield annotations by which the container runtime gives devices (CDI)."""
    for key in annotations if isinstance(annotations, Mapping) else ():
        if str(key).startswith(CDI):
            yield f"{where}: {key} asks the container runtime for devices. {ALONE}"


def is_privileged(container: Any) -> bool:
    """Whether a container is privileged, and so sees every device of its node."""
    return bool(part(part(container, "securityContext"), "privileged"))


def hidden_variables(container: Any) -> bool:
    """Whether variables from elsewhere could set VISIBLE: their names are not known here."""
    return any(VISIBLE.startswith(part(source, "prefix") or "") for _, source in listed(part(container, "envFrom")))


def part(whole: Any, key: str) -> Any:
    """Return a part of what the API or the Kubernetes client writes; None where there is none."""
    pythonic = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", key).lower()
    if isinstance(whole, Mapping):
        return whole.get(key, whole.get(pythonic))
    return getattr(whole, pythonic, None)


def listed(parts: Any) -> Iterator[tuple[str, Any]]:
    """Yield each of a list, or of a mapping as KubeSpawner takes it, with its name."""
    if callable(parts):
        return  # of what a function returns, the finished pod tells
    each = parts.values() if isinstance(parts, Mapping) else parts or ()
    for number, one in enumerate(each, 1):
        yield str(part(one, "name") or number), one


def _plain(path: str) -> str:
    """Return a path from the root, as the kubelet reads one, without what can be left out; /var/run is /run."""
    path = posixpath.normpath(f"/{path.lstrip('/')}")
    return f"/run{path.removeprefix('/var/run')}" if f"{path}/".startswith("/var/run/") else path


def _reaches_gpus(path: str) -> bool:
    """Whether a path of a node is one of those, lies in one of them or around it."""
    path = _plain(path)
    around = f"{path.rstrip('/')}/"
    for pattern in _HOST_PATHS:
        start = pattern.removesuffix("*")
        inside = path.startswith(start) if pattern != start else around.startswith(f"{start}/")
        if inside or start.startswith(around):
            return True
    return False
