"""``configure()`` with workspaces as pods: KubeSpawner's settings, the Zero to JupyterHub chart, the service.

The chart's own module ``z2jh`` is loaded where its configuration runs. Names are those of version 4, in its
files/hub/jupyterhub_config.py.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

from traitlets import HasTraits, TraitError
from traitlets.config.loader import LazyConfigValue

from gpuspawner.backends.kubernetes.connection import cluster_settings

VALUES = {
    "mem_limit": "memory.limit",
    "mem_guarantee": "memory.guarantee",
    "cpu_limit": "cpu.limit",
    "cpu_guarantee": "cpu.guarantee",
    "extra_resource_limits": "extraResource.limits",
    "extra_resource_guarantees": "extraResource.guarantees",
    "environment": "extraEnv",
    "profile_list": "profileList",
    "init_containers": "initContainers",
    "extra_containers": "extraContainers",
    "extra_pod_config": "extraPodConfig",
    "pod_name_template": "podNameTemplate",
    "volumes": "storage.extraVolumes",
    "volume_mounts": "storage.extraVolumeMounts",
}
"""Settings of KubeSpawner, and the chart's values below ``singleuser`` that set them."""

CALLED = re.compile(r"\bconfigure\(\s*c\b")
"""The line of configure() in a text of hub.extraConfig."""


def is_here() -> bool:
    """Whether the chart's configuration is what runs."""
    return "z2jh" in sys.modules


def value_of(setting: str) -> str:
    """Return, to follow a setting's name, the chart's value that sets it; "" where it has none or is not here."""
    return f" (singleuser.{VALUES[setting]} of the chart)" if is_here() and setting in VALUES else ""


def unjudged() -> Iterator[str]:
    """Yield a sentence for configuration of the chart that runs after configure(), and so was not judged."""
    if not is_here():
        return
    extra = sys.modules["z2jh"].get_config("hub.extraConfig", {}) or {}
    ours = [key for key, text in sorted(extra.items()) if CALLED.search(str(text))]
    later = [key for key in sorted(extra) if ours and key > ours[-1]]
    if later:
        yield (
            f"hub.extraConfig of the chart runs {', '.join(later)} after {ours[-1]}, which calls configure(): what is "
            f"set there is not checked. Rename {ours[-1]} so that it sorts last, for example zz-gpuspawner."
        )


def written(c: Any, spawner: type, setting: str, default: Any) -> tuple[str, Any]:
    """Return where a setting of the spawner's class is written, and its value, by the nearest class that has one.

    Raises:
        SystemExit: it is not of the setting's type: the hub itself would find out at the first start.
    """
    for owner in spawner.__mro__:
        value = c[owner.__name__].get(setting) if owner.__name__ in c else None
        if isinstance(value, LazyConfigValue):
            value = value.get_value(default)
        if value is not None:
            return taken(f"c.{owner.__name__}.{setting}{value_of(setting)}", spawner, setting, value)
    return f"c.KubeSpawner.{setting}", default


def taken(where: str, spawner: type, setting: str, value: Any) -> tuple[str, Any]:
    """Return where a setting is written and its value. Raises SystemExit where it is not of the setting's type."""
    trait = spawner.class_traits().get(setting) if issubclass(spawner, HasTraits) else None
    if trait is None or setting == "profile_list":  # which is looked at entry by entry
        return where, value
    try:
        trait._validate(HasTraits(), value)  # noqa: SLF001 - as any class that has the trait does
    except TraitError:
        raise SystemExit(f"gpuspawner: {where} takes {trait.info()}, not {type(value).__name__}.") from None
    return where, value


def all_namespaces(c: Any, spawner: type) -> bool:
    """Whether workspaces are in namespaces of their users."""
    return bool(written(c, spawner, "enable_user_namespaces", default=False)[1])


IN_CLUSTER = ("KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT")
PROXIES = ("HTTPS_PROXY", "https_proxy", "NO_PROXY", "no_proxy")
"""By which KubeSpawner reaches the API server."""
NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


def service_environment(c: Any, spawner: type) -> dict[str, str]:
    """Return the variables by which the service finds the cluster: a managed service inherits none of the hub's."""
    namespace = NAMESPACE_FILE.read_text(encoding="ascii").strip() if NAMESPACE_FILE.exists() else "default"
    cluster: dict[str, Any] = {
        "namespace": written(c, spawner, "namespace", namespace)[1],
        "all_namespaces": all_namespaces(c, spawner),
        "placement": written(c, spawner, "gpu_placement", "preferred")[1],
    }
    tolerations = written(c, spawner, "tolerations", [])[1]
    if tolerations:
        listed = tolerations.values() if isinstance(tolerations, Mapping) else tolerations
        cluster["tolerations"] = list(listed)
    selector = written(c, spawner, "node_selector", {})[1]
    if selector:
        cluster["node_selector"] = dict(selector)
    terms = written(c, spawner, "node_affinity_required", [])[1]
    if labels := _label_selector([*(terms.values() if isinstance(terms, Mapping) else terms)]):
        cluster["node_labels"] = labels
    environment = {name: os.environ[name] for name in (*IN_CLUSTER, *PROXIES) if name in os.environ}
    if not environment.keys() & set(IN_CLUSTER):
        cluster["kubeconfig"] = os.environ.get("KUBECONFIG") or str(Path.home() / ".kube" / "config")
    where, more = written(c, spawner, "gpu_cluster", {})
    cluster |= more
    try:
        cluster_settings(cluster)
    except ValueError as error:
        raise SystemExit(f"gpuspawner: what the service is told of the cluster ({where}): {error}") from None
    return {**environment, "GPUSPAWNER_BACKEND": "kubernetes", "GPUSPAWNER_KUBERNETES": json.dumps(cluster)}


def _label_selector(terms: Sequence[Any]) -> str:
    """Return the required node affinity of every workspace as a label selector, "" where there is none.

    Nor is there for what no label selector says: several terms of which one is enough, numbers, names of nodes.
    """
    term = terms[0] if len(terms) == 1 and isinstance(terms[0], Mapping) else {}
    asked = [_FORMS.get(one.get("operator"), "") if "key" in one else "" for one in term.get("matchExpressions") or ()]
    if not all(asked) or term.get("matchFields"):
        return ""
    return ",".join(
        form.format(one["key"], ",".join(sorted(map(str, one.get("values") or ()))))
        for form, one in zip(asked, term.get("matchExpressions") or (), strict=True)
    )


_FORMS = {"In": "{0} in ({1})", "NotIn": "{0} notin ({1})", "Exists": "{0}", "DoesNotExist": "!{0}"}
"""How a label selector says the operators of a node affinity."""


def service_address(c: Any) -> str:
    """Return where pods and proxy reach this machine: as they reach the hub, where the configuration says it."""
    connect = c.JupyterHub.get("hub_connect_ip") or urlparse(c.JupyterHub.get("hub_connect_url") or "").hostname
    address = connect or c.JupyterHub.get("hub_ip") or urlparse(c.JupyterHub.get("hub_bind_url") or "").hostname
    return str(address) if address and address not in {"0.0.0.0", "::"} else "127.0.0.1"  # noqa: S104 - asked, not bound
