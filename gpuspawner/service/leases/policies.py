"""Which policy holds for a lease."""

from __future__ import annotations

from gpuspawner.catalog import Catalog
from gpuspawner.core.idle.policy import IdlePolicy, LifecyclePolicy
from gpuspawner.core.leases.lease import Lease


def policy_of(catalog: Catalog, lease: Lease) -> LifecyclePolicy:
    """Return the policy of a lease, with the terms that it was granted on; the default one where its own is gone."""
    policy = catalog.policies.get(lease.request.policy) or catalog.policies["default"]
    return policy.with_terms(lease.terms)


def idle_policy_of(catalog: Catalog, lease: Lease) -> IdlePolicy | None:
    """Return by what a lease's idleness is judged; None where nothing is: without a GPU, and no policy for that.

    Of a server that ran before gpuspawner did nothing is known, not even whether it has a GPU.
    """
    if lease.unasked:
        return None
    return policy_of(catalog, lease).idle_of(gpus=bool(lease.slots) or lease.request.gpu is not None)
