"""The ledger of charges and its months."""

import random
from dataclasses import replace
from datetime import datetime
from fractions import Fraction
from itertools import pairwise
from zoneinfo import ZoneInfo, available_timezones

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lease_builders import A100, HALF, NOW, a_lease, a_request

from gpuspawner.core.calendar import HOUR_MS, Per, TimeSpan, milliseconds, period_of, split_by_period
from gpuspawner.core.leases.exits import ExitReason
from gpuspawner.core.leases.lease import Phase
from gpuspawner.core.leases.transitions import stop
from gpuspawner.core.quotas.ledger import (
    HALF_LIFE_SECONDS,
    LedgerKind,
    LedgerLine,
    charged_ms,
    decayed_gpu_seconds,
    decayed_gpu_seconds_of,
    decayed_seconds,
    ledger_lines_of_step,
    rate_of,
    sum_charges,
)
from gpuspawner.core.quotas.months import (
    closes_at,
    last_day,
    month_of,
    month_span,
    month_words,
    next_month,
    previous_month,
    read_month,
    round_to_sum,
)
from gpuspawner.core.rules import Account, BudgetUnit, LatestEnd, LostInterval, Rate
from gpuspawner.core.units import BadValue

UTC = ZoneInfo("UTC")
DAY = 86400.0
RATE = Rate(Fraction(2), Fraction("4.2"))
ZONES = st.sampled_from(sorted(available_timezones())).map(ZoneInfo)
TIMES = st.floats(0, 2_000_000_000, allow_nan=False)


def ran(start, *, rate=RATE, **changes):
    """A workspace that runs since a time."""
    request = a_request(count=2, team="vision")
    return a_lease(phase=Phase.RUNNING, asked_at=start, request=request, rate=rate, **{"deadline_at": None, **changes})


def lines(lease, at, zone=UTC):
    return ledger_lines_of_step(lease, stop(lease, ExitReason.STOPPED, "alice", "", at), zone)


def total(found, what=None):
    return sum(line.milliseconds for line in found if what in {None, line.what})


@pytest.mark.parametrize(
    ("kind", "count", "rate"),
    [
        (A100, 2, Rate(Fraction(2))),
        (HALF, 1, Rate(Fraction(1, 2))),
        (replace(HALF, counts=Fraction(1, 7), price_per_hour=0.3), 3, Rate(Fraction(3, 7), Fraction(9, 10))),
        (replace(A100, price_per_hour=2.1), 2, Rate(Fraction(2), Fraction(21, 5))),
        (None, 0, Rate()),
    ],
)
def test_a_rate_counts_gpus_as_quotas_do_and_money_without_rounding(kind, count, rate):
    assert rate_of(kind, count) == rate


@given(start=TIMES, seconds=st.floats(0, 70 * DAY), zone=ZONES)
def test_charged_time_equals_held_time_to_the_millisecond(start, seconds, zone):
    lease = ran(start)
    found = lines(lease, start + seconds, zone)
    held = milliseconds(start + seconds) - milliseconds(start)
    assert total(found) == held == charged_ms(lease, milliseconds(start + seconds))
    assert all(line.end_ms - line.start_ms == line.milliseconds for line in found)
    for line in found:  # each line is within one day, so within one period
        assert {line.within(period_of(line.start_ms, per, zone)) for per in Per} == {line.milliseconds}
    for per in Per:  # and what the periods are charged adds up to it
        periods = [
            period for _, period in split_by_period(milliseconds(start), milliseconds(start + seconds), per, zone)
        ]
        assert sum(line.within(period) for line in found for period in periods) == held
    assert sum(line.amount(BudgetUnit.GPU_HOURS) for line in found) == 2 * Fraction(held, HOUR_MS)
    assert sum(line.amount(BudgetUnit.COST) for line in found) == Fraction("4.2") * held / HOUR_MS


@st.composite
def losses(draw):
    """Times lost, some of which overlap, begin before the workspace ran or go on."""
    found = []
    for _ in range(draw(st.integers(0, 5))):
        since = draw(st.integers(-100, 10_000))
        until = draw(st.one_of(st.none(), st.integers(since, 10_200)))
        share = draw(st.sampled_from([Fraction(1), Fraction(1, 2), Fraction(1, 3)]))
        found.append(
            LostInterval(NOW + since, None if until is None else NOW + until, draw(st.sampled_from("ab")), share)
        )
    return tuple(found)


