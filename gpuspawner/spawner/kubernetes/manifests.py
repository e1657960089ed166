"""The pod manifest of a lease: the lease's patch applied to KubeSpawner's manifest, and the pod's resource claims."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from kubernetes_asyncio.client import models

from gpuspawner.backends.kubernetes.pods import PRE_STOP, SERVER_SECONDS, requested_gpus, to_metadata
from gpuspawner.core.errors import Conflict
from gpuspawner.core.gpus.vendors import exposes_gpus
from gpuspawner.spawner.kubernetes.gpu_faults import (
    VISIBLE,
    faults_of_annotations,
    faults_of_container,
    faults_of_pod,
    faults_of_server,
    is_privileged,
)
from gpuspawner.spawner.kubernetes.pod_states import NOTEBOOK


def apply_changes(value: Any, before: Any, after: Any, kind: str) -> Any:
    """Return a model with the changes from ``before`` to ``after``. Everything else keeps its value and its type.

    So an administrator's ``modify_pod_hook`` gets the objects that KubeSpawner itself would have passed.

    Args:
        value: The model or a part of it: a list, a dict, a plain value, None.
        before: Its content as JSON of the API.
        after: Its new content.
        kind: Its type as the client writes it: ``V1Pod``, ``list[V1Container]``, ``dict(str, str)``.
    """
    if before == after:
        return value
    names = getattr(value, "attribute_map", None)
    if names is not None:
        for attribute, key in names.items():
            if key in after or key in before:
                now = getattr(value, attribute)
                part = apply_changes(now, before.get(key), after.get(key), value.openapi_types[attribute])
                setattr(value, attribute, part)
        return value
    if isinstance(value, list) and isinstance(before, list) and isinstance(after, list):
        inner = kind.removeprefix("list[").removesuffix("]")
        if len(after) < len(value):
            return to_model(after, kind)
        kept = [apply_changes(*each, inner) for each in zip(value, before, after[: len(value)], strict=True)]
        return [*kept, *(to_model(new, inner) for new in after[len(value) :])]
    return after if isinstance(value, dict) else to_model(after, kind)


def to_model(data: Any, kind: str) -> Any:
    """Return JSON of the API as the client's model of this type. Other values are unchanged."""
    if data is None:
        return None
    if kind.startswith("list["):
        return [to_model(item, kind.removeprefix("list[").removesuffix("]")) for item in data]
    model = getattr(models, kind, None)
    if model is None or not hasattr(model, "attribute_map"):
        return data
    attributes = {key: attribute for attribute, key in model.attribute_map.items()}
    return model(
        **{attributes[key]: to_model(part, model.openapi_types[attributes[key]]) for key, part in data.items()}
    )


Json = dict[str, Any]

CLAIM, CLAIM_API = "gpu", "resource.k8s.io/v1"
"""The name of a claim in its pod, and the API of claims from Kubernetes 1.34 on."""


def claim_of(patch: Mapping[str, Any], mark: str) -> Json:
    """Return the ResourceClaim for the pod of a start, or {}. The pod will own it.

    The name is unique for the start: the claim of the last start may still be ending.
    """
    spec = patch.get("pod", {}).get("claim")
    if not spec:
        return {}
    labels, _ = to_metadata(patch.get("environment", {}))
    metadata = {"name": f"gpuspawner-{mark}", "labels": labels}
    return {"apiVersion": CLAIM_API, "kind": "ResourceClaim", "metadata": metadata, "spec": spec}


