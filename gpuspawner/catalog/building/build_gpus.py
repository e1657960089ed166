"""The GPU kinds: whole ones, shares of them, and how many of which to simulate."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fractions import Fraction

from gpuspawner.catalog.building.extends import Named
from gpuspawner.catalog.claims.build import build_claim, check_claim
from gpuspawner.catalog.document import Issue
from gpuspawner.catalog.models import CatalogEntry, GpuEntry
from gpuspawner.catalog.names import did_you_mean
from gpuspawner.core.errors import quoted
from gpuspawner.core.gpus.claims import DeviceClaim
from gpuspawner.core.gpus.fleet import Autoscale, GpuKind
from gpuspawner.core.gpus.names import mig_part
from gpuspawner.core.gpus.spot import spot_labels
from gpuspawner.core.gpus.vendors import NVIDIA, VENDORS
from gpuspawner.core.units import show_bytes

PRODUCT = "nvidia.com/gpu.product"
"""The label by which a pod asks for a node of NVIDIA's GPUs, as GPU Feature Discovery sets it."""
_FOUND_BY = (
    "add match: with the name nvidia-smi shows, for example match: NVIDIA A100*; "
    "on Kubernetes also resource: or claim: with its device_class"
)
_OTHER_VENDORS = tuple(f"{vendor.domain}/" for vendor in VENDORS if vendor is not NVIDIA)


def build_kind(name: str, kinds: Mapping[str, GpuEntry]) -> GpuKind:
    """Return a kind of GPU. A share takes from the kind it divides what it does not say.

    Memory, price and how much it counts by parts; who may have it as it is.
    """
    entry = kinds[name]
    whole = kinds.get(entry.of or "", GpuEntry())
    shares = entry.shares or 1
    price = entry.price
    if price is None and whole.price is not None:
        price = whole.price / shares
    counts = _counts(entry)
    if counts is None and (of_whole := _counts(whole)) is not None:
        counts = of_whole / shares
    claim = build_claim(entry.claim)
    return GpuKind(
        name=name,
        title=entry.title or name,
        memory_bytes=entry.memory or (whole.memory or 0) // shares,
        compute=entry.compute or whole.compute or "",
        match=entry.match or "",
        price_per_hour=price,
        of=entry.of,
        shares=shares,
        resource=claim.counted_as(name) if claim else entry.resource or whole.resource or "",
        autoscale=_autoscale(entry),
        groups=frozenset((entry.groups if entry.groups is not None else whole.groups) or ()),
        counts=counts,
        claim=claim,
        spot=bool(entry.spot if entry.spot is not None else whole.spot),
        memory_enforced=bool(entry.memory_enforced),
    )


def _counts(entry: GpuEntry) -> Fraction | None:
    """Return how much one counts by what is written, or by its MIG profile; None where neither tells."""
    part = mig_part(entry.resource or "", entry.match or "")
    return part if entry.counts is None and part < 1 else entry.counts


def _autoscale(entry: GpuEntry) -> Autoscale | None:
    """Return the nodes that are started for a kind. Without labels of its own, they have the product it matches."""
    written = entry.autoscale
    if written.max is None or written.start is None:
        return None
    labels = written.labels or ({PRODUCT: entry.match.replace(" ", "-")} if entry.match else {})
    return Autoscale(written.max, written.each or 1, written.start, tuple(sorted(labels.items())))


def check_gpus(entries: CatalogEntry, named: Named) -> Iterator[Issue]:
    """Yield what is wrong with the kinds that passed the schema, and with ``simulated``."""
    matches: dict[tuple[str | None, str | None, DeviceClaim | None, bool], str] = {}
    for name, entry in entries.gpus.items():
        yield from _check_autoscale(name, entry, named)
        if entry.claim.model_fields_set and named.knows("gpus", name, ("claim", "device_class")):
            yield from _check_claimed(name, entry, entries, named)
        if not named.knows("gpus", name, ("of",), ("shares",)):
            continue  # whether it is a share, and of what, is not known
        if entry.of or entry.shares:
            yield from _check_share(name, entry, entries, named)
            continue
        yield from _check_whole(name, entry, entries, named)
        matched = entry.match, entry.resource, build_claim(entry.claim), bool(entry.spot)
        if any(matched[:3]) and matches.setdefault(matched, name) != name:
            wrong = f"the same as that of `{matches[matched]}`"
            key = "match" if entry.match else "resource" if entry.resource else "claim"
            right = "let each GPU match one kind; divide a kind by of and shares"
            right += "; one of spot nodes has spot: true" if entry.match and not matched[-1] else ""
            yield Issue(("gpus", name, key), wrong, right)
    for name in entries.simulated:
        kind = entries.gpus.get(name)
        if not named.has("gpus", name):
            yield Issue(("simulated", name), f"no GPU kind is called `{name}`", did_you_mean(name, entries.gpus))
        elif kind is not None and kind.of is not None:
            right = f"simulate `{kind.of}`, which it divides"
            yield Issue(("simulated", name), "a share is not simulated by itself", right)


