"""Checks of the scheduler that owns the queue, where the catalog names one: reached, let in, of a version that fits."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from gpuspawner import __version__
from gpuspawner.adoption.doctor.findings import Finding, bad, good
from gpuspawner.catalog import Catalog, HttpSchedulerAddress
from gpuspawner.core.errors import Unavailable
from gpuspawner.schedulers.base import UnusableScheduler
from gpuspawner.schedulers.http.client import RequestRejected, SchedulerClient

CHECK = "scheduler"


def of_scheduler(catalog: Catalog | None) -> Iterable[Finding]:
    """Yield findings of the catalog's scheduler, if gpuspawner does not own the queue."""
    if catalog is None or not isinstance(catalog.scheduler, HttpSchedulerAddress):
        return
    try:
        told = asyncio.run(SchedulerClient(catalog.scheduler, "doctor").capabilities())
    except UnusableScheduler as error:
        remedy = "docs/how-to/administrators/external-scheduler.md says what gpuspawner needs."
        yield bad(CHECK, str(error), remedy)
    except (Unavailable, RequestRejected) as error:
        remedy = "Does it run? Look at url and token_file of the catalog's scheduler; a network policy may bar it."
        yield bad(CHECK, str(error), remedy)
    else:
        words = f"{told.name} {told.version} owns the queue (contract {told.contract}, gpuspawner {__version__})."
        yield good(CHECK, words)