@given(lost=losses(), seconds=st.integers(0, 10_000), zone=ZONES)
def test_lost_time_is_given_back_once_in_the_share_that_was_lost(lost, seconds, zone):
    lease = ran(NOW, lost=lost)
    found = lines(lease, NOW + seconds, zone)
    shares = [
        max((x.share for x in lost if x.since <= NOW + at and (x.until is None or NOW + at < x.until)), default=0)
        for at in range(seconds)
    ]
    due = 2 * Fraction(seconds - sum(shares), 3600)
    assert sum(line.amount(BudgetUnit.GPU_HOURS) for line in found) == due
    assert 2 * Fraction(charged_ms(lease, milliseconds(NOW + seconds))) / HOUR_MS == due
    assert total(found, LedgerKind.USE) == seconds * 1000


def test_a_line_says_who_used_what_when():
    (line,) = lines(ran(NOW), NOW + 60)
    assert line == LedgerLine(
        NOW + 60, "one", Account("vision", "alice born"), "hub", "alice", "a100", LedgerKind.USE, "1970-01-01",
        milliseconds(NOW), milliseconds(NOW + 60), 60_000, RATE, "gpuspawner",
    )  # fmt: skip


def test_a_granted_substitute_is_charged_in_place_of_the_request():
    assert [line.kind for line in lines(ran(NOW, given="h100"), NOW + 60)] == ["h100"]


@pytest.mark.parametrize(
    ("lease", "why"),
    [
        (ran(NOW, rate=Rate()), "it takes nothing of budgets"),
        (ran(NOW, rate=None), "an older version granted it"),
        (a_lease(phase=Phase.STARTING, rate=RATE), "it never ran"),
        (a_lease(rate=RATE), "it waited"),
    ],
)
def test_nothing_is_charged_where(lease, why):
    assert lines(lease, NOW + 60) == [], why


def test_a_step_that_ends_nothing_charges_nothing():
    lease = ran(NOW)
    assert ledger_lines_of_step(lease, replace(lease, phase=Phase.RECLAIMING), UTC) == []
    stopping = stop(lease, ExitReason.STOPPED, "alice", "", NOW + 60)
    assert ledger_lines_of_step(stopping, replace(stopping, phase=Phase.ENDED), UTC) == []


@given(
    st.floats(60, 90 * DAY),
    st.lists(st.tuples(st.floats(0, 1), st.floats(0, 0.3)), max_size=3),
    st.lists(st.floats(0, 1), max_size=3),
)
def test_a_workspace_that_is_billed_on_the_way_is_charged_the_same(seconds, lost, billed):
    gaps = tuple(
        LostInterval(NOW + begin * seconds, NOW + min(1.0, begin + part) * seconds, "away") for begin, part in lost
    )
    whole, now, found = ran(NOW, lost=gaps), NOW + seconds, []
    lease = whole
    for part in sorted(billed):
        after = replace(lease, billed_until=NOW + part * seconds)
        found += ledger_lines_of_step(lease, after, UTC)
        lease = after
    assert ledger_lines_of_step(lease, replace(lease, sampled_at=now), UTC) == [], "billed once"
    rest = charged_ms(lease, milliseconds(now))
    assert decayed_gpu_seconds(found, now) + decayed_gpu_seconds_of(lease, now) == pytest.approx(
        decayed_gpu_seconds_of(whole, now), rel=1e-6, abs=1e-3
    )
    assert total(found) + rest == pytest.approx(charged_ms(whole, milliseconds(now)), abs=10)
    found += lines(lease, now)
    for kind in (LedgerKind.USE, LedgerKind.REFUND):
        assert total(found, kind) == pytest.approx(total(lines(whole, now), kind), abs=10)


BOUND = LatestEnd(NOW + 600, "budget", "ends then")


@pytest.mark.parametrize(
    ("deadline", "bound", "over"),
    [
        pytest.param(NOW + 600, BOUND, 0, id="it ended in time, and ending took a moment"),
        pytest.param(NOW + 650, BOUND, 60_000, id="the notice was waited for"),
        pytest.param(NOW + 650, replace(BOUND, rule="hold"), 0, id="no budget bound it"),
        pytest.param(NOW + 650, None, 0, id="nothing bound it"),
    ],
)
def test_an_overrun_is_a_line_of_its_own(deadline, bound, over):
    found = lines(ran(NOW, deadline_at=deadline, latest_end=bound), NOW + 660)
    assert total(found, LedgerKind.OVERRUN) == over
    assert total(found) == 660_000


