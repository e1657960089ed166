"""``configure()`` where workspaces are pods: which settings contradict a lease, and which weaken it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from gpuspawner.catalog import Catalog
from gpuspawner.spawner.kubernetes.configuration import all_namespaces, taken, unjudged, written
from gpuspawner.spawner.kubernetes.conflicts import TEMPLATES, Override, overrides, profile_conflicts
from gpuspawner.spawner.kubernetes.gpu_faults import (
    VISIBLE,
    containers,
    faults_of_amounts,
    faults_of_annotations,
    faults_of_container,
    faults_of_mounts,
    faults_of_pod,
    faults_of_resources,
    faults_of_server,
    faults_of_variables,
    faults_of_volumes,
    hidden_variables,
    is_privileged,
    listed,
    part,
)

Read = Callable[[str, Any], tuple[str, Any]]
"""Returns where a setting of KubeSpawner is written, and its value or the default given."""


def conflicts(c: Any, spawner: type, catalog: Catalog) -> Iterator[str]:
    """Yield, in words, each setting of the hub that contradicts what a lease says of its pod, and what to do."""
    named = frozenset(kind.resource for kind in catalog.gpus.values() if kind.resource)
    yield from _of_settings(partial(written, c, spawner), named)
    for setting in ("options_form", "options_from_form"):
        where, form = written(c, spawner, setting, None)
        if form is not None:
            yield f"{where} would replace gpuspawner's form. Remove it. {TEMPLATES}."
    yield from _pod_names(c, spawner)
    yield from profile_conflicts(c, spawner, catalog)
    for override in overrides(c, spawner, catalog):
        if not isinstance(override.settings, Mapping):
            given = type(override.settings).__name__
            yield f"{override.where}: kubespawner_override takes a dict, not {given}."
            continue
        yield from _of_settings(partial(_overridden, override, spawner), named)
        if "namespace" in override.settings and not all_namespaces(c, spawner):
            yield f"{override.where}: namespace: the service would not see its workspaces there. Take it out."


def weakened(c: Any, spawner: type, catalog: Catalog) -> Iterator[str]:
    """Yield, in words, each setting that a lease replaces without a contradiction, or that weakens what it says."""
    for setting in ("cpu_guarantee", "mem_guarantee"):
        where, amount = written(c, spawner, setting, None)
        if amount:
            yield (
                f"{where} is not used: a workspace is guaranteed what its user asks, within the template's bounds, or "
                "the part of it that the template's guarantee says."
            )
    if callable(written(c, spawner, "profile_list", [])[1]):
        yield (
            "c.KubeSpawner.profile_list is a function: what it returns is judged at each start alone, and the form "
            "does not offer its profile_options. Write a list or a dict for that."
        )
    yield from unjudged()
    reads = [partial(written, c, spawner)]
    reads += [partial(_overridden, one, spawner) for one in overrides(c, spawner, catalog)]
    for read in reads:
        yield from _weakening(read)


def _pod_names(c: Any, spawner: type) -> Iterator[str]:
    """Yield what gives several servers one pod, which the start, the stop or the failure of any of them would end."""
    where, template = written(c, spawner, "pod_name_template", "{user_server}")
    fields = " ".join(re.findall(r"\{(\w+)", template))
    if "user" not in fields:
        yield f"{where} gives all users the same pod: one would end another's. Write {{user_server}} in it."
    elif "server" not in fields and c.JupyterHub.get("allow_named_servers", False):
        yield f"{where} gives all servers of a user the same pod: one would end another. Write {{user_server}} in it."


def _of_settings(read: Read, named: frozenset[str]) -> Iterator[str]:
    """Yield what contradicts a lease among settings of KubeSpawner, be they the hub's or a profile's."""
    for setting in ("extra_resource_limits", "extra_resource_guarantees"):
        where, resources = read(setting, {})
        yield from faults_of_amounts(where, resources, named)
    for setting, bound in (("cpu_limit", "cpu"), ("mem_limit", "memory")):
        where, limit = read(setting, None)
        if limit is not None:
            yield f"{where} would be replaced by what people ask. Take it out; write bounds: {{{bound}: ...}} instead."
    for where, privileged in _privileged(read):
        if privileged:
            yield f"{where}: a privileged container sees every GPU of its node. Take it out."
    where, environment = read("environment", {})
    yield from faults_of_variables(where, [part(value, "name") or key for key, value in environment.items()])
    where, extra = read("extra_container_config", {})
    yield from faults_of_resources(where, extra, named)
    yield from faults_of_server(where, extra)
    for setting in ("extra_containers", "init_containers"):
        where, others = read(setting, [])
        for name, container in listed(others):
            yield from faults_of_resources(f"{where}, {name}", container, named)
            yield from faults_of_container(f"{where}, {name}", container)
    where, volumes = read("volumes", [])
    yield from faults_of_volumes(where, volumes)
    where, mounts = read("volume_mounts", [])
    yield from faults_of_mounts(where, mounts)
    where, annotations = read("extra_annotations", {})
    yield from faults_of_annotations(where, annotations)
    where, spec = read("extra_pod_config", {})
    yield from faults_of_pod(where, spec)
    for place, container in containers(where, spec):
        yield from faults_of_resources(place, container, named)
    if part(spec, "containers"):
        yield f"{where}: containers replaces the server's own container. Write them in c.KubeSpawner.extra_containers."


def _privileged(read: Read) -> Iterator[tuple[str, Any]]:
    yield read("privileged", None)
    where, context = read("container_security_context", {})
    if not callable(context):  # of a function, the finished pod tells
        yield f"{where}: privileged", context.get("privileged")
    where, extra = read("extra_container_config", {})
    yield f"{where}: securityContext: privileged", is_privileged(extra)


def _weakening(read: Read) -> Iterator[str]:
    """Yield what gives a workspace no GPU by itself, and could."""
    where, extra = read("extra_container_config", {})
    if hidden_variables(extra):
        yield (
            f"{where}: envFrom takes variables that are not seen here: {VISIBLE} among them would show a workspace "
            "every GPU of its node. Give it a prefix, or write the variables in c.KubeSpawner.environment."
        )
    where, others = read("extra_containers", [])
    for name, container in listed(others):
        if is_privileged(container):
            yield (
                f"{where}, {name}: a privileged container beside the server sees every GPU of its node, and no lease "
                "counts what it uses. Let nobody run programs of their own in it."
            )


def _overridden(override: Override, spawner: type, setting: str, default: Any) -> tuple[str, Any]:
    where = f"{override.where}: {setting}"
    value = override.settings.get(setting) if isinstance(override.settings, Mapping) else None
    if not value or callable(value):  # of what a function returns, the finished pod tells
        return where, default
    return taken(where, spawner, setting, value)
