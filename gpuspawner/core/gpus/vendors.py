"""GPU vendors: the names of their resources, labels and device files, and the tools that measure their GPUs.

The service counts GPUs by this table. The hub refuses other resources that expose GPUs. Names are those of the vendors'
device plugins and labellers, and of GKE, EKS and Karpenter.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

GKE_PRODUCT = "cloud.google.com/gke-accelerator"
GKE_SLICE = "cloud.google.com/gke-gpu-partition-size"
GKE_SHARED = "cloud.google.com/gke-max-shared-clients-per-gpu"
DRIVER_VERSION = "nvidia.com/cuda.driver-version.full"
CUDA_VERSION = "nvidia.com/cuda.runtime-version.full"
"""Labels of GPU Feature Discovery with the driver's version, and the highest CUDA version that it supports."""


@dataclass(frozen=True)
class Vendor:
    """One vendor.

    Attributes:
        domain: the domain of its resources.
        gpus: resources that count GPUs or replicas of them.
        taints: those of ``gpus`` whose taint keeps pods without GPUs off a node.
        slices: the beginning of resources that count parts of GPUs (MIG).
        reaching: a pattern for all resources that expose GPUs.
        products: labels with the model, the most exact first.
        memories_mib: labels with the memory of one GPU in MiB.
        memories_gib: labels with the memory of one GPU in GiB.
        replicas: labels with the number of pods that share a GPU.
        device_files: paths on a node. A final ``*`` matches the rest of a name.
        tools: programs that measure a workspace's GPUs. The first in its image is used.
        tried: whether one of them was tried on hardware.
        open_files: device files that a process that uses a GPU has open.
    """

    name: str
    domain: str
    gpus: frozenset[str]
    taints: frozenset[str]
    reaching: str
    products: tuple[str, ...]
    device_files: tuple[str, ...]
    slices: str | None = None
    memories_mib: tuple[str, ...] = ()
    memories_gib: tuple[str, ...] = ()
    replicas: tuple[str, ...] = ()
    tools: tuple[str, ...] = ()
    open_files: str = ""
    tried: bool = False


NVIDIA = Vendor(
    name="NVIDIA",
    domain="nvidia.com",
    gpus=frozenset({"nvidia.com/gpu", "nvidia.com/gpu.shared"}),
    taints=frozenset({"nvidia.com/gpu"}),
    reaching=r"nvidia\.com/(?:v?gpu|mig-).*",
    slices="nvidia.com/mig-",
    products=(
        "nvidia.com/gpu.product",
        GKE_PRODUCT,
        "karpenter.k8s.aws/instance-gpu-name",
        "eks.amazonaws.com/instance-gpu-name",
        "k8s.amazonaws.com/accelerator",
    ),
    memories_mib=(
        "nvidia.com/gpu.memory",
        "karpenter.k8s.aws/instance-gpu-memory",
        "eks.amazonaws.com/instance-gpu-memory",
    ),
    replicas=("nvidia.com/gpu.replicas", GKE_SHARED),
    device_files=("/dev/nvidia*",),
    tools=("nvidia-smi",),
    open_files="/dev/nvidia[0-9]*",
    tried=True,
)
VENDORS = (
    NVIDIA,
    Vendor(
        name="AMD",
        domain="amd.com",
        gpus=frozenset({"amd.com/gpu"}),
        taints=frozenset({"amd.com/gpu"}),
        reaching=r"amd\.com/gpu.*",
        products=("amd.com/gpu.product-name", "beta.amd.com/gpu.product-name"),
        memories_gib=("amd.com/gpu.vram", "beta.amd.com/gpu.vram"),
        device_files=("/dev/kfd", "/dev/dri"),
        tools=("amd-smi", "rocm-smi"),
        open_files="/dev/kfd",
    ),
    Vendor(
        name="Intel",
        domain="gpu.intel.com",
        gpus=frozenset({"gpu.intel.com/i915", "gpu.intel.com/xe"}),
        taints=frozenset({"gpu.intel.com/i915", "gpu.intel.com/xe"}),
        reaching=r"gpu\.intel\.com/.*",  # the resource for monitoring shows all GPUs of a node
        products=("gpu.intel.com/product", "gpu.intel.com/family"),
        device_files=("/dev/dri",),
        tools=("xpu-smi",),
        open_files="/dev/dri/renderD*",
    ),
)
_DIVIDERS = r"[^/]+/v-?gpu.*"
"""Resources of Volcano and HAMi, which divide GPUs of others. The hub refuses them, and the service does not count
them.
"""
_REACHING = re.compile("|".join([*(vendor.reaching for vendor in VENDORS), _DIVIDERS]))
_GPUS = frozenset[str]().union(*(vendor.gpus for vendor in VENDORS))
_SLICES = tuple(vendor.slices for vendor in VENDORS if vendor.slices)
_BY_DOMAIN = {vendor.domain: vendor for vendor in VENDORS}
TAINTS = tuple(sorted(frozenset[str]().union(*(vendor.taints for vendor in VENDORS))))
"""Keys of taints that keep pods without GPUs off a node."""


