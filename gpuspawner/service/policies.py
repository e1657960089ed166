"""Which policy holds for a lease."""

from __future__ import annotations

from gpuspawner.catalog import Catalog
from gpuspawner.core.lease import Lease
from gpuspawner.core.policy import LifecyclePolicy


def policy_of(catalog: Catalog, lease: Lease) -> LifecyclePolicy:
    """Return the policy of a lease; the default one where its own left the catalog."""
    return catalog.policies.get(lease.request.policy) or catalog.policies["default"]
