"""The seam: what the service asks of where workspaces live."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from gpuspawner.core.gpus.fleet import Fleet, GpuKind, Slot
from gpuspawner.core.leases.observations import Running

LEASE_ID = "GPUSPAWNER_LEASE_ID"
"""The variable by which a process is known to belong to a lease."""
ATTEMPT = "GPUSPAWNER_ATTEMPT"
"""Which ``start()`` of that lease made it: a whole number, counted from 1."""
PROBE = "GPUSPAWNER_PROBE"
"""The variable that marks what a probe started: it ends with the lease, and is none of the workspace's processes."""
VARIABLE_PREFIX = "GPUSPAWNER_"
"""Variables with this prefix rebuild a lease after the store is lost."""


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
