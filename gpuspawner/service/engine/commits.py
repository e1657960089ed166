"""Writes steps of leases: the lease, its audit, its successor, and since when its readings are kept."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from gpuspawner.core import events
from gpuspawner.core.leases.exits import Exit
from gpuspawner.core.leases.lease import HOLDING, Lease, Phase
from gpuspawner.core.leases.step_results import Step, finish
from gpuspawner.service.clock import Clock
from gpuspawner.service.engine.allocation.observed_state import ObservedState
from gpuspawner.service.engine.registry import LeaseRegistry
from gpuspawner.service.store import AuditLine, ReadingRow


class LeaseCommits:
    """Converts each step into a write."""

    def __init__(self, registry: LeaseRegistry, observed: ObservedState, clock: Clock) -> None:
        """Write to ``registry``."""
        self._registry, self._observed, self._clock = registry, observed, clock

    def commit(self, before: Lease, step: Step, readings: Iterable[ReadingRow] = ()) -> asyncio.Future[None]:
        """Write a step. Every decision counts the step at once. The result is done when the step is stored.

        Args:
            before: the lease before the step.
            step: the step.
            readings: the readings of the sample that the step judged.

        Raises:
            Conflict: at once; another live lease has the same key.
            Unavailable, Superseded: when awaited; nothing was stored.
        """
        after, written = step.lease, [step.lease]
        lines = [self.line(after, note.actor, note.event, note.where) for note in step.notes]
        if step.successor is not None and after.reason is not None:
            written.append(step.successor)
            returned = events.Returned(after.id, after.reason.value)
            lines.append(self.line(step.successor, "gpuspawner", returned))
        retold = [self.line(after, note.actor, note.event, note.where) for note in step.retold]
        kept = [] if step.evidence_since is None else [(after.id, step.evidence_since)]
        stored = self._registry.save(*written, audit=lines, readings=readings, kept=kept, tells=retold)
        releases = not after.live or (before.phase in HOLDING and after.phase not in HOLDING)
        if releases and before.phase is not Phase.STOPPING:  # the backend was not asked whether processes are left
            self._observed.note_release(before)
        return stored

    def finish(self, lease: Lease, how: Exit, *, gone: bool = False, evidence: bool = False) -> asyncio.Future[None]:
        """Write the end of a lease, or that it begins to stop. See ``core.leases.step_results.finish``."""
        return self.commit(lease, finish(lease, how, self._clock.now(), gone=gone, evidence=evidence))

    def line(self, lease: Lease, actor: str, event: events.Event, where: str = "") -> AuditLine:
        """Return an audit line with the present time."""
        return AuditLine(self._clock.now(), lease.id, lease.user, actor, event, where)
