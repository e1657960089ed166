"""The vendors of GPUs: what their resources, labels and device files are called, and what measures their GPUs.

The one place that knows it: the service counts GPUs by it, the hub refuses by it whatever else reaches them. Names are
those of the vendors' device plugins and labellers, and of GKE, EKS and Karpenter.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

GKE_PRODUCT = "cloud.google.com/gke-accelerator"
GKE_SLICE = "cloud.google.com/gke-gpu-partition-size"
GKE_SHARED = "cloud.google.com/gke-max-shared-clients-per-gpu"


@dataclass(frozen=True)
class Vendor:
    """One vendor.

    ``domain`` begins its resources. ``gpus`` are those of which each unit is a GPU or a replica of one, ``taints``
    those of them by which nodes keep pods without GPUs off; those that begin with ``slices`` count parts of GPUs (MIG),
    and what matches ``reaching`` reaches GPUs, whether it counts them or not.
    ``products`` are the labels with the model, the most exact first; ``memories_mib``, ``memories_gib`` those with the
    memory of one GPU, ``replicas`` those with how many pods share one.
    ``device_files`` are paths of a node, each with all that begins so if it ends in ``*``.
    ``tools`` are the programs that measure a workspace's GPUs, the first that its image has; ``tried`` is false where
    none of them was tried on hardware. ``open_files`` are the device files that whoever computes on a GPU has open.
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
"""Resources of those that divide GPUs of others (Volcano, HAMi): the hub refuses them, the service counts none."""
_REACHING = re.compile("|".join([*(vendor.reaching for vendor in VENDORS), _DIVIDERS]))
_GPUS = frozenset[str]().union(*(vendor.gpus for vendor in VENDORS))
_SLICES = tuple(vendor.slices for vendor in VENDORS if vendor.slices)
_BY_DOMAIN = {vendor.domain: vendor for vendor in VENDORS}
TAINTS = tuple(sorted(frozenset[str]().union(*(vendor.taints for vendor in VENDORS))))
"""Keys of taints that keep pods without GPUs off a node."""


def is_gpu_resource(name: str, named: frozenset[str] = frozenset()) -> bool:
    """Whether a resource counts GPUs, slices or replicas of them; ``named`` are those that the catalog names."""
    return name in _GPUS or name.startswith(_SLICES) or name in named


def exposes_gpus(name: str, named: frozenset[str] = frozenset()) -> bool:
    """Whether whoever is given a resource reaches GPUs: all that count GPUs, and others of the vendors besides."""
    return name in named or _REACHING.fullmatch(name) is not None


def vendor_of(resource: str) -> Vendor | None:
    """Return whose GPUs a resource counts, by its domain; None of a vendor that is not known here.

    Classes of devices that are claimed have a name before that: ``mig.nvidia.com``.
    """
    domain = resource.partition("/")[0]
    return next((vendor for name, vendor in _BY_DOMAIN.items() if domain == name or domain.endswith(f".{name}")), None)


def measurement_note(resource: str) -> str:
    """Return how the GPUs that a resource counts are measured, in a sentence; "" where there is nothing to say."""
    vendor = vendor_of(resource)
    if not resource or (vendor and vendor.tried):
        return ""
    if vendor is None:
        return f"Whose GPUs {resource} counts is not known: what nvidia-smi does not read is never stopped as idle."
    tools = " or ".join(vendor.tools)
    return f"Measured by {tools} where the image has it; otherwise never stopped as idle."


# --- spot nodes


KARPENTER = "karpenter.sh/capacity-type"
SPOT = {
    KARPENTER: "spot",
    "eks.amazonaws.com/capacityType": "SPOT",
    "cloud.google.com/gke-spot": "true",
    "cloud.google.com/gke-preemptible": "true",
    "kubernetes.azure.com/scalesetpriority": "spot",
}
"""By label, the value that says spot: those of Karpenter, EKS, GKE and AKS. GKE's and AKS's may be taints too."""
NOTICE_SECONDS = {KARPENTER: 120.0, "eks.amazonaws.com/capacityType": 120.0}
LEAST_NOTICE_SECONDS = 30.0
"""How long before the end the cloud tells, by label, and of all others. Karpenter's is AWS's.

Sources: docs.aws.amazon.com, Spot Instance interruption notices; docs.cloud.google.com, Spot VMs in GKE;
learn.microsoft.com, Azure Spot Virtual Machines.
"""


def spot_labels(labels: Mapping[str, str]) -> dict[str, str]:
    """Return the labels that say that a node is spot; none where it is not."""
    return {key: value for key, value in SPOT.items() if labels.get(key) == value}


def notice_seconds(labels: Mapping[str, str]) -> float | None:
    """Return how long before its end the cloud tells of a spot node; None of another."""
    return min((NOTICE_SECONDS.get(key, LEAST_NOTICE_SECONDS) for key in spot_labels(labels)), default=None)
