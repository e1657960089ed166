"""Say why the estimated start of a waiting request moved: what happened to its GPUs since the earlier estimate."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from gpuspawner.core.leases.lease import HOLDING, WAITING
from gpuspawner.core.queue.calibration import NEAR_SECONDS
from gpuspawner.core.queue.snapshot import Claim, Snapshot

LEAST_EXTENSION_SECONDS = 60.0
"""A deadline that moved by less was not extended by anybody."""


@dataclass(frozen=True)
class QueueState:
    """The state of the queue on which the start of a request depends.

    ``start_at`` is the estimated start. ``deadlines`` are of the workspaces that hold such GPUs, by lease id.
    ``earlier`` are the waiting requests for such GPUs that were made earlier. ``planned`` are the workspaces whose
    users said when they will be done, with these times. ``usable_gpus`` are the GPUs in service. ``moves`` are the
    waiting requests for such GPUs with their moves by administrators.
    """

    start_at: float
    deadlines: Mapping[str, float | None]
    earlier: frozenset[str]
    usable_gpus: int
    planned: frozenset[tuple[str, float]] = frozenset()
    moves: Mapping[str, int] = field(default_factory=dict)


def queue_state(claim: Claim, start_at: float, seen: Snapshot) -> QueueState:
    """Return the state of the queue for a waiting request."""
    pool_of = {name: kind.pool for name, kind in seen.kinds.items()}
    pools = {pool_of[name] for name in (claim.request.gpu, *claim.request.substitutes) if name in pool_of}
    alike = [one for one in seen.leases if one.kind in pool_of and pool_of[one.kind] in pools]
    return QueueState(
        start_at,
        {one.id: one.deadline_at for one in alike if one.phase in HOLDING},
        frozenset(one.id for one in alike if one.phase in WAITING and one.asked_at < claim.asked_at),
        sum(gpu.pool in pools and gpu.healthy and gpu.reachable and not gpu.closed for gpu in seen.fleet.gpus),
        frozenset((one.id, one.planned_end.at) for one in alike if one.planned_end and one.planned_end.at),
        {one.id: one.queue_move for one in alike if one.phase in WAITING},
    )


def explain_move(before: QueueState, after: QueueState) -> tuple[float, str] | None:
    """Return by how many seconds an estimated start moved, and the reasons in words.

    None if it moved by less than ten minutes, or if nothing happened that explains it: then only the draws differ.
    """
    moved_seconds = after.start_at - before.start_at
    if abs(moved_seconds) < NEAR_SECONDS:
        return None
    reasons = "; ".join(_later(before, after) if moved_seconds > 0 else _sooner(before, after))
    return (moved_seconds, reasons) if reasons else None


def _later(before: QueueState, after: QueueState) -> Iterator[str]:
    both = [(before.deadlines[name], at) for name, at in after.deadlines.items() if name in before.deadlines]
    extended = sum(old is not None and (new is None or new - old > LEAST_EXTENSION_SECONDS) for old, new in both)
    yield from _count(extended, "workspace was extended", "workspaces were extended")
    yield from _count(len(after.earlier - before.earlier), "earlier request is back", "earlier requests are back")
    yield from _decisions(before, after)
    yield from _count(before.usable_gpus - after.usable_gpus, "GPU is out of service", "GPUs are out of service")


def _sooner(before: QueueState, after: QueueState) -> Iterator[str]:
    ended = before.deadlines.keys() - after.deadlines.keys()
    yield from _count(len(ended), "workspace ended", "workspaces ended")
    withdrawn = before.earlier - after.earlier - after.deadlines.keys()
    yield from _count(len(withdrawn), "earlier request was withdrawn", "earlier requests were withdrawn")
    yield from _decisions(before, after)
    yield from _count(after.usable_gpus - before.usable_gpus, "more GPU is in service", "more GPUs are in service")


def _decisions(before: QueueState, after: QueueState) -> Iterator[str]:
    answers = len(after.planned - before.planned)
    yield from _count(answers, "user said when they will be done", "users said when they will be done")
    moved = sum(before.moves.get(name, move) != move for name, move in after.moves.items())
    yield from _count(moved, "request was moved by an administrator", "requests were moved by an administrator")


def _count(number: int, one: str, several: str) -> Iterable[str]:
    return () if number <= 0 else (f"{number} {one if number == 1 else several}",)
