"""The nodes and GPUs of the fleet: as a map, as a list, and counted by kind. Views are pure."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from gpuspawner.core.administration import RestrictionKind
from gpuspawner.core.gpus.fleet import GpuKind, NodeName
from gpuspawner.core.leases.lease import Lease
from gpuspawner.service.administration import models
from gpuspawner.service.administration.problems import is_unmeasured
from gpuspawner.service.administration.restriction_effects import present_restriction
from gpuspawner.service.engine.sampling.gpu_states import NO_KIND, STATES, ObservedGpu, observe_gpus
from gpuspawner.service.parts import Parts
from gpuspawner.service.web.admin_page import ListPage
from gpuspawner.service.web.lists import Column, Filter, Row, Table, list_part, parse_list_state

MAX_NODES = 40
"""The most nodes on one page of the map. Arbitrary: some screens."""
SMALL_NODE_GPUS = 8
"""The panel of a node with fewer GPUs takes a third of the width."""
MAX_ATTENTION = 5
MAX_CELLS = 64
"""A kind with more GPUs is drawn as one bar."""
WORDS = {
    "free": "free",
    "busy": "active",
    "idle": "idle",
    "unmeasured": "not measured",
    "foreign": "other use",
    "suspect": "faulty",
    "drained": "drained",
}
"""The words of each of STATES."""
CLASSES = {"unmeasured": "unknown", "foreign": "other"}
"""The names of states in the style sheet, if they differ."""
ICONS = {
    "free": "check",
    "busy": "bolt",
    "idle": "pause",
    "unmeasured": "question",
    "foreign": "user",
    "suspect": "alert",
    "drained": "wrench",
}
ORDER = ("busy", "idle", "free", "unmeasured", "foreign", "suspect", "drained")
"""The order of states in bars and keys."""
NOTED = ("suspect", "foreign", "drained", "unmeasured", "idle")
"""Nodes with a GPU in one of these states come first, in this order."""

GPUS = Table(
    "gpus",
    (
        Column("node", "Node"),
        Column("index", "GPU", "number"),
        Column("kind", "Kind"),
        Column("state", "State", "state"),
        Column("utilization_percent", "Use", "bar"),
        Column("user", "Allocated to", "person"),
        Column("since", "Since", "time", absent="not known"),
        Column("note", "Note", "words"),
        Column("cluster", "Cluster", exported_only=True),
        Column("zone", "Zone", exported_only=True),
        Column("spot", "Spot", exported_only=True),
    ),
    (
        Filter("node", "Node or user", within=("node", "user")),
        Filter("state", "Any state", tuple((state, WORDS[state].capitalize()) for state in ORDER)),
        Filter("kind", "Any GPU", within=("kind",)),
    ),
    sort="node",
    choices={"view": ("map", "list")},
)


@dataclass(frozen=True)
class GpuSquare:
    """One GPU of the map. ``words`` says everything about it. ``page`` is the workspace that holds it, or ""."""

    index: int
    state: str
    percent: float | None
    label: str
    words: str
    page: str
    needs_attention: bool

    @property
    def state_words(self) -> str:
        """Its state in words."""
        return WORDS[self.state]

    @property
    def css_class(self) -> str:
        """The name of its state in the style sheet."""
        return CLASSES.get(self.state, self.state)


@dataclass(frozen=True)
class NodeGpus:
    """One node and its GPUs. ``kinds`` are their numbers and kinds in words."""

    name: str
    kinds: str
    gpus: tuple[ObservedGpu, ...]

    def matches(self, filters: Mapping[str, str]) -> bool:
        """Return whether the filters show this node. They search its name, its users, its GPU states and its kinds."""
        text, state = filters.get("node", "").casefold(), filters.get("state", "")
        names = (self.name, *(name for one in self.gpus for name in (one.gpu.holder, *(x.user for x in one.holders))))
        if not any(text in name.casefold() for name in names):
            return False
        return (not state or any(one.state == state for one in self.gpus)) and filters.get("kind", "") in self.kinds

    def sort_key(self) -> Any:
        """Return the key to sort nodes by."""
        states = {one.state for one in self.gpus}
        return len(self.gpus) < SMALL_NODE_GPUS, [noted not in states for noted in NOTED], _natural_key(self.name)


@dataclass(frozen=True)
class Node:
    """One node as the map shows it. ``drain`` is the restriction that drains it."""

    name: str
    kinds: str
    squares: tuple[GpuSquare, ...]
    drain: models.Restriction | None

    @property
    def is_small(self) -> bool:
        """Whether its panel needs a third of the width."""
        return len(self.squares) < SMALL_NODE_GPUS

    @property
    def state(self) -> tuple[str, str, str]:
        """Icon, kind and words of the state of the whole node."""
        for state, icon, kind in (("suspect", "alert", "bad"), ("unmeasured", "question", "warn")):
            if count := sum(one.state == state and one.needs_attention for one in self.squares):
                return icon, kind, f"{count} {WORDS[state]}"
        return ("wrench", "plan", "Drained") if self.drain else ("check", "good", "Healthy")


@dataclass(frozen=True)
class KindCount:
    """The GPUs of a kind by state. ``note`` is what the scheduler adds, for example a pause."""

    kind: str
    title: str
    simulated: bool
    counts: Mapping[str, int]
    note: str = ""

    @property
    def total(self) -> int:
        """The number of all its GPUs."""
        return sum(self.counts.values())

    @property
    def parts(self) -> list[tuple[int, str, str]]:
        """Number, class and words of each state that a GPU is in, in the order in which they are drawn."""
        return [(self.counts[x], CLASSES.get(x, x), WORDS[x]) for x in ORDER if self.counts.get(x)]

    @property
    def as_cells(self) -> bool:
        """Whether each GPU is drawn as a cell of its own."""
        return self.total <= MAX_CELLS

    @property
    def words(self) -> str:
        """Its states in words."""
        return ", ".join(f"{number} {words}" for number, _, words in self.parts)


def count_by_kind(state: Parts, seen: Iterable[ObservedGpu]) -> list[KindCount]:
    """Return the GPUs of each kind, in the catalog's order, those without a kind last."""
    seen, kinds = tuple(seen), state.catalog.gpus
    counted = Counter((one.gpu.pool or NO_KIND, one.state) for one in seen)
    simulated = {one.gpu.pool for one in seen if one.gpu.simulated}
    notes = {offer.kind: offer.note for offer in state.queue.offers}
    return [
        KindCount(
            kind,
            kinds[kind].title if kind in kinds else "No kind of the catalog",
            kind in simulated,
            {one: counted[kind, one] for one in STATES},
            notes.get(kind, ""),
        )
        for kind in [*kinds, NO_KIND]
        if any(counted[kind, one] for one in STATES)
    ]


