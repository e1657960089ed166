"""One start of a server: its record, and the variables that its request and its template add to the environment.

Each start begins with a new record, so no value outlives it. Times are in seconds of ``time.monotonic()``.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from gpuspawner.catalog import SSH, default_url
from gpuspawner.catalog.pod_models import Volume
from gpuspawner.catalog.requests.start_options import variables_in
from gpuspawner.catalog.template_models import Template
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
    """Whether the hub's database has the lease: from the server's start until the hub clears its state.

    The lease itself is kept then: local processes clear the state before their end is reported.
    """
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

    def granted(self, request: Request, patch: Mapping[str, Any], now: float) -> Attempt:
        """Return the record with a grant of ``request`` and the changes of ``patch``."""
        return replace(self, request=request, patch=patch, heard_at=now, cluster=patch.get("cluster", ""), node_port=0)

    def started(self) -> Attempt:
        """Return the record of a running server."""
        return replace(self, outcome="started", is_saved=True)

    def broken_off(self, outcome: Literal["cancelled", "failed"], message: str = "") -> Attempt:
        """Return the record after ``start()`` raised. A more exact outcome is kept."""
        return replace(self, outcome=outcome, message=message) if self.outcome == "in flight" else self

    def with_pod(self, **changes: Any) -> Attempt:
        """Return the record with changes of its pod."""
        return replace(self, pod=replace(self.pod, **changes))

    def with_new_pod(self, mark: str) -> Attempt:
        """Return the record with a new pod and its mark."""
        return replace(self, pod=PodAttempt(mark), node_port=0)

    def end(self, *, hub_shuts_down: bool) -> str | None:
        """Return the outcome, one of ``core.leases.reports.OUTCOMES``, or None if the lease goes on without the hub."""
        if hub_shuts_down:
            return "shutdown" if self.outcome == "started" else None  # a start that it broke off keeps its place
        if self.outcome == "started":
            return "stopped" if self.is_stopped_by_hub else self.died_as
        return self.outcome if self.outcome in {"failed", "cancelled"} else None


SSH_VARIABLE = "GPUSPAWNER_SSH"
"""Set in workspaces whose template allows SSH. Without it `gpuspawner.workspace` refuses each connection."""
REPOSITORY_VARIABLE = "GPUSPAWNER_REPOSITORY"
"""The repository that `gpuspawner.workspace` clones into the home."""
SCRIPT_VARIABLE = "GPUSPAWNER_SCRIPT"
"""The script that `gpuspawner.workspace` runs once the server has started."""
TOOLS_VARIABLE = "GPUSPAWNER_TOOLS"
"""The packages of which `gpuspawner.workspace` makes kernels, as JSON: the template's name and packages by tool."""
FOLDERS_VARIABLE = "GPUSPAWNER_FOLDERS"
"""The folders of this machine that `gpuspawner.workspace` links into the home, as JSON: the folder by its link."""


def variables_of(
    request: Request, template: Template | None, volumes: Mapping[str, Volume], own_page: str
) -> dict[str, str]:
    """Return the template's variables, and those for the user's own choices.

    Args:
        request: the request of the lease.
        template: its template, None if the catalog no longer has it.
        volumes: the volumes that the template adds for this user, by name.
        own_page: the hub's ``default_url``. A page within the opened tool, for example /lab/tree/first.ipynb, is kept.
    """
    opens = request.opens or ()
    page = default_url(opens)
    offered = template.tools if template else {}
    tools = {name: offered[name] for name in request.tools if name in offered}  # a template may lose a tool
    folders = {one.mount: one.folder for one in volumes.values() if one.folder}
    found = {**dict(template.environment if template else ()), **variables_in(request.variables)}
    # In JupyterHub's own variable: `default_url` would remain for the next start, which may have no tool.
    if page and not own_page.startswith(page):
        found = {"JUPYTERHUB_DEFAULT_URL": page, **found}
    if SSH in opens:
        found = {SSH_VARIABLE: "1", **found}
    if request.repository:
        found[REPOSITORY_VARIABLE] = request.repository
    if request.script:
        found[SCRIPT_VARIABLE] = request.script
    if folders:
        found[FOLDERS_VARIABLE] = json.dumps(folders)
    if tools:
        found[TOOLS_VARIABLE] = json.dumps({"template": request.template, "tools": tools})
    return found


def with_patch(environment: Mapping[str, str], patch: Mapping[str, Any]) -> dict[str, str]:
    """Return the environment with the variables and the program folder of a lease's patch."""
    found: dict[str, str] = {**environment, **patch.get("environment", {})}
    if prefix := patch.get("path_prefix", ""):
        path = found.get("PATH") or os.environ.get("PATH", os.defpath)
        found["PATH"] = f"{prefix}{os.pathsep}{path}"
    return found
