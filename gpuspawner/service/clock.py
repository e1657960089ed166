"""The service's time: wall time at its start, carried on by the monotonic clock."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Anything that tells the time in seconds since the epoch, and never goes back."""

    def now(self) -> float:
        """Return the time in seconds since the epoch."""
        ...

    def wall(self) -> float:
        """Return what other processes take for the time: it may jump, and serves nothing but what they signed."""
        ...

    def awake_since(self) -> float:
        """Return since when this process has run without a break: the silence of others counts from then at the least.

        What they said while it was stopped, or hung, it may not have heard yet.
        """
        ...


BREAK_SECONDS = 5.0
"""A process in which nobody asks for the time for so long did not run: its loops ask every half second. Arbitrary: ten
times that, and far below the 30 s of silence after which anybody is taken for gone."""


SET_BACK_SECONDS = 60.0
"""Less makes the hub no later than that. Arbitrary: time servers correct far less."""


class WallWatch:
    """Tells when the machine's time was set back: JupyterHub waits by it."""

    def __init__(self, clock: Clock) -> None:
        """Begin with the time as it is."""
        self._clock = clock
        self._ahead_seconds = clock.wall() - clock.now()

    def set_back_seconds(self) -> float:
        """Return by how much it was set back since the last look, 0 where that is less than SET_BACK_SECONDS."""
        before, self._ahead_seconds = self._ahead_seconds, self._clock.wall() - self._clock.now()
        back = before - self._ahead_seconds
        return back if back >= SET_BACK_SECONDS else 0.0


class SteadyClock:
    """Wall time when made, monotonic from there: a wall clock that jumps moves no deadline and no streak."""

    def __init__(self) -> None:
        """Anchor the monotonic clock to the wall."""
        self._offset_seconds = time.time() - time.monotonic()
        self._awake_since = self._asked_at = self._offset_seconds + time.monotonic()

    def now(self) -> float:
        """Return the time in seconds since the epoch."""
        now = self._offset_seconds + time.monotonic()
        if now - self._asked_at > BREAK_SECONDS:
            self._awake_since = now
        self._asked_at = now
        return now

    def awake_since(self) -> float:
        """Return since when this process has run without a break, as far as its questions for the time show."""
        self.now()
        return self._awake_since

    def wall(self) -> float:
        """Return the machine's own time, jumps and all."""
        return time.time()
