"""Reservations with dates: weekly times, one node, the members of a class, maintenance, and conflicts."""

from dataclasses import replace
from datetime import datetime
from zoneinfo import ZoneInfo

import pytest
from lease_builders import KINDS, a_lease, a_request, fleet, gpu, slots
from test_steps import rules as lease_rules

from gpuspawner.core.administration import Restriction, RestrictionKind, reservation_hold, reservation_holds
from gpuspawner.core.calendar import Window
from gpuspawner.core.leases import steps
from gpuspawner.core.leases.lease import Phase
from gpuspawner.core.leases.observations import Observation
from gpuspawner.core.queue.class_holds import (
    FreePart,
    class_hold_gpus,
    extension_bound,
    fitting_reservations,
    free_parts,
    leases_reaching_into_holds,
    openings_between,
)
from gpuspawner.core.queue.decisions import decide
from gpuspawner.core.queue.estimates import queue_positions
from gpuspawner.core.queue.snapshot import Snapshot
from gpuspawner.core.rules import Account, Rules

ZURICH = ZoneInfo("Europe/Zurich")
HOUR, DAY = 3600.0, 86400.0
THURSDAY = Window(frozenset({3}), 9 * 60, 11 * 60)


def at(text):
    return datetime.fromisoformat(text).replace(tzinfo=ZURICH).timestamp()


NINE = at("2026-11-26 09:00")
"""A Thursday."""


def reserve(count=2, begins=NINE, until=NINE + 2 * HOUR, **changes):
    changes = {"account": Account("vision"), "whom": "vision", **changes}
    return Restriction(
        "r", RestrictionKind.RESERVE, "a100", "demo", "root", NINE - DAY, until, begins, count, **changes
    )


def maintenance(node="node-0", begins=NINE, until=NINE + 4 * HOUR, **changes):
    return Restriction("m", RestrictionKind.DRAIN, node, "firmware", "root", NINE - 9 * DAY, until, begins, **changes)


def seen(*leases, now=NINE - 3 * HOUR, restrictions=(), gpus=4):
    """Nodes of two GPUs each."""
    rules = Rules(holds=reservation_holds(restrictions), timezone="Europe/Zurich")
    return Snapshot(
        now, KINDS, leases, fleet(*(gpu(number, node=f"node-{number // 2}") for number in range(gpus))), rules=rules
    )


def waiting(count=1, hours=8.0, user="alice", **changes):
    request = a_request(user, count=count, lifetime_seconds=int(hours * HOUR), least_lifetime_seconds=1800, **changes)
    return a_lease("asks", asked_at=NINE - 20 * HOUR, user=user, request=request)


def running(name, *gpus, until, user="alice"):
    return a_lease(
        name, Phase.RUNNING, asked_at=NINE - 30 * HOUR, held=slots(*gpus), user=user,
        request=a_request(user, count=len(gpus)), deadline_at=until,
    )  # fmt: skip


def test_a_weekly_rule_holds_at_its_times_in_the_zone_and_between_its_dates():
    one = reserve(every=THURSDAY, begins=NINE + HOUR, until=NINE + 15 * DAY)
    assert [one.is_in_force(NINE + x * HOUR, ZURICH) for x in (0.9, 1.0, 1.9, 2.0)] == [False, True, True, False]
    found = openings_between(reservation_hold(one), NINE - DAY, NINE + 30 * DAY, ZURICH)
    assert [(x.opens_at - NINE, x.ends_at - NINE) for x in found] == [
        (HOUR, 2 * HOUR), (7 * DAY, 7 * DAY + 2 * HOUR), (14 * DAY, 14 * DAY + 2 * HOUR),
    ]  # fmt: skip
    assert one.opening(NINE + 14 * DAY + 3 * HOUR, ZURICH) is None
    in_spring = openings_between(reservation_hold(reserve(every=THURSDAY, begins=0.0, until=None)),
                                 at("2027-03-25 00:00"), at("2027-04-02 00:00"), ZURICH)  # fmt: skip
    assert [x.opens_at for x in in_spring] == [at("2027-03-25 09:00"), at("2027-04-01 09:00")], "the clocks change"


def test_reserved_gpus_of_one_node_are_of_that_node():
    (held,) = class_hold_gpus(seen(restrictions=[reserve(node="node-1")]))
    assert [slot.gpu for slot in held.slots] == ["a100-2", "a100-3"]


def test_a_class_is_its_members_however_long_they_run():
    one = reserve(4, account=Account(), whom="cs231", members=frozenset({"alice born"}))
    assert decide(seen(waiting(2), restrictions=[one])).grants[0].latest_end is None
    assert decide(seen(waiting(2, user="bob"), restrictions=[one])).grants[0].latest_end.at == NINE
    theirs = running("x", "a100-0", until=NINE + HOUR)
    assert leases_reaching_into_holds(seen(theirs, restrictions=[one])) == {}
    assert list(leases_reaching_into_holds(seen(replace(theirs, key=a_lease(user="bob").key), restrictions=[one])))


