"""How the service reaches its cluster, and what it does there."""

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
"""What Zero to JupyterHub lets every user's pod tolerate."""


@dataclass(frozen=True)
class ClusterSettings:
    """One cluster. ``configure()`` hands these to the service as JSON, by these names."""

    namespace: str
    """Where KubeSpawner makes workspaces."""
    kubeconfig: str = ""
    """A kubeconfig file; "" is the service account of the pod that the service runs in. Never KUBECONFIG's."""
    context: str = ""
    """Of that file; "" is its current one."""
    all_namespaces: bool = False
    """Workspaces are in many namespaces (KubeSpawner's enable_user_namespaces)."""
    container: str = "notebook"
    """The container of a workspace that the probe runs in: KubeSpawner's own name for it."""
    placement: str = "preferred"
    """``preferred``: kube-scheduler may take another node than the one granted; ``required``: it may not."""
    tolerations: tuple[Toleration, ...] = HUB_TOLERATIONS
    """Taints that workspaces tolerate beside those of GPUs."""
    node_selector: tuple[tuple[str, str], ...] = ()
    """Labels of the nodes that workspaces may use: others are not looked at."""
    node_labels: str = ""
    """What else is asked of their labels, as ``kubectl get nodes --selector`` takes it."""
    grace_seconds: int | None = None
    """Between SIGTERM and SIGKILL when the service ends a pod; None: what its pod says."""
    gone_seconds: float = 10.0
    """How long ``end`` waits to see its pods gone. Arbitrary: longer than a quick end, shorter than a client waits."""
    stale_seconds: float = 10.0
    """Without the API server for this long, what was seen last is no observation any more: as an API server's restart
    takes, and no longer than a grant may rest on an old view."""
    silent_seconds: float = 90.0
    """A watch that says nothing for this long is asked anew: the API server sends a bookmark each minute."""
    page: int = 250
    """Objects of one answer to a list: some megabytes."""
    probes_at_once: int = 256
    """Execs under way. 5,000 workspaces a minute are 83 begun each second, and one lasts 2.3 s, mostly asleep between
    its readings. Each is a connection to the API server. As many again may run of workspaces whose probe before failed:
    one that hangs again delays none of the others."""
    scripts_at_once: int = 64
    """Other execs under way: what a workspace runs before its end takes up to some minutes. More wait for these, and
    their time begins when it is their turn."""
    probes_per_node: int = 4
    """Of these on one node, and as many again likewise: its kubelet and its processes serve the workspaces first."""
    readings: int = 3
    """How many readings one probe takes. More miss fewer bursts; each costs a run of ``nvidia-smi``, 0.1 s."""
    pause_seconds: float = 1.0
    """Between them, at most: a short deadline makes it shorter."""
    claims: bool = False
    """Extended resources are served by claims here (DeviceClasses with ``extendedResourceName``): they are counted from
    ResourceSlices. Where a kind of the catalog has ``claim``, that is so anyway."""
    custom_resources: str = ""
    """The namespace whose DevGPUVMRequests are workspaces; "": none are."""
    operated_elsewhere: bool = False
    """``gpuspawner kube operate`` sees and writes them: the service has no right to them."""
    devices: str = "/dev/nvidia[0-9]*"
    """Device files of GPUs in a workspace. The pattern leaves out nvidiactl and nvidia-uvm, which all share."""


PLACEMENTS = ("preferred", "required")
_settings: TypeAdapter[ClusterSettings] = TypeAdapter(ClusterSettings)


def cluster_settings(data: Mapping[str, Any]) -> ClusterSettings:
    """Read the settings from plain JSON: ``node_selector`` as a mapping, ``tolerations`` as Kubernetes writes them.

    Raises:
        ValueError: an entry that is unknown or wrong, with its name and what would be right.
    """
    known = {field.name for field in dataclasses.fields(ClusterSettings)}
    if unknown := sorted(set(data) - known):
        raise ValueError(f"{', '.join(unknown)}: no such setting of the cluster; there are {', '.join(sorted(known))}")
    if "namespace" not in data:
        raise ValueError("namespace is missing: name the one in which workspaces are made")
    try:
        selector = dict(data.get("node_selector") or {})
    except (TypeError, ValueError):
        raise ValueError("node_selector: write labels and their values, for example {pool: gpus}") from None
    told = {**data, "node_selector": tuple(sorted(selector.items()))}
    if isinstance(data.get("tolerations"), list):
        told["tolerations"] = [_without_none(toleration) for toleration in data["tolerations"]]
    try:
        settings = _settings.validate_python(told)
    except ValidationError as error:
        first = error.errors()[0]
        raise ValueError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from None
    if settings.placement not in PLACEMENTS:
        raise ValueError(f"placement: {settings.placement!r} is none of {' and '.join(PLACEMENTS)}")
    return settings


def _without_none(toleration: Any) -> Any:
    """Return a toleration without what is not said: Kubernetes' own objects say it as None."""
    return {k: v for k, v in toleration.items() if v is not None} if isinstance(toleration, Mapping) else toleration
