"""GPUs held for a class: free for it in time, used by others until then, and nothing ended for it."""

from dataclasses import replace
from datetime import datetime
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lease_builders import KINDS, a_lease, a_request, fleet, gpu, slots

from gpuspawner.core.calendar import Window
from gpuspawner.core.leases.lease import Phase
from gpuspawner.core.queue.class_holds import (
    HoldUser,
    active_holds,
    class_hold_gpus,
    classes_of,
    count_free_in_hold,
    current_hold_gpus,
    extension_bound,
    leases_reaching_into_holds,
    may_use,
)
from gpuspawner.core.queue.decisions import decide
from gpuspawner.core.queue.estimates import queue_positions
from gpuspawner.core.queue.snapshot import PreemptedGpus, Snapshot
from gpuspawner.core.rules import Account, ClassHold, Rules
from gpuspawner.core.units import show_time

ZURICH = ZoneInfo("Europe/Zurich")
THURSDAY = Window(frozenset({3}), 9 * 60, 11 * 60)
HOLD = ClassHold("cs231", "a100", 2, THURSDAY)
HOUR = 3600.0


def at(text):
    return datetime.fromisoformat(text).replace(tzinfo=ZURICH).timestamp()


NINE = at("2026-11-26 09:00")


def request(user="alice", count=1, hours=8.0, classes=(), **changes):
    return a_request(
        user, count=count, lifetime_seconds=int(hours * HOUR), least_lifetime_seconds=1800, classes=classes, **changes
    )


def running(name, *gpus, until, user="alice", classes=()):
    return a_lease(
        name, Phase.RUNNING, asked_at=NINE - 20 * HOUR, held=slots(*gpus), user=user,
        request=request(user, len(gpus), classes=classes), deadline_at=until,
    )  # fmt: skip


def waiting(name="asks", asked_at=NINE - 20 * HOUR, **changes):
    return a_lease(name, asked_at=asked_at, request=request(**changes))


def seen(*leases, now=NINE - 3 * HOUR, gpus=3, holds=(HOLD,)):
    rules = Rules(holds=holds, timezone="Europe/Zurich")
    return Snapshot(now, KINDS, leases, fleet(*(gpu(number) for number in range(gpus))), rules=rules)


def held(world):
    return [[slot.gpu for slot in one.slots] for one in class_hold_gpus(world)]


def test_those_are_held_that_come_free_first_for_the_next_time():
    world = seen(running("x", "a100-0", until=NINE + HOUR), running("y", "a100-1", until=NINE - HOUR))
    (one,) = class_hold_gpus(world)
    assert [slot.gpu for slot in one.slots] == ["a100-2", "a100-1"]
    assert (one.opening.opens_at, one.opening.ends_at) == (NINE, NINE + 2 * HOUR)
    later = class_hold_gpus(replace(world, now=NINE + 2 * HOUR))[0]
    assert later.opening.opens_at == NINE + 7 * 24 * HOUR


def test_gpus_in_use_by_members_are_already_held_for_them():
    member = running("x", "a100-2", until=NINE + HOUR, classes=("cs231",))
    assert held(seen(member, running("y", "a100-0", until=NINE + HOUR))) == [["a100-2", "a100-1"]]
    assert held(seen(member)) == [["a100-2", "a100-0"]]


def test_two_holds_at_one_time_hold_different_gpus_and_one_after_another_may_be_the_same():
    other = ClassHold("cs101", "a100", 1, THURSDAY)
    assert held(seen(holds=(HOLD, other))) == [["a100-0", "a100-1"], ["a100-2"]]
    later = replace(other, window=Window(frozenset({3}), 11 * 60, 12 * 60))
    assert held(seen(holds=(HOLD, later))) == [["a100-0", "a100-1"], ["a100-0"]]


def test_a_hold_ends_with_its_day_and_with_its_kind():
    assert held(seen(holds=(replace(HOLD, until=NINE),))) == []
    (one,) = class_hold_gpus(seen(holds=(replace(HOLD, until=NINE + HOUR),)))
    assert one.opening.ends_at == NINE + HOUR
    assert held(seen(holds=(replace(HOLD, kind="gone"),))) == []


def test_shares_are_held_as_whole_gpus():
    assert held(seen(holds=(replace(HOLD, kind="half", count=3),))) == [["a100-0", "a100-1"]]


