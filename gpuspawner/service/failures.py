"""Failures of steps by defects of the service: each is logged once, counted, shown, and retried with a growing pause.

Belongs here: which step failed for which lease, since when, and when it may be tried again.
Never here: the steps.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace

from gpuspawner.core.errors import Conflict, GpuspawnerError, RequestRefused, Superseded, Unavailable
from gpuspawner.core.leases.lease import Lease

log = logging.getLogger("gpuspawner.failures")

FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 1.0, 60.0
"""The pause doubles with each failure. Arbitrary: a warning is at most a minute late once the cause is gone."""
EXPECTED = (Conflict, RequestRefused, Superseded, Unavailable)
"""Errors that a step reports to its caller. They are no defects of the service."""
OF_ALL = ""
"""The subject of a step that concerns no single lease."""


@dataclass(frozen=True)
class Failure:
    """A step that fails for one subject: a lease by its id, or OF_ALL. Times are of a monotonic clock."""

    step: str
    subject: str
    why: str
    since: float
    count: int
    retry_at: float


class Failures:
    """The steps that fail now, and how often each step failed since the service started."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Start without failures."""
        self._clock = clock
        self._failing: dict[tuple[str, str], Failure] = {}
        self._waiting: dict[tuple[str, str], str] = {}
        self.counts: Counter[str] = Counter()

    def may_try(self, step: str, subject: str = OF_ALL) -> bool:
        """Return whether a step may be tried: it did not fail, or its pause is over."""
        failure = self._failing.get((step, subject))
        return failure is None or self._clock() >= failure.retry_at

    def note(self, step: str, subject: str, error: BaseException) -> None:
        """Record a failure. Only the first of a row of failures is logged with its traceback."""
        now, before = self._clock(), self._failing.get((step, subject))
        self.counts[step] += 1
        count = 1 if before is None else before.count + 1
        pause_seconds = min(LONGEST_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2.0 ** min(count - 1, 30))
        # The text of an error may hold what a user wrote, or a secret: only its type is shown.
        why = type(error).__name__
        since = now if before is None else before.since
        self._failing[step, subject] = Failure(step, subject, why, since, count, now + pause_seconds)
        if before is None or before.why != why:
            log.error("%s failed%s; it is retried, and the others go on", step, _of(subject), exc_info=error)

    def note_wait(self, step: str, subject: str, error: GpuspawnerError) -> None:
        """Log once why a step waits, until it succeeds or waits for something else.

        An outage of a part has two lines of its own: see :class:`gpuspawner.backends.base.OutageLog`.
        """
        if isinstance(error, Unavailable) and error.part:
            log.debug("%s waits%s: %s", step, _of(subject), error)
        elif self._waiting.get((step, subject)) != str(error):
            self._waiting[step, subject] = str(error)
            log.warning("%s waits%s: %s", step, _of(subject), error)

    def clear(self, step: str, subject: str = OF_ALL) -> None:
        """Record that a step succeeded."""
        self._waiting.pop((step, subject), None)
        if (failure := self._failing.pop((step, subject), None)) is not None:
            log.warning("%s works again for %s after %s failures", step, subject or "all", failure.count)

    def forget_others(self, subjects: Collection[str]) -> None:
        """Forget failures of leases that have ended, and of claims that are over."""
        self._failing = {key: one for key, one in self._failing.items() if not key[1] or key[1] in subjects}
        self._waiting = {key: why for key, why in self._waiting.items() if not key[1] or key[1] in subjects}

    def now(self) -> list[Failure]:
        """Return the current failures, longest first. Here ``since`` is the number of seconds since each began."""
        now = self._clock()
        found = (replace(one, since=now - one.since) for one in self._failing.values())
        return sorted(found, key=lambda one: -one.since)

    @contextmanager
    def isolating(
        self, step: str, subject: str = OF_ALL, raises: tuple[type[Exception], ...] = EXPECTED
    ) -> Iterator[None]:
        """Record a defect of the service instead of raising it. The errors of ``raises`` are raised."""
        try:
            yield
        except raises:
            raise
        except Exception as error:  # noqa: BLE001 - recorded, with its traceback
            self.note(step, subject, error)
        else:
            self.clear(step, subject)


def _of(subject: str) -> str:
    return f" for the lease {subject}" if subject else ""


Stored = asyncio.Future[None]


async def step_each(
    step: str, leases: Iterable[Lease], act: Callable[[Lease], Stored | None], failures: Failures
) -> None:
    """Call ``act`` for each lease at once, and return when everything that follows is stored.

    Args:
        step: the name of the step, for the log, the metric and the console.
        leases: the leases.
        act: returns the write of a lease, None without one.
        failures: records the failures, and which leases wait for their next try.

    Raises:
        Superseded: a newer service owns the store.
        Unavailable: some of it is not stored now.
    """
    await end_each(step, begin_each(step, leases, act, failures), failures)


def begin_each(
    step: str, leases: Iterable[Lease], act: Callable[[Lease], Stored | None], failures: Failures
) -> dict[str, Stored]:
    """Call ``act`` as :func:`step_each` does. Return the writes that :func:`end_each` awaits, by lease id."""
    begun: dict[str, Stored] = {}
    for lease in leases:
        if not failures.may_try(step, lease.id):
            continue
        try:
            stored = act(lease)
        except Superseded:
            raise
        except EXPECTED as error:
            failures.note_wait(step, lease.id, error)
        except Exception as error:  # noqa: BLE001 - recorded, with its traceback
            failures.note(step, lease.id, error)
        else:
            if stored is None:
                failures.clear(step, lease.id)
            else:
                begun[lease.id] = stored
    return begun


async def end_each(step: str, begun: Mapping[str, Stored], failures: Failures) -> None:
    """Await the writes that :func:`begin_each` returned. Raise as :func:`step_each` does."""
    outage: Unavailable | None = None
    for lease_id, error in zip(begun, await asyncio.gather(*begun.values(), return_exceptions=True), strict=True):
        if error is None:
            failures.clear(step, lease_id)
        elif isinstance(error, Superseded) or not isinstance(error, Exception):
            raise error
        elif isinstance(error, EXPECTED):
            failures.note_wait(step, lease_id, error)
            outage = error if isinstance(error, Unavailable) else outage
        else:
            failures.note(step, lease_id, error)
    if outage is not None:
        raise outage
