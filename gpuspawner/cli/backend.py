"""Where workspaces live, as the service was told: on this machine, or on a Kubernetes cluster."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from gpuspawner.backends.base import Backend
from gpuspawner.backends.local.backend import LocalBackend
from gpuspawner.catalog import Catalog
from gpuspawner.catalog.menus import read_menus
from gpuspawner.schedulers.base import Scheduler

BACKEND = "GPUSPAWNER_BACKEND"
"""``local`` (the default) or ``kubernetes``."""
CLUSTER = "GPUSPAWNER_KUBERNETES"
"""The settings of the cluster as JSON, by the names of ``backends.kubernetes.settings.ClusterSettings``."""
CLUSTER_TIMES = {"fleet_seconds": 1.0, "probes_at_once": 256}
"""What the service does otherwise on a cluster: its view is followed, so that a look costs nothing, and its probes run
on other machines."""


class BackendError(Exception):
    """The backend cannot be used as it was told; the message says what is wrong and how to mend it."""


async def _nothing() -> None:
    return


@dataclass(frozen=True)
class Chosen:
    """Where workspaces live: the catalog as it is there, who sees them, who gives GPUs, and what is else otherwise."""

    catalog: Catalog
    backend: Backend
    scheduler: Scheduler | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    close: Callable[[], Awaitable[None]] = _nothing


def choose_backend(catalog: Catalog, data: Path, hub_id: str, environment: Mapping[str, str]) -> Chosen:
    """Return the backend that the environment names.

    Raises:
        BackendError: it names none, or says it wrongly.
    """
    name = environment.get(BACKEND, "local")
    if name == "local":
        return Chosen(catalog, LocalBackend(catalog.gpus.values(), catalog.simulated, data))
    if name != "kubernetes":
        raise BackendError(f"{BACKEND}={name!r} is no backend: local or kubernetes.")
    return _cluster(catalog, data, hub_id, environment.get(CLUSTER, ""))


def _cluster(catalog: Catalog, data: Path, hub_id: str, text: str) -> Chosen:
    try:
        from gpuspawner.backends.kubernetes.backend import KubernetesBackend  # noqa: PLC0415 - an extra
        from gpuspawner.backends.kubernetes.kinds import cluster_kinds  # noqa: PLC0415
        from gpuspawner.backends.kubernetes.settings import cluster_settings  # noqa: PLC0415
        from gpuspawner.schedulers.kubernetes import KubernetesScheduler  # noqa: PLC0415
    except ImportError as error:
        raise BackendError(f"{error.name} is not installed: pip install 'gpuspawner[kubernetes]'.") from error
    try:
        settings = cluster_settings(json.loads(text or "{}"))
    except ValueError as error:
        raise BackendError(f"{CLUSTER}: {error}.") from error
    try:
        catalog = replace(catalog, gpus=cluster_kinds(catalog.gpus), menus=read_menus(data))
    except ValueError as error:
        raise BackendError(f"{error} Remove it and start the hub: configure() writes it.") from error
    backend = KubernetesBackend(catalog.gpus.values(), hub_id, settings)
    times = {**CLUSTER_TIMES, "probes_at_once": settings.probes_at_once}
    return Chosen(catalog, backend, KubernetesScheduler(backend, catalog.gpus), times, backend.close)
