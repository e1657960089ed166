"""GPU kinds: what a share takes from the kind that it divides, and what is wrong with kinds together."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from typing import Any

from gpuspawner.catalog.document import Issue, Loc
from gpuspawner.catalog.entries import CheckedFile
from gpuspawner.core.errors import quoted
from gpuspawner.core.gpus.fleet import GpuKind, mig_fraction
from gpuspawner.core.gpus.vendors import NVIDIA, VENDORS, spot_labels
from gpuspawner.core.units import show_bytes

PRODUCT = "nvidia.com/gpu.product"
"""The label by which a pod asks for a node of NVIDIA's GPUs, as GPU Feature Discovery sets it."""
_OTHER_VENDORS = tuple(f"{vendor.domain}/" for vendor in VENDORS if vendor is not NVIDIA)


def build_kind(name: str, checked: CheckedFile) -> GpuKind:
    """Return a GPU kind with its defaults. A share takes what it does not write from the kind that it divides."""
    own, written = checked.file.gpus[name], checked.written_at("gpus", name)
    whole = checked.file.gpus.get(own.of or "", GpuKind())
    price, counts = own.price_per_hour, _counts(own)
    if price is None and whole.price_per_hour is not None:
        price = whole.price_per_hour / own.shares
    changes = own.price_changes
    if own.price_per_hour is None and not changes:
        changes = tuple((day, each / own.shares) for day, each in whole.price_changes)
    if counts is None and (of_whole := _counts(whole)) is not None:
        counts = of_whole / own.shares
    autoscale = own.autoscale
    if autoscale is not None and not autoscale.labels and own.match:
        autoscale = replace(autoscale, labels=((PRODUCT, own.match.replace(" ", "-")),))
    return replace(
        own,
        name=name,
        title=own.title or name,
        memory_bytes=own.memory_bytes or whole.memory_bytes // own.shares,
        compute=own.compute or whole.compute,
        price_per_hour=price,
        price_changes=changes,
        resource=own.claim.counted_as(name) if own.claim else own.resource or whole.resource,
        autoscale=autoscale,
        groups=own.groups if "groups" in written else whole.groups,  # an empty list opens a share to everybody
        counts=counts,
        spot=own.spot if "spot" in written else whole.spot,
    )


def _counts(kind: GpuKind) -> Fraction | None:
    """Return how much one GPU counts, as written or by its MIG profile, or None if neither says so."""
    part = mig_fraction(kind.resource, kind.match)
    return part if kind.counts is None and part < 1 else kind.counts


def check_kinds(checked: CheckedFile) -> Iterator[Issue]:
    """Yield everything that is wrong with GPU kinds and ``simulated``."""
    matches: dict[Any, str] = {}
    kinds = checked.file.gpus
    for name, kind in kinds.items():
        loc = ("gpus", name)
        if kind.autoscale is not None:
            yield from _check_autoscale(loc, kind, checked)
        if kind.claim is not None and checked.is_right(*loc, "claim", "device_class"):
            yield from _check_claim(name, kind, checked)
        if not (checked.is_right(*loc, "of") and checked.is_right(*loc, "shares")):
            continue  # it is not known whether this is a share
        if kind.of or kind.shares > 1:
            yield from _check_share(loc, kind, checked)
            continue
        yield from _check_whole(name, kind, checked)
        matched = kind.match, kind.resource, kind.claim, kind.spot
        if any(matched[:3]) and matches.setdefault(matched, name) != name:
            key = "match" if kind.match else "resource" if kind.resource else "claim"
            right = "let each GPU match one kind; divide a kind with of and shares"
            right += "; a kind of spot nodes has spot: true" if kind.match and not kind.spot else ""
            yield Issue((*loc, key), f"the same as in `{matches[matched]}`", right)
    for name in checked.file.simulated:
        yield from checked.check_name(("simulated", name), "GPU kind", name, "gpus")
        if (of := kinds[name].of if name in kinds else None) is not None:
            yield Issue(("simulated", name), "a share is not simulated by itself", f"simulate `{of}`, which it divides")


def _check_whole(name: str, kind: GpuKind, checked: CheckedFile) -> Iterator[Issue]:
    loc = ("gpus", name)
    if not kind.memory_bytes and checked.is_right(*loc, "memory"):
        yield Issue(loc, "memory is missing", "add the memory of one GPU, for example memory: 80GiB")
    found = kind.match or kind.resource or kind.claim or name in checked.file.simulated
    knows_found = all(checked.is_right(*loc, key) for key in ("match", "resource", "claim"))
    if not found and knows_found and checked.is_right("simulated", name):
        right = (
            "add match: with the name nvidia-smi shows, for example match: NVIDIA A100*; "
            "on Kubernetes also resource: or claim: with its device_class"
        )
        yield Issue(loc, "without match, no GPU is ever of this kind", right)