@dataclass(frozen=True)
class ForeignHolder:
    """A holder outside gpuspawner, and the number of its GPUs of a kind."""

    holder: str
    kind: str
    gpus: int


def count_foreign_holders(seen: Iterable[ObservedGpu], kinds: Mapping[str, GpuKind]) -> list[ForeignHolder]:
    """Return the holders outside gpuspawner. The one with the most GPUs comes first."""
    counted = Counter((one.gpu.holder or "Not known", one.gpu.pool) for one in seen if one.state == "foreign")
    in_order = sorted(counted.items(), key=lambda one: (-one[1], one[0]))
    return [
        ForeignHolder(holder, kinds[pool].title if pool in kinds else "no kind", count)
        for (holder, pool), count in in_order
    ]


def present_gpu_rows(state: Parts, seen: Iterable[ObservedGpu]) -> list[Row]:
    """Return a row for each GPU of the fleet.

    ``since`` is when its state began, as far as it is known: by a restriction, or by the last reading.
    """
    closed = _closing(state)
    return [_gpu_row(state, one, closed) for one in seen]


def _closing(state: Parts) -> dict[str, models.Restriction]:
    """Return the drains and quarantines in force, by node or GPU."""
    found = (
        one
        for one in state.restrictions.in_force()
        if one.measure in {RestrictionKind.DRAIN, RestrictionKind.QUARANTINE}
    )
    return {one.target: present_restriction(state, one) for one in found}


