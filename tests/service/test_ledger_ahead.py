"""A clock that went back across the end of a period, and what was charged in the next one by then."""

from dataclasses import replace
from datetime import datetime, timezone
from fractions import Fraction

from gpuspawner.core.calendar import HOUR_MS, Per
from gpuspawner.core.leases import exits
from gpuspawner.core.rules import Account, Budget, BudgetUnit, Quota, QuotaScope

HOUR = 3600.0


async def test_charges_of_a_month_still_count_when_that_month_comes_again(make_world):
    world = make_world(policy={"mode": "observe"})
    budget = Budget(BudgetUnit.GPU_HOURS, Per.MONTH, hard=Fraction(1000))
    rules = replace(world.catalog.rules, quotas=(Quota("each-user", QuotaScope.EACH_USER, budgets=(budget,)),))
    world.catalog = replace(world.catalog, rules=rules)
    december = datetime(2026, 12, 1, tzinfo=timezone.utc).timestamp()
    world.clock.at = december + HOUR
    world.boot()
    lease = await world.up("alice")
    await world.go_on(2 * HOUR)
    await world.parts.engine.begin_stop(lease.id, exits.stopped_by("alice", "a test"))
    for _ in range(3):
        await world.round()
    used = Fraction(sum(x.milliseconds for x in world.parts.store.ledger.of_lease(lease.id)), HOUR_MS)

    def of_this_month():
        account = Account("", world.key("alice").user_created)
        charged = world.allocator.accounting.accounts.charged
        return charged.get((account, BudgetUnit.GPU_HOURS, Per.MONTH), 0)

    assert of_this_month() == used >= 2
    world.crash()
    world.clock.at = december - HOUR  # the clock had been wrong by hours
    world.boot()
    assert of_this_month() == 0
    world.clock.at = december + HOUR
    assert of_this_month() == used
