"""The ledger: what runs is charged once, exactly, across crashes, restarts, month's ends, time changes, clock steps."""

from dataclasses import replace
from datetime import datetime, timezone
from fractions import Fraction
from zoneinfo import ZoneInfo

import pytest
from service_world import Killed
from store_builders import delete_old

from gpuspawner.core.calendar import HOUR_MS, Per, date_of, milliseconds
from gpuspawner.core.errors import Conflict, RequestRefused
from gpuspawner.core.events import UsageCorrected
from gpuspawner.core.leases import exits
from gpuspawner.core.leases.exits import ExitReason
from gpuspawner.core.leases.lease import WAITING, Phase
from gpuspawner.core.quotas.ledger import LedgerKind, LedgerLine
from gpuspawner.core.quotas.limits import Requester
from gpuspawner.core.rules import Account, Budget, BudgetUnit, Quota, QuotaScope, Rate, Rules, Team
from gpuspawner.service.store import AuditLine, tables

HOUR = 3600.0
HOURS = BudgetUnit.GPU_HOURS


def a_budget(hard, per=Per.WEEK, whom=QuotaScope.EACH_USER, subject=""):
    return Quota("each-user", whom, subject, budgets=(Budget(HOURS, per, hard=Fraction(hard)),))


@pytest.fixture
def make(make_world):
    """Make a world with budgets, in a time zone, on a date there."""

    def made(*quotas, zone="Europe/Zurich", at=None, **which):
        world = make_world(policy={"mode": "observe"}, **which)
        rules = Rules(teams={"vision": Team("vision")}, quotas=quotas, timezone=zone, contact="gpu@example.org")
        world.catalog = replace(world.catalog, rules=rules)
        if at is not None:
            world.clock.at = at
        world.boot()
        return world

    return made


def lines(world, lease):
    return world.parts.store.ledger.of_lease(lease.id)


def charged(world, lease, *what):
    """The GPU milliseconds that a lease was charged, of some sorts or of all."""
    return sum(x.milliseconds * x.rate.gpus for x in lines(world, lease) if not what or x.what in what)


async def stop(world, lease):
    await world.parts.engine.begin_stop(lease.id, exits.stopped_by("alice", "a test"))
    await world.rounds(3)
    assert world.phase(lease) is Phase.ENDED


def of(world, user="alice", per=Per.WEEK, used=HOURS):
    account = Account("", world.key(user).user_created)
    return world.allocator.accounting.accounts.charged.get((account, used, per), Fraction(0))


async def test_a_workspace_is_charged_from_running_to_its_end(make):
    world = make()
    lease = await world.start("alice", count=2)
    await world.round()
    lease = await world.create(world.registry.get(lease.id))
    await world.go_on(300)
    world.hub.answer("alice")
    await world.round()
    running_at = world.clock.now()
    await world.go_on(1234.567)
    assert lines(world, lease) == []
    await stop(world, lease)
    (line,) = lines(world, lease)
    assert (line.what, line.milliseconds, line.rate.gpus) == (LedgerKind.USE, 1_234_567, 2)
    assert (line.start_ms, line.user, line.by) == (milliseconds(running_at), "alice", "gpuspawner")
    assert of(world) == Fraction(2 * 1_234_567, HOUR_MS)


async def test_a_workspace_that_never_ran_is_not_charged(make):
    world = make()
    waiting = await world.start("alice")
    await world.parts.attempts.release(waiting.id, waiting.attempt, "failed", "")
    await world.round()
    assert lines(world, waiting) == []


