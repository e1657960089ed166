"""What administrators keep from being given, or from being judged, for a time: nodes, GPUs, kinds, holds, exemptions.

Pure. One is in force from its making until its time is over or it is lifted; what it was stays known. Who runs on a GPU
that is closed goes on: nothing is ended for a restriction.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum

from gpuspawner.core.gpus.fleet import Fleet, Gpu
from gpuspawner.core.leases.lease import Lease
from gpuspawner.core.rules import Account, ClassHold

EVERYBODY = Account()


class Measure(str, Enum):
    """What a restriction does."""

    DRAIN = "drain"
    QUARANTINE = "quarantine"
    PAUSE = "pause"
    HOLD = "hold"
    EXEMPT = "exempt"


@dataclass(frozen=True)
class Restriction:
    """One restriction. Times are seconds since the epoch.

    Args:
        id: its own.
        measure: what it does.
        target: a node to drain; a GPU, by id, to quarantine; a kind to hold, or to pause (``snapshot.ALL_KINDS``:
            everything); a workspace, by id, that is exempt, "" where a user is.
        reason: why, as people read it.
        by: who made it.
        since: when.
        until: when it is over by itself; None until it is lifted.
        count: how many GPUs are held.
        account: for whom they are held, or whose workspaces are exempt.
        whom: how people call the account.
        lifted_at: when it was lifted, by ``lifted_by``, for ``lifted_why``; None where it was not.
    """

    id: str
    measure: Measure
    target: str
    reason: str
    by: str
    since: float
    until: float | None = None
    count: int = 0
    account: Account = EVERYBODY
    whom: str = ""
    lifted_at: float | None = None
    lifted_by: str = ""
    lifted_why: str = ""

    def is_in_force(self, now: float) -> bool:
        """Whether it holds: nobody has lifted it, and its time is not over."""
        return self.lifted_at is None and (self.until is None or now < self.until)

    def closes(self, gpu: Gpu) -> bool:
        """Whether a GPU is given to nobody new by it."""
        name = {Measure.DRAIN: gpu.node, Measure.QUARANTINE: gpu.id}.get(self.measure)
        return name is not None and name == self.target

    def spares(self, lease: Lease) -> bool:
        """Whether a workspace is not judged as idle by it."""
        if self.measure is not Measure.EXEMPT:
            return False
        return lease.id == self.target if self.target else lease.key.user_created == self.account.user_created


def with_closed(fleet: Fleet, restrictions: Iterable[Restriction]) -> Fleet:
    """Return the fleet with the GPUs closed that restrictions close; the same object where there are none."""
    closing = {one.target: one for one in restrictions if one.measure in {Measure.DRAIN, Measure.QUARANTINE}}
    if not closing:
        return fleet
    return replace(fleet, gpus=tuple(_closed(gpu, closing) for gpu in fleet.gpus))


def _closed(gpu: Gpu, closing: Mapping[str, Restriction]) -> Gpu:
    found = (closing.get(name) for name in (gpu.id, gpu.node))
    one = next((x for x in found if x is not None and x.closes(gpu)), None)
    if one is None:
        return gpu
    what = f"{gpu.node} is drained" if one.measure is Measure.DRAIN else "It is in quarantine"
    return replace(gpu, closed=f"{what}: {one.reason}")


def holds_of(restrictions: Iterable[Restriction]) -> tuple[ClassHold, ...]:
    """Return the GPUs that administrators hold for somebody, as the catalog's holds for classes."""
    return tuple(
        ClassHold(one.whom, one.target, one.count, None, one.until, one.since, one.account)
        for one in restrictions
        if one.measure is Measure.HOLD
    )


def exemption_of(lease: Lease, restrictions: Iterable[Restriction]) -> Restriction | None:
    """Return the restriction by which a workspace is not judged as idle for longest; None where nothing spares it."""
    found = (one for one in restrictions if one.spares(lease) and one.until is not None)
    return max(found, key=lambda one: one.until or 0.0, default=None)
