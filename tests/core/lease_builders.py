"""Leases, kinds and fleets for tests, each with what the test is about and nothing else."""

from fractions import Fraction

from gpuspawner.core.gpus.fleet import Fleet, Gpu, GpuKind, Slot
from gpuspawner.core.leases.exits import ExitReason
from gpuspawner.core.leases.lease import HOLDING, Key, Lease, Phase
from gpuspawner.core.leases.request import Request

NOW = 1000.0
GIB = 2**30
A100 = GpuKind("a100", "A100 80 GB", 80 * GIB)
HALF = GpuKind("half", "Half an A100", 40 * GIB, of="a100", shares=2)
T4 = GpuKind("t4", "T4 16 GB", 16 * GIB)
KINDS = {kind.name: kind for kind in (A100, HALF, T4)}


def gpu(number, pool="a100", node="node-1", **changes):
    return Gpu(f"{pool}-{number}", pool, node, number, pool, 80 * GIB, **changes)


def fleet(*gpus, complete=True):
    return Fleet(tuple(gpus), complete, NOW)


def slots(*names, share=1):
    return tuple(Slot(name, Fraction(share)) for name in names)


def a_request(user="alice", gpu="a100", count=1, lifetime_seconds=3600, **changes):
    values = {"template": "pytorch", "policy": "default", "cpu_cores": 2.0, "memory_bytes": GIB, **changes}
    return Request(user=user, gpu=gpu, count=count if gpu else 0, lifetime_seconds=lifetime_seconds, **values)


def a_lease(name="one", phase=Phase.QUEUED, *, asked_at=NOW, held=(), user="alice", request=None, **changes):
    """A lease in a phase, with what leases of that phase have."""
    values = {"phase_since": asked_at, "heard_at": asked_at, "start_id": "start-1"}
    if phase in HOLDING or phase is Phase.ENDED:
        values |= {"granted_at": asked_at}
    if phase in {Phase.RUNNING, Phase.RECLAIMING}:
        values |= {"running_at": asked_at, "deadline_at": asked_at + 3600.0, "server_started": "then"}
    if phase in {Phase.STOPPING, Phase.ENDED}:
        values |= {"reason": ExitReason.STOPPED, "ended_by": user, "message": "It was stopped."}
    key = changes.pop("key", Key("hub", f"{user} born", name))
    return Lease(name, key, user, request or a_request(user), {}, asked_at, phase, slots=held, **{**values, **changes})
