"""Present how often the estimated starts of the last 30 days were right: in a sentence, and by horizon."""

from __future__ import annotations

from math import inf

from gpuspawner.core.queue.calibration import LEAST_ERRORS, Accuracy
from gpuspawner.core.units import show_duration
from gpuspawner.service.engine.allocation.estimate_records import REPORT_SECONDS
from gpuspawner.service.parts import Parts
from gpuspawner.service.waiting import models


def hit_rate_words(state: Parts) -> str:
    """Return how often shown times were right in the last 30 days, "" with few of them."""
    report = state.allocator.estimate_records.report
    shown, right = (sum(getattr(one, name) for one in report) for name in ("shown", "shown_near"))
    if shown < LEAST_ERRORS:
        return ""
    return f"{int(10 * right / shown)} of 10 times shown in the last 30 days were right within 10 minutes"


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
