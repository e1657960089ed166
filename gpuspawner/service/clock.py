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


class SteadyClock:
    """Wall time when made, monotonic from there: a wall clock that jumps moves no deadline and no streak."""

    def __init__(self) -> None:
        """Anchor the monotonic clock to the wall."""
        self._offset_seconds = time.time() - time.monotonic()

    def now(self) -> float:
        """Return the time in seconds since the epoch."""
        return self._offset_seconds + time.monotonic()

    def wall(self) -> float:
        """Return the machine's own time, jumps and all."""
        return time.time()
