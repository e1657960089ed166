"""Creates the parts of the service and its web application."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from tornado.web import Application

from gpuspawner.backends.base import Backend
from gpuspawner.backends.custom_resources.base import Resources
from gpuspawner.catalog import Catalog
from gpuspawner.catalog.watched_file import CatalogFile, InForce
from gpuspawner.core.leases.lease import Lease
from gpuspawner.schedulers.base import Scheduler
from gpuspawner.schedulers.own_queue import InMemoryScheduler
from gpuspawner.service.announcements.inboxes import Announcements, Inboxes
from gpuspawner.service.api import internal
from gpuspawner.service.api.routes import ROUTES as API_ROUTES
from gpuspawner.service.clock import Clock
from gpuspawner.service.custom_resources.entries import Entries
from gpuspawner.service.engine.actions import LeaseActions
from gpuspawner.service.engine.allocation.allocator import Allocator
from gpuspawner.service.engine.engine import LeaseEngine
from gpuspawner.service.engine.hub_client import HubClient
from gpuspawner.service.engine.hub_state import GroupMembers, KnownUsers
from gpuspawner.service.engine.lease_documents import HubIdentity
from gpuspawner.service.engine.registry import LeaseRegistry
from gpuspawner.service.engine.sampling.dcgm import Dcgm
from gpuspawner.service.engine.sampling.gpu_health import GpuHealthWatch
from gpuspawner.service.engine.sampling.sampler import Sampler
from gpuspawner.service.hub_sign_in import HubOAuth
from gpuspawner.service.loops import ROUTES as HEALTH_ROUTES
from gpuspawner.service.loops import Health
from gpuspawner.service.metrics import api as metrics
from gpuspawner.service.metrics.counters import StoredCounters
from gpuspawner.service.notifications.messages import message_of
from gpuspawner.service.notifications.sender import Notifier
from gpuspawner.service.notifications.team_alerts import SentAlerts
from gpuspawner.service.parts import Parts
from gpuspawner.service.preemption.preemptions import Preemptions
from gpuspawner.service.quota_requests.requests import QuotaRequests
from gpuspawner.service.settings import Settings
from gpuspawner.service.store import AuditLine, Store
from gpuspawner.service.store.outbox import OutboxRow
from gpuspawner.service.waiting.queue_snapshot import QueueSnapshot
from gpuspawner.service.web.base import NotFound, Static
from gpuspawner.service.web.page_routes import ROUTES as WEB_ROUTES
from gpuspawner.service.web.page_routes import STATIC

AUTH_SECONDS = 30
"""How long the hub's answer about a visitor is used. JupyterHub's own five minutes are too long after a deletion."""


@dataclass(frozen=True)
class Options:
    """The options with which the service is started.

    ``public_url`` is the address of the service's pages for users, empty if unknown. ``hub_pid`` is the hub process
    that started the service. The service ends when that process ends. ``data`` is the folder of the release spool,
    where the spawner leaves reports that it could not deliver. ``secret_made_at`` is when the secret was created, in
    seconds since the epoch, 0 if unknown. With ``stands_by``, the service waits while another service works on the
    store. Otherwise it supersedes that service. ``listen`` is the address to listen on, if it differs from
    ``service_url``. ``hub_auth`` are settings of JupyterHub's HubOAuth that are not in the environment.
    ``store_password_file`` contains the database's password. ``metrics_token`` lets Prometheus read metrics without a
    hub token. Without a token, ``metrics_token`` is ``""``.
    """

    store_url: str
    secret: bytes
    hub_id: str
    hub_api_url: str
    hub_api_token: str
    service_url: str
    prefix: str
    hub_pid: int | None
    data: Path | None = None
    public_url: str = ""
    secret_made_at: float = 0.0
    stands_by: bool = False
    listen: str = ""
    hub_auth: Mapping[str, Any] = field(default_factory=dict, repr=False)
    store_password_file: Path | None = None
    metrics_token: str = field(default="", repr=False)


def wire(
    options: Options,
    catalog: Catalog | InForce,
    backend: Backend,
    settings: Settings,
    clock: Clock,
    hub: HubClient | None = None,
    scheduler: Scheduler | None = None,
    resources: Resources | None = None,
) -> Parts:
    """Create all parts without opening any. Tests pass a ``hub`` of their own.

    ``resources`` are the custom resources, None without them.

    Without a ``scheduler``, GPUs are granted in memory, from the GPUs of the backend.
    """
    in_force = catalog if isinstance(catalog, InForce) else InForce(catalog)
    store = Store(options.store_url, options.store_password_file)
    registry = LeaseRegistry(store)
    hub = hub or HubClient(options.hub_api_url, options.hub_api_token)
    scheduler = scheduler or InMemoryScheduler(backend, in_force.catalog.gpus)
    allocator = Allocator(registry, scheduler, in_force, clock, settings)
    identity = HubIdentity(options.hub_id, options.secret, options.secret_made_at)
    members, announcements = GroupMembers(hub, clock, in_force), Announcements(store, clock)
    engine = LeaseEngine(allocator, hub, members, backend, identity, options.data)
    preemptions, sampler = Preemptions(allocator, engine), Sampler(allocator, backend, engine, Dcgm(in_force, clock))
    url = options.public_url or options.service_url.rstrip("/") + options.prefix
    queue = QueueSnapshot(allocator)
    quota_requests = QuotaRequests(store, allocator.accounting, clock)
    parts = Parts(
        store, registry, in_force, scheduler, allocator, queue,
        engine, LeaseActions(allocator), sampler,
        GpuHealthWatch(backend, in_force, clock, lambda: scheduler.fleet), Notifier(hub, settings, store, clock),
        clock, settings, hub, options.hub_id, options.secret, options.prefix, url.rstrip("/"),
        options.public_url.rstrip("/"), KnownUsers(hub, clock), members, preemptions, announcements,
        quota_requests, SentAlerts(store),
        Inboxes(store, registry, announcements, allocator.accounting, quota_requests, members, clock),
        StoredCounters(store, clock),
        Entries(in_force, resources, clock, store) if resources and isinstance(in_force, CatalogFile) else None,
        options.metrics_token,
    )  # fmt: skip
    registry.messages_of = partial(_messages, parts)
    registry.on_stored = lambda _lease, _line: parts.notifier.wake()
    scheduler.listen(allocator.syncs.request)
    return parts


async def load(parts: Parts) -> None:
    """Load the stored state, and account for the time without a service."""
    await parts.registry.load()
    await parts.preemptions.load()
    await parts.announcements.load()
    await parts.quota_requests.load()
    await parts.team_alerts.load()
    await parts.counters.load()
    back_seconds = await parts.allocator.resume(parts.preemptions.known_at)
    await parts.engine.availability.resume()
    await parts.preemptions.move_back(back_seconds)
    await parts.engine.resume()


def _messages(parts: Parts, lease: Lease, line: AuditLine) -> list[OutboxRow]:
    """Return the messages about a lease event."""
    return parts.notifier.rows_of(message_of(parts, lease, line))


def application(parts: Parts, hub_auth: Mapping[str, Any] | None = None, health: Health | None = None) -> Application:
    """Return the web application: API, spawner's API, pages, and health probes."""
    HubOAuth.instance(cache_max_age=AUTH_SECONDS, **(hub_auth or {}))  # every handler uses this instance
    prefix = parts.prefix.rstrip("/")
    routes: list[Any] = [
        (prefix + path, handler, {"parts": parts})
        for path, handler in [*internal.ROUTES, *API_ROUTES, *metrics.ROUTES, *WEB_ROUTES]
    ]
    routes += [(path, handler, {"health": health}) for path, handler in HEALTH_ROUTES if health]
    return Application(
        routes,
        default_handler_class=NotFound,
        default_handler_args={"parts": parts},
        cookie_secret=parts.secret,
        static_path=str(STATIC),
        static_url_prefix=f"{prefix}/static/",
        static_handler_class=Static,
        log_function=lambda _handler: None,
    )