@given(cuts=st.lists(st.integers(0, 10_000_000), min_size=2, max_size=6), later=st.integers(0, 10_000_000))
def test_decayed_use_does_not_depend_on_how_it_is_written(cuts, later):
    edges = sorted(NOW + cut for cut in cuts)
    now = edges[-1] + later
    whole = decayed_seconds(edges[0], edges[-1], now)
    parts = sum(decayed_seconds(a, b, now) for a, b in pairwise(edges))
    assert parts == pytest.approx(whole, rel=1e-9, abs=1e-6)
    assert decayed_seconds(edges[0], edges[-1], now + HALF_LIFE_SECONDS) == pytest.approx(whole / 2, abs=1e-6)
    assert whole <= edges[-1] - edges[0] + 1e-6


def a_correction(at_ms, milliseconds, rate=RATE):
    kind, day = LedgerKind.CORRECTION, "1970-01-01"
    return LedgerLine(NOW, "", Account(), "hub", "", "", kind, day, at_ms, at_ms, milliseconds, rate, "admin")


def test_use_of_what_runs_and_of_what_ended_decays_alike():
    lease = ran(NOW, lost=(LostInterval(NOW + DAY, NOW + 2 * DAY, "a node"),))
    end = NOW + 5 * DAY
    assert decayed_gpu_seconds_of(lease, end) == pytest.approx(decayed_gpu_seconds(lines(lease, end), end))
    assert decayed_gpu_seconds_of(a_lease(rate=RATE), end) == 0
    week_ago = a_correction(0, -3_600_000, Rate(Fraction(1)))
    assert decayed_gpu_seconds([week_ago], HALF_LIFE_SECONDS) == -1800


def test_a_correction_counts_in_the_period_of_its_moment():
    line = a_correction(5000, -60_000)
    assert line.within(TimeSpan(5000, 6000)) == -60_000
    assert line.within(TimeSpan(4000, 5000)) == 0


def test_charges_count_in_every_account_and_period_that_they_fall_in():
    since = 1_793_401_200.0  # in a week, and a month, of 30 hours ago
    lease = ran(since, rate=Rate(Fraction(1), Fraction(3)))
    zone = ZoneInfo("Europe/Zurich")
    end = since + 30 * 3600
    found = sum_charges(lines(lease, end, zone), end, zone)
    accounts = [Account(), Account("vision"), Account("", "alice born"), Account("vision", "alice born")]
    assert {account for account, _, _ in found} == set(accounts)
    for per in Per:
        period = period_of(milliseconds(end), per, zone)
        hours = Fraction(period.overlap(milliseconds(since), milliseconds(end)), HOUR_MS)
        for account in accounts:
            assert (found[account, BudgetUnit.GPU_HOURS, per], found[account, BudgetUnit.COST, per]) == (
                hours,
                3 * hours,
            )


# --- months


ZURICH = ZoneInfo("Europe/Zurich")


def at(*parts):
    return datetime(*parts, tzinfo=ZURICH).timestamp()


@pytest.mark.parametrize("text", ["2026-13", "26-10", "2026-1", "2026-10-01", "", None, 202610])
def test_what_is_no_month_is_refused(text):
    with pytest.raises(BadValue):
        read_month(text)


def test_a_month_has_its_days_its_neighbours_and_its_words():
    assert read_month("2028-02") == month_of("2028-02-29") == "2028-02"
    assert f"{last_day('2028-02')} {last_day('2026-12')}" == "2028-02-29 2026-12-31"
    assert (previous_month("2027-01"), next_month("2026-12"), next_month("2026-01")) == (
        "2026-12",
        "2027-01",
        "2026-02",
    )
    assert month_words("2026-10") == "October 2026"


def test_a_month_closes_at_the_beginning_of_the_third_day_of_the_next_whatever_the_clocks_do():
    span = month_span("2027-03", ZURICH)
    assert (span.start, span.end) == (at(2027, 3, 1), at(2027, 4, 1))
    assert span.end_ms - span.start_ms == (31 * 24 - 1) * 3_600_000
    assert closes_at("2027-03", ZURICH) == at(2027, 4, 3)
    assert closes_at("2026-12", ZURICH) == at(2027, 1, 3)


def test_rounded_numbers_add_up_to_their_rounded_sum():
    chance = random.Random(1)
    for _ in range(500):
        numbers = [chance.uniform(-5, 50) for _ in range(chance.randrange(8))]
        rounded = round_to_sum(numbers, 1)
        assert sum(rounded) == pytest.approx(round(sum(numbers), 1))
        assert all(abs(a - b) < 0.1 + 1e-9 for a, b in zip(numbers, rounded, strict=True))