def _check_autoscale(kind_loc: Loc, kind: GpuKind, checked: CheckedFile) -> Iterator[Issue]:
    loc, nodes = (*kind_loc, "autoscale"), kind.autoscale
    assert nodes is not None, "only such kinds are checked"
    if kind.of is not None:
        right = f"remove it; in `{kind.of}` autoscale starts nodes for whole GPUs"
        yield Issue(loc, "no node is started for a share", right)
        return
    if nodes.each > nodes.most and checked.is_right(*loc, "max") and checked.is_right(*loc, "each"):
        yield Issue((*loc, "each"), f"{nodes.each} on one node are more than {nodes.most} in all", "raise max")
    others = [label for label, _ in nodes.labels if label.startswith(_OTHER_VENDORS)]
    if others and not kind.resource and kind.claim is None and checked.is_right(*kind_loc, "resource"):
        right = "add resource: with what its nodes call their GPUs, for example resource: amd.com/gpu"
        yield Issue(loc, f"`{others[0]}` is not a label of NVIDIA nodes, but pods would request NVIDIA GPUs", right)
    if not checked.is_right(*loc, "labels"):
        return
    if spot_labels(dict(nodes.labels)) and not kind.spot and checked.is_right(*kind_loc, "spot"):
        right = "add spot: true, and a price of its own; users then get it only if they choose it"
        yield Issue((*loc, "labels"), "these are spot nodes, which the cloud may take back at any time", right)
    if kind.spot and not nodes.labels:
        right = "add labels: as the spot pool's nodes have them, for example labels: {karpenter.sh/capacity-type: spot}"
        yield Issue(loc, "the labels of spot nodes are missing", right)
    if kind.match and not kind.spot and not nodes.labels and set(kind.match) & set("*?["):
        right = f"add labels: as the pool's nodes have them, for example labels: {{{PRODUCT}: Tesla-T4}}"
        yield Issue(loc, f"{quoted(kind.match)} does not say which nodes to start", right)


def _check_claim(name: str, kind: GpuKind, checked: CheckedFile) -> Iterator[Issue]:
    loc = ("gpus", name)
    for key, right in (
        ("match", "remove match; add selectors to claim if not every device of its class is of this kind"),
        ("resource", "keep resource if pods request a resource, or claim if they claim devices"),
        ("of", "remove of and shares; divide GPUs by capacity of claim, or by a DeviceClass of their parts"),
    ):
        if getattr(kind, key):
            yield Issue((*loc, key), "not allowed together with claim", right)
    clusters = [one for one in checked.file.clusters.values() if one.gpus is None or name in one.gpus]
    choices = [checked.file.scheduler, *(one.scheduler_choice for one in clusters)]
    for key, title in (("kueue", "Kueue"), ("volcano", "Volcano"), ("kai", "KAI")):
        if any(getattr(choice, key) is not None for choice in choices):
            right = "write match or resource instead"
            yield Issue((*loc, "claim"), f"with {title}, claimed devices would count in no quota", right)


def _check_share(loc: Loc, kind: GpuKind, checked: CheckedFile) -> Iterator[Issue]:
    whole = checked.file.gpus.get(kind.of or "")
    if kind.match:
        yield Issue((*loc, "match"), "a share has the GPUs of the kind it divides", "remove match")
    if whole is not None and whole.claim is not None:
        right = "give this kind a claim of its own, with the capacity of its part"
        yield Issue((*loc, "of"), f"`{kind.of}` has a claim, and a share cannot divide claimed devices", right)
    if kind.of is None:
        yield Issue((*loc, "shares"), "of is missing", "add of: with the kind whose GPUs are divided")
        return
    if kind.shares == 1:
        yield Issue((*loc, "of"), "shares is missing", "add shares: 2 or more")
    yield from checked.check_name((*loc, "of"), "GPU kind", kind.of, "gpus")
    if whole is None:
        return
    if whole.of is not None:
        yield Issue((*loc, "of"), f"`{kind.of}` is itself a share", "divide a kind that has GPUs of its own")
    elif whole.memory_bytes and kind.memory_bytes * kind.shares > whole.memory_bytes:
        wrong = f"{kind.shares} shares of {show_bytes(kind.memory_bytes)} are more than `{kind.of}` has"
        right = f"write at most {show_bytes(whole.memory_bytes / kind.shares)}, or leave it out"
        yield Issue((*loc, "memory"), wrong, right)