def _gpu_row(state: Parts, one: ObservedGpu, closed: Mapping[str, models.Restriction]) -> Row:
    gpu, kind = one.gpu, state.catalog.gpus.get(one.gpu.pool)
    users = dict.fromkeys(lease.user for lease in one.holders)
    return SimpleNamespace(
        id=gpu.id,
        page=f"{state.prefix}workspaces/{one.holders[0].id}" if one.holders else "",
        node=gpu.node,
        index=gpu.index,
        kind=kind.title if kind else "no kind",
        state=one.state,
        utilization_percent=_utilization(state, one),
        user=", ".join(users) or gpu.holder,
        since=_since(one, closed),
        note=_note(state, one, closed),
        cluster=gpu.cluster,
        zone=gpu.zone,
        spot="spot" if gpu.spot else "",
    )


def _needs_attention(state: Parts, one: ObservedGpu) -> bool:
    """Return whether a GPU is faulty, or can't be measured though its workspace has run for some time."""
    unmeasured = one.state == "unmeasured" and any(is_unmeasured(state, lease) for lease in one.holders)
    return one.state == "suspect" or unmeasured


def _utilization(state: Parts, one: ObservedGpu) -> float | None:
    """Return the highest use that the newest readings show, None if it is not known."""
    readings = (state.sampler.newest(lease.id).get(one.gpu.id) for lease in one.holders)
    return max((x.utilization_percent for x in readings if x and x.utilization_percent is not None), default=None)


def _since(one: ObservedGpu, closed: Mapping[str, models.Restriction]) -> float | None:
    restriction = closed.get(one.gpu.id) or closed.get(one.gpu.node)
    if restriction is not None and one.state in {"drained", "suspect"}:
        return restriction.begins_at
    if one.state == "unmeasured" and one.holders:
        return one.holders[0].sampled_at or one.holders[0].running_at
    return None


def _note(state: Parts, one: ObservedGpu, closed: Mapping[str, models.Restriction]) -> str:
    restriction = closed.get(one.gpu.id) or closed.get(one.gpu.node)
    notes = [one.gpu.note]
    if restriction is not None:
        measure = "In quarantine" if restriction.what == "quarantine" else "Drained"
        notes.append(f"{measure} by {restriction.by}: {restriction.reason}")
    if one.state == "unmeasured" and one.holders:
        newest = state.sampler.newest(one.holders[0].id).get(one.gpu.id)
        notes.append(newest.because if newest else "No reading yet")
    elif one.state == "unmeasured" and (lease := _held_for(state, one.gpu.id)) is not None:
        notes.append(f"Held until {lease.user}'s workspace restarts with its new size. Nobody is charged for it")
    return ". ".join(note.rstrip(".") for note in notes if note)


def _held_for(state: Parts, gpu: str) -> Lease | None:
    """Return the lease for whose change of size a GPU is held, None if it is not held for any."""
    return next((lease for lease in state.registry if any(slot.gpu == gpu for slot in lease.assigned)), None)


def find_nodes(seen: Iterable[ObservedGpu], kinds: Mapping[str, GpuKind], filters: Mapping[str, str]) -> list[NodeGpus]:
    """Return the nodes that match the filters: large ones first, then those with a GPU in a state of NOTED, by name."""
    by_node: dict[NodeName, list[ObservedGpu]] = defaultdict(list)
    for one in seen:
        by_node[one.gpu.on].append(one)
    found = [NodeGpus(name.node, _kinds_of(gpus, kinds), tuple(gpus)) for name, gpus in by_node.items()]
    matching = [one for one in found if one.matches(filters)]
    return sorted(matching, key=NodeGpus.sort_key)


