"""What is kept of one GPU that is followed: added up from the driver's samples, so that none is missed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

LONGEST_SAMPLE_SECONDS = 2.0
"""The driver takes a sample each 1/6 s to 1 s: what lies further apart was not seen."""
NEW_SECONDS = 0.05
"""A sample is newer than another by more than this: the two clocks are read one after the other."""
LATE_SECONDS = 10.0
"""Where the newest sample is older than this, the driver takes none at present."""
STRANGE_SECONDS = 600.0
"""No buffer reaches back so far: an older sample is by a clock that we do not know."""
PERCENTS = range(101)


@dataclass
class Followed:
    """One GPU, by its UUID. Times are seconds since the machine started."""

    uuid: str
    since: float
    """Since when no sample was missed."""
    seen_until: float
    """When the newest sample that was counted was taken; at first, when it was first looked at."""
    unseen_seconds: float = 0.0
    """How much was missed before."""
    percents: dict[int, tuple[float, float]] = field(default_factory=dict)
    """For each utilization that was seen: for how many seconds in all, and when last."""
    joules: float | None = None
    """The energy that was used since it is followed, None where the driver does not tell."""
    millijoules: int | None = None
    """The driver's counter at the last look."""

    def take(self, samples: Iterable[tuple[int, int]], uptime: float, wall: float) -> None:
        """Count those of the driver's samples that were not counted yet.

        Args:
            samples: pairs of the machine's wall clock in microseconds and a utilization in percent. What was taken
                before it was first looked at may be of whoever had the GPU then. After the wall clock was set, those
                from before lie in the future or too far back: what they tell is missed.
            uptime: now, in seconds since the machine started.
            wall: now, by the wall clock, in seconds.
        """
        taken = sorted((stamp / 1e6 - wall + uptime, percent) for stamp, percent in samples if percent in PERCENTS)
        for at, percent in taken:
            if at <= max(self.seen_until + NEW_SECONDS, uptime - STRANGE_SECONDS) or at > uptime + NEW_SECONDS:
                continue
            seconds = at - self.seen_until
            if seconds > LONGEST_SAMPLE_SECONDS:
                self.unseen_seconds, self.since, seconds = self.unseen_seconds + seconds, at, 0.0
            before = self.percents.get(percent, (0.0, 0.0))[0]
            self.percents[percent] = before + seconds, min(at, uptime)
            self.seen_until = at

    def spend(self, millijoules: int | None) -> None:
        """Count what the driver's energy counter went on by. One that is lower than before began anew."""
        if millijoules is None:
            return
        before = millijoules if self.millijoules is None else self.millijoules
        went_on = millijoules - before if millijoules >= before else millijoules
        self.joules, self.millijoules = (self.joules or 0.0) + went_on / 1000, millijoules

    def told(self, uptime: float) -> dict[str, Any]:
        """Return it as it stands in the file."""
        late = self.seen_until < uptime - LATE_SECONDS
        return {
            "uuid": self.uuid,
            "since": round(uptime if late else min(self.since, uptime), 2),
            "unseen": round(self.unseen_seconds + (uptime - self.seen_until if late else 0.0), 2),
            "percents": [
                [p, round(seconds, 2), round(last, 2)] for p, (seconds, last) in sorted(self.percents.items())
            ],
            "joules": None if self.joules is None else round(self.joules, 1),
        }