async def test_a_share_counts_as_its_kind_does(make):
    world = make()
    lease = await world.up("alice", gpu="half")
    await world.go_on(HOUR)
    await stop(world, lease)
    assert charged(world, lease) == HOUR_MS // 2


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("steps", range(8))
async def test_a_killed_service_charges_a_workspace_once(make, steps, half):
    world = make()
    lease = await world.up("alice")
    await world.go_on(600)
    ran, later = 600_000, 0
    world.life.left, world.life.half = steps, half
    try:
        await world.parts.engine.begin_stop(lease.id, exits.stopped_by("alice", "a test"))
        await world.parts.engine.drive(lease.id)
        await world.round()
        await world.round()
    except Killed:
        pass
    world.boot()
    await world.go_on(30, step=10)
    if world.phase(lease) is Phase.RUNNING:  # it was killed before anything was stored
        assert lines(world, lease) == []
        later = 30_000
        await stop(world, lease)
    assert world.phase(lease) is Phase.ENDED
    assert charged(world, lease) == ran + later
    assert of(world) == Fraction(ran + later, HOUR_MS)


async def test_a_workspace_that_dies_is_charged_until_that_is_reported(make):
    world = make()
    lease = await world.up("alice")
    await world.go_on(600)
    await world.hub_stops(lease, "died")
    assert charged(world, lease) == 600_000
    assert world.registry.get(lease.id).phase is Phase.STOPPING
    await world.go_on(120)
    assert charged(world, lease) == 600_000


async def test_usage_is_the_same_after_a_restart(make):
    world = make(a_budget(100))
    for user, seconds in (("alice", 400), ("bob", 900), ("alice", 50)):
        lease = await world.up(user)
        await world.go_on(seconds)
        await stop(world, lease)
    before = world.allocator.accounting.accounts
    world.boot()
    after = world.allocator.accounting.accounts
    assert dict(before.charged) == dict(after.charged)
    assert dict(before.decayed_gpu_seconds) == pytest.approx(dict(after.decayed_gpu_seconds))
    assert len(after.decayed_gpu_seconds) == 3  # alice, bob, all
    assert of(world) == Fraction(450_000, HOUR_MS)


async def test_use_across_a_month_s_end_counts_in_each_month(make):
    zurich = ZoneInfo("Europe/Zurich")
    end = datetime(2026, 12, 1, tzinfo=zurich).timestamp()  # a Tuesday
    world = make(a_budget(1000, Per.MONTH), at=end - 2 * HOUR)
    early = await world.up("alice")
    await world.go_on(HOUR, step=600)
    await stop(world, early)
    assert (of(world, per=Per.MONTH), of(world, per=Per.WEEK), of(world, per=Per.DAY)) == (1, 1, 1)
    late = await world.up("alice")
    await world.go_on(3 * HOUR, step=600)
    assert (of(world, per=Per.MONTH), of(world, per=Per.WEEK), of(world, per=Per.DAY)) == (0, 1, 0)
    await stop(world, late)
    assert [line.day for line in lines(world, late)] == ["2026-11-30", "2026-12-01"]
    assert charged(world, late) == 3 * HOUR_MS
    now_in_december = Fraction(milliseconds(world.clock.now()) - milliseconds(end), HOUR_MS)
    assert of(world, per=Per.MONTH) == of(world, per=Per.DAY) == now_in_december
    assert of(world, per=Per.WEEK) == 4
    world.boot()
    assert (of(world, per=Per.MONTH), of(world, per=Per.WEEK)) == (now_in_december, 4)


@pytest.mark.parametrize(("year", "month", "day", "hours"), [(2026, 3, 29, 23), (2026, 10, 25, 25)])
async def test_a_day_on_which_the_clock_changes_is_charged_as_long_as_it_was(make, year, month, day, hours):
    zurich = ZoneInfo("Europe/Zurich")
    begins = datetime(year, month, day, tzinfo=zurich).timestamp()
    world = make(a_budget(1000), at=begins - HOUR)
    lease = await world.up("alice", lifetime="24h")
    await world.registry.save(replace(world.registry.get(lease.id), deadline_at=begins + 2 * 86400))
    await world.go_on(26 * HOUR + HOUR, step=600)
    await stop(world, lease)
    of_days = {}
    for line in lines(world, lease):
        of_days[line.day] = of_days.get(line.day, 0) + Fraction(line.milliseconds, HOUR_MS)
    assert of_days[f"{year}-{month:02}-{day:02}"] == hours
    assert sum(of_days.values()) == 27


