"""The GPUs of a cluster, as its nodes advertise and label them, and of a machine, as ``nvidia-smi`` lists them."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from gpuspawner.adoption.discovered_gpus import Discovery, FoundGpus, KindKey, literal
from gpuspawner.backends.kubernetes.nodes import Model, Node, model_of, says_shared, says_slice, to_node
from gpuspawner.backends.local import nvidia
from gpuspawner.backends.local.nvidia import MIG_ON, MigDevice, Row
from gpuspawner.core.errors import Unavailable
from gpuspawner.core.units import MEBIBYTE

NO_NODES = (
    "No node advertises GPUs. If nodes have GPUs, install the vendor's device plugin. kubectl describe node then shows "
    "nvidia.com/gpu below Allocatable. If an autoscaler starts nodes later, write their kind into gpus with autoscale, "
    "as hub_config/kubernetes-catalog.yaml shows."
)
UNLABELLED = (
    "{nodes}: {count} x {resource}, and no label shows the model. Install GPU Feature Discovery, a part of NVIDIA's "
    "GPU Operator, and run this again. Until then all of them are one kind."
)
UNDIVIDED = (
    "{nodes}: {count} x {resource} are shared, and no label shows by how many workspaces. Label the nodes with "
    "nvidia.com/gpu.replicas, as GPU Feature Discovery does, and run this again. They are not in the catalog."
)
NOT_ALLOCATABLE = (
    "{node}: its {count} x {resource} cannot be allocated. Either all are unhealthy, or their device plugin ended. "
    "They are not in the catalog. Look at the device plugin's pod on that node and run this again."
)


def of_nodes(items: Iterable[Mapping[str, Any]]) -> Discovery:
    """Return the GPUs of the API's nodes as a catalog needs them."""
    nodes = [(to_node(item), compute_of_node(item)) for item in items]
    seen: dict[tuple[Model, str, bool, str], dict[str, int]] = defaultdict(dict)
    notes = []
    for node, compute in nodes:
        for resource, count in sorted(node.capacity.items()):
            if node.allocatable.get(resource):
                seen[_plain(model_of(node.labels, resource)), resource, node.spot, compute][node.name] = count
            elif count:
                notes.append(NOT_ALLOCATABLE.format(node=node.name, count=count, resource=resource))
        notes += _away(node)
    found = []
    for (model, resource, spot, compute), counts in seen.items():
        nodes_named, count = _listed(counts), sum(counts.values())
        if not model.replicas:
            notes.append(UNDIVIDED.format(nodes=nodes_named, count=count, resource=resource))
            continue
        if not model.name:
            notes.append(UNLABELLED.format(nodes=nodes_named, count=count, resource=resource))
        found.append(replace(to_gpus(model, resource, counts), spot=spot, compute=compute))
    if not any(any(node.capacity.values()) for node, _ in nodes):
        notes.append(NO_NODES)
    return Discovery("this cluster", tuple(_once(found)), tuple(notes), image=True)


def compute_of_node(item: Mapping[str, Any]) -> str:
    """Return the compute capability of a node's GPUs by the labels of GPU Feature Discovery, or "" without them."""
    labels = item["metadata"].get("labels") or {}
    parts = [str(labels.get(f"nvidia.com/gpu.compute.{part}", "")) for part in ("major", "minor")]
    return ".".join(parts) if all(part.isdecimal() for part in parts) else ""


def _plain(model: Model) -> Model:
    """Return a model without the labels that it was read from, which may differ between nodes of the same model."""
    return Model(model.name, model.profile, model.replicas, model.memory_bytes)


def to_gpus(model: Model, resource: str, counts: Mapping[str, int]) -> FoundGpus:
    """Return the GPUs of one model that nodes advertise as one resource; ``counts`` is by node."""
    named = Model(model.name, model.profile, 1 if model.replicas else 0)  # for a share, the GPU that it divides
    needs_resource = not model.name or says_shared(resource) or not resource.startswith("nvidia.com/")
    return FoundGpus(
        product=model.name,
        match=literal(named.title),
        count=sum(counts.values()),
        most=max(counts.values()),
        memory_bytes=model.memory_bytes,
        profile=model.profile,
        replicas=model.replicas,
        resource=resource if needs_resource or (says_slice(resource) and not model.name) else "",
    )


