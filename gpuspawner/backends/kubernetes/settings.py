"""The settings of a cluster. ``configure()`` needs them where Kubernetes' client is not installed."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter, ValidationError

from gpuspawner.backends.kubernetes.fleet import Toleration

HUB_TOLERATIONS = (
    Toleration("hub.jupyter.org/dedicated", "Equal", "user", "NoSchedule"),
    Toleration("hub.jupyter.org_dedicated", "Equal", "user", "NoSchedule"),
)
"""Taints that each user's pod of Zero to JupyterHub tolerates."""


@dataclass(frozen=True)
class ClusterSettings:
    """The settings of one cluster. ``configure()`` passes them to the service as JSON with these names."""

    namespace: str
    """The namespace of workspaces."""
    kubeconfig: str = ""
    """A kubeconfig file, "" for the service account of the service's pod. KUBECONFIG is never used."""
    context: str = ""
    """A context of that file, "" for its current one."""
    all_namespaces: bool = False
    """Workspaces are in many namespaces (KubeSpawner's enable_user_namespaces)."""
    container: str = "notebook"
    """The workspace's container in which the probe runs. The default is KubeSpawner's name."""
    placement: str = "preferred"
    """``preferred``: kube-scheduler may choose another node than the granted one. ``required``: it may not."""
    tolerations: tuple[Toleration, ...] = HUB_TOLERATIONS
    """Taints that workspaces tolerate in addition to those of GPU nodes."""
    node_selector: tuple[tuple[str, str], ...] = ()
    """Labels of the nodes that workspaces may use. Other nodes are ignored."""
    node_labels: str = ""
    """Further requirements on nodes' labels, in the format of ``kubectl get nodes --selector``."""
    grace_seconds: int | None = None
    """Seconds between SIGTERM and SIGKILL when the service ends a pod. None: as the pod says."""
    gone_seconds: float = 10.0
    """How long ``end`` waits until its pods are gone. Arbitrary: longer than a quick end, shorter than a client
    waits."""
    stale_seconds: float = 10.0
    """After this long without the API server, the last view is no longer current. An API server's restart is shorter,
    and no grant may rest on an older view."""
    silent_seconds: float = 90.0
    """A watch without any message for this long is started again. The API server sends a bookmark each minute."""
    page: int = 250
    """Objects in one page of a list: some megabytes."""
    probes_at_once: int = 256
    """Concurrent probes. 5,000 workspaces a minute start 83 probes each second, and one takes 2.3 s, mostly waiting.
    Each uses a connection to the API server. The same number of workspaces whose last probe failed is probed
    separately, so that probes that hang delay no others."""
    scripts_at_once: int = 64
    """Concurrent other scripts. A script before a workspace's end takes up to some minutes. The time of a waiting
    script begins with its turn."""
    probes_per_node: int = 4
    """Concurrent probes on one node, for healthy and failing workspaces each. The node serves its workspaces first."""
    readings: int = 3
    """Readings of one probe. More readings miss fewer bursts, but each runs ``nvidia-smi`` for 0.1 s."""
    pause_seconds: float = 1.0
    """Longest pause between readings. A short deadline shortens it."""
    claims: bool = False
    """Claims serve extended resources here (DeviceClasses with ``extendedResourceName``), which are counted from
    ResourceSlices. A ``claim`` of a kind in the catalog implies this."""
    custom_resources: str = ""
    """The namespace whose DevGPUVMRequests are workspaces, "" for none."""
    operated_elsewhere: bool = False
    """``gpuspawner kube operate`` reads and writes them. The service needs no rights for them."""
    devices: str = "/dev/nvidia[0-9]*"
    """GPU device files in a workspace. The pattern leaves out nvidiactl and nvidia-uvm, which all GPUs share."""


PLACEMENTS = ("preferred", "required")
_settings: TypeAdapter[ClusterSettings] = TypeAdapter(ClusterSettings)


def cluster_settings(data: Mapping[str, Any]) -> ClusterSettings:
    """Read the settings from JSON, with ``node_selector`` as a mapping and ``tolerations`` as in Kubernetes.

    Raises:
        ValueError: An entry is unknown or wrong. The message has its name and a correct value.
    """
    known = {field.name for field in dataclasses.fields(ClusterSettings)}
    if unknown := sorted(set(data) - known):
        raise ValueError(f"{', '.join(unknown)}: no such setting of the cluster; there are {', '.join(sorted(known))}")
    if "namespace" not in data:
        raise ValueError("namespace is missing: name the namespace of workspaces")
    try:
        selector = dict(data.get("node_selector") or {})
    except (TypeError, ValueError):
        raise ValueError("node_selector: write labels and their values, for example {pool: gpus}") from None
    read = {**data, "node_selector": tuple(sorted(selector.items()))}
    if isinstance(data.get("tolerations"), list):
        read["tolerations"] = [_without_none(toleration) for toleration in data["tolerations"]]
    try:
        settings = _settings.validate_python(read)
    except ValidationError as error:
        first = error.errors()[0]
        raise ValueError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from None
    if settings.placement not in PLACEMENTS:
        raise ValueError(f"placement: {settings.placement!r} is not one of {' and '.join(PLACEMENTS)}")
    return settings


def _without_none(toleration: Any) -> Any:
    """Return a toleration without unset fields, which are None in Kubernetes' own objects."""
    return {k: v for k, v in toleration.items() if v is not None} if isinstance(toleration, Mapping) else toleration
