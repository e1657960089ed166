"""Kinds of GPU that a cluster may give in place of the one granted, and the lease that follows what it gave."""

from dataclasses import replace
from fractions import Fraction

import pytest
from lease_builders import A100, GIB, T4, a_lease, a_request, slots
from service_world import SECRET, World

from gpuspawner.core.gpus.fleet import DeviceClaim, Group, Slot
from gpuspawner.core.gpus.placement import interchangeable_kinds
from gpuspawner.core.leases import transitions
from gpuspawner.core.leases.lease import Phase
from gpuspawner.core.leases.observations import Running
from gpuspawner.core.rules import Limit, LimitedResource, Quota, QuotaScope, Rate
from gpuspawner.service.engine.allocation.observed_state import assign_slots, corrected_leases
from gpuspawner.service.engine.lease_documents import lease_variables


def claimed(kind, **changes):
    claim = DeviceClaim(f"{kind.name}.example.org")
    return replace(kind, claim=claim, resource=claim.counted_as(kind.name), price_per_hour=2.0, **changes)


OWN, OTHER = claimed(A100), claimed(T4, memory_bytes=80 * GIB)
LEASE = a_lease(request=a_request(substitutes=("t4",)))
OF_T4 = Quota("few", QuotaScope.EVERYBODY, limits=(Limit(LimitedResource.KIND, "t4", hard=Fraction(1)),))


@pytest.mark.parametrize(
    ("own", "other", "lease", "quotas", "given"),
    [
        pytest.param(OWN, OTHER, LEASE, (), ["t4"], id="consented"),
        pytest.param(OWN, OTHER, a_lease(), (), [], id="not consented"),
        pytest.param(A100, OTHER, LEASE, (), [], id="a resource, not a claim"),
        pytest.param(OWN, T4, LEASE, (), [], id="the other is a resource"),
        pytest.param(OWN, replace(OTHER, cluster="east"), LEASE, (), [], id="another cluster"),
        pytest.param(OWN, replace(OTHER, price_per_hour=2.1), LEASE, (), [], id="costs more"),
        pytest.param(OWN, replace(OTHER, counts=Fraction(2)), LEASE, (), [], id="counts more"),
        pytest.param(OWN, OTHER, LEASE, (OF_T4,), [], id="a quota names it"),
    ],
)
def test_a_cluster_may_give_a_substitute_within_consent_price_and_quota(own, other, lease, quotas, given):
    kinds = {"a100": own, "t4": other}
    assert [kind.name for kind in interchangeable_kinds(lease, kinds, quotas)] == given


GRANTED, GAVE = Group("one", OWN.resource), Group("two", OTHER.resource)
POOLS = {GRANTED: "a100", GAVE: "t4"}


def followed(request, given=((GAVE, 1),), pools=POOLS, **changes):
    """The lease as it is once that was given; none where nothing changes."""
    held = slots(GRANTED.gpu(0))
    lease = a_lease(phase=Phase.STARTING, held=held, request=request, rate=Rate(Fraction(1)), **changes)
    running = Running("one", lease.attempt, given=given)
    return corrected_leases(assign_slots([running], [lease]), [lease], pools)


def test_a_lease_has_the_kind_that_the_cluster_gave():
    (lease,) = followed(a_request(substitutes=("t4",)))
    assert (lease.slots, lease.kind, lease.given, lease.rate) == ((Slot(GAVE.gpu(0)),), "t4", "t4", None)


def test_a_lease_that_got_the_requested_kind_has_no_substitute():
    (lease,) = followed(a_request(gpu="t4", substitutes=("a100",)), given=((GAVE, 1),))
    assert (lease.kind, lease.given) == ("t4", "")


def test_a_kind_without_consent_does_not_change_the_lease():
    (lease,) = followed(a_request())
    assert (lease.slots[0].group, lease.kind, lease.rate) == (GAVE, "a100", Rate(Fraction(1)))


async def test_a_recovered_workspace_has_its_granted_kind(tmp_path):
    world = World(tmp_path / "s.db")
    await world.round()
    lease = await world.create(await world.start("ada"))
    asked = replace(lease.request, substitutes=("half",))
    told = replace(lease, request=asked, given="half")
    dropped = transitions.drop_start(replace(told, given="", rate=Rate(Fraction(1))), world.clock.now())
    await world.registry.save(dropped)
    variables = lease_variables(replace(told, slots=(Slot(lease.slots[0].gpu, Fraction(1, 2)),)), SECRET)
    running = Running(lease_id=lease.id, attempt=lease.attempt, environment=variables)
    world.hub.answer("ada", "")
    server = await world.hub.server("ada", "")
    observer = world.parts.engine.observer
    observer.last_look = observer.last_look._replace(of_lease={lease.id: [running]})
    await observer.recovery.recover(dropped, server)
    assert world.registry.get(lease.id).kind == "half"
    assert world.registry.get(lease.id).rate.gpus == Fraction(1, 2), "and is charged for that one"