def _once(found: Iterable[FoundGpus]) -> list[FoundGpus]:
    """Join GPUs that the catalog cannot distinguish. The least memory counts."""
    by_match: dict[KindKey, FoundGpus] = {}
    for one in found:
        other = by_match.get(one.kind_key)
        if other is None:
            by_match[one.kind_key] = one
            continue
        memory = min(one.memory_bytes, other.memory_bytes) or max(one.memory_bytes, other.memory_bytes)
        by_match[one.kind_key] = replace(
            one, count=one.count + other.count, most=max(one.most, other.most), memory_bytes=memory
        )
    return list(by_match.values())


def _away(node: Node) -> list[str]:
    if not any(node.allocatable.values()):
        return []
    lost = {name: node.capacity.get(name, 0) - left for name, left in node.allocatable.items() if left}
    notes = (
        [f"{node.name} is not ready: its GPUs are in the catalog, but no workspace can get them now."]
        if not node.ready
        else []
    )
    sick = ", ".join(f"{count} x {name}" for name, count in lost.items() if count > 0)
    return [*notes, *([f"{node.name}: {sick} are reported unhealthy."] if sick else [])]


def _listed(counts: Mapping[str, int]) -> str:
    names = sorted(counts)
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more nodes" if len(names) > 3 else "")  # noqa: PLR2004


NO_TOOL = (
    "No nvidia-smi is on this machine's PATH. If the machine has an NVIDIA GPU, install its driver and run this again. "
    "To try gpuspawner without a GPU, add for example gpus: {a100: {memory: 80GiB}} and simulated: {a100: 4} to the "
    "catalog, and gpus: {a100: 1-4} to a template. For the GPUs of a cluster, run gpuspawner server init --kubernetes."
)
NO_GPUS = "nvidia-smi lists no GPU. If there is one, look for the reason in dmesg, and run this again."


def find_on_machine() -> Discovery:
    """Return the GPUs of this machine.

    Raises:
        Unavailable: its ``nvidia-smi`` fails. The message says why.
    """
    command = nvidia.find()
    if command is None:
        notes = NO_TOOL
        if nvidia.has_devices():
            notes = "This machine has NVIDIA devices (/dev/nvidia*), and no nvidia-smi is on the PATH. Add its folder."
        return Discovery("this machine", (), (notes,))
    try:
        rows, parts, compute = asyncio.run(_asked(command))
    except Unavailable as error:
        raise Unavailable(str(error).replace("Nothing is granted.", "Nothing was written.")) from error
    return of_rows(rows, parts, compute)


async def _asked(command: str) -> tuple[list[Row], Mapping[str, tuple[MigDevice, ...]], Mapping[str, str]]:
    rows = await nvidia.listing(command)
    return rows, await nvidia.read_mig_devices(command, rows), await nvidia.compute_capabilities(command)


def of_rows(
    rows: Sequence[Row], parts: Mapping[str, tuple[MigDevice, ...]], compute: Mapping[str, str] | None = None
) -> Discovery:
    """Return the GPUs of these rows of ``nvidia-smi``, MIG devices and compute capabilities."""
    capability = {row.name: compute[row.uuid] for row in rows if compute and row.uuid in compute}
    whole: Counter[tuple[str, int]] = Counter()
    slices: Counter[tuple[str, str, int]] = Counter()
    notes = []
    for row in rows:
        devices = parts.get(row.uuid, ())
        slices.update((row.name, device.profile, device.memory_bytes) for device in devices)
        is_offered = bool(devices)
        if row.mig != MIG_ON and row.total_mib is not None:
            whole[row.name, row.total_mib] += 1
            is_offered = True
        if (fault := nvidia.find_fault(row, devices)) is not None:
            left_out = "" if is_offered else " It is not in the catalog."
            notes.append(f"GPU {row.index} ({row.name}): {fault.words}.{left_out} Remedy: {fault.remedy}.")
    found = [
        FoundGpus(name, literal(name), count, count, total * MEBIBYTE, compute=capability.get(name, ""))
        for (name, total), count in _merged(whole).items()
    ]
    found += [
        FoundGpus(name, literal(f"{name} MIG {profile}"), count, count, size, profile, compute=capability.get(name, ""))
        for (name, profile, size), count in slices.items()
    ]
    if not found:
        notes.append(NO_GPUS)
    return Discovery("this machine", tuple(found), tuple(notes))


def _merged(whole: Mapping[tuple[str, int], int]) -> dict[tuple[str, int], int]:
    """Return GPUs of one name as one, with the least memory. The reported memory of equal GPUs differs by some MiB."""
    least: dict[str, int] = {}
    for name, total in whole:
        least[name] = min(total, least.get(name, total))
    return {(name, total): sum(n for (other, _), n in whole.items() if other == name) for name, total in least.items()}
