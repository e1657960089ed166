"""A waiting lease that a rule holds back, and how long: that time does not count as waited."""

from __future__ import annotations

from dataclasses import replace

from gpuspawner.core.errors import Conflict
from gpuspawner.core.leases.lease import WAITING, Lease
from gpuspawner.core.rules import WaitReason


def hold_back(lease: Lease, rule: str, words: str, now: float) -> Lease:
    """Note that a rule holds a waiting request back; ``words`` is its sentence."""
    if lease.phase not in WAITING:
        raise Conflict(f"This workspace is {lease.phase.value}: no rule holds it back.")
    return replace(let_go(lease, now), held_back=WaitReason(rule, words, now))


def let_go(lease: Lease, now: float) -> Lease:
    """Note that no rule holds it back any more."""
    if lease.held_back is None:
        return lease
    held_seconds = lease.held_back_seconds + max(0.0, now - lease.held_back.since)
    return replace(lease, held_back=None, held_back_seconds=held_seconds)
