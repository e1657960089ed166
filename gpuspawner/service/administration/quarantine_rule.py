"""The quarantine rule: a GPU with a fatal error gets no new workspace, and its users and administrators are told."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterable

from gpuspawner.core.administration import Restriction, RestrictionKind
from gpuspawner.service.administration.restrictions import LISTED, carry_out
from gpuspawner.service.engine.sampling.gpu_health import HealthReading
from gpuspawner.service.parts import Parts
from gpuspawner.service.store import AuditLine

log = logging.getLogger("gpuspawner.gpu_health")

ACTOR = "gpuspawner"


async def quarantine_round(parts: Parts) -> None:
    """Read the health of all GPUs, and restrict those with a new fault unless the catalog leaves it to people.

    A fault that an administrator has ended stays ended as long as the driver reports the same one.
    """
    await parts.gpu_health.look()
    faulty = [one for one in parts.gpu_health.readings() if one.fault]
    if not faulty or not parts.catalog.rules.quarantine_faulty_gpus:
        return
    earlier = [*parts.restrictions.live(), *await parts.restrictions.last(LISTED)]
    made = list(_restrictions(parts, faulty, earlier))
    if not made:
        return
    now = parts.clock.now()
    for one in made:
        log.warning("%s %s: %s", one.measure.value, one.whom or one.target, one.reason)
    await carry_out(
        parts,
        made,
        lambda event, user, target: AuditLine(now, "", user, ACTOR, event, target=target),
        lambda lease, event: parts.allocator.commits.line(lease, ACTOR, event),
    )


def _restrictions(
    parts: Parts, faulty: Iterable[HealthReading], earlier: Iterable[Restriction]
) -> Iterable[Restriction]:
    """Yield a quarantine of each GPU, or a drain of the node where the cluster does not tell its GPUs apart."""
    known = {(one.target, one.reason) for one in earlier}
    held = {one.target for one in parts.restrictions.live()}
    nodes = {gpu.node for gpu in parts.scheduler.fleet.gpus}
    for one in faulty:
        measure, target, whom, reason = RestrictionKind.QUARANTINE, one.gpu, f"{one.node}/{one.index}", one.fault
        if not one.gpu:
            measure, target, whom = RestrictionKind.DRAIN, one.node, ""
            reason = f"GPU {one.index}: {one.fault}. The cluster does not tell the GPUs of this node apart"
        if target in held or (target, reason) in known or (not one.gpu and target not in nodes):
            continue
        held.add(target)
        yield Restriction(uuid.uuid4().hex, measure, target, reason, ACTOR, parts.clock.now(), whom=whom)