def test_other_users_get_unheld_gpus_with_the_whole_lifetime():
    (grant,) = decide(seen(waiting())).grants
    assert (grant.slots, grant.latest_end) == (slots("a100-2"), None)


def test_where_only_held_gpus_are_free_the_end_is_before_the_hold_and_said_so():
    (grant,) = decide(seen(waiting(count=2))).grants
    assert (grant.latest_end.at, grant.latest_end.rule, grant.latest_end.name) == (NINE, "hold", "cs231")
    assert grant.latest_end.words.endswith(", when 2 A100 80 GB are reserved for cs231")
    (short,) = decide(seen(waiting(count=2, hours=2))).grants
    assert short.latest_end is None, "it ends by itself before"


def test_of_held_gpus_those_are_given_that_are_needed_last():
    later = replace(HOLD, group="cs101", count=1, window=Window(frozenset({3}), 10 * 60, 12 * 60))
    (grant,) = decide(seen(waiting(), gpus=2, holds=(replace(HOLD, count=1), later))).grants
    assert (grant.slots, grant.latest_end.at) == (slots("a100-1"), NINE + HOUR)


def test_under_the_least_lifetime_nothing_is_granted_and_it_is_told_why():
    decision = decide(seen(waiting(count=2), now=NINE - 1799))
    assert decision.grants == ()
    told = decision.wait_reasons["asks"]
    assert told.rule == "hold"
    assert told.words.startswith("2 A100 80 GB are reserved for cs231 from ")
    assert len(decide(seen(waiting(count=2), now=NINE - 1800)).grants) == 1


def test_during_a_hold_only_members_get_its_gpus():
    assert decide(seen(waiting(count=2), now=NINE + 60)).grants == ()
    (grant,) = decide(seen(waiting(count=2, classes=("cs231",)), now=NINE + 60)).grants
    assert grant.latest_end is None
    assert len(decide(seen(waiting(count=2), now=NINE + 2 * HOUR)).grants) == 1, "the next is in a week"


def test_others_who_waited_before_keep_them_from_no_member():
    others, member = waiting("other", NINE - 2 * HOUR, count=2), waiting("member", NINE - HOUR, classes=("cs231",))
    decision = decide(seen(others, member, now=NINE + 60, gpus=2))
    assert [grant.claim.id for grant in decision.grants] == ["member"]
    assert decision.wait_reasons["other"].rule == "hold"
    before = decide(seen(others, member, running("x", "a100-0", "a100-1", until=NINE), now=NINE - HOUR, gpus=2))
    assert before.grants == (), "before the class, the order holds"


def test_members_may_use_them_before_and_beyond():
    (grant,) = decide(seen(waiting(count=3, classes=("cs231",)))).grants
    assert grant.latest_end is None


def test_workspaces_that_run_into_a_hold_are_reported_and_earlier_ends_are_not():
    into, before = running("x", "a100-0", "a100-1", until=NINE + HOUR), running("y", "a100-2", until=NINE - 60)
    assert list(leases_reaching_into_holds(seen(into, before))) == ["x"]
    assert list(leases_reaching_into_holds(seen(before, gpus=3))) == []
    member = replace(into, request=request(count=2, classes=("cs231",)))
    assert list(leases_reaching_into_holds(seen(member, before))) == []


def test_an_extension_is_bound_only_where_the_class_would_lack_gpus():
    one, two = running("x", "a100-0", until=NINE - HOUR), running("y", "a100-1", until=NINE - HOUR)
    assert extension_bound(one, NINE + HOUR, seen(one, two)) is None, "another comes free for it"
    assert extension_bound(one, NINE, seen(one, two, gpus=2)) is None
    assert extension_bound(one, NINE + HOUR, seen(one, two, gpus=2)).hold == HOLD


def test_a_users_groups_count_if_gpus_are_held_for_them():
    assert classes_of((HOLD, replace(HOLD, group="cs101")), {"vision", "cs231"}) == ("cs231",)


