"""Checks of GPUs that pods claim (dynamic resource allocation): rights, and whether a device is of each kind. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from gpuspawner.adoption.doctor.findings import Answer, Finding, bad, good
from gpuspawner.backends.kubernetes.dra.counting import serves
from gpuspawner.backends.kubernetes.dra.models import to_class, to_slice
from gpuspawner.core.gpus.fleet import GpuKind

MANIFEST = "hub_config/kubernetes-claims-rbac.yaml"


def nodes_of(slices: Answer | None) -> frozenset[str]:
    """Return the nodes whose devices are claimed."""
    found = (_slice(item) for item in (slices.body if slices and slices.ok else ()))
    return frozenset(one.node for one in found if one is not None)


def kinds_met(kinds: Mapping[str, GpuKind], slices: Answer, classes: Answer) -> Iterable[Finding]:
    """Yield each of these kinds without a device."""
    for what, answer in (("ResourceSlices", slices), ("DeviceClasses", classes)):
        if not answer.ok:
            words = f"{what} are not told ({answer.problem or answer.status}): no GPU that is claimed is seen."
            remedy = f"Apply {MANIFEST}; with the chart, set rights.claims: true. Claims need Kubernetes 1.34 or newer."
            return [bad("claims", words, remedy)]
    devices = [device for item in slices.body if (one := _slice(item)) is not None for device in one.devices]
    known = {item["metadata"]["name"]: to_class(item) for item in classes.body}
    found = []
    for name, kind in kinds.items():
        if not any(serves(device, kind, known) for device in devices):
            words = f"No device of a ResourceSlice is of the kind {name}."
            chosen = kind.claim.device_class if kind.claim else ""
            remedy = "kubectl get resourceslices --output=yaml shows what devices say: mend its selectors or capacity."
            if chosen not in known:
                remedy = f"There is no DeviceClass {chosen}: install the DRA driver, or correct device_class."
            found.append(bad("claims", words, remedy))
    return found or [good("claims", f"Devices are of each of the {len(kinds)} kinds that are claimed.")]


def _slice(item: Mapping[str, Any]) -> Any:
    """Return a slice, or None if it is not a slice: the answer may not come from an API server."""
    try:
        return to_slice(item)
    except (KeyError, TypeError, AttributeError, StopIteration):
        return None
