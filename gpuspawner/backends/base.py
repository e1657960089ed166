"""The interface of a backend, with the script that runs before a workspace ends and the log of outages."""

from __future__ import annotations

import logging
import re
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib import resources
from typing import Any, NamedTuple, Protocol

from gpuspawner.core.errors import quoted
from gpuspawner.core.gpus.fleet import Fleet, GpuKind, Slot
from gpuspawner.core.leases.observations import Running
from gpuspawner.core.outages import GpuHealth, Outage
from gpuspawner.core.units import show_duration

LEASE_ID = "GPUSPAWNER_LEASE_ID"
"""The variable with the lease of a process."""
ATTEMPT = "GPUSPAWNER_ATTEMPT"
"""The variable with the start attempt of the lease, counted from 1."""
PROBE = "GPUSPAWNER_PROBE"
"""The variable of processes that a probe started. They end with the lease but are not part of the workspace."""
VARIABLE_PREFIX = "GPUSPAWNER_"
"""Variables with this prefix rebuild a lease when the database is lost."""


class PodName(NamedTuple):
    """Namespace and name of a pod."""

    namespace: str
    name: str


@dataclass(frozen=True)
class ProbeResult:
    """The output of one probe, or ``problem`` with the reason why it is missing.

    Args:
        text: the output.
        problem: why the output cannot be used.
        counted: the workspace only sees its own GPUs, with names that the lease does not know, in any order.
        shared: other workloads compute on the same GPUs.
        devices: UUID of the device, as nvidia-smi lists it, for each leased part of a device (MIG).
        pod: the pod of the probe on Kubernetes.
        divided: other pods compute on the same devices or the same parts of them.
    """

    text: str = ""
    problem: str = ""
    counted: bool = False
    shared: bool = False
    devices: Mapping[str, str] = field(default_factory=dict)
    pod: PodName | None = None
    divided: bool = False


class Backend(Protocol):
    """Runs workspaces. Each method may be called at any time, also concurrently."""

    def use_kinds(self, kinds: Iterable[GpuKind]) -> None:
        """Match GPUs to the kinds of a changed catalog."""
        ...

    async def fleet(self) -> Fleet:
        """Return all current GPUs, matched to the catalog's kinds.

        Raises:
            Unavailable: They cannot be read now. An empty fleet is a valid answer.
        """
        ...

    async def workspaces(self) -> tuple[Running, ...]:
        """Return each running start attempt of each hub, ordered by lease and attempt.

        Raises:
            Unavailable: They cannot be read now.
        """
        ...

    async def probe(self, lease_id: str, attempt: int, leased: tuple[str, ...], deadline_seconds: float) -> ProbeResult:
        """Run the probe in the workspace for its ``leased`` GPUs (UUIDs, () without a GPU).

        Never raises: a time-out, a failure or too much output is a result with ``problem``.
        """
        ...

    async def gpu_health(self) -> Mapping[str, GpuHealth]:
        """Return the health of GPUs by id, as far as the backend itself can read it.

        Raises:
            Unavailable: It cannot be read now.
        """
        ...

    async def run_script(self, lease_id: str, attempt: int, script: bytes, deadline_seconds: float) -> ProbeResult:
        """Run a script in the workspace by ``sh -s``, as its user. The script must end itself.

        Never raises: a failure is a result with ``problem``.
        """
        ...

    async def end(self, lease_id: str, attempts: frozenset[int] | None = None, slots: tuple[Slot, ...] = ()) -> bool:
        """End all processes of these attempts of the lease (None: all).

        ``slots`` are the lease's GPUs, which tell the cluster if there are several. Returns whether everything has
        ended.
        """
        ...

    def patch(
        self, slots: tuple[Slot, ...], instead: tuple[GpuKind, ...] = (), *, one_domain: bool = False
    ) -> dict[str, Any]:
        """Return the JSON patch with which the spawner gives a workspace exactly these slots.

        For claimed GPUs, ``instead`` are kinds that the cluster may allocate instead, the first that is free. With
        ``one_domain`` the cluster may only allocate GPUs of one NVLink or NUMA domain.

        Each backend returns ``"environment": {name: value}`` and ``"path_prefix": folder or ""``. Kubernetes adds
        ``"pod"`` in the API's own format, without empty parts::


            {
              "container": {"resources": {"requests": {"nvidia.com/gpu": "2"}, "limits": {"nvidia.com/gpu": "2"}}},
              "spec": {
                "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
                "affinity": {"nodeAffinity": {
                  "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [...]},
                  "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 100, "preference": {...}}]
                }}
              }
            }

        For GPUs that pods claim (dynamic resource allocation), ``"claim"`` replaces ``"container"``. It is the spec of
        the ResourceClaim that the spawner creates for the pod.

        The spawner merges the patch into the manifest after profiles and the administrator's settings. Resources are
        replaced by name. Missing tolerations and preferred terms are appended. Required terms are combined so that both
        hold: terms are alternatives, so each of theirs gets the ``matchExpressions`` of each of ours. A workspace
        without GPUs has no ``"pod"`` part or an empty one. Labels and annotations are
        ``gpuspawner.backends.kubernetes.pods.to_metadata(environment)``. ``"beside"`` has the fields that an external
        scheduler adds. They replace no field of the pod. ``"not_added"`` lists the GPU resources that a LimitRange
        would add to containers that do not request them. There the spawner requests 0 of each.
        """
        ...