def _kinds_of(gpus: Sequence[ObservedGpu], kinds: Mapping[str, GpuKind]) -> str:
    pools = Counter(one.gpu.pool for one in gpus)
    titles = ", ".join(
        f"{count} × {kinds[pool].title if pool in kinds else 'GPU of no kind'}" for pool, count in pools.items()
    )
    zone, cluster = gpus[0].gpu.zone, gpus[0].gpu.cluster
    more = [f"zone {zone}" if zone else "", f"cluster {cluster}" if cluster else "", "spot" if gpus[0].gpu.spot else ""]
    return ", ".join(filter(None, [titles, *more]))


def present_node(state: Parts, node: NodeGpus, closed: Mapping[str, models.Restriction]) -> Node:
    """Return a node for the map. ``closed`` are the drains and quarantines in force, by node or GPU."""
    in_order = sorted(node.gpus, key=lambda one: one.gpu.index)
    drain = closed.get(node.name)
    return Node(
        node.name,
        node.kinds,
        tuple(_square(state, one, closed) for one in in_order),
        drain if drain is not None and drain.what == "drain" else None,
    )


def _square(state: Parts, one: ObservedGpu, closed: Mapping[str, models.Restriction]) -> GpuSquare:
    names, percent = ", ".join(dict.fromkeys(lease.user for lease in one.holders)) or one.gpu.holder, None
    if one.state in {"busy", "idle"}:
        percent = _utilization(state, one)
    words = f"GPU {one.gpu.index}: {WORDS[one.state]}"
    words += f", {percent:g} %" if percent is not None else ""
    words += f", allocated to {names}" if names else ""
    note = _note(state, one, closed)
    page = f"{state.prefix}workspaces/{one.holders[0].id}" if one.holders else ""
    label = names or WORDS[one.state].capitalize()
    words = f"{words}. {note}".rstrip(". ")
    return GpuSquare(one.gpu.index, one.state, percent, label, words, page, _needs_attention(state, one))


def _natural_key(name: str) -> list[tuple[int, int, str]]:
    """Return a sort key that puts node-9 before node-10."""
    return [(0, int(part), "") if part[:1].isdigit() else (1, 0, part) for part in re.split("([0-9]+)", name)]


class GpusPage(ListPage):
    """GET: the map of nodes and GPUs. With ``view=list``, and as CSV and JSON: one row a GPU."""

    tab, table, title = "gpus", GPUS, "GPUs"
    empty = "No GPU has been seen yet."
    template = "admin_gpus.html"

    async def rows(self) -> Sequence[Row]:
        """Return the rows of the table."""
        return present_gpu_rows(self.parts, observe_gpus(self.parts))

    async def get(self, form: str) -> None:
        """Answer in the wanted form."""
        if form:
            await super().get(form)
            return
        state, wanted = self.parts, parse_list_state(self.table, self.arguments_of_address())
        seen, as_list = observe_gpus(state), wanted.kept.get("view") == "list"
        rows = present_gpu_rows(state, seen) if as_list else []
        found = find_nodes(seen, state.catalog.gpus, wanted.filters)
        begin = (wanted.page - 1) * MAX_NODES
        counts = Counter(one.state for one in seen)
        attention = [one for one in seen if _needs_attention(state, one)]
        closed = _closing(state)
        self.show_list(
            list_part(rows, wanted),
            counts=[(x, CLASSES.get(x, x), WORDS[x].capitalize(), counts[x]) for x in ORDER if counts[x]],
            simulated=any(one.gpu.simulated for one in seen),
            attention=present_gpu_rows(state, attention[:MAX_ATTENTION]),
            attention_total=len(attention),
            as_list=as_list,
            icons=ICONS,
            nodes=[present_node(state, node, closed) for node in found[begin : begin + MAX_NODES]],
            nodes_begin=begin,
            nodes_found=len(found),
            nodes_total=len({one.gpu.on for one in seen}),
            nodes_pages=max(1, -(-len(found) // MAX_NODES)),
        )
