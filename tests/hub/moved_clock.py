"""A service whose clock a test moves on, past days and months; the hub and the machine keep theirs."""

import time

PLANTED = """
from gpuspawner.service.clock import SteadyClock, WallWatch
now = SteadyClock.now

def new_now(self):
    with open({file!r}) as file:
        ahead = float(file.read())
    moved, self.ahead = ahead - getattr(self, "ahead", 0.0), ahead
    self._offset_seconds += moved
    self._asked_at += moved  # it did not stand still meanwhile
    return now(self)

SteadyClock.now = new_now
WallWatch.set_back_seconds = lambda self: 0.0  # the machine's time did not change
"""


class MovedClock:
    """Return the code to plant in the service before it starts."""

    def __init__(self, folder):
        self._file = folder / "ahead-seconds"
        self.planted = PLANTED.format(file=str(self._file))
        self.move_to(time.time())

    def now(self) -> float:
        return time.time() + float(self._file.read_text())

    def move_to(self, moment: float) -> None:
        new = self._file.with_suffix(".new")
        new.write_text(str(moment - time.time()))
        new.replace(self._file)
