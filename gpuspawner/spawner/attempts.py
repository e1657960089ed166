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
"""``parked``: it waits in the queue without the hub. ``gone``: its lease is withdrawn, nothing is left to release."""


@dataclass(frozen=True)
class PodAttempt:
    """One pod of a start, which makes another where the cluster had no room for the first."""

    mark: str = ""
    """The pod's annotation, which no other pod has."""
    claim: str = ""
    """The claim that this start made, or found made when it would have."""
    holder: Holder | None = None
    """What mounts a volume for which the pod is not made yet; None where it waits for none."""
    blocked_at: float | None = None
    """Since when it waits for that; None where it never did."""
    made_at: float | None = None
    is_awaited: bool = False
    """Whether KubeSpawner has nothing left to make, and waits for the pod."""
    last_seen: Mapping[str, Any] | None = None
    restarts: int | None = None
    """How often the server had been started again when it answered first; None where that is not known."""


@dataclass(frozen=True)
class Attempt:
    """One start and the server that came of it: what was asked and granted, and how it ended."""

    lease: str = ""
    number: int = 0
    """The lease's count of starts: it ignores what an older one says."""
    is_asked: bool = False
    """Whether the service was asked for a lease, and did not refuse: it may have made one that was never heard of."""
    request: Request | None = None
    """What the server is made for, as the lease has it; None before the grant, and for a server that runs already."""
    patch: Mapping[str, Any] = field(default_factory=dict)
    """What the grant adds to the server."""
    cluster: str = ""
    """The cluster in which its pod is made; "" for the hub's own."""
    node_port: int = 0
    """The port that leads to it in another cluster, of nodes or of its Service; 0 where none is needed, or made yet."""
    heard_at: float = 0.0
    """When the service last acknowledged this start."""
    waits_until: float = 0.0
    own_timeout_seconds: int | None = None
    """The spawner's own ``start_timeout`` while it is prolonged by the time to wait; None while it is not."""
    outcome: Outcome = ""
    message: str = ""
    """Why it failed or ended, in words for its user."""
    is_saved: bool = False
    """Whether the hub's database has the lease: from the server's start until the hub clears its state."""
    is_stopped_by_hub: bool = False
    died_as: str = "died"
    """How it ended where nobody stopped it, one of ``core.leases.release.OUTCOMES``."""
    environment: Mapping[str, str] | None = field(default=None, repr=False)
    """The server's, whose secrets are masked in its output; None where another hub process started it."""
    output: str = field(default="", repr=False)
    """The last that its server wrote before it failed, as its user may see it."""
    pod: PodAttempt = PodAttempt()

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Attempt:
        """Return the record of a server that ran before this hub process, from what :meth:`to_state` gave."""
        if not state.get("gpu_lease"):
            return cls()
        pod = PodAttempt(restarts=state.get("gpu_restarts"))
        where = {"cluster": state.get("gpu_cluster", ""), "node_port": state.get("gpu_node_port", 0)}
        return cls(lease=state["gpu_lease"], number=state.get("gpu_attempt", 0), pod=pod, **where).started()

    def to_state(self) -> dict[str, Any]:
        """Return what the hub saves of it; nothing unless a server runs."""
        if not self.is_saved:
            return {}
        restarts = {} if self.pod.restarts is None else {"gpu_restarts": self.pod.restarts}
        where = {"gpu_cluster": self.cluster, "gpu_node_port": self.node_port} if self.cluster else {}
        return {"gpu_lease": self.lease, "gpu_attempt": self.number, **restarts, **where}

    @property
    def key(self) -> tuple[str, int]:
        """By what the service knows it: the lease and the number."""
        return self.lease, self.number

    def with_own_timeout(self, own_timeout_seconds: int | None) -> Attempt:
        """Remember the spawner's own ``start_timeout`` before it is prolonged; None once it is set back."""
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
        """The service answered with a lease, which waits or is granted."""
        return replace(self, lease=lease, number=number)

    def granted(self, request: Request, patch: Mapping[str, Any], now: float) -> Attempt:
        """The server may be made for ``request``, with what ``patch`` adds."""
        return replace(self, request=request, patch=patch, heard_at=now, cluster=patch.get("cluster", ""), node_port=0)

    def reached(self, node_port: int) -> Attempt:
        """This port leads to it in another cluster."""
        return replace(self, node_port=node_port)

    def heard(self, now: float) -> Attempt:
        """The service acknowledged a heartbeat."""
        return replace(self, heard_at=now)

    def parked(self) -> Attempt:
        """The start ended, and its place in the queue stays."""
        return replace(self, outcome="parked")

    def withdrawn(self) -> Attempt:
        """The service has ended the lease."""
        return replace(self, outcome="gone")

    def started(self) -> Attempt:
        """The server runs."""
        return replace(self, outcome="started", is_saved=True)

    def found(self, lease: str, number: int) -> Attempt:
        """A pod of this lease runs, though the hub died before it saved which lease it has."""
        return replace(self, lease=lease, number=number, outcome="started")

    def failed(self, message: str) -> Attempt:
        """The start failed, for the reason that ``message`` gives."""
        return replace(self, outcome="failed", message=message)

    def broken_off(self, outcome: Literal["cancelled", "failed"], message: str = "") -> Attempt:
        """``start()`` raised: take ``outcome``, unless it has a more exact one."""
        return replace(self, outcome=outcome, message=message) if self.outcome == "in flight" else self

    def died(self, died_as: str, message: str) -> Attempt:
        """The server ended by itself."""
        return replace(self, died_as=died_as, message=message)

    def with_environment(self, environment: Mapping[str, str]) -> Attempt:
        """Remember what the server is started with."""
        return replace(self, environment=environment)

    def with_output(self, output: str) -> Attempt:
        """Remember what the server wrote last."""
        return replace(self, output=output)

    def cleared(self) -> Attempt:
        """The hub cleared its state. The lease stays known: local processes do so before the end is reported."""
        return replace(self, is_saved=False)

    def stopped(self, *, by_hub: bool) -> Attempt:
        """The server was stopped: by the hub, or by the spawner itself."""
        return replace(self, is_stopped_by_hub=by_hub)

    def with_pod(self, **changes: Any) -> Attempt:
        """Change what is known of the pod."""
        return replace(self, pod=replace(self.pod, **changes))

    def with_new_pod(self, mark: str) -> Attempt:
        """Forget the last pod and make another, by a new mark."""
        return replace(self, pod=PodAttempt(mark), node_port=0)

    def end(self, *, hub_shuts_down: bool) -> str | None:
        """Return how it ended, one of ``core.leases.release.OUTCOMES``; None for what goes on without the hub."""
        if hub_shuts_down:
            return "shutdown" if self.outcome == "started" else None  # a start that it broke off keeps its place
        if self.outcome == "started":
            return "stopped" if self.is_stopped_by_hub else self.died_as
        return self.outcome if self.outcome in {"failed", "cancelled"} else None
