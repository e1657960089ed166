"""What an orchestrator asks without signing in: do rounds go on, and may GPUs be given?

Belongs here: two plain answers on the service's own port, which the hub's proxy does not lead to.
Never here: a name, a number, or anything else that is for users and administrators.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable

from tornado.web import RequestHandler

HANGS_SECONDS = 120.0
"""A loop without a whole round for so long hangs, or for ten of its periods. Arbitrary: each call that a round makes
has a deadline of half a minute or less."""
ALIVE, READY = "/healthz", "/readyz"


class Health:
    """When each of the service's loops last went round, and what a grant still waits for."""

    def __init__(self, waits_for: Callable[[], str], clock: Callable[[], float] = time.monotonic) -> None:
        """``waits_for`` says in a few words what is missing, "" where nothing is."""
        self.waits_for, self._clock = waits_for, clock
        self._due: dict[str, float] = {}
        self._stuck: dict[str, Callable[[], float]] = {}

    def watch(self, what: str, stuck_seconds: Callable[[], float]) -> None:
        """Have something count as a loop, which says itself for how long it has come no further by its own fault."""
        self._stuck[what] = stuck_seconds

    def went_round(self, loop: str, period_seconds: float) -> None:
        """Note that a loop begins, or has gone round. A step that failed in time is a round too."""
        self._due[loop] = self._clock() + max(HANGS_SECONDS, 10 * period_seconds)

    def hanging(self) -> list[str]:
        """Return the loops that hang."""
        now = self._clock()
        stuck = [what for what, seconds in self._stuck.items() if seconds() > HANGS_SECONDS]
        return sorted([*stuck, *(loop for loop, due in self._due.items() if now > due)])


class Probe(RequestHandler, ABC):
    """GET: 200 where all is well, else 503 and why."""

    def initialize(self, health: Health) -> None:
        """Keep what is asked."""
        self.health = health

    def set_default_headers(self) -> None:
        """Nothing here is for caches."""
        self.set_header("Cache-Control", "no-store")
        self.set_header("Content-Type", "text/plain; charset=UTF-8")
        self.clear_header("Server")

    def get(self) -> None:
        """Answer in a line."""
        wrong = self.wrong()
        self.set_status(503 if wrong else 200)
        self.finish(f"{wrong or 'ok'}\n")

    head = get

    @abstractmethod
    def wrong(self) -> str:
        """Return what is wrong, "" for nothing."""

    def write_error(self, status_code: int, **_kwargs: object) -> None:
        """Tell nothing but the status."""
        self.finish(f"{status_code}\n")


class Alive(Probe):
    """Liveness: rounds go on. Whoever waits for a store, a hub or another service lives: a restart would not help."""

    def wrong(self) -> str:
        """Return which loops hang."""
        hanging = self.health.hanging()
        return f"no whole round: {', '.join(hanging)}" if hanging else ""


class Ready(Probe):
    """Readiness: it owns its store and has seen what runs, so that it may give GPUs.

    A hub, or a cluster, that goes away later changes nothing here: the service's pages say so, and must be reached.
    """

    def wrong(self) -> str:
        """Return what a grant waits for."""
        missing = self.health.waits_for()
        return f"waits for {missing}" if missing else ""


ROUTES = ((ALIVE, Alive), (READY, Ready))
