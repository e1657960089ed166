"""What the scheduler's answers mean here: slots, places, what there is. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction

from gpuspawner.core.gpus.fleet import Fleet, Gpu, GpuKind, Slot
from gpuspawner.core.queue.decisions import Held
from gpuspawner.core.queue.estimates import Place
from gpuspawner.core.queue.snapshot import LEAST_WAIT_SECONDS
from gpuspawner.core.units import show_duration, show_money, show_time
from gpuspawner.schedulers.base import Offer
from gpuspawner.schedulers.http.models import Grant, Reason, State, Stock
from gpuspawner.schedulers.http.models import Offer as Told

OF_THE_QUEUE = frozenset({"no_gpus_free", "behind_others", "not_before", "starting", "preempted", "expired"})
"""Codes of the contract that are no rule: its turn has not come."""

AT_ONCE_SECONDS = 5.0
"""What starts so soon starts now: two clocks are never quite the same. Arbitrary."""


def slots_of(grant: Grant, kind: GpuKind, fleet: Fleet, used: Mapping[str, Fraction]) -> tuple[Slot, ...] | None:
    """Return a grant as slots of the fleet's GPUs, None where they are not seen, or not free.

    ``used`` is the share in use of each GPU.
    """
    found, used = list[Slot](), dict(used)
    for slot in grant.slots:
        here = [gpu for gpu in fleet.gpus if gpu.node == slot.node and gpu.cluster in {"", grant.cluster}]
        free = _free(here, kind, used)
        gpus = free if slot.gpus is None else _named(free, slot.gpus)
        if len(gpus) < slot.count:
            return None
        for gpu in gpus[: slot.count]:
            used[gpu.id] = used.get(gpu.id, Fraction(0)) + kind.share
            found.append(Slot(gpu.id, kind.share))
    return tuple(found) or None


def _named(here: Iterable[Gpu], names: Iterable[str]) -> list[Gpu]:
    by_id = {gpu.id: gpu for gpu in here}
    return [by_id[name] for name in dict.fromkeys(names) if name in by_id]


def _free(here: Iterable[Gpu], kind: GpuKind, used: Mapping[str, Fraction]) -> list[Gpu]:
    fit = [gpu for gpu in here if gpu.pool == kind.pool and used.get(gpu.id, Fraction(0)) + kind.share <= 1]
    return sorted(fit, key=lambda gpu: (-used.get(gpu.id, Fraction(0)), gpu.index, gpu.id))


def held_by(reason: Reason | None) -> Held | None:
    """Return the rule that holds a claim back, in the scheduler's words; None where its turn has not come."""
    return None if reason is None or reason.code in OF_THE_QUEUE else Held(reason.code, reason.words)


def place_of(state: State, name: str, as_of: float, ahead_seconds: float) -> Place:
    """Return where a claim stands that waits. ``ahead_seconds`` is how far the scheduler's clock is before ours."""
    told_at = state.as_of.timestamp() - ahead_seconds
    earliest, latest = (
        None if at is None else max(LEAST_WAIT_SECONDS, at.timestamp() - ahead_seconds - as_of)
        for at in (state.earliest_start, state.latest_start)
    )
    where = _where(state.position, state.of)
    when = _when(earliest, latest, as_of)
    words = f" {state.reason.words}" if state.reason else ""
    says = f"{name} says, as of {show_time(told_at, as_of)}: {where}{when}.{words}"
    return Place(state.position, state.of, latest, earliest, says=says)


def place_offered(offer: Told, name: str, now: float, ahead_seconds: float) -> Place:
    """Return where a claim would stand that is offered this."""
    earliest, latest = (
        None if at is None else at.timestamp() - ahead_seconds - now
        for at in (offer.earliest_start, offer.latest_start)
    )
    if earliest is not None and earliest <= AT_ONCE_SECONDS and offer.position is None:
        return Place(1, 1, 0.0, 0.0, offer.kind or "")
    earliest, latest = (None if x is None else max(LEAST_WAIT_SECONDS, x) for x in (earliest, latest))
    words = f" {offer.reason.words}" if offer.reason else ""
    says = f"{name} says: {_where(offer.position, None)}{_when(earliest, latest, now)}.{words}"
    return Place(offer.position, None, latest, earliest, offer.kind or "", says=says)


def _where(position: int | None, of: int | None) -> str:
    if position is None:
        return "it waits, and the place is not told"
    return f"place {position}" + (f" of {of}" if of is not None else "")


def _when(earliest: float | None, latest: float | None, now: float) -> str:
    if earliest is not None and latest is not None and latest > earliest:
        return f", to start between {show_time(now + earliest, now)} and {show_time(now + latest, now)}"
    if latest is not None:
        return f", to start by {show_time(now + latest, now)}"
    if earliest is not None:
        return f", to start at {show_time(now + earliest, now)} at the earliest"
    return ""


def besides(offer: Told, name: str, currency: str = "") -> str:
    """Return what else is to be known of an offer, in sentences; "" for nothing."""
    parts = [f"on {offer.cluster}"]
    if offer.cost_per_hour is not None:
        parts.append(f"for {show_money(offer.cost_per_hour, currency)} an hour")
    found = [f"{name} gives it {' '.join(parts)}."]
    if offer.reason is not None:
        found.append(offer.reason.words)
    if offer.notice_seconds is not None:
        found.append(f"It may take it back, and tells {show_duration(offer.notice_seconds)} before.")
    return " ".join(found)


def offers_told(mine: Iterable[Offer], stock: Sequence[Stock] | None, name: str) -> list[Offer]:
    """Return what could be had of every kind as the scheduler tells it; what it does not tell is not known.

    ``mine`` is what is seen here: how many are free at most, how many one node has, and how many of ours wait.
    """
    return [
        offer if offer.total is None else _told(offer, [x for x in stock or () if x.kind == offer.kind], name)
        for offer in mine
    ]


def _told(offer: Offer, entries: Sequence[Stock], name: str) -> Offer:
    if not entries:
        return replace(offer, free=None, total=None, note=f"{name} does not tell how many there are")
    waiting, free = _sum([x.waiting for x in entries]), _sum([x.free for x in entries])
    if free is not None and offer.free is not None:
        free = min(free, offer.free)  # what strangers use here, the scheduler does not know
    return replace(
        offer,
        free=free,
        total=_sum([x.total for x in entries]),
        waiting=offer.waiting if waiting is None else waiting,
        away=0,
        note="",
    )


def _sum(numbers: Sequence[int | None]) -> int | None:
    known = [x for x in numbers if x is not None]
    return sum(known) if len(known) == len(numbers) else None
