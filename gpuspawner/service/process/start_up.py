"""The start of the service: it chooses its backend, follows its catalog, and runs until it is stopped or superseded."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import sys
from functools import partial
from pathlib import Path

from gpuspawner.catalog import Catalog, HttpSchedulerAddress, load_catalog, scaled
from gpuspawner.catalog.load import refused
from gpuspawner.catalog.requests import profile_options
from gpuspawner.catalog.watched_file import OF_SERVICE, PROBLEM, CatalogFile, Prepared
from gpuspawner.core.errors import CatalogError, Unavailable
from gpuspawner.schedulers.base import UnusableScheduler
from gpuspawner.schedulers.http.scheduler import HttpScheduler
from gpuspawner.service.app import Options
from gpuspawner.service.log import TEXT, set_up_log, show_times_in
from gpuspawner.service.notifications.sender import check_targets
from gpuspawner.service.process.backend_choice import BackendChoice, BackendError, choose_backend
from gpuspawner.service.process.serve_options import ServeOptions, Start, read_hub_start, read_own_start
from gpuspawner.service.process.service import Service
from gpuspawner.service.settings import Settings, change_settings
from gpuspawner.service.store.database.backup import note_address

log = logging.getLogger("gpuspawner")


def run_service(options: ServeOptions) -> None:
    """Run the service until it is stopped, superseded, or the hub that started it has ended.

    Raises:
        CatalogError: the catalog is wrong.
        StartError, BackendError, SettingsError: an option, a file or a setting is wrong.
        NoPort: the service cannot listen.
    """
    set_up_log(options.log_format or TEXT)
    is_hub_start = not options.hub and "JUPYTERHUB_SERVICE_URL" in os.environ
    catalog = _load_first_catalog(options, by_hub=is_hub_start)
    show_times_in(catalog.rules.timezone)  # before the first line of the log
    read = read_hub_start if is_hub_start else read_own_start
    start = read(options, os.environ)
    set_up_log(options.log_format or change_settings(Settings(), start.settings).log_format)
    chosen, file, settings = _prepare(options, start, catalog)
    collect_garbage_seldom()
    take_short_turns()
    _note_store(start.options)
    asyncio.run(_run(start.options, chosen, file, settings))


async def _run(options: Options, chosen: BackendChoice, file: CatalogFile, settings: Settings) -> None:
    try:
        await _meet_scheduler(chosen)
        await Service(options, file, chosen.backend, settings, chosen.scheduler, chosen.resources).run()
    finally:
        await chosen.close()


def _note_store(options: Options) -> None:
    """Note in the folder where the store is, for commands that read the folder. The folder may be read-only."""
    if options.data is None:
        return
    try:
        note_address(options.data, options.store_url)
    except OSError as error:
        log.warning("%s cannot be written (%s): the address of the store is not noted.", options.data, error.strerror)


def _load_first_catalog(options: ServeOptions, *, by_hub: bool) -> Catalog:
    """Return the catalog, or the last good one if the file is wrong. Raises CatalogError."""
    try:
        return load_catalog(options.catalog)
    except CatalogError as error:
        last_good = Path(options.data) / OF_SERVICE
        if by_hub or not last_good.exists():
            raise
        try:
            return load_catalog(last_good)
        except CatalogError:
            raise error from None


def _prepare(options: ServeOptions, start: Start, catalog: Catalog) -> tuple[BackendChoice, CatalogFile, Settings]:
    """Return the backend and scheduler, the catalog file that is followed, and the service's settings."""
    data = Path(options.data)
    shortened = _shorten(options.fast, catalog)
    chosen = choose_backend(shortened, data, start.options.hub_id, start.environment, start.options.secret)
    address = catalog.scheduler
    if isinstance(chosen.scheduler, HttpScheduler) and isinstance(address, HttpSchedulerAddress) and address.callback:
        prefix = f"{address.callback.rstrip('/')}{start.options.prefix}"
        chosen.scheduler.callback_url = f"{prefix}scheduler/changed"
    file = CatalogFile(
        Path(options.catalog),
        partial(_prepare_catalog, options, chosen),
        other_files=[data / profile_options.FILE],
        problem_file=data / PROBLEM if start.by_hub else None,  # the hub checks the file then
        last_good=None if start.by_hub else data / OF_SERVICE,
        source=start.catalog_source,
        keeps=True,
    )
    settings = change_settings(Settings(**chosen.settings), start.settings)
    check_targets(settings, start.options.public_url)
    if chosen.resources is not None and not start.options.public_url:
        log.warning(
            "The hub's public address is not known, so requests have no status.page. Set hub.publicUrl of the chart, "
            "--public-url, or c.JupyterHub.public_url."
        )
    return chosen, file, settings


def _shorten(factor: float | None, catalog: Catalog) -> Catalog:
    return catalog if factor is None else scaled(catalog, factor)


def _prepare_catalog(options: ServeOptions, chosen: BackendChoice, written: Catalog) -> Prepared:
    """Return a later catalog for this backend. Raises CatalogError if the hub would not start with it."""
    if problems := refused(options.catalog, written, makes_pods=chosen.makes_pods):
        raise CatalogError(problems)
    return chosen.prepare(_shorten(options.fast, written))


async def _meet_scheduler(chosen: BackendChoice) -> None:
    """Connect to the scheduler. The service also starts if the scheduler does not answer.

    Raises:
        BackendError: the scheduler cannot be used.
    """
    try:
        await chosen.connect()
    except UnusableScheduler as error:
        raise BackendError(str(error)) from error
    except Unavailable as error:
        log.warning("%s Nothing is granted until it does. Running workspaces are not affected.", error)


OBJECTS = 50_000
"""The number of new objects that starts a garbage collection. With Python's default of 700, one of fifteen decisions in
a fleet of 10,000 nodes waited 4 ms for it. A page of the console waited longer."""


def collect_garbage_seldom() -> None:
    """Exclude the loaded modules from garbage collections, and make collections less frequent."""
    gc.freeze()
    gc.set_threshold(OBJECTS)


TURN_SECONDS = 0.0002
"""How long a thread computes before it lets another one go on. A grant waits for such turns about ten times."""


def take_short_turns() -> None:
    """Let threads take short turns, so that a grant waits little for a long computation in another thread."""
    sys.setswitchinterval(TURN_SECONDS)
