"""What a node's labels say of the GPUs it advertises: model, memory, replicas, slices.

Labels are those of GPU Feature Discovery, AMD's and Intel's labellers, GKE, EKS and Karpenter. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gpuspawner.core.gpus.vendors import GKE_SLICE, SPOT, VENDORS, vendor_of
from gpuspawner.core.units import GIBIBYTE, MEBIBYTE

HOSTNAME, ZONE = "kubernetes.io/hostname", "topology.kubernetes.io/zone"
Selector = tuple[tuple[str, tuple[str, ...]], ...]
"""Labels that nodes have, each with its value, and those that they do not have, each with none."""

_MIG_RESOURCE = re.compile(r"nvidia\.com/mig-([0-9a-z.+]+)")
_SHARED_RESOURCE = ".shared"
_MIG_LABEL = re.compile(r"nvidia\.com/mig-[0-9a-z.+]+\.(?:memory|replicas|product)")
_SHARED_SUFFIX = "-SHARED"
_MIG_INFIX = "-MIG-"
_WHOLE = re.compile(r"([0-9]{1,9})G?i?")

_KEPT = frozenset(
    key
    for vendor in VENDORS
    for keys in (vendor.products, vendor.memories_mib, vendor.memories_gib, vendor.replicas)
    for key in keys
) | {GKE_SLICE, HOSTNAME, ZONE, *SPOT}


@dataclass(frozen=True)
class Model:
    """What stands behind one resource of one node.

    ``name`` is the vendor's product, "" where no label tells; a slice of it (MIG) has its profile in ``profile``;
    ``replicas`` is how many pods each device serves at once, 0 where it serves several and no label tells how many.
    ``memory_bytes`` is that of one unit, 0 where no label tells. ``selector`` is what was read, absences included: it
    tells such GPUs from others of the same resource.
    """

    name: str = ""
    profile: str = ""
    replicas: int = 1
    memory_bytes: int = 0
    selector: Selector = ()

    @property
    def title(self) -> str:
        """The name with what was done to it, as GPU Feature Discovery writes it; "" without a name."""
        if not self.name:
            return ""
        sliced = f"{self.name}{_MIG_INFIX}{self.profile}" if self.profile else self.name
        return f"{sliced}{_SHARED_SUFFIX}" if self.is_divided else sliced

    @property
    def is_divided(self) -> bool:
        """Whether each device serves several pods at once."""
        return self.replicas != 1


def is_kept_label(key: str) -> bool:
    """Whether a node's label says anything here."""
    return key in _KEPT or _MIG_LABEL.fullmatch(key) is not None


def says_slice(resource: str) -> bool:
    """Whether a resource's name says that it counts slices (MIG)."""
    return _MIG_RESOURCE.fullmatch(resource) is not None


def says_shared(resource: str) -> bool:
    """Whether a resource's name says that each device serves several pods."""
    return resource.endswith(_SHARED_RESOURCE)


def model_of(labels: Mapping[str, str], resource: str) -> Model:
    """Return what a node's labels say of one of its GPU resources."""
    vendor, base = vendor_of(resource), resource.removesuffix(_SHARED_RESOURCE)
    mixed = _MIG_RESOURCE.fullmatch(base)
    products = vendor.products if vendor else ()
    product = next((key for key in products if labels.get(key)), None)
    if vendor is None or product is None:
        return Model(profile=mixed[1] if mixed else "", replicas=0 if says_shared(resource) else 1)
    name, _, profile = labels[product].removesuffix(_SHARED_SUFFIX).partition(_MIG_INFIX)
    memory = _first(labels, vendor.memories_mib) * MEBIBYTE or _first(labels, vendor.memories_gib) * GIBIBYTE
    own_product = product
    read = [*products[: products.index(product) + 1]]  # a node with a more exact label may have another model
    replicas_of = vendor.replicas
    if mixed:
        # The product label is that of the whole devices, whatever those are shared into.
        profile = mixed[1]
        memory = _first(labels, (f"{base}.memory",)) * MEBIBYTE
        own_product, replicas_of = f"{base}.product", (f"{base}.replicas",)
        read.append(own_product)
    elif vendor.slices:
        profile = labels.get(GKE_SLICE, profile)
        read.append(GKE_SLICE)
    told = _first(labels, replicas_of)
    is_shared = says_shared(resource) or labels.get(own_product, "").endswith(_SHARED_SUFFIX)
    replicas = told if told > 1 else 0 if is_shared else 1
    memory = memory // replicas if replicas else 0
    return Model(name, profile, replicas, memory, _as_read(labels, [*read, *replicas_of]))


def _as_read(labels: Mapping[str, str], keys: Iterable[str]) -> Selector:
    return tuple((key, (labels[key],) if key in labels else ()) for key in sorted(keys))


def _first(labels: Mapping[str, str], keys: tuple[str, ...]) -> int:
    """Return the first of these labels that is a whole number, 0 without one."""
    for key in keys:
        if match := _WHOLE.fullmatch(labels.get(key, "")):
            return int(match[1])
    return 0