def is_gpu_resource(name: str, named: frozenset[str] = frozenset()) -> bool:
    """Return whether a resource counts GPUs, slices or replicas. ``named`` are the catalog's resources."""
    return name in _GPUS or name.startswith(_SLICES) or name in named


def exposes_gpus(name: str, named: frozenset[str] = frozenset()) -> bool:
    """Return whether this resource exposes a GPU, also if it does not count GPUs."""
    return name in named or _REACHING.fullmatch(name) is not None


def vendor_of(resource: str) -> Vendor | None:
    """Return the vendor of a resource by its domain, or None if it is not known.

    The names of device classes begin before the domain: ``mig.nvidia.com``.
    """
    domain = resource.partition("/")[0]
    return next((vendor for name, vendor in _BY_DOMAIN.items() if domain == name or domain.endswith(f".{name}")), None)


def measurement_note(resource: str) -> str:
    """Return a sentence how the GPUs of a resource are measured, or "" if that is the usual way."""
    vendor = vendor_of(resource)
    if not resource or (vendor and vendor.tried):
        return ""
    if vendor is None:
        return f"The vendor of {resource} is not known. GPUs that nvidia-smi cannot read are never stopped as idle."
    tools = " or ".join(vendor.tools)
    return f"Measured by {tools} if the image has it, otherwise never stopped as idle."


# --- spot nodes


KARPENTER = "karpenter.sh/capacity-type"
SPOT = {
    KARPENTER: "spot",
    "eks.amazonaws.com/capacityType": "SPOT",
    "cloud.google.com/gke-spot": "true",
    "cloud.google.com/gke-preemptible": "true",
    "kubernetes.azure.com/scalesetpriority": "spot",
}
"""The labels of spot nodes with their values, by Karpenter, EKS, GKE and AKS. GKE and AKS may use them as taints too.
"""
NOTICE_SECONDS = {KARPENTER: 120.0, "eks.amazonaws.com/capacityType": 120.0}
LEAST_NOTICE_SECONDS = 30.0
"""The notice before a spot node ends, by label, and for all other labels. Karpenter's is AWS's.

Sources: docs.aws.amazon.com, Spot Instance interruption notices; docs.cloud.google.com, Spot VMs in GKE;
learn.microsoft.com, Azure Spot Virtual Machines.
"""


def spot_labels(labels: Mapping[str, str]) -> dict[str, str]:
    """Return the labels that mark a node as spot."""
    return {key: value for key, value in SPOT.items() if labels.get(key) == value}


def notice_seconds(labels: Mapping[str, str]) -> float | None:
    """Return the notice before a spot node ends, or None for another node."""
    return min((NOTICE_SECONDS.get(key, LEAST_NOTICE_SECONDS) for key in spot_labels(labels)), default=None)


_MIG_PROFILE = re.compile(r"\bmig[- ]([1-7])g\.[0-9]+gb", re.IGNORECASE)
_MIG_SLICES = 7
"""Compute slices of a GPU in MIG mode (NVIDIA's MIG user guide). A profile begins with its number of slices: 3g.40gb.
"""


def mig_fraction(*names: str) -> Fraction:
    """Return the fraction of a GPU that a MIG device is, by the profile in one of the names, or 1 without a profile.

    Names are a resource (``nvidia.com/mig-1g.10gb``), or a product (``NVIDIA H100 80GB HBM3 MIG 3g.40gb``).
    """
    found = next((one for name in names if (one := _MIG_PROFILE.search(name)) is not None), None)
    return Fraction(1) if found is None else Fraction(int(found[1]), _MIG_SLICES)
