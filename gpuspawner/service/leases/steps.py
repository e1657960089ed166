"""One step for each of many leases, stored together: the fault of one lease holds up no other."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping

from gpuspawner.core.errors import Superseded, Unavailable
from gpuspawner.core.leases.lease import Lease
from gpuspawner.service.failures import EXPECTED, Failures

Stored = asyncio.Future[None]


async def step_each(
    step: str, leases: Iterable[Lease], act: Callable[[Lease], Stored | None], failures: Failures
) -> Unavailable | None:
    """Call ``act`` for each lease at once, and return when all that follows from it is stored.

    Args:
        step: what is done, for the log, the metric and the console.
        leases: the leases.
        act: returns what is to be stored of a lease, None for nothing.
        failures: records the faults, and says which leases wait for their next try.

    Returns:
        Why some of it is not stored now; None if all is stored.

    Raises:
        Superseded: a newer service owns the store.
    """
    return await end_each(step, begin_each(step, leases, act, failures), failures)


def begin_each(
    step: str, leases: Iterable[Lease], act: Callable[[Lease], Stored | None], failures: Failures
) -> dict[str, Stored]:
    """Call ``act`` as :func:`step_each` does. Return what is to be awaited by :func:`end_each`, by lease id."""
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


async def end_each(step: str, begun: Mapping[str, Stored], failures: Failures) -> Unavailable | None:
    """Await what :func:`begin_each` returned. Return and raise as :func:`step_each` does."""
    away: Unavailable | None = None
    for lease_id, error in zip(begun, await asyncio.gather(*begun.values(), return_exceptions=True), strict=True):
        if error is None:
            failures.clear(step, lease_id)
        elif isinstance(error, Superseded) or not isinstance(error, Exception):
            raise error
        elif isinstance(error, EXPECTED):
            failures.note_wait(step, lease_id, error)
            away = error if isinstance(error, Unavailable) else away
        else:
            failures.note(step, lease_id, error)
    return away
