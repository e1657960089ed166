"""``gpuspawner serve``: the service, as the hub starts it."""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import sys
from pathlib import Path
from typing import Any

from gpuspawner.catalog import Catalog, load_catalog, menus, scaled
from gpuspawner.catalog.file import PROBLEM, CatalogFile
from gpuspawner.cli.backend import BackendError, Chosen, choose_backend
from gpuspawner.core.errors import CatalogError, NoPort
from gpuspawner.service.app import Options, Service, read_secret
from gpuspawner.service.settings import Settings, SettingsError, changed
from gpuspawner.service.tell.notifier import check_targets


class _WrongError(Exception):
    pass


def _identity(data: Path) -> tuple[bytes, float, str]:
    """Return the secret, when it was made, and the hub id as configure() left them in its folder."""
    file = data / "secret"
    try:
        return read_secret(file), file.stat().st_mtime, (data / "hub-id").read_text(encoding="ascii").strip()
    except (OSError, ValueError) as error:
        raise _WrongError(f"--data: {data} is not the folder that configure() made for the hub ({error}).") from error


def _settings() -> dict[str, Any]:
    """Return what configure() passes on of service_settings."""
    try:
        return dict(json.loads(os.environ.get("GPUSPAWNER_SETTINGS", "{}")))
    except (ValueError, TypeError) as error:
        raise _WrongError("GPUSPAWNER_SETTINGS is no JSON object: configure() writes it.") from error


def serve(arguments: argparse.Namespace) -> int:
    """Run the service until it is stopped, superseded, or its hub is gone."""
    logging.basicConfig(level=logging.INFO, format="[gpu %(asctime)s %(levelname)s] %(message)s")
    names = ("JUPYTERHUB_API_URL", "JUPYTERHUB_API_TOKEN", "JUPYTERHUB_SERVICE_URL", "JUPYTERHUB_SERVICE_PREFIX")
    missing = [name for name in names if name not in os.environ]
    if missing:
        print(
            f"gpuspawner serve: {', '.join(missing)} not set. JupyterHub starts the service by itself; put "
            "configure(c, catalog=...) into its configuration.",
            file=sys.stderr,
        )
        return 1
    try:
        catalog = load_catalog(arguments.catalog)
    except CatalogError as error:
        print(error, file=sys.stderr)
        return 1
    data = Path(arguments.data)
    hub_pid = os.environ.get("GPUSPAWNER_HUB_PID")
    try:
        secret, secret_made_at, hub_id = _identity(data)
        written = _settings()
    except _WrongError as error:
        print(f"gpuspawner serve: {error}", file=sys.stderr)
        return 1
    options = Options(
        store_url=f"sqlite:///{data / 'gpuspawner.sqlite'}",
        secret=secret,
        hub_id=hub_id,
        hub_api_url=os.environ["JUPYTERHUB_API_URL"],
        hub_api_token=os.environ["JUPYTERHUB_API_TOKEN"],
        service_url=os.environ["JUPYTERHUB_SERVICE_URL"],
        prefix=os.environ["JUPYTERHUB_SERVICE_PREFIX"],
        hub_pid=int(hub_pid) if hub_pid else None,
        data=data,
        public_url=os.environ.get("JUPYTERHUB_PUBLIC_URL", ""),
        secret_made_at=secret_made_at,
    )
    try:
        chosen = choose_backend(_shortened(arguments.fast, catalog), data, options.hub_id, os.environ)
        file = CatalogFile(
            Path(arguments.catalog),
            lambda later: chosen.prepare(_shortened(arguments.fast, later)),
            beside=[data / menus.FILE],
            told=data / PROBLEM,
        )
        settings = changed(Settings(**chosen.settings), written)
        check_targets(settings, options.public_url)
    except (BackendError, SettingsError, CatalogError) as error:
        print(f"gpuspawner serve: {error}", file=sys.stderr)
        return 1
    try:
        asyncio.run(_run(options, chosen, file, settings))
    except NoPort as error:
        print(f"gpuspawner serve: {error}", file=sys.stderr)
        return 1
    return 0


def _shortened(factor: float | None, catalog: Catalog) -> Catalog:
    return catalog if factor is None else scaled(catalog, factor)


async def _run(options: Options, chosen: Chosen, file: CatalogFile, settings: Settings) -> None:
    try:
        await Service(options, file, chosen.backend, settings, chosen.scheduler).run()
    finally:
        await chosen.close()
