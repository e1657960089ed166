"""Kinds of the catalog that no GPU matches, or whose GPUs nothing measures: what was seen, and what to write. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from gpuspawner.core.gpus.fleet import Fleet, GpuKind
from gpuspawner.core.gpus.pools import resource_of
from gpuspawner.core.gpus.vendors import how_measured, vendor_of

MODELS_SHOWN = 10
"""Arbitrary: more models than a cluster has, as a rule."""


def find_unmatched_kinds(kinds: Iterable[GpuKind], fleet: Fleet) -> tuple[str, ...]:
    """Return, in a sentence each for administrators, which kinds no GPU of a complete view matches.

    A kind whose nodes the cluster starts when they are needed may have none now; of a share, its devices' kind tells.
    """
    if not fleet.complete:
        return ()
    found = {gpu.pool for gpu in fleet.gpus}
    missing = [k for k in kinds if k.of is None and k.autoscale is None and k.name not in found]
    return tuple(f"No GPU matches the kind {kind.name} ({_looked_for(kind)}). {_seen(fleet)}" for kind in missing)


def find_unmeasured_kinds(kinds: Iterable[GpuKind], fleet: Fleet) -> tuple[str, ...]:
    """Return, in a sentence each for administrators, which kinds have GPUs of vendors that are not known here."""
    resources = {kind.name: resource_of(kind, fleet) for kind in kinds}
    return tuple(
        f"GPUs of the kind {name}: {how_measured(resource)} Give their templates a short lifetime."
        for name, resource in resources.items()
        if resource and vendor_of(resource) is None
    )


def _looked_for(kind: GpuKind) -> str:
    if kind.claim is not None:
        wanted = " and ".join((f"the class {kind.claim.device_class}", *kind.claim.selectors))
        return f"no device of a ResourceSlice meets {wanted}"
    parts = [f"{name}: {value}" for name, value in (("match", kind.match), ("resource", kind.resource)) if value]
    return ", ".join(parts) or "simulated alone"


def _seen(fleet: Fleet) -> str:
    models = Counter((gpu.model, gpu.note) for gpu in fleet.gpus if not gpu.pool)
    if models:
        shown = ", ".join(f"{count} {model}" for (model, _), count in models.most_common(MODELS_SHOWN))
        first, note = models.most_common(1)[0][0]
        told = note.startswith(("no label", "add a kind"))
        write = note if told else f"write, for example, match: '*{first.replace(' ', '*')}*'"
        return f"GPUs that match no kind: {shown}. To offer them, {write}."
    if fleet.gpus:
        others = ", ".join(sorted({gpu.model for gpu in fleet.gpus})[:MODELS_SHOWN])
        return f"Every GPU that is seen ({others}) has another kind: correct its match, or take the kind away."
    return (
        "No GPU is seen at all: nvidia-smi on this machine, or kubectl describe nodes on a cluster, tells whether "
        "there is one."
    )