def test_gpus_held_now_count_if_they_are_free_and_name_their_group():
    of_team = ClassHold("vision", "half", 3, None, NINE + HOUR, NINE - HOUR, Account("vision"))
    world = seen(running("x", "a100-2", until=NINE + HOUR, classes=("cs231",)), holds=(HOLD, of_team))
    assert [hold.group for hold in active_holds(world)] == [one.hold.group for one in current_hold_gpus(world)] == []
    world = replace(world, now=NINE)
    assert active_holds(world) == tuple(one.hold for one in current_hold_gpus(world)) == (HOLD, of_team)
    of_class, halves = current_hold_gpus(world)
    assert [count_free_in_hold(of_class, KINDS[kind], world) for kind in ("a100", "half")] == [1, 2], (
        "its member has the other"
    )
    assert count_free_in_hold(halves, KINDS["half"], world) == 2, "whole GPUs are held"
    assert of_class.note(1, NINE) == f"1 reserved for cs231 until {show_time(NINE + 2 * HOUR, NINE)}"
    assert halves.note(2, NINE) == f"2 reserved for team vision until {show_time(NINE + HOUR, NINE)}"


@pytest.mark.parametrize(
    ("account", "asker", "may"),
    [
        pytest.param(None, HoldUser("then", ("cs231",)), True, id="who is in the class"),
        pytest.param(None, HoldUser("then", ("cs101",), ("cs231",)), False, id="who is in another"),
        pytest.param(Account("vision"), HoldUser("then", (), ("vision", "speech")), True, id="who is in the team"),
        pytest.param(Account("vision"), HoldUser("then", ("vision",)), False, id="a group that is no team"),
        pytest.param(Account("", "then"), HoldUser("then"), True, id="the user"),
        pytest.param(Account("", "then"), HoldUser("later"), False, id="another user of the name"),
    ],
)
def test_held_gpus_may_be_used_by_their_class_team_or_user(account, asker, may):
    assert may_use(asker, replace(HOLD, account=account)) is may


@given(
    st.lists(st.tuples(st.integers(1, 3), st.floats(0.6, 12), st.booleans()), max_size=6),
    st.integers(2, 6),
    st.floats(0.1, 6),
)
@settings(max_examples=200)
def test_a_grant_before_a_hold_frees_its_gpus_in_time(asks, gpus, hours_before):
    """After any requests in one pass, the GPUs of the hold are free at its beginning, or its members have them."""
    now = NINE - hours_before * HOUR
    leases = [
        waiting(f"asks-{number}", count=count, hours=hours, classes=("cs231",) if member else ())
        for number, (count, hours, member) in enumerate(asks)
    ]
    world = seen(*leases, now=now, gpus=gpus)
    taken = 0
    for grant in decide(world).grants:
        if "cs231" in grant.claim.request.classes:
            continue
        end = now + grant.claim.request.lifetime_seconds
        end = min(end, grant.latest_end.at) if grant.latest_end else end
        assert end - now >= 1800
        taken += len(grant.slots) if end > NINE else 0
    assert gpus - taken >= 2


@pytest.mark.parametrize("hours", [1.0, 20.0])
def test_without_holds_nothing_changes(hours):
    (grant,) = decide(seen(waiting(count=2, hours=hours), holds=())).grants
    assert grant.latest_end is None


def test_estimates_count_no_gpu_that_is_held_for_others_before_it_is_not():
    def wait(lease, **changes):
        return queue_positions(replace(seen(lease, gpus=2, now=NINE + HOUR), **changes))[lease.id].unchanged_seconds

    assert wait(waiting()) == HOUR, "the class has both until eleven"
    assert wait(waiting(classes=("cs231",))) == 0
    claimed = PreemptedGpus("claim", slots("a100-0", "a100-1"), None, NINE + HOUR + 600)
    assert wait(waiting(), rules=Rules(), kept=(claimed,)) == 600, "a claim ends"


def test_an_estimate_leaves_a_class_its_gpus_from_the_time_on_at_which_it_has_them():
    line = [running(f"h{n}", f"a100-{n}", until=NINE - HOUR / 4) for n in range(2)]
    asks = waiting(hours=8.0)
    there = {"gpus": 2, "now": NINE - HOUR}

    def told(lease, *leases, **more):
        return queue_positions(seen(*leases, lease, **there, **more))["asks"].unchanged_seconds

    assert told(asks, *line, holds=()) == 45 * 60, "once a workspace ends"
    assert told(asks, *line) == 3 * HOUR, "once the class is over: it would have less than its least time before it"
    assert told(waiting(hours=8.0, classes=("cs231",)), *line) == 45 * 60, "who is in the class does not wait for it"
    sooner = [replace(one, deadline_at=NINE - HOUR / 2) for one in line]
    assert told(asks, *sooner) == 30 * 60, "half an hour is enough for it"
