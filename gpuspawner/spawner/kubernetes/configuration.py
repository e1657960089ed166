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

from gpuspawner.backends.kubernetes.settings import cluster_settings

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
"""Settings of KubeSpawner, and the chart's values below ``singleuser`` for them."""

CALLED = re.compile(r"\bconfigure\(\s*c\b")
"""The call of configure() in a text of hub.extraConfig."""


def runs_in_chart() -> bool:
    """Return whether this is the chart's configuration."""
    return "z2jh" in sys.modules


def chart_value_of(setting: str) -> str:
    """Return the chart's value of a setting, to follow the setting's name, or ""."""
    return f" (singleuser.{VALUES[setting]} of the chart)" if runs_in_chart() and setting in VALUES else ""


def find_unchecked_texts() -> Iterator[str]:
    """Yield a sentence about chart configuration that runs after configure() and was not checked."""
    if not runs_in_chart():
        return
    extra = sys.modules["z2jh"].get_config("hub.extraConfig", {}) or {}
    ours = [key for key, text in sorted(extra.items()) if CALLED.search(str(text))]
    later = [key for key in sorted(extra) if ours and key > ours[-1]]
    if later:
        yield (
            f"hub.extraConfig of the chart runs {', '.join(later)} after {ours[-1]}, which calls configure(): what is "
            f"set there is not checked. Rename {ours[-1]} so that it sorts last, for example zz-gpuspawner."
        )


def read_setting(c: Any, spawner: type, setting: str, default: Any) -> tuple[str, Any]:
    """Return the place and the value of a setting of the spawner's class. The nearest class with a value counts.

    Raises:
        SystemExit: It has the wrong type. The hub itself would report that only at the first start.
    """
    for owner in spawner.__mro__:
        value = c[owner.__name__].get(setting) if owner.__name__ in c else None
        if isinstance(value, LazyConfigValue):
            value = value.get_value(default)
        if value is not None:
            return check_setting(f"c.{owner.__name__}.{setting}{chart_value_of(setting)}", spawner, setting, value)
    return f"c.KubeSpawner.{setting}", default


def check_setting(where: str, spawner: type, setting: str, value: Any) -> tuple[str, Any]:
    """Return the place and the value of a setting. Raises SystemExit if it has the wrong type."""
    trait = spawner.class_traits().get(setting) if issubclass(spawner, HasTraits) else None
    if trait is None or setting == "profile_list":  # its entries are checked one by one
        return where, value
    try:
        trait._validate(HasTraits(), value)
    except TraitError:
        raise SystemExit(f"gpuspawner: {where} takes {trait.info()}, not {type(value).__name__}.") from None
    return where, value


def all_namespaces(c: Any, spawner: type) -> bool:
    """Return whether workspaces are in namespaces of their users."""
    return bool(read_setting(c, spawner, "enable_user_namespaces", default=False)[1])


IN_CLUSTER = ("KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT")
PROXIES = ("HTTPS_PROXY", "https_proxy", "NO_PROXY", "no_proxy")
"""Proxies that KubeSpawner uses for the API server."""
NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


def service_environment(c: Any, spawner: type) -> dict[str, str]:
    """Return the service's variables for the cluster: a managed service inherits none of the hub's."""
    namespace = NAMESPACE_FILE.read_text(encoding="ascii").strip() if NAMESPACE_FILE.exists() else "default"
    cluster: dict[str, Any] = {
        "namespace": read_setting(c, spawner, "namespace", namespace)[1],
        "all_namespaces": all_namespaces(c, spawner),
        "placement": read_setting(c, spawner, "gpu_placement", "preferred")[1],
    }
    tolerations = read_setting(c, spawner, "tolerations", [])[1]
    if tolerations:
        listed = tolerations.values() if isinstance(tolerations, Mapping) else tolerations
        cluster["tolerations"] = list(listed)
    selector = read_setting(c, spawner, "node_selector", {})[1]
    if selector:
        cluster["node_selector"] = dict(selector)
    terms = read_setting(c, spawner, "node_affinity_required", [])[1]
    if labels := _label_selector([*(terms.values() if isinstance(terms, Mapping) else terms)]):
        cluster["node_labels"] = labels
    environment = {name: os.environ[name] for name in (*IN_CLUSTER, *PROXIES) if name in os.environ}
    if not environment.keys() & set(IN_CLUSTER):
        cluster["kubeconfig"] = os.environ.get("KUBECONFIG") or str(Path.home() / ".kube" / "config")
    where, more = read_setting(c, spawner, "gpu_cluster", {})
    cluster |= more
    try:
        cluster_settings(cluster)
    except ValueError as error:
        raise SystemExit(f"gpuspawner: what the service is told of the cluster ({where}): {error}") from None
    return {**environment, "GPUSPAWNER_BACKEND": "kubernetes", "GPUSPAWNER_KUBERNETES": json.dumps(cluster)}


def _label_selector(terms: Sequence[Any]) -> str:
    """Return the required node affinity of every workspace as a label selector, or "".

    A label selector cannot express several alternative terms, numbers or names of nodes.
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
"""The label selectors of a node affinity's operators."""


def service_address(c: Any) -> str:
    """Return the address of this machine for pods and proxy: the hub's, if the configuration contains it."""
    connect = c.JupyterHub.get("hub_connect_ip") or urlparse(c.JupyterHub.get("hub_connect_url") or "").hostname
    address = connect or c.JupyterHub.get("hub_ip") or urlparse(c.JupyterHub.get("hub_bind_url") or "").hostname
    return str(address) if address and address not in {"0.0.0.0", "::"} else "127.0.0.1"  # noqa: S104 - asked, not bound