@dataclass(frozen=True)
class OnStopResult:
    """The result of an on-stop script: the last lines of its output and its exit code, None without a script."""

    output: str = ""
    code: int | None = None
    problem: str = ""


ON_STOP_MARGIN_SECONDS = 15.0
"""How much longer than its own limit the service waits for it, because an exec takes seconds. Arbitrary."""
TERMINATED = 143
"""The exit code of a script that exceeded its time."""
_RESULT = re.compile(r"on-stop ([0-9]{1,3})")


def on_stop_script(command: str, seconds: float, reason: str) -> bytes:
    """Return the stdin of ``sh -s``."""
    parameters = {"ON_STOP_COMMAND": command, "ON_STOP_SECONDS": f"{seconds:g}", "END_REASON": reason}
    lines = [f"GPUSPAWNER_{name}={shlex.quote(value)}\n" for name, value in parameters.items()]
    script = resources.files("gpuspawner.backends").joinpath("on_stop.sh").read_bytes()
    return "".join(lines).encode() + script + b"\nexit 0\n"


def read_on_stop(text: str) -> OnStopResult:
    """Return the result from a script's output. Never raises."""
    if not text:
        return OnStopResult()
    first, _, output = text.partition("\n")
    match = _RESULT.fullmatch(first)
    if match is None:
        return OnStopResult(problem=f"its output is not understood: {quoted(first)}")
    return OnStopResult(output, int(match[1]))


log = logging.getLogger("gpuspawner.outages")


class OutageLog:
    """Logs the start and the end of each outage of one part. Times are in seconds since the epoch."""

    def __init__(self) -> None:
        self.outage: Outage | None = None
        """The current outage, None while the part answers."""

    def begin(self, part: str, why: str, now: float, since: float | None = None) -> Outage:
        """Record that a part does not answer. ``since`` is the time of its last answer, if known.

        During an outage only the part and the reason change.
        """
        before = self.outage
        begun = before.since if before is not None else now if since is None else since
        outage = Outage(part, begun, why)
        if outage == before:
            return before
        self.outage = outage
        if before is None:
            fields = {"event": "outage_begins", "part": part, "reason": why}
            log.warning("%s %s", outage.words(now), why, extra={"fields": fields})
        return outage

    def end(self, now: float) -> None:
        """Record that the part answers."""
        outage, self.outage = self.outage, None
        if outage is not None:
            seconds = max(0.0, now - outage.since)
            fields = {"event": "outage_ends", "part": outage.part, "seconds": round(seconds, 1)}
            log.warning("%s answers again, after %s.", outage.part, show_duration(seconds), extra={"fields": fields})