async def test_a_clock_that_went_back_between_two_services_changes_no_held_time(make):
    world = make()
    lease = await world.up("alice")
    await world.go_on(600)
    world.crash()
    world.clock.at -= 5 * HOUR
    world.boot()
    await world.go_on(300)
    await stop(world, lease)
    assert charged(world, lease) == 900_000


# Budgets


async def test_a_budget_bounds_the_end_is_told_warned_of_and_ends_it(make):
    world = make(a_budget(2))
    lease = await world.start("alice", lifetime="8h")
    await world.round()
    told = world.registry.get(lease.id).latest_end
    assert told.at == world.registry.get(lease.id).granted_at + 2 * HOUR
    assert "when your 2 GPU hours this week are used up" in told.words
    assert "bounded" in world.did(lease)
    await world.create(world.registry.get(lease.id))
    await world.go_on(1800)
    world.hub.answer("alice")
    await world.round()
    lease = world.registry.get(lease.id)
    assert lease.deadline_at == lease.latest_end.at == lease.running_at + 2 * HOUR  # starting took nothing of it
    await world.go_on(2 * HOUR - 600)
    assert "warned" in world.did(lease)
    await world.go_on(720)
    ended = world.now_of(lease)
    assert ended.reason is ExitReason.BUDGET
    assert ended.message.startswith("Your 2 GPU hours this week are used up. They reset Mon 18 Jan 00:00.")
    assert charged(world, lease) >= 2 * HOUR_MS
    assert charged(world, lease, LedgerKind.OVERRUN) == 0


async def test_a_start_is_refused_that_a_budget_leaves_too_little(make):
    world = make(a_budget(2))
    first = await world.up("alice")  # two hours are set aside for it
    world.clock.advance(2)  # balances are kept for a second
    with pytest.raises(RequestRefused) as refused:
        await world.start("alice", "more")
    error = refused.value
    assert (error.status, error.field) == (403, "gpu_hours")
    assert str(error).startswith(
        "GPU hours: You asked for 1 GPU for 8 h. Allowed: 0 of your 2 GPU hours this week are left "
        "(less than 0.1 used, 2 reserved by running workspaces). They reset Mon 18 Jan 00:00. Stop what "
    )
    assert str(error).endswith("or ask gpu@example.org for more.")
    await stop(world, first)  # what it did not use returns
    more = await world.up("alice", "more")
    assert more.latest_end.at == pytest.approx(world.clock.now() + 2 * HOUR, abs=3)


async def test_a_start_with_fewer_gpus_is_named_where_it_would_do(make):
    world = make(a_budget("0.6"))
    with pytest.raises(RequestRefused, match="Ask for 1, stop what you do not need"):
        await world.start("alice", count=2)  # 18 minutes, and its template gives 30 at least
    assert (await world.up("alice")).latest_end is not None


async def test_a_request_waiting_for_its_own_start_does_not_block_itself(make):
    world = make(a_budget(8))
    lease = await world.start("alice")
    await world.round()
    assert world.registry.get(lease.id).latest_end is None
    again = await world.ask("alice")  # a new attempt of the same
    assert (again.id, again.phase) == (lease.id, Phase.RESERVED)
    changed = await world.ask("alice", lifetime="7h")
    assert changed.latest_end is None


async def test_the_next_week_has_its_own_budget(make):
    monday = datetime(2026, 11, 30, tzinfo=ZoneInfo("Europe/Zurich")).timestamp()
    world = make(a_budget(3), at=monday - HOUR)
    lease = await world.up("alice")
    assert lease.deadline_at == pytest.approx(monday + 3 * HOUR, abs=1)
    await world.go_on(4 * HOUR + 120, step=300)
    assert world.now_of(lease).reason is ExitReason.BUDGET


