"""The seam: what the service asks of where workspaces live.

The script that runs before a workspace ends: with its parameters, and what it printed. The log of outages: each is said
once when it begins, and once when it ends with its length.
"""

from __future__ import annotations

import logging
import re
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib import resources
from typing import Any, NamedTuple, Protocol

from gpuspawner.core.errors import quoted
from gpuspawner.core.gpus.fleet import Fleet, GpuKind, Group, Slot
from gpuspawner.core.outages import Outage
from gpuspawner.core.units import show_duration

LEASE_ID = "GPUSPAWNER_LEASE_ID"
"""The variable by which a process is known to belong to a lease."""
ATTEMPT = "GPUSPAWNER_ATTEMPT"
"""Which ``start()`` of that lease made it: a whole number, counted from 1."""
PROBE = "GPUSPAWNER_PROBE"
"""The variable that marks what a probe started: it ends with the lease, and is none of the workspace's processes."""
VARIABLE_PREFIX = "GPUSPAWNER_"
"""Variables with this prefix rebuild a lease after the store is lost."""


@dataclass(frozen=True)
class Running:
    """One attempt of one lease, as it runs now.

    ``pids`` are its processes, oldest first. ``environment`` holds the ``GPUSPAWNER_*`` variables of the oldest, among
    them what rebuilds the lease. ``age_seconds`` is the time since the oldest one started.

    ``given`` is what the backend itself gave it where that only counts: (group, number of GPUs) pairs; None where the
    backend has not given anything yet, or gives exactly what was asked. ``waiting_seconds`` is for how long the backend
    has found no room for it, and ``waiting`` why; ``ending`` that it is being ended, within ``ends_in_seconds``
    where that is known; ``disruption`` says why, in a sentence, where the backend itself ends it or is about to.
    ``unhealthy`` are those of its GPUs, by the backend's own names, that it calls so. ``uuids`` are its GPUs, where
    ``given`` only counts them and the backend knows which they are. ``kept_since`` is when the
    backend took ``environment`` into its own keeping, in seconds since the epoch, where no user can write it any more;
    None where its user may have written it.
    """

    lease_id: str
    attempt: int
    pids: tuple[int, ...] = ()
    age_seconds: float = 0.0
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    given: tuple[tuple[Group, int], ...] | None = None
    waiting_seconds: float = 0.0
    waiting: str = ""
    ending: bool = False
    disruption: str = ""
    ends_in_seconds: float | None = None
    unhealthy: tuple[str, ...] = ()
    uuids: tuple[str, ...] = ()
    kept_since: float | None = None


class PodName(NamedTuple):
    """A pod of the cluster, as others name it too."""

    namespace: str
    name: str


@dataclass(frozen=True)
class ProbeResult:
    """What one run of the probe script printed, or in ``problem`` why nothing of it may be believed.

    ``counted`` is true where the workspace sees its own GPUs alone, under names that its lease does not know: they are
    the leased ones, in any order. ``shared`` is true where others compute on them too. ``devices`` names, for each
    leased part of a device (a MIG device), the UUID under which nvidia-smi lists that device. ``pod`` is where it ran,
    on Kubernetes; ``divided`` is true where other pods compute on the same devices, or on the same parts of them.
    """

    text: str = ""
    problem: str = ""
    counted: bool = False
    shared: bool = False
    devices: Mapping[str, str] = field(default_factory=dict)
    pod: PodName | None = None
    divided: bool = False


