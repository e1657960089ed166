"""The API of the queue, and of how often estimates were right."""

from __future__ import annotations

from math import inf

from gpuspawner.core.queue.calibration import Accuracy
from gpuspawner.core.units import show_duration
from gpuspawner.service.engine.allocation.estimates import REPORT_SECONDS
from gpuspawner.service.parts import Parts
from gpuspawner.service.waiting import models
from gpuspawner.service.waiting.presenter import present_queue
from gpuspawner.service.web.actor import Actor
from gpuspawner.service.web.endpoint import Router
from gpuspawner.service.web.permissions import Permission

router = Router()


@router.get("/api/v1/queue", Permission.USE)
async def list_queue(actor: Actor) -> models.Queue:
    """Return the waiting requests in order: kind, number of GPUs, position and times.

    One's own requests, and for administrators all, carry names and reasons. Kinds of GPU that the reader may not have
    are left out.
    """
    kinds = (await actor.visible_catalog()).gpus
    return present_queue(actor.state, actor.state.registry, actor.person, kinds)


@router.get("/api/v1/admin/estimates", Permission.SEE_FLEET)
async def get_accuracy(actor: Actor) -> models.EstimateReport:
    """Return how often estimated starts were right in the last 30 days, by the length of the estimated wait.

    Requests that waited are counted, also those that still wait. An overdue start is wrong.
    """
    return present_accuracy(actor.state)


def present_accuracy(state: Parts) -> models.EstimateReport:
    """Return how often estimates were right, by how long the wait was estimated. Horizons without one are left out."""
    horizons, before = list[models.HorizonAccuracy](), 0.0
    for one in state.allocator.estimate_records.report:
        if one.estimates:
            horizons.append(_present_horizon(one, before))
        before = one.upto_seconds
    return models.EstimateReport(horizons=horizons, period_seconds=REPORT_SECONDS, now=state.clock.now())


def _present_horizon(one: Accuracy, from_seconds: float) -> models.HorizonAccuracy:
    is_last = one.upto_seconds == inf
    if is_last:
        title = f"More than {show_duration(from_seconds)}"
    else:
        upto = show_duration(one.upto_seconds)
        title = f"{show_duration(from_seconds)} to {upto}" if from_seconds else f"Up to {upto}"
    return models.HorizonAccuracy(
        title=title,
        from_seconds=from_seconds,
        upto_seconds=None if is_last else one.upto_seconds,
        estimates=one.estimates,
        times=one.shown,
        right_times=one.shown_near,
        ranges=one.ranges,
        right_ranges=one.within,
    )