async def test_extend_gives_what_the_budget_leaves_and_refuses_less_than_ten_minutes(make):
    world = make(a_budget("2.5"))
    lease = await world.up("alice", lifetime="1h")
    assert lease.latest_end is None
    longer = await world.parts.actions.extend(lease, "alice")
    assert (longer.deadline_at - lease.deadline_at, longer.latest_end) == (HOUR, None)
    rest = await world.parts.actions.extend(longer, "alice")
    assert rest.deadline_at - longer.deadline_at == pytest.approx(HOUR / 2)
    assert rest.extended_seconds == pytest.approx(1.5 * HOUR)
    assert rest.latest_end.at == rest.deadline_at
    with pytest.raises(Conflict, match=r"but this workspace ends at .* when your 2.5 GPU hours this week are used up"):
        await world.parts.actions.extend(rest, "alice")
    other = world.parts.store.leases.get(lease.id)
    assert other.deadline_at == rest.deadline_at


async def test_an_adopted_workspace_is_charged_and_never_ended_by_a_budget(make):
    world = make(a_budget(1))
    lease = await world.up("alice")
    world.crash()
    world.parts.store._engine.dispose()
    lost = make(a_budget(1))
    lost.backend, lost.hub, lost.clock = world.backend, world.hub, world.clock
    lost.boot()
    for _ in range(3):
        await lost.round()
    adopted = lost.registry.get(lease.id)
    assert (adopted.adopted, adopted.phase, adopted.latest_end) == (True, Phase.RUNNING, None)
    await lost.go_on(2 * HOUR, step=600)
    assert lost.phase(lease) is Phase.RUNNING
    await stop(lost, lease)
    assert charged(lost, lease) == 2 * HOUR_MS


async def test_time_after_the_budget_for_a_warning_is_an_overrun(make):
    world = make(a_budget(2))
    lease = await world.up("alice")
    world.crash()
    world.clock.advance(2 * HOUR + 60)  # the service did not run, so it sent no warning
    world.boot()
    await world.go_on(900, step=30)
    ended = world.now_of(lease)
    assert ended.reason is ExitReason.BUDGET
    assert charged(world, lease, LedgerKind.USE) == 2 * HOUR_MS
    assert charged(world, lease, LedgerKind.OVERRUN) >= 600_000
    assert charged(world, lease, LedgerKind.REFUND) == pytest.approx(-(2 * HOUR_MS + 60_000), abs=1000)  # the outage


async def test_an_outage_of_more_than_a_minute_is_given_back(make):
    world = make(a_budget(100))
    lease = await world.up("alice")
    await world.go_on(600)
    for away in (40, 400):
        world.crash()
        world.clock.advance(away)
        world.boot()
        await world.go_on(60)
    (balance,) = world.allocator.bounds.balances().of(Requester("alice", world.key("alice").user_created))
    assert float(balance.used) == pytest.approx(
        (600 + 40 + 60 + 60) / 3600, rel=0.01
    )  # what was lost is not counted while it runs
    await stop(world, lease)
    refund = [line for line in lines(world, lease) if line.what is LedgerKind.REFUND]
    assert [line.milliseconds for line in refund] == [pytest.approx(-400_000, abs=1000)]
    assert refund[0].why == "The GPU service was away: the workspace could be neither stopped nor extended."
    assert charged(world, lease) == pytest.approx(760_000, abs=1000)


# Lost time


async def test_time_in_which_the_service_was_suspended_is_given_back(make):
    world = make()
    lease = await world.up("alice")
    await world.go_on(120)
    world.clock.stop_for(300)
    await world.go_on(60)
    await stop(world, lease)
    assert charged(world, lease) == 180_000


