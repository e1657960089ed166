"""The service's parts. ``app`` creates them, and every handler gets them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gpuspawner.catalog import Catalog
from gpuspawner.catalog.watched_file import InForce
from gpuspawner.core.leases.lease import Owner
from gpuspawner.schedulers.base import Scheduler
from gpuspawner.service.announcements.inboxes import Announcements, Inboxes
from gpuspawner.service.api.signed import SignedRequests
from gpuspawner.service.clock import Clock
from gpuspawner.service.engine.actions import LeaseActions
from gpuspawner.service.engine.allocation.allocator import Allocator
from gpuspawner.service.engine.allocation.start_attempts import StartAttempts
from gpuspawner.service.engine.engine import LeaseEngine
from gpuspawner.service.engine.hub_client import HubClient
from gpuspawner.service.engine.hub_state import GroupMembers, KnownUsers
from gpuspawner.service.engine.registry import LeaseRegistry
from gpuspawner.service.engine.sampling.gpu_health import GpuHealthWatch
from gpuspawner.service.engine.sampling.sampler import Sampler
from gpuspawner.service.metrics.counters import StoredCounters
from gpuspawner.service.notifications.sender import Notifier
from gpuspawner.service.notifications.team_alerts import SentAlerts
from gpuspawner.service.preemption.preemptions import Preemptions
from gpuspawner.service.quota_requests.requests import QuotaRequests
from gpuspawner.service.rules.accounting import Accounting
from gpuspawner.service.rules.restrictions import Restrictions
from gpuspawner.service.settings import Settings
from gpuspawner.service.sign_in.tokens import Logins
from gpuspawner.service.store import Store
from gpuspawner.service.waiting.queue_snapshot import QueueSnapshot
from gpuspawner.service.web.permissions import Person

if TYPE_CHECKING:
    from gpuspawner.service.custom_resources.entries import Entries  # whose statuses need the parts


@dataclass(frozen=True)
class Parts:
    """The parts for handlers. ``secret`` is shared with the spawner, and signs tickets."""

    store: Store
    registry: LeaseRegistry
    in_force: InForce
    scheduler: Scheduler
    allocator: Allocator
    queue: QueueSnapshot
    engine: LeaseEngine
    actions: LeaseActions
    sampler: Sampler
    gpu_health: GpuHealthWatch
    notifier: Notifier
    clock: Clock
    settings: Settings
    hub: HubClient
    hub_id: str
    secret: bytes
    prefix: str
    public_url: str
    """The address of the service for workspaces. People use it if ``page_url`` is not known."""
    page_url: str
    """The address of the service's pages for people, "" if it is not known."""
    known: KnownUsers
    members: GroupMembers
    preemptions: Preemptions
    announcements: Announcements
    quota_requests: QuotaRequests
    team_alerts: SentAlerts
    inboxes: Inboxes
    counters: StoredCounters
    entries: Entries | None = None
    """The entries of the catalog that are custom resources, None without them."""
    metrics_token: str = field(default="", repr=False)
    """The token for Prometheus, "" if only tokens of the hub may read metrics."""
    streams: Counter[tuple[str, Owner]] = field(default_factory=Counter)
    """How many pages of each person receive events."""
    logins: Logins = field(default_factory=Logins)
    """Logins of the command line that wait for their user."""
    signed_requests: SignedRequests = field(default_factory=SignedRequests)
    """Signed requests of the hub that were answered."""
    lacking: list[Callable[[], str]] = field(default_factory=list)
    """Each returns a sentence about what a further part of the service lacks, or ""."""
    roles_used: dict[str, Person] = field(default_factory=dict)
    """The people who used another role than that of a user, by name, since the service started."""
    under_way: set[str] = field(default_factory=set)
    """The idempotency keys whose requests are being handled."""

    @property
    def attempts(self) -> StartAttempts:
        """The start attempts, for the spawner."""
        return self.engine.attempts

    @property
    def restrictions(self) -> Restrictions:
        """The restrictions that administrators set."""
        return self.allocator.restrictions

    @property
    def accounting(self) -> Accounting:
        """The ledger's sums, and extra quota."""
        return self.allocator.accounting

    @property
    def catalog(self) -> Catalog:
        """The catalog in force. It may change at any time, so do not keep it."""
        return self.in_force.catalog
