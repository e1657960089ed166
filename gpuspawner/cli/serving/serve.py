"""``gpuspawner serve``: the service, as the hub starts it, or as a process of its own."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import sys
from functools import partial
from pathlib import Path

from gpuspawner.catalog import Catalog, HttpSchedulerAddress, load_catalog, profile_options, scaled
from gpuspawner.catalog.catalog_warnings import needing_pods
from gpuspawner.catalog.watched_file import OF_SERVICE, PROBLEM, CatalogFile, Prepared
from gpuspawner.cli.serving.backend import BackendError, Chosen, choose_backend
from gpuspawner.cli.serving.started import Started, StartError, started_by_hand, started_by_hub
from gpuspawner.cli.serving.zone import show_times_in
from gpuspawner.core.errors import CatalogError, NoPort, Unavailable
from gpuspawner.schedulers.base import Unfit
from gpuspawner.schedulers.http.scheduler import HttpScheduler
from gpuspawner.service.app import Options, Service
from gpuspawner.service.garbage import look_seldom
from gpuspawner.service.log import TEXT, begin_log
from gpuspawner.service.settings import Settings, SettingsError, changed
from gpuspawner.service.store.backup import note_address
from gpuspawner.service.tell.notifier import check_targets

log = logging.getLogger("gpuspawner")

INVALID = 1


def serve(arguments: argparse.Namespace) -> int:
    """Run the service until it is stopped, superseded, or the hub that started it is gone."""
    begin_log(arguments.log_format or TEXT)
    try:
        by_hub = not arguments.hub and "JUPYTERHUB_SERVICE_URL" in os.environ
        catalog = _first_catalog(arguments, by_hub=by_hub)
        show_times_in(catalog.rules.timezone)  # before the first line is logged
        started = started_by_hub(arguments, os.environ) if by_hub else started_by_hand(arguments, os.environ)
        begin_log(arguments.log_format or changed(Settings(), started.settings).log_format)
        chosen, file, settings = _prepare(arguments, started, catalog)
    except CatalogError as error:
        print(error, file=sys.stderr)
        return INVALID
    except (StartError, BackendError, SettingsError) as error:
        print(f"gpuspawner serve: {error}", file=sys.stderr)
        return INVALID
    look_seldom()
    _note_store(started.options)
    try:
        asyncio.run(_run(started.options, chosen, file, settings))
    except (BackendError, NoPort) as error:
        print(f"gpuspawner serve: {error}", file=sys.stderr)
        return INVALID
    return 0


def _note_store(options: Options) -> None:
    """Note in the folder where the store is; commands that read the folder are told. It may be read-only."""
    if options.data is None:
        return
    try:
        note_address(options.data, options.store_url)
    except OSError as error:
        log.warning("%s cannot be written (%s): where the store is stands nowhere.", options.data, error.strerror)


def _first_catalog(arguments: argparse.Namespace, *, by_hub: bool) -> Catalog:
    """Return the catalog of this start: the last good one where the file is wrong. Raises CatalogError."""
    try:
        return load_catalog(arguments.catalog)
    except CatalogError as error:
        last_good = Path(arguments.data) / OF_SERVICE
        if by_hub or not last_good.exists():
            raise
        try:
            return load_catalog(last_good)
        except CatalogError:
            raise error from None


def _prepare(arguments: argparse.Namespace, started: Started, catalog: Catalog) -> tuple[Chosen, CatalogFile, Settings]:
    """Return where workspaces live, the catalog as it is followed, and the service's settings."""
    options, data = started.options, Path(arguments.data)
    shortened, told = _shortened(arguments.fast, catalog), started.environment
    chosen = choose_backend(shortened, data, options.hub_id, told, options.secret)
    address = catalog.scheduler
    if isinstance(chosen.scheduler, HttpScheduler) and isinstance(address, HttpSchedulerAddress) and address.callback:
        chosen.scheduler.callback_url = f"{address.callback.rstrip('/')}{options.prefix}scheduler/changed"
    file = CatalogFile(
        Path(arguments.catalog),
        partial(_prepared, arguments, chosen),
        other_files=[data / profile_options.FILE],
        problem_file=data / PROBLEM if started.by_hub else None,  # the hub checks the file then
        last_good=None if started.by_hub else data / OF_SERVICE,
        keeps=True,
    )
    settings = changed(Settings(**chosen.settings), started.settings)
    check_targets(settings, options.public_url)
    if chosen.resources is not None and not options.public_url:
        log.warning(
            "The hub's public address is not known, so requests have no status.page. Set hub.publicUrl of the chart, "
            "--public-url, or c.JupyterHub.public_url."
        )
    return chosen, file, settings


def _shortened(factor: float | None, catalog: Catalog) -> Catalog:
    return catalog if factor is None else scaled(catalog, factor)


def _prepared(arguments: argparse.Namespace, chosen: Chosen, written: Catalog) -> Prepared:
    """Return a later catalog as it is used here, where the hub would start with it."""
    if not chosen.makes_pods and (refused := needing_pods(arguments.catalog, written)):
        raise CatalogError(refused)
    prepared = chosen.prepare(_shortened(arguments.fast, written))
    show_times_in(written.rules.timezone)
    return prepared


async def _meet(chosen: Chosen) -> None:
    """Ask the scheduler what it is. One that can't be used is refused; one that does not answer is waited for.

    Raises BackendError.
    """
    try:
        await chosen.meet()
    except Unfit as error:
        raise BackendError(str(error)) from error
    except Unavailable as error:
        log.warning("%s Nothing is granted before it does; what runs goes on.", error)


async def _run(options: Options, chosen: Chosen, file: CatalogFile, settings: Settings) -> None:
    try:
        await _meet(chosen)
        await Service(options, file, chosen.backend, settings, chosen.scheduler, chosen.resources).run()
    finally:
        await chosen.close()