def with_owner(claim: Mapping[str, Any], pod: Mapping[str, Any]) -> Json:
    """Return the claim with an existing pod as its owner: the cluster deletes it with the pod."""
    owner = {"apiVersion": "v1", "kind": "Pod", "name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]}
    return {**claim, "metadata": {**claim["metadata"], "ownerReferences": [{**owner, "controller": True}]}}


def name_claim(spec: Json, server: Json, claim: Mapping[str, Any]) -> None:
    """Let a pod wait for its claim and give its devices to the server."""
    if claim:
        spec["resourceClaims"] = [{"name": CLAIM, "resourceClaimName": claim["metadata"]["name"]}]
        server["resources"] = {**(server.get("resources") or {}), "claims": [{"name": CLAIM}]}


def without_claim(pod: Mapping[str, Any], server: Json, claim: Mapping[str, Any]) -> tuple[Json, Json] | None:
    """Return a pod and its server without their claim. None if they claim something else."""
    named: tuple[Json, Json] = ({}, {})
    name_claim(*named, claim)
    resources = server.get("resources") or {}
    if (pod["spec"].get("resourceClaims") or []) != named[0].get("resourceClaims", []):
        return None
    if (resources.get("claims") or []) != named[1].get("resources", {}).get("claims", []):
        return None
    return {**pod, "spec": {**pod["spec"], "resourceClaims": []}}, {**server, "resources": {**resources, "claims": []}}


START_MARK = "gpuspawner.io/start"
"""The annotation by which a start recognizes its own pod among pods of the same name."""
STAYS = {"karpenter.sh/do-not-disrupt": "true", "cluster-autoscaler.kubernetes.io/safe-to-evict": "false"}
"""Keeps autoscalers from emptying a node to save costs. Karpenter evicts pods without a controller like all others, and
their users would not be asked.
"""
SAID_SECONDS = 5
"""Seconds that the preStop hook waits for the service's answer whether the cluster or a user ends the pod. The service
observes this within two seconds and writes it into the workspace. The rest is arbitrary.
"""
SHARED_MEMORY = "gpuspawner-shm"
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


@dataclass(frozen=True)
class PodSettings:
    """The settings of every workspace's pod in addition to its GPUs.

    ``shared_memory_bytes`` is the size of ``/dev/shm`` (0: the runtime's 64 MiB), ``grace_seconds`` the time between
    SIGTERM and SIGKILL. ``restricted`` adds the fields that the *restricted* Pod Security Standard requires.
    ``runtime_class`` is for pods with GPUs. CPU and memory are limits, of which only a part may be guaranteed.
    """

    cpu_cores: float
    memory_bytes: int
    guaranteed_cpu_cores: float | None = None
    guaranteed_memory_bytes: int | None = None
    shared_memory_bytes: int = 0
    grace_seconds: int = 30
    restricted: bool = True
    runtime_class: str = ""
    always_pull: bool = False
    """For an image that its user may replace under the same name: a node must never use an old copy."""


def with_lease(manifest: Mapping[str, Any], patch: Mapping[str, Any], settings: PodSettings, mark: str) -> Json:
    """Return the manifest of a workspace's pod.

    Args:
        manifest: KubeSpawner's manifest, with the administrator's settings and profiles.
        patch: The lease's patch. See ``Backend.patch``.
        settings: The settings of this hub, with the CPU and memory of this request.
        mark: The mark of this start.

    Raises:
        Conflict: A setting of the administrator contradicts the lease. Names it and the remedy.
    """
    pod: Json = deepcopy(dict(manifest))
    spec, server = pod["spec"], container(pod)
    gpus, claim = _granted_gpus(patch), claim_of(patch, mark)
    _refuse_own_gpus(server, gpus)
    _set_resources(server, gpus, settings)
    if more := _find_extra_gpus(spec, gpus):
        raise Conflict(
            f"A container of c.KubeSpawner.extra_containers, init_containers or extra_pod_config (or of a profile's) "
            f"{more} Let it ask for none: GPUs come from the lease alone."
        )
    for fault in _find_faults("c.KubeSpawner (or a profile)", pod, server, has_gpus=bool(gpus or claim)):
        raise Conflict(fault)
    _set_identity(pod, patch, mark)
    _hide_gpus(spec, server)
    _ask_for_none(spec, patch.get("not_added", ()))
    if settings.shared_memory_bytes:
        _add_shared_memory(spec, server, settings.shared_memory_bytes)
    ours = patch.get("pod", {}).get("spec", {})
    _append(spec, "tolerations", ours.get("tolerations", []))
    if ours.get("affinity"):
        _add_node_affinity(spec, ours["affinity"]["nodeAffinity"])
    _add_scheduler_settings(pod, patch.get("pod", {}).get("beside", {}))
    name_claim(spec, server, claim)
    if (gpus or claim) and settings.runtime_class:
        spec.setdefault("runtimeClassName", settings.runtime_class)
    if not spec.get("serviceAccountName"):  # only an explicit account gets its token
        spec.setdefault("automountServiceAccountToken", False)
    _add_pre_stop_hook(server, spec.setdefault("terminationGracePeriodSeconds", settings.grace_seconds))
    if settings.always_pull:
        server["imagePullPolicy"] = "Always"
    server.setdefault("terminationMessagePolicy", "FallbackToLogsOnError")  # the end of the output explains a crash
    if settings.restricted:
        _restrict(spec)
    return pod


def find_contradiction(pod: Mapping[str, Any], patch: Mapping[str, Any], mark: str) -> str:
    """Return a sentence about a necessary part of the pod that the administrator's own hook removed, or ""."""
    metadata = pod.get("metadata", {})
    labels, annotations = to_metadata(patch.get("environment", {}))
    lost = [key for key, value in labels.items() if metadata.get("labels", {}).get(key) != value]
    wanted = {**annotations, START_MARK: mark}
    lost += [key for key, value in wanted.items() if metadata.get("annotations", {}).get(key) != value]
    hook = "c.KubeSpawner.modify_pod_hook"
    if lost:
        return f"{hook} removes or changes {', '.join(lost)}. Without it the workspace's lease is lost: keep it."
    try:
        server = container(pod)
    except Conflict as error:
        return str(error)
    if is_privileged(server):
        return f"{hook} makes the server privileged, which sees every GPU of its node. Take that out."
    limits = server.get("resources", {}).get("limits", {})
    changed = {**{name: "0" for name in limits if exposes_gpus(name)}, **_granted_gpus(patch)}
    for name, count in changed.items():
        if str(limits.get(name, "0")) != count:
            given = limits.get(name, "none")
            return f"{hook} changes {name} to {given}; the lease is for {count}. GPUs come from the lease alone."
    claim, more = claim_of(patch, mark), _find_extra_gpus(pod["spec"], _granted_gpus(patch))
    rest = without_claim(pod, server, claim)
    if more or rest is None:
        return f"{hook} {more or 'changes what the pod claims.'} GPUs come from the lease alone."
    return next(_find_faults(hook, *rest, has_gpus=bool(_granted_gpus(patch) or claim)), "")


def container(pod: Mapping[str, Any]) -> Json:
    """Return the container of the server. Raises Conflict if it is missing."""
    for one in pod["spec"]["containers"]:
        if one.get("name") == NOTEBOOK:
            found: Json = one
            return found
    raise Conflict(f"The pod has no container `{NOTEBOOK}`: c.KubeSpawner's settings or its hook renamed it.")


@cache
def _pre_stop() -> str:
    return resources.files("gpuspawner.spawner.kubernetes").joinpath("pre_stop.sh").read_text()


def _add_pre_stop_hook(server: Json, grace_seconds: int) -> None:
    """Add the preStop hook, in which programs save. If the cluster has announced the end, the hook waits until then.

    An existing hook of the administrator is kept.
    """
    if not (server.get("lifecycle") or {}).get("preStop"):
        seconds = max(1, grace_seconds - SERVER_SECONDS)
        command = ["sh", "-c", _pre_stop(), PRE_STOP, str(seconds), str(min(SAID_SECONDS, seconds))]
        server["lifecycle"] = {**(server.get("lifecycle") or {}), "preStop": {"exec": {"command": command}}}


def _granted_gpus(patch: Mapping[str, Any]) -> dict[str, str]:
    limits = patch.get("pod", {}).get("container", {}).get("resources", {}).get("limits", {})
    return {str(name): str(count) for name, count in limits.items()}


def _refuse_own_gpus(server: Json, gpus: Mapping[str, str]) -> None:
    if is_privileged(server):
        raise Conflict("c.KubeSpawner makes the server privileged, which sees every GPU of its node. Take that out.")
    resources = server.get("resources") or {}
    written = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
    for name in written:
        if exposes_gpus(name, frozenset(gpus)):
            raise Conflict(
                f"c.KubeSpawner.extra_resource_limits (or a profile's) names {name}. GPUs come from the lease alone: "
                "take it out, and offer the GPU in the catalog's templates."
            )


def _find_faults(where: str, pod: Mapping[str, Any], server: Json, *, has_gpus: bool) -> Iterator[str]:
    """Yield ways to GPUs other than requested resources, which are counted for the whole pod."""
    yield from (faults_of_server if has_gpus else faults_of_container)(f"{where}: the server", server)
    yield from faults_of_pod(where, pod["spec"], server=NOTEBOOK)
    yield from faults_of_annotations(where, pod.get("metadata", {}).get("annotations"))


def _find_extra_gpus(spec: Json, gpus: Mapping[str, str]) -> str:
    """Return the GPUs that other containers add to the pod's, as the scheduler counts them, or ""."""
    taken = requested_gpus(spec, frozenset(gpus))
    for name in sorted({*taken, *gpus}):
        if str(taken.get(name, 0)) != gpus.get(name, "0"):
            return f"makes the pod take {taken.get(name, 0)} {name}; the lease is for {gpus.get(name, '0')}."
    return ""


def _set_resources(server: Json, gpus: Mapping[str, str], settings: PodSettings) -> None:
    """Request the granted GPUs, whole, as device plugins require, and the CPU and memory of the request."""
    resources = server["resources"] = {**(server.get("resources") or {})}
    cores, size_bytes = settings.guaranteed_cpu_cores, settings.guaranteed_memory_bytes
    sizes = {
        "limits": (settings.cpu_cores, settings.memory_bytes),
        "requests": (cores or settings.cpu_cores, size_bytes or settings.memory_bytes),
    }
    for part, (cpu, memory) in sizes.items():
        own = {"cpu": f"{cpu:.10g}", "memory": _quantity(memory), **gpus}
        resources[part] = {**(resources.get(part) or {}), **own}


def _quantity(size_bytes: int) -> str:
    """Return a size in the usual Kubernetes notation if it has one."""
    for unit, size in (("Gi", 2**30), ("Mi", 2**20)):
        if size_bytes % size == 0:
            return f"{size_bytes // size}{unit}"
    return str(size_bytes)


def _set_identity(pod: Json, patch: Mapping[str, Any], mark: str) -> None:
    labels, annotations = to_metadata(patch.get("environment", {}))
    metadata = pod["metadata"]
    metadata["labels"] = {**(metadata.get("labels") or {}), **labels}
    metadata["annotations"] = {**STAYS, **(metadata.get("annotations") or {}), **annotations, START_MARK: mark}


def _hide_gpus(spec: Json, server: Json) -> None:
    """Hide GPUs from all containers except the server's: a CUDA image would request all."""
    for other in [*(spec.get("initContainers") or []), *spec["containers"]]:
        if other is not server and all(v["name"] != VISIBLE for v in other.get("env") or []):
            other["env"] = [*(other.get("env") or []), {"name": VISIBLE, "value": "void"}]


def _ask_for_none(spec: Json, resources: Iterable[str]) -> None:
    """Ask for none of these resources in each container without them. A LimitRange changes no value that is there."""
    none = dict.fromkeys(resources, "0")
    for one in [*(spec.get("initContainers") or []), *spec["containers"]] if none else ():
        own = one.get("resources") or {}
        one["resources"] = {**own, **{part: {**none, **(own.get(part) or {})} for part in ("requests", "limits")}}


def _add_shared_memory(spec: Json, server: Json, size_bytes: int) -> None:
    mounts = server.get("volumeMounts") or []
    if any(mount["mountPath"].rstrip("/") == "/dev/shm" for mount in mounts):  # noqa: S108 - where programs look for it
        return
    server["volumeMounts"] = [*mounts, {"name": SHARED_MEMORY, "mountPath": "/dev/shm"}]  # noqa: S108 - likewise
    volume = {"name": SHARED_MEMORY, "emptyDir": {"medium": "Memory", "sizeLimit": _quantity(size_bytes)}}
    spec["volumes"] = [*(spec.get("volumes") or []), volume]


def _add_scheduler_settings(pod: Json, beside: Mapping[str, Any]) -> None:
    """Add the pod settings of an external scheduler. Settings of the administrator or the lease are kept."""
    spec, metadata = pod["spec"], pod.setdefault("metadata", {})
    _append(spec, "tolerations", beside.get("tolerations", []))
    for holder, name in ((metadata, "labels"), (metadata, "annotations"), (spec, "nodeSelector")):
        if beside.get(name):
            holder[name] = {**beside[name], **(holder.get(name) or {})}
    for name in ("schedulerName", "priorityClassName", "runtimeClassName"):
        if beside.get(name) and not spec.get(name):
            spec[name] = beside[name]


def _append(holder: Json, name: str, items: list[Any]) -> None:
    there = holder.get(name) or []
    added = [item for item in items if item not in there]
    if added:
        holder[name] = [*there, *added]


def _add_node_affinity(spec: Json, ours: Mapping[str, Any]) -> None:
    """Add preferences, and combine requirements: each of their terms with each of ours, so that both hold."""
    spec["affinity"] = {**(spec.get("affinity") or {})}
    node = spec["affinity"]["nodeAffinity"] = {**(spec["affinity"].get("nodeAffinity") or {})}
    _append(node, PREFERRED, ours.get(PREFERRED, []))
    required = ours.get(REQUIRED, {}).get("nodeSelectorTerms", [])
    if not required:
        return
    theirs = (node.get(REQUIRED) or {}).get("nodeSelectorTerms", [])
    node[REQUIRED] = {"nodeSelectorTerms": [_combine_terms(one, other) for one in theirs or [{}] for other in required]}


def _combine_terms(one: Mapping[str, Any], other: Mapping[str, Any]) -> Json:
    parts = {key: [*one.get(key, []), *other.get(key, [])] for key in ("matchExpressions", "matchFields")}
    return {key: requirements for key, requirements in parts.items() if requirements}


def _restrict(spec: Json) -> None:
    """Add the fields that the *restricted* standard requires to each container without explicit rights."""
    whole = spec.get("securityContext") or {}
    for one in [*(spec.get("initContainers") or []), *spec["containers"]]:
        own = {**(one.get("securityContext") or {})}
        said = {**whole, **own}
        added = (own.get("capabilities") or {}).get("add")
        if own.get("privileged") or own.get("allowPrivilegeEscalation") or said.get("runAsUser") == 0 or added:
            continue
        own.setdefault("allowPrivilegeEscalation", False)
        own["capabilities"] = {"drop": ["ALL"], **(own.get("capabilities") or {})}
        if "runAsNonRoot" not in said:
            own["runAsNonRoot"] = True
        if "seccompProfile" not in said:
            own["seccompProfile"] = {"type": "RuntimeDefault"}
        one["securityContext"] = own
