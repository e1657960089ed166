"""One start of a server as a frozen record. Each start begins with a new one, so no value outlives it.

Times are in seconds of ``time.monotonic()``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from gpuspawner.core.leases.request import Request

if TYPE_CHECKING:
    from gpuspawner.spawner.kubernetes.volumes import Holder

Outcome = Literal["", "in flight", "parked", "gone", "cancelled", "failed", "started"]
"""``parked``: waiting in the queue without the hub. ``gone``: the lease was withdrawn, so nothing is released."""


@dataclass(frozen=True)
class PodAttempt:
    """One pod of a start. A start makes another pod if the cluster had no room for the first."""

    mark: str = ""
    """The unique annotation of the pod."""
    claim: str = ""
    """The claim that this start made or found, or ""."""
    holder: Holder | None = None
    """The pod that mounts a volume which this start waits for, or None."""
    blocked_at: float | None = None
    """The start of that wait, or None."""
    made_at: float | None = None
    is_awaited: bool = False
    """Whether KubeSpawner has made everything and waits for the pod."""
    last_seen: Mapping[str, Any] | None = None
    restarts: int | None = None
    """The number of restarts of the server's container at its first answer, or None if unknown."""


@dataclass(frozen=True)
class Attempt:
    """One start and its server: the request, the grant and the end."""

    lease: str = ""
    number: int = 0
    """The lease's count of starts. The lease ignores messages of older starts."""
    is_asked: bool = False
    """Whether the service was asked for a lease and did not refuse. A lease may exist even without an answer."""
    request: Request | None = None
    """The request of the lease. None before the grant, and for a server that runs already."""
    patch: Mapping[str, Any] = field(default_factory=dict)
    """The changes of the grant to the server."""
    cluster: str = ""
    """The cluster of the pod, or "" for the hub's own cluster."""
    node_port: int = 0
    """The port of nodes or of a Service that leads to a pod in another cluster, or 0."""
    heard_at: float = 0.0
    """When the service last acknowledged this start."""
    waits_until: float = 0.0
    own_timeout_seconds: int | None = None
    """The spawner's own ``start_timeout`` while the time to wait extends it, or None."""
    outcome: Outcome = ""
    message: str = ""
    """Why it failed or ended, as a sentence for its user."""
    is_saved: bool = False
    """Whether the hub's database has the lease: from the server's start until the hub clears its state."""
    is_stopped_by_hub: bool = False
    died_as: str = "died"
    """The outcome of a server that ended by itself, one of ``core.leases.reports.OUTCOMES``."""
    environment: Mapping[str, str] | None = field(default=None, repr=False)
    """The environment of the server, whose secrets are masked in its output. None if another hub process started it."""
    output: str = field(default="", repr=False)
    """The last lines of a failed server, as its user may see them."""
    pod: PodAttempt = PodAttempt()

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Attempt:
        """Return the record of a server that was started before this hub process, from :meth:`to_state`."""
        if not state.get("gpu_lease"):
            return cls()
        pod = PodAttempt(restarts=state.get("gpu_restarts"))
        where = {"cluster": state.get("gpu_cluster", ""), "node_port": state.get("gpu_node_port", 0)}
        return cls(lease=state["gpu_lease"], number=state.get("gpu_attempt", 0), pod=pod, **where).started()

    def to_state(self) -> dict[str, Any]:
        """Return the fields that the hub saves: {} unless a server runs."""
        if not self.is_saved:
            return {}
        restarts = {} if self.pod.restarts is None else {"gpu_restarts": self.pod.restarts}
        where = {"gpu_cluster": self.cluster, "gpu_node_port": self.node_port} if self.cluster else {}
        return {"gpu_lease": self.lease, "gpu_attempt": self.number, **restarts, **where}

    @property
    def key(self) -> tuple[str, int]:
        """The key for the service: the lease and the number."""
        return self.lease, self.number

    def with_own_timeout(self, own_timeout_seconds: int | None) -> Attempt:
        """Remember the spawner's own ``start_timeout`` while it is extended. None: it is restored."""
        return replace(self, own_timeout_seconds=own_timeout_seconds)

    def in_flight(self, waits_until: float) -> Attempt:
        """``start()`` begins."""
        return replace(self, outcome="in flight", waits_until=waits_until)

    def asked(self) -> Attempt:
        """The service is being asked for a lease."""
        return replace(self, is_asked=True)

    def refused(self) -> Attempt:
        """The service refused the request: it made no lease."""
        return replace(self, outcome="cancelled", is_asked=False)

    def leased(self, lease: str, number: int) -> Attempt:
        """The service answered with a lease, which is waiting or granted."""
        return replace(self, lease=lease, number=number)

    def granted(self, request: Request, patch: Mapping[str, Any], now: float) -> Attempt:
        """The server may be made for ``request`` with the changes of ``patch``."""
        return replace(self, request=request, patch=patch, heard_at=now, cluster=patch.get("cluster", ""), node_port=0)

    def reached(self, node_port: int) -> Attempt:
        """This port leads to the server in another cluster."""
        return replace(self, node_port=node_port)

    def heard(self, now: float) -> Attempt:
        """The service acknowledged a heartbeat."""
        return replace(self, heard_at=now)

    def parked(self) -> Attempt:
        """The start ended and keeps its place in the queue."""
        return replace(self, outcome="parked")

    def withdrawn(self) -> Attempt:
        """The service has ended the lease."""
        return replace(self, outcome="gone")

    def started(self) -> Attempt:
        """The server runs."""
        return replace(self, outcome="started", is_saved=True)

    def found(self, lease: str, number: int) -> Attempt:
        """A pod of this lease runs, but the hub ended before it saved the lease."""
        return replace(self, lease=lease, number=number, outcome="started")

    def failed(self, message: str) -> Attempt:
        """The start failed. ``message`` is the reason."""
        return replace(self, outcome="failed", message=message)

    def broken_off(self, outcome: Literal["cancelled", "failed"], message: str = "") -> Attempt:
        """``start()`` raised: set ``outcome`` unless a more exact outcome is known."""
        return replace(self, outcome=outcome, message=message) if self.outcome == "in flight" else self

    def died(self, died_as: str, message: str) -> Attempt:
        """The server ended by itself."""
        return replace(self, died_as=died_as, message=message)

    def with_environment(self, environment: Mapping[str, str]) -> Attempt:
        """Remember the environment of the server."""
        return replace(self, environment=environment)

    def with_output(self, output: str) -> Attempt:
        """Remember the last output of the server."""
        return replace(self, output=output)

    def cleared(self) -> Attempt:
        """The hub cleared its state. The lease is kept: local processes clear it before the end is reported."""
        return replace(self, is_saved=False)

    def stopped(self, *, by_hub: bool) -> Attempt:
        """The hub or the spawner itself stopped the server."""
        return replace(self, is_stopped_by_hub=by_hub)

    def with_pod(self, **changes: Any) -> Attempt:
        """Change the record of the pod."""
        return replace(self, pod=replace(self.pod, **changes))

    def with_new_pod(self, mark: str) -> Attempt:
        """Begin the record of another pod, with a new mark."""
        return replace(self, pod=PodAttempt(mark), node_port=0)

    def end(self, *, hub_shuts_down: bool) -> str | None:
        """Return the outcome, one of ``core.leases.reports.OUTCOMES``, or None if the lease goes on without the hub."""
        if hub_shuts_down:
            return "shutdown" if self.outcome == "started" else None  # a start that it broke off keeps its place
        if self.outcome == "started":
            return "stopped" if self.is_stopped_by_hub else self.died_as
        return self.outcome if self.outcome in {"failed", "cancelled"} else None
