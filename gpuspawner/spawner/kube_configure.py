"""``configure()`` where workspaces are pods: which settings contradict a lease, and what the service needs."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

from traitlets import HasTraits, TraitError
from traitlets.config.loader import LazyConfigValue

from gpuspawner.backends.kubernetes.settings import cluster_settings
from gpuspawner.catalog import Catalog
from gpuspawner.spawner.pod import GPU_RESOURCE, VISIBLE

IN_CLUSTER = ("KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT")
PROXIES = ("HTTPS_PROXY", "https_proxy", "NO_PROXY", "no_proxy")
"""By which KubeSpawner reaches the API server."""
NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
TEMPLATES = "What people may choose stands in the catalog's templates"


def conflicts(c: Any, spawner: type, catalog: Catalog) -> Iterator[str]:
    """Yield, in words, each setting of the hub that contradicts what a lease says of its pod, and what to do."""
    named = frozenset(kind.resource for kind in catalog.gpus.values() if kind.resource)
    yield from _of_settings(lambda setting, default: written(c, spawner, setting, default), named)
    for setting in ("options_form", "options_from_form"):
        where, form = written(c, spawner, setting, None)
        if form is not None:
            yield f"{where} would replace gpuspawner's form. Remove it. {TEMPLATES}."
    yield from _pod_names(c, spawner)
    yield from _profiles(c, spawner, catalog, named)


def _pod_names(c: Any, spawner: type) -> Iterator[str]:
    """Yield what gives several servers one pod, which the start, the stop or the failure of any of them would end."""
    where, template = written(c, spawner, "pod_name_template", "{user_server}")
    fields = " ".join(re.findall(r"\{(\w+)", template))
    if "user" not in fields:
        yield f"{where} gives all users the same pod: one would end another's. Write {{user_server}} in it."
    elif "server" not in fields and c.JupyterHub.get("allow_named_servers", False):
        yield f"{where} gives all servers of a user the same pod: one would end another. Write {{user_server}} in it."


def _of_settings(read: Callable[[str, Any], tuple[str, Any]], named: frozenset[str]) -> Iterator[str]:
    """Yield what contradicts a lease among settings of KubeSpawner, be they the hub's or a profile's.

    ``read`` returns where a setting is written, and its value or the default given.
    """
    for setting in ("extra_resource_limits", "extra_resource_guarantees"):
        where, resources = read(setting, {})
        for name in resources:
            if name in named or GPU_RESOURCE.fullmatch(name):
                yield f"{where} names {name}. GPUs come from the lease alone: take it out."
    for setting, bound in (("cpu_limit", "cpu"), ("mem_limit", "memory")):
        where, limit = read(setting, None)
        if limit is not None:
            yield f"{where} would be replaced by what people ask. Take it out; write bounds: {{{bound}: ...}} instead."
    for where, privileged in _privileged(read):
        if privileged:
            yield f"{where}: a privileged container sees every GPU of its node. Take it out."
    where, environment = read("environment", {})
    if VISIBLE in environment:
        yield f"{where} sets {VISIBLE}, which shows a workspace other GPUs than its own. Take it out."


def _privileged(read: Callable[[str, Any], tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
    yield read("privileged", None)
    where, context = read("container_security_context", {})
    if not callable(context):  # of a function, the finished pod tells
        yield f"{where}: privileged", context.get("privileged")
    where, extra = read("extra_container_config", {})
    for name in ("securityContext", "security_context"):  # KubeSpawner takes either
        yield f"{where}: {name}: privileged", (extra.get(name) or {}).get("privileged")


def unused(c: Any, spawner: type) -> Iterator[str]:
    """Yield, in words, each setting of the hub that a lease replaces without a contradiction."""
    for setting in ("cpu_guarantee", "mem_guarantee"):
        where, amount = written(c, spawner, setting, None)
        if amount:
            yield f"{where} is not used: a workspace is guaranteed what its user asks, within the template's bounds."


def _profiles(c: Any, spawner: type, catalog: Catalog, named: frozenset[str]) -> Iterator[str]:
    where, profiles = written(c, spawner, "profile_list", [])
    wanted = {name: template.profile for name, template in catalog.templates.items() if template.profile}
    if callable(profiles):
        return
    # Of a mapping KubeSpawner takes the values in the order of their keys.
    listed = [profiles[key] for key in sorted(profiles)] if isinstance(profiles, Mapping) else profiles
    for number, profile in enumerate(listed, 1):
        if not isinstance(profile, Mapping) or not isinstance(profile.get("display_name"), str):
            yield f"{where}: profile {number} has no display_name, which KubeSpawner needs. Write one."
            return
    from slugify import slugify  # noqa: PLC0415 - KubeSpawner's own, an extra of the package

    of_slug = {profile.get("slug") or slugify(profile["display_name"]): profile for profile in listed}
    slugs = list(of_slug)
    for name, slug in wanted.items():
        if slug not in of_slug:
            known = ", ".join(slugs) or "none"
            yield f"templates.{name}.profile: {where} has no profile with the slug {slug}. It has: {known}."
    if len(slugs) > 1 and not wanted:
        yield (
            f"{where} has {len(slugs)} profiles, of which people would only get the default one: {TEMPLATES}. "
            f"Write profile: {slugs[0]} and so on in the templates, or keep one profile."
        )
    applied = {*wanted.values(), *(_default_of(of_slug) if len(wanted) < len(catalog.templates) else ())}
    for slug in [slug for slug in slugs if slug in applied]:
        override = of_slug[slug].get("kubespawner_override") or {}
        if not isinstance(override, Mapping):
            yield f"{where}, {slug}: kubespawner_override takes a dict, not {type(override).__name__}."
            continue
        yield from _of_settings(partial(_overridden, f"{where}, {slug}", spawner, override), named)
        if "namespace" in override and not _all_namespaces(c, spawner):
            yield f"{where}, {slug}: namespace: the service would not see its workspaces there. Take it out."


def _default_of(profiles: Mapping[str, Mapping[str, Any]]) -> Iterable[str]:
    """Return the slug of the profile that KubeSpawner applies where none is named: none of none."""
    return [*(slug for slug, profile in profiles.items() if profile.get("default")), *profiles][:1]


def _overridden(where: str, spawner: type, override: Mapping[str, Any], setting: str, default: Any) -> tuple[str, Any]:
    value = override.get(setting)
    if not value or callable(value):  # of what a function returns, the finished pod tells
        return f"{where}: {setting}", default
    return _taken(f"{where}: {setting}", spawner, setting, value)


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
            return _taken(f"c.{owner.__name__}.{setting}", spawner, setting, value)
    return f"c.KubeSpawner.{setting}", default


def _taken(where: str, spawner: type, setting: str, value: Any) -> tuple[str, Any]:
    trait = spawner.class_traits().get(setting) if issubclass(spawner, HasTraits) else None
    if trait is None or setting == "profile_list":  # which is looked at entry by entry
        return where, value
    try:
        trait._validate(HasTraits(), value)  # noqa: SLF001 - as any class that has the trait does
    except TraitError:
        raise SystemExit(f"gpuspawner: {where} takes {trait.info()}, not {type(value).__name__}.") from None
    return where, value


def _all_namespaces(c: Any, spawner: type) -> bool:
    return bool(written(c, spawner, "enable_user_namespaces", default=False)[1])


def service_environment(c: Any, spawner: type) -> dict[str, str]:
    """Return the variables by which the service finds the cluster: a managed service inherits none of the hub's."""
    namespace = NAMESPACE_FILE.read_text(encoding="ascii").strip() if NAMESPACE_FILE.exists() else "default"
    cluster: dict[str, Any] = {
        "namespace": written(c, spawner, "namespace", namespace)[1],
        "all_namespaces": _all_namespaces(c, spawner),
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