async def test_time_with_failed_gpus_is_given_back_in_their_share(make):
    world = make()
    lease = await world.up("alice", count=2)
    await world.go_on(600)
    failed = lease.slots[0].gpu
    world.backend.gpus = [replace(gpu, healthy=gpu.id != failed) for gpu in world.backend.gpus]
    await world.go_on(600)
    world.backend.gpus = [replace(gpu, healthy=True) for gpu in world.backend.gpus]
    await world.go_on(600)
    await stop(world, lease)
    (refund,) = [line for line in lines(world, lease) if line.what is LedgerKind.REFUND]
    assert refund.rate.gpus == 1
    assert failed in refund.why
    assert refund.milliseconds == pytest.approx(-600_000, abs=60_000)


async def test_time_on_a_node_that_does_not_answer_is_given_back(make):
    world = make()
    lease = await world.up("alice")
    await world.go_on(600)
    world.backend.gpus = [replace(gpu, reachable=False) for gpu in world.backend.gpus]
    await world.go_on(600)
    assert [one.until for one in world.registry.get(lease.id).lost] == [None]
    world.boot()  # it goes on through a restart
    await world.go_on(60)
    await stop(world, lease)
    (refund,) = [line for line in lines(world, lease) if line.what is LedgerKind.REFUND]
    assert refund.why == "Its node did not answer."
    assert charged(world, lease) == pytest.approx(660_000, abs=60_000)


async def test_a_request_without_budget_waits_for_the_renewal_and_blocks_no_other(make):
    monday = datetime(2026, 11, 30, tzinfo=ZoneInfo("Europe/Zurich")).timestamp()
    world = make(a_budget(3), at=monday - 4 * HOUR, gpus=1)
    holds = await world.up("bob", lifetime="30m")
    waiting = await world.start("alice", lifetime="1h")
    assert waiting.phase is Phase.QUEUED
    for _ in range(2):  # meanwhile an administrator charges what alice did elsewhere
        await correct(world, "alice", 2)
    carol = await world.start("carol", lifetime="1h")
    await stop(world, holds)
    await world.round()
    held = world.registry.get(waiting.id)
    assert (held.phase in WAITING, held.wait_reason.rule) == (True, "budget each-user")
    assert "They reset Mon 30 Nov 00:00" in held.wait_reason.words
    assert "held back" in world.did(held)
    assert world.registry.get(carol.id).phase is Phase.RESERVED
    await world.parts.attempts.park(waiting.id, waiting.attempt)
    await world.go_on(3 * HOUR, step=600)
    assert "granted" not in world.did(held)
    await world.go_on(HOUR + 120)
    assert "granted" in world.did(held)


async def correct(world, user, hours):
    at_ms = milliseconds(world.clock.now())
    account = Account("", world.key(user).user_created)
    day = date_of(at_ms, world.allocator.accounting.zone)
    rate = Rate(Fraction(hours))
    line = LedgerLine(
        world.clock.now(), "", account, world.hub_id, user, "", LedgerKind.CORRECTION, day, at_ms, at_ms, HOUR_MS, rate,
        "admin", "a test",
    )  # fmt: skip
    event = UsageCorrected("1 GPU h", reason="a test")
    await world.allocator.accounting.correct(line, AuditLine(world.clock.now(), "", user, "admin", event))


async def test_the_ledger_outlives_the_leases_that_it_is_about_and_is_forgotten_in_its_time(make):
    world = make()
    lease = await world.up("alice")
    await world.go_on(600)
    await stop(world, lease)
    store, later = world.parts.store, world.clock.now() + 500 * 86400
    while store.leases.delete_ended(later):
        pass
    assert store.leases.get(lease.id) is None
    assert charged(world, lease) == 600_000
    delete_old(store, tables.ledger, usage=lines(world, lease)[0].end_ms / 1000)
    assert charged(world, lease) == 600_000
    delete_old(store, tables.ledger, usage=later)
    assert lines(world, lease) == []


async def test_charges_of_a_month_count_again_after_the_clock_went_back_and_forth(make_world):
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
    await world.rounds(3)
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
