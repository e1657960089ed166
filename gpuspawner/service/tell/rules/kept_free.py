"""Why free GPUs are not given to who waits, and what would start now, in the words that form, queue and CLI share."""

from __future__ import annotations

from math import floor

from gpuspawner.catalog import Catalog
from gpuspawner.core.leases.request import Request
from gpuspawner.core.queue.decisions import ReservedForOthers
from gpuspawner.core.units import show_duration, show_time

SLACK_SECONDS = 120.0
"""Between what is told and the press of Start. Arbitrary: time to change a field."""


def kept_free_words(kept: ReservedForOthers | None, request: Request, catalog: Catalog, now: float) -> str:
    """Return what is kept for whom, and how to start before, to be read after how many are free.

    As ``kept for the 4 GPUs that go first; a workspace that ends before 16:40 may start now: shorten yours to 1 h``;
    "" where nothing is kept.
    """
    if kept is None:
        return ""
    first = "the GPU that goes" if kept.first == 1 else f"the {kept.first} GPUs that go"
    words = f"kept for {first} first"
    if kept.until is None:
        return f"{words}, and it is not known when these start"
    words += f"; a workspace that ends before {show_time(kept.until, now)} may start now"
    shorter = _shorter_seconds(kept.until - now - SLACK_SECONDS)
    template = catalog.templates.get(request.template)
    least = 0.0 if template is None else template.bounds.lifetime_seconds[0]
    if shorter >= max(least, 1.0):
        return f"{words}: shorten yours to {show_duration(shorter)}"
    return f"{words}, and none of this template is that short" if least else words


def _shorter_seconds(seconds: float) -> float:
    """Return a lifetime that fits, as people say one: in half hours, in steps of five minutes, or to the second."""
    step = 1800 if seconds >= 3600 else 300 if seconds >= 600 else 1  # noqa: PLR2004 - an hour; ten minutes
    return float(max(0, step * floor(seconds / step)))
