"""The service's time: the wall time at its start, and the monotonic clock from then on."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """A source of the time in seconds since the epoch. The time never goes back."""

    def now(self) -> float:
        """Return the time in seconds since the epoch."""
        ...

    def wall(self) -> float:
        """Return the machine's wall time, in seconds since the epoch. It may jump.

        Use it only for times that other processes signed, and to find a wrong time of the service.
        """
        ...

    def awake_since(self) -> float:
        """Return the end of this process's last break, in seconds since the epoch. Without a break, return its start.

        The silence of other processes counts from this time at the earliest. During a break, this process may have
        missed their messages.
        """
        ...


BREAK_SECONDS = 5.0
"""A longer time between two calls of the clock means that the process did not run. Its loops call the clock every half
second. Arbitrary: ten times that, and far below the 30 s of silence after which another process counts as gone."""


SET_BACK_SECONDS = 60.0
"""A smaller step back delays the hub by less than this. Arbitrary: time servers correct far less."""


class WallWatch:
    """Notices when the machine's time was set back. JupyterHub waits by this time."""

    def __init__(self, clock: Clock) -> None:
        """Begin with the present time."""
        self._clock = clock
        self._ahead_seconds = clock.wall() - clock.now()

    def set_back_seconds(self) -> float:
        """Return by how much it was set back since the last call, 0 if that is less than SET_BACK_SECONDS."""
        before, self._ahead_seconds = self._ahead_seconds, self._clock.wall() - self._clock.now()
        back = before - self._ahead_seconds
        return back if back >= SET_BACK_SECONDS else 0.0


SETTLED_SECONDS = 600.0
"""A machine that starts with a wrong time gets the right one within this time. Arbitrary: time servers need seconds."""


def settled_time(clock: Clock) -> float | None:
    """Return the time for steps that cannot be undone, None while it is not certain.

    A machine may start months ahead, until a time server corrects it. The service's own time stays ahead then, so the
    earlier one of both counts.
    """
    now = clock.now()
    return min(now, clock.wall()) if now - clock.awake_since() >= SETTLED_SECONDS else None


class SteadyClock:
    """The wall time at its creation, and monotonic time from then on. Jumps of the wall clock change no deadline."""

    def __init__(self) -> None:
        """Begin at the present wall time."""
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
        """Return the end of this process's last break, or its start. A long time without a call is a break."""
        self.now()
        return self._awake_since

    def wall(self) -> float:
        """Return the machine's own time, which may jump."""
        return time.time()