def test_workspaces_on_a_node_end_before_its_maintenance_or_start_elsewhere():
    world = seen(waiting(), restrictions=[maintenance()])
    (grant,) = decide(world).grants
    assert (grant.slots[0].gpu, grant.latest_end) == ("a100-2", None)
    full = seen(waiting(), running("y", "a100-2", "a100-3", until=NINE + DAY), restrictions=[maintenance()])
    (grant,) = decide(full).grants
    assert (grant.latest_end.at, grant.latest_end.name) == (NINE, "node-0")
    assert grant.latest_end.words.endswith("when node-0 has maintenance")
    near = replace(full, now=NINE - 600)
    assert decide(near).grants == (), "it would have less than its least lifetime"
    assert decide(near).wait_reasons["asks"].words.startswith("node-0 has maintenance from ")
    assert queue_positions(near)["asks"].unchanged_seconds == 4 * HOUR + 600


def test_reservations_take_gpus_beside_maintenance():
    found = class_hold_gpus(seen(restrictions=[maintenance(), reserve()]))
    assert [[slot.gpu for slot in one.slots] for one in found] == [["a100-0", "a100-1"], ["a100-2", "a100-3"]]


def test_no_extension_passes_the_maintenance_of_the_node():
    lease = running("x", "a100-0", until=NINE - HOUR)
    assert extension_bound(lease, NINE + HOUR, seen(lease, restrictions=[maintenance()])).hold.node == "node-0"
    away = running("x", "a100-2", until=NINE - HOUR)
    assert extension_bound(away, NINE + HOUR, seen(away, restrictions=[maintenance()])) is None


def test_a_workspace_is_told_of_maintenance_days_a_day_and_an_hour_before_once_each():
    lease = running("x", "a100-0", until=NINE + DAY)
    told = []
    for hours in (100, 72, 71, 30, 24, 23, 2, 1, 0.5):
        now = NINE - hours * HOUR
        (held,) = leases_reaching_into_holds(seen(lease, now=now, restrictions=[maintenance()])).values()
        found = steps.step(
            lease, Observation(hub_answers=True, heard_at=now, looked_at=now, holds_known=True, held=held),
            lease_rules(lease), now,
        )  # fmt: skip
        told += [(hours, note.event.describe(now)) for note in found.notes if note.event.name == "maintenance near"]
        lease = found.lease
    assert [hours for hours, _ in told] == [72, 24, 1]
    assert told[0][1].startswith("node-0 has maintenance from Thu 26 Nov ")


@pytest.mark.parametrize(
    ("planned", "others", "parts"),
    [
        pytest.param(reserve(4), [], [(0, 2, 4)], id="nothing else"),
        pytest.param(
            reserve(4),
            [reserve(1, NINE + HOUR, NINE + 3 * HOUR)],
            [(0, 1, 4), (1, 2, 3)],
            id="another later",
        ),
        pytest.param(reserve(4), [reserve(3, every=THURSDAY, begins=0.0, until=None)], [(0, 2, 1)], id="a weekly one"),
        pytest.param(reserve(4), [maintenance(until=NINE + HOUR)], [(0, 1, 2), (1, 2, 4)], id="maintenance"),
        pytest.param(
            reserve(2, node="node-0"), [reserve(3)], [(0, 2, 1)], id="one for any node takes other nodes first"
        ),
        pytest.param(reserve(2, node="node-0"), [reserve(2, node="node-1")], [(0, 2, 2)], id="one of another node"),
    ],
)
def test_the_gpus_that_are_left_for_a_reservation_are_known_for_each_part_of_it(planned, others, parts):
    world = seen(restrictions=others)
    hold = reservation_hold(planned)
    (opening,) = openings_between(hold, NINE - HOUR, NINE + DAY, ZURICH)
    found = free_parts(hold, opening, world)
    assert [((x.begins_at - NINE) / HOUR, (x.ends_at - NINE) / HOUR, x.left) for x in found] == parts


def test_what_fits_is_all_for_a_shorter_time_or_fewer_for_all_of_it():
    parts = [FreePart(0, 1, 12), FreePart(1, 3, 11), FreePart(3, 10, 15)]
    assert fitting_reservations(12, parts) == [(12, 3, 10), (11, 0, 10)]
    assert fitting_reservations(12, [FreePart(0, 1, 0)]) == []
    assert fitting_reservations(11, parts) == [(11, 0, 10)]
