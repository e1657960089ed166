"""What a template's GPUs must have at least, and which kinds may be given instead of one that was asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType

from gpuspawner.catalog.building.extends import Flat, Named
from gpuspawner.catalog.document import Issue
from gpuspawner.catalog.models import NeedsEntry, TemplateEntry
from gpuspawner.catalog.names import did_you_mean
from gpuspawner.core.gpus.fleet import GpuKind
from gpuspawner.core.units import show_bytes


def build_substitutes(flat: Flat[TemplateEntry], kinds: Mapping[str, GpuKind]) -> Mapping[str, tuple[str, ...]]:
    """Return what may be given instead of each kind. What is inherited for a kind that is not offered here is left."""
    entry = flat.entry
    return MappingProxyType(
        {
            kind: tuple(one for one in others if one in kinds)
            for kind, others in entry.substitutes.items()
            if kind in entry.gpus
        }
    )


def check_substitutes(
    name: str, flat: Flat[TemplateEntry], kinds: Mapping[str, GpuKind], named: Named
) -> Iterator[Issue]:
    """Yield what of ``needs``, ``gpus`` and ``substitutes`` can never be had. Each is told where it is written."""
    entry, own, loc = flat.entry, flat.own, ("templates", name)
    here = "needs" in own.model_fields_set and flat.knows(("needs",))
    for kind in entry.gpus:
        if "gpus" in own.model_fields_set:
            at: tuple[str | int, ...] = (*loc, "gpus", kind)
        elif here:
            at = (*loc, "needs")
        else:
            continue  # told where it is written
        if flat.knows(("needs",)) and _is_known(kind, named) and (wrong := _lacking(kinds.get(kind), entry.needs)):
            yield Issue(at, wrong, "take it out, or lower needs")
    if "substitutes" not in own.model_fields_set:
        if here:
            yield from (
                Issue((*loc, "needs"), wrong, "take it out of substitutes, or lower needs")
                for other in {other for others in build_substitutes(flat, kinds).values() for other in others}
                if _is_known(other, named) and (wrong := _lacking(kinds.get(other), entry.needs))
            )
        return
    for kind, others in own.substitutes.items():
        if kind not in entry.gpus and flat.knows(("gpus",)):
            wrong = f"`{kind}` is not among this template's gpus"
            yield Issue((*loc, "substitutes", kind), wrong, did_you_mean(kind, entry.gpus))
        for other in others:
            yield from _check_other(name, kind, other, flat, kinds, named)


def _check_other(
    name: str, kind: str, other: str, flat: Flat[TemplateEntry], kinds: Mapping[str, GpuKind], named: Named
) -> Iterator[Issue]:
    loc, entry = ("templates", name, "substitutes", kind), flat.entry
    if not named.has("gpus", other):
        yield Issue(loc, f"no GPU kind is called `{other}`", did_you_mean(other, kinds))
        return
    if other == kind:
        yield Issue(loc, f"`{other}` is what was asked for", "name other kinds alone")
        return
    if flat.knows(("needs",)) and _is_known(other, named) and (wrong := _lacking(kinds.get(other), entry.needs)):
        yield Issue(loc, wrong, "take it out, or lower needs")
    asked, given = entry.gpus.get(kind), entry.gpus.get(other)
    if asked and given and (given[1] < asked[0] or given[0] > asked[1]):
        wrong = f"no number of `{kind}` that may be asked for is one of `{other}`"
        yield Issue(loc, wrong, f"widen gpus: {{{other}: ...}}, or take it out")


def _is_known(kind: str, named: Named) -> bool:
    return named.knows("gpus", kind, ("memory",), ("memory_enforced",), ("compute",), ("of",), ("shares",))


def _lacking(kind: GpuKind | None, needs: NeedsEntry) -> str:
    """Return what a kind lacks of what is needed, "" where it has it all."""
    if kind is None:
        return ""
    if needs.memory is not None and not kind.own_memory_bytes:
        needs_words = f"needs says {show_bytes(needs.memory)}"
        return f"nothing enforces the memory of the share `{kind.name}` (memory_enforced), and {needs_words}"
    if needs.memory is not None and kind.memory_bytes < needs.memory:
        return f"`{kind.name}` has {show_bytes(kind.memory_bytes)}, and needs says {show_bytes(needs.memory)}"
    if needs.compute is not None and not kind.compute:
        return f"`{kind.name}` has no compute capability written, and needs says {needs.compute}"
    if needs.compute is not None and _version(kind.compute) < _version(needs.compute):
        return f"`{kind.name}` has compute capability {kind.compute}, and needs says {needs.compute}"
    return ""


def _version(compute: str) -> tuple[int, ...]:
    return tuple(int(part) for part in compute.split("."))