class Backend(Protocol):
    """Where workspaces live. Every method may be called at any time, also while another one runs."""

    def use_kinds(self, kinds: Iterable[GpuKind]) -> None:
        """Match GPUs to these kinds from now on: the catalog has changed."""
        ...

    async def fleet(self) -> Fleet:
        """Return all GPUs as they are now, matched to the catalog's kinds.

        Raises:
            Unavailable: they cannot be read now. An empty fleet is an observation, this is none.
        """
        ...

    async def workspaces(self) -> tuple[Running, ...]:
        """Return every attempt of every lease that runs now, of any hub's, ordered by lease and attempt.

        Raises:
            Unavailable: they cannot be read now.
        """
        ...

    async def probe(self, lease_id: str, attempt: int, leased: tuple[str, ...], deadline_seconds: float) -> ProbeResult:
        """Run the probe inside the workspace over its ``leased`` GPUs (uuids, none for a workspace without).

        Never raises for a bad probe: a time-out, a failure or too much output is a result that says so.
        """
        ...

    async def run_script(self, lease_id: str, attempt: int, script: bytes, deadline_seconds: float) -> ProbeResult:
        """Run a script in the workspace by ``sh -s``, as its user: it must end by itself.

        Never raises: what is not run, or fails, is a result that says so.
        """
        ...

    async def end(self, lease_id: str, attempts: frozenset[int] | None = None, slots: tuple[Slot, ...] = ()) -> bool:
        """End all that runs for these attempts of the lease (None: all), and nothing else.

        ``slots`` are what it holds: where workspaces live in several clusters, they tell in which one it may run.
        Returns True once nothing of it is left, False when something outlived every attempt to end it.
        """
        ...

    def patch(self, slots: tuple[Slot, ...], instead: tuple[GpuKind, ...] = ()) -> dict[str, Any]:
        """Return what the spawner applies so that a workspace gets these slots and no other GPU: plain JSON.

        Where GPUs are claimed, as many of a kind of ``instead`` may be given in their place, the first that is free.

        Every backend gives ``"environment": {name: value}`` and ``"path_prefix": folder or ""``. Kubernetes adds
        ``"pod"``, in the API's own names, where a part that has nothing to say is absent::

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

        GPUs that pods claim (dynamic resource allocation) stand in ``"claim"`` in place of ``"container"``: the spec of
        the ResourceClaim that the spawner makes for the pod.

        The spawner merges it into the manifest, after profiles and the administrator's own settings: resources by
        name, ours last; tolerations and preferred terms appended where they are not there; required terms joined with
        those that are there so that both hold (terms are alternatives: each of theirs with each of ours, their
        ``matchExpressions`` put together). A workspace without GPUs has no ``"pod"`` part, or an empty one. Labels and
        annotations are not in it: they are ``gpuspawner.backends.kubernetes.names.carried(environment)``. What an
        external scheduler wants the pod to have is its ``"beside"``: it is added, and replaces nothing.
        """
        ...


@dataclass(frozen=True)
class OnStopResult:
    """What ran: ``output`` its last lines, ``code`` its exit code, None where there was nothing to run.

    ``problem`` says why it is not known.
    """

    output: str = ""
    code: int | None = None
    problem: str = ""


ON_STOP_MARGIN_SECONDS = 15.0
"""So much longer than its own time it is waited for: an exec takes seconds on a busy node. Arbitrary."""
TERMINATED = 143
"""The exit code of what its time ended."""
_SAID = re.compile(r"on-stop ([0-9]{1,3})")


def on_stop_script(command: str, seconds: float, reason: str) -> bytes:
    """Return what is sent on the stdin of ``sh -s``."""
    parameters = {"ON_STOP_COMMAND": command, "ON_STOP_SECONDS": f"{seconds:g}", "END_REASON": reason}
    lines = [f"GPUSPAWNER_{name}={shlex.quote(value)}\n" for name, value in parameters.items()]
    script = resources.files("gpuspawner.backends").joinpath("on_stop.sh").read_bytes()
    return "".join(lines).encode() + script + b"\nexit 0\n"


def read_on_stop(text: str) -> OnStopResult:
    """Return what a run printed. Never raises."""
    if not text:
        return OnStopResult()
    first, _, output = text.partition("\n")
    said = _SAID.fullmatch(first)
    if said is None:
        return OnStopResult(problem=f"what it printed is not understood: {quoted(first)}")
    return OnStopResult(output, int(said[1]))


log = logging.getLogger("gpuspawner.outages")


class OutageLog:
    """Whether one part answers now. Times are in seconds since the epoch."""

    def __init__(self) -> None:
        """Take it that the part answers."""
        self.outage: Outage | None = None
        """The outage under way; None while the part answers."""

    def begin(self, part: str, why: str, now: float, since: float | None = None) -> Outage:
        """Record that a part does not answer. ``since`` is when it answered last, if that is known.

        Of an outage that is under way, only the part and the reason change.
        """
        before = self.outage
        begun = before.since if before is not None else now if since is None else since
        outage = Outage(part, begun, why)
        if outage == before:
            return before
        self.outage = outage
        if before is None:
            told = {"event": "outage_begins", "part": part, "reason": why}
            log.warning("%s %s", outage.words(now), why, extra={"fields": told})
        return outage

    def end(self, now: float) -> None:
        """Record that the part answers."""
        outage, self.outage = self.outage, None
        if outage is not None:
            seconds = max(0.0, now - outage.since)
            told = {"event": "outage_ends", "part": outage.part, "seconds": round(seconds, 1)}
            log.warning("%s answers again, after %s.", outage.part, show_duration(seconds), extra={"fields": told})
