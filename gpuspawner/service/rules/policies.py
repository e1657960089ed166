"""The present policy of a lease. Hours switch policies, and the terms of a grant stay."""

from __future__ import annotations

from gpuspawner.catalog import Catalog
from gpuspawner.core.idle.policies import (
    EffectivePolicy,
    IdlePolicy,
    LifecyclePolicy,
    effective_policy,
    policy_of_lease,
)
from gpuspawner.core.leases.lease import Lease


def policy_of(catalog: Catalog, lease: Lease, now: float) -> LifecyclePolicy:
    """Return the policy of a lease with the terms of its grant. A removed policy is replaced by the default one."""
    return policy_of_lease(lease, catalog.policies, catalog.rules, now)


def policy_now(catalog: Catalog, name: str, now: float) -> EffectivePolicy:
    """Return the policy that replaces a named policy now, and until when."""
    return effective_policy(name, catalog.policies, catalog.rules, now)


def idle_policy_of(catalog: Catalog, lease: Lease, now: float) -> IdlePolicy | None:
    """Return the policy that judges a lease's idleness, None without a policy.

    A lease without a GPU is judged only if the catalog has a policy for it. Nothing is known about a server that ran
    before gpuspawner, not even its GPUs, so it has no policy.
    """
    if lease.unasked:
        return None
    return policy_of(catalog, lease, now).idle_of(gpus=bool(lease.slots) or lease.request.gpu is not None)
