"""The parts of a pod that come from a template: volumes, containers, resources and its priority class. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from copy import deepcopy
from typing import Any

from gpuspawner.catalog.models import Template
from gpuspawner.catalog.pod_models import Container, Volume
from gpuspawner.spawner.kubernetes.manifests import container

Json = dict[str, Any]


def with_template(
    manifest: Mapping[str, Any], template: Template, volumes: Mapping[str, Volume], claims: Mapping[str, str]
) -> Json:
    """Return KubeSpawner's manifest with everything that a template adds.

    Args:
        manifest: The manifest with the administrator's settings and profiles.
        template: The template of the workspace.
        volumes: Its volumes for this user.
        claims: The names of the user's own claims, by volume.
    """
    pod: Json = deepcopy(dict(manifest))
    spec, server = pod["spec"], container(pod)
    if template.resources:
        written = server.get("resources") or {}
        added = dict(template.resources)
        parts = {part: {**(written.get(part) or {}), **added} for part in ("limits", "requests")}
        server["resources"] = {**written, **parts}
    if template.priority_class:
        spec["priorityClassName"] = template.priority_class
        spec.pop("priority", None)
    mounts = [_mount(name, one) for name, one in volumes.items()]
    _add(
        spec, "volumes", [{"name": _name(name), **_source(one, claims.get(name, ""))} for name, one in volumes.items()]
    )
    _add(spec, "initContainers", [_container(*each, mounts) for each in template.init.items()])
    _add(spec, "containers", [_container(*each, mounts) for each in template.sidecars.items()])
    _add(server, "volumeMounts", mounts)
    return pod


def claim_manifest(volume: Volume, name: str, labels: Mapping[str, str], annotations: Mapping[str, str]) -> Json:
    """Return the PersistentVolumeClaim of a user for a ``per_user`` volume."""
    spec: Json = {
        "accessModes": [volume.access],
        "resources": {"requests": {"storage": str(volume.per_user_bytes)}},
    }
    if volume.storage_class:
        spec["storageClassName"] = volume.storage_class
    metadata = {"name": name, "labels": dict(labels), "annotations": dict(annotations)}
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": spec}


def _name(volume: str) -> str:
    """Return a volume's name in the pod. Volumes of KubeSpawner have other names."""
    return f"gpu-{volume}"[:63].rstrip("-")


def _mount(name: str, volume: Volume) -> Json:
    return {"name": _name(name), "mountPath": volume.mount, **({"readOnly": True} if volume.read_only else {})}


def _source(volume: Volume, own_claim: str) -> Json:
    read_only = {"readOnly": True} if volume.read_only else {}
    if volume.claim or own_claim:
        return {"persistentVolumeClaim": {"claimName": volume.claim or own_claim, **read_only}}
    if volume.empty:
        medium = {"medium": "Memory"} if volume.empty == "memory" else {}
        limit = {"sizeLimit": str(volume.size_bytes)} if volume.size_bytes else {}
        return {"emptyDir": {**medium, **limit}}
    if volume.nfs:
        server, _, path = volume.nfs.partition(":")
        return {"nfs": {"server": server, "path": path, **read_only}}
    if volume.csi:
        return {"csi": {**json.loads(volume.csi), **read_only}}
    if volume.config_map:
        return {"configMap": {"name": volume.config_map}}
    return {"secret": {"secretName": volume.secret}}


def _container(name: str, one: Container, mounts: list[Json]) -> Json:
    amounts = {"cpu": f"{one.cpu_cores:g}", "memory": str(one.memory_bytes)}
    found: Json = {"name": name, "image": one.image, "resources": {"limits": amounts, "requests": amounts}}
    if one.command:
        found["command"] = list(one.command)
    if one.environment:
        found["env"] = [{"name": key, "value": value} for key, value in one.environment]
    if mounts:
        found["volumeMounts"] = mounts
    return found


def _add(holder: Json, key: str, items: list[Json]) -> None:
    if items:
        holder[key] = [*(holder.get(key) or []), *deepcopy(items)]