def _check_whole(name: str, entry: GpuEntry, entries: CatalogEntry, named: Named) -> Iterator[Issue]:
    if entry.memory is None and named.knows("gpus", name, ("memory",)):
        yield Issue(("gpus", name), "memory is missing", "add the memory of one GPU, for example memory: 80GiB")
    found = entry.match is not None or entry.resource is not None or name in entries.simulated
    found = found or bool(entry.claim.model_fields_set)
    known = named.knows("gpus", name, ("match",), ("resource",), ("claim",)) and not named.is_wrong("simulated", name)
    if not found and known:
        yield Issue(("gpus", name), "without match, no GPU is ever of this kind", _FOUND_BY)


def _check_autoscale(name: str, entry: GpuEntry, named: Named) -> Iterator[Issue]:
    loc, written = ("gpus", name, "autoscale"), entry.autoscale
    if not written.model_fields_set:
        return

    def knows(*keys: str) -> bool:
        return named.knows("gpus", name, *(("autoscale", key) for key in keys))

    if entry.of is not None:
        right = f"remove it; in `{entry.of}` it starts nodes for those who ask for whole ones"
        yield Issue(loc, "no node is started for a share", right)
        return
    if written.max is None and knows("max"):
        yield Issue(loc, "how many GPUs there may be is not said", "add max: with all that the pool may have")
    if written.start is None and knows("start"):
        yield Issue(loc, "how long a node takes to start is not said", "add start: with its usual time, for example 4m")
    if written.max is not None and written.each is not None and written.each > written.max:
        yield Issue((*loc, "each"), f"{written.each} on one node are more than {written.max} in all", "raise max")
    others = [label for label in written.labels or () if label.startswith(_OTHER_VENDORS)]
    if others and entry.resource is None and not entry.claim.device_class and named.knows("gpus", name, ("resource",)):
        right = "add resource: with what its nodes call their GPUs, for example resource: amd.com/gpu"
        yield Issue(loc, f"`{others[0]}` is no NVIDIA node's, and its pods would ask for NVIDIA's GPUs", right)
    if knows("labels"):
        yield from _check_spot(name, entry, is_known=named.knows("gpus", name, ("spot",)))
    if entry.match and not entry.spot and not written.labels and knows("labels") and set(entry.match) & set("*?["):
        right = f"add labels: as the pool's nodes have them, for example labels: {{{PRODUCT}: Tesla-T4}}"
        yield Issue(loc, f"{quoted(entry.match)} does not say which nodes to start", right)


def _check_spot(name: str, entry: GpuEntry, *, is_known: bool) -> Iterator[Issue]:
    loc, labels = ("gpus", name, "autoscale"), entry.autoscale.labels
    if spot_labels(labels) and not entry.spot and is_known:
        right = "add spot: true, and a price of its own: it is given to those alone who ask for it or tick it"
        yield Issue((*loc, "labels"), "these are spot nodes, which the cloud may take back at any time", right)
    if entry.spot and not labels:
        right = "add labels: as the spot pool's nodes have them, for example labels: {karpenter.sh/capacity-type: spot}"
        yield Issue(loc, "which nodes are spot is not said", right)


def _check_claimed(name: str, entry: GpuEntry, entries: CatalogEntry, named: Named) -> Iterator[Issue]:
    beside = [key for key in ("match", "resource", "of") if getattr(entry, key) is not None]
    yield from check_claim(("gpus", name, "claim"), entry.claim, beside, named.is_wrong)
    clusters = entries.clusters.values()
    owners = [entries.scheduler, *(one.scheduler for one in clusters if one.gpus is None or name in one.gpus)]
    for owner, title in (("kueue", "Kueue"), ("volcano", "Volcano"), ("kai", "KAI")):
        if any(owner in one.model_fields_set for one in owners):
            right = "write match or resource in its place"
            yield Issue(("gpus", name, "claim"), f"with {title}, what is claimed would be in no quota", right)


def _check_share(name: str, entry: GpuEntry, entries: CatalogEntry, named: Named) -> Iterator[Issue]:
    loc = ("gpus", name)
    if entry.match is not None:
        yield Issue((*loc, "match"), "a share has the GPUs of the kind it divides", "remove match")
    if entry.of in entries.gpus and entries.gpus[entry.of].claim.model_fields_set:
        right = "give this kind a claim of its own, with the capacity of its part"
        yield Issue((*loc, "of"), f"`{entry.of}` is served by claims, which no share divides", right)
    if entry.of is None:
        yield Issue((*loc, "shares"), "of which kind is not said", "add of: with the kind whose GPUs are divided")
        return
    if entry.shares is None:
        yield Issue((*loc, "of"), "into how many shares is not said", "add shares: 2 or more")
    if not named.has("gpus", entry.of):
        yield Issue((*loc, "of"), f"no GPU kind is called `{entry.of}`", did_you_mean(entry.of, entries.gpus))
        return
    divided = entries.gpus.get(entry.of, GpuEntry())
    if divided.of is not None:
        yield Issue((*loc, "of"), f"`{entry.of}` is itself a share", "divide a kind that has GPUs of its own")
    elif entry.memory and entry.shares and divided.memory and entry.memory * entry.shares > divided.memory:
        wrong = f"{entry.shares} shares of {show_bytes(entry.memory)} are more than `{entry.of}` has"
        right = f"write at most {show_bytes(divided.memory / entry.shares)}, or leave it out"
        yield Issue((*loc, "memory"), wrong, right)
