"""The log of outages: each is said once when it begins, and once when it ends with its length."""

from __future__ import annotations

import logging

from gpuspawner.core.outages import Outage
from gpuspawner.core.units import show_duration

log = logging.getLogger("gpuspawner.outages")


class OutageLog:
    """Whether one part answers now. Times are in seconds since the epoch."""

    def __init__(self) -> None:
        """Take it that the part answers."""
        self.outage: Outage | None = None
        """The outage under way; None while the part answers."""

    def begin(self, part: str, why: str, now: float, since: float | None = None) -> Outage:
        """Record that a part does not answer. ``since`` is when it answered last, if that is known.

        Of an outage that is under way, only the part and the reason change.
        """
        before = self.outage
        begun = before.since if before is not None else now if since is None else since
        outage = Outage(part, begun, why)
        if outage == before:
            return before
        self.outage = outage
        if before is None:
            told = {"event": "outage_begins", "part": part, "reason": why}
            log.warning("%s %s", outage.words(now), why, extra={"fields": told})
        return outage

    def end(self, now: float) -> None:
        """Record that the part answers."""
        outage, self.outage = self.outage, None
        if outage is not None:
            seconds = max(0.0, now - outage.since)
            told = {"event": "outage_ends", "part": outage.part, "seconds": round(seconds, 1)}
            log.warning("%s answers again, after %s.", outage.part, show_duration(seconds), extra={"fields": told})
