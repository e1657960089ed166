"""The translation of claims and answers of an external scheduler, without a scheduler."""

import json
import math
from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lease_builders import KINDS, NOW, a_lease, a_request, fleet, gpu, slots
from pydantic import ValidationError

from gpuspawner.core.gpus.fleet import Slot
from gpuspawner.core.leases import transitions
from gpuspawner.core.leases.lease import Phase
from gpuspawner.core.queue.snapshot import claim_of
from gpuspawner.schedulers.base import Offer
from gpuspawner.schedulers.http.claims import (
    ClusterNames,
    claim_body,
    describe_offer,
    find_slots,
    held_by,
    is_up_to_date,
    lease_body,
    merge_stock,
    to_place,
    write_slots,
)
from gpuspawner.schedulers.http.client import CallbackVerifier, explain_unusable, signature
from gpuspawner.schedulers.http.models import Capabilities, Grant, Offers, State, Stock, write_timestamp
from gpuspawner.schedulers.http.models import Offer as ContractOffer
from gpuspawner.schedulers.http.sync import ClaimStates

AT = "2026-11-25T16:30:00Z"
NAMES = ClusterNames(KINDS)


def a_state(revision=1, state="waiting", **changes):
    unknown = dict.fromkeys(("position", "of", "earliest_start", "latest_start", "reason", "grant", "preemption"))
    return State.model_validate({"id": "one", "revision": revision, "state": state, "as_of": AT, **unknown, **changes})


def a_grant(*given, kind="a100", cluster="east"):
    return Grant.model_validate(
        {"kind": kind, "cluster": cluster, "slots": given, "expires_at": None, "latest_end": None, "patch": None}
    )


def test_a_revision_survives_a_restart_and_rises_with_each_expiry_and_attempt():
    first = a_lease()
    asked_again = transitions.join(first, a_request(count=2), {}, start_id="2", boot_id="b", now=NOW)
    lapsed = transitions.lapse(transitions.grant(asked_again, slots("g"), NOW), NOW + 30)
    line = [ClaimStates().number(claim_of(x)) for x in (first, asked_again, lapsed)]
    assert line == sorted(set(line))
    assert ClaimStates().number(claim_of(lapsed)) == line[-1] <= 2**53 - 1


@given(st.lists(st.tuples(st.integers(1, 5), st.integers(0, 1000), st.booleans()), max_size=12))
def test_whatever_a_claim_and_the_clock_do_its_number_never_falls(steps):
    states, last = ClaimStates(), (None, 0)
    for attempt, not_before, outnumbered in steps:
        claim = claim_of(replace(a_lease(), attempt=attempt, not_before=float(not_before)))
        if outnumbered:
            states.raise_revision(claim)
        number = states.number(claim)
        assert number >= last[1]
        assert number > last[1] or claim.revision == last[0]
        assert number == states.number(claim)
        last = claim.revision, number


def test_after_a_restart_a_number_is_above_what_the_scheduler_has_of_a_later_clock():
    states, claim = ClaimStates(), claim_of(a_lease())
    states.put(a_state(revision=2**40))
    assert states.number(claim) == 2**40 + 1


def test_a_released_state_is_empty_and_a_complete_answer_lists_removals():
    states = ClaimStates()
    states.put(a_state())
    states.put(a_state(state="released"))
    assert states.by_claim == {}


def test_a_reserved_claim_asks_for_nothing_until_its_start_took_it():
    reserved = transitions.grant(a_lease(), slots("a100-1"), NOW)
    told = lease_body(reserved, a_state(7, "granted"), 7, fleet(gpu(1)), write_timestamp, NAMES)
    assert (told["want"], told["holds"]) == ("wait", None)
    told = lease_body(
        transitions.acknowledge(reserved, "", NOW), a_state(7, "granted"), 7, fleet(gpu(1)), write_timestamp, NAMES
    )
    assert told["want"] == "hold"
    assert told["holds"]["slots"] == [{"node": "node-1", "gpus": ["a100-1"], "count": 1}]


def test_a_lease_forgotten_by_the_scheduler_is_reported_as_held_even_if_only_reserved():
    reserved = transitions.grant(a_lease(), slots("a100-1"), NOW)
    assert not is_up_to_date(reserved, None, 7)
    assert lease_body(reserved, None, 7, fleet(gpu(1)), write_timestamp, NAMES)["want"] == "hold"
    running = a_lease(phase=Phase.RUNNING, held=slots("a100-1"))
    assert lease_body(running, None, 7, fleet(gpu(1)), write_timestamp, NAMES)["want"] == "running"


def test_counted_gpus_are_held_by_number_and_granted_by_number():
    counted = [gpu(i, node="n") for i in range(3)]
    counted = [replace(x, id=f"n/nvidia.com/gpu/{i}") for i, x in enumerate(counted)]
    assert write_slots((Slot(counted[0].id), Slot(counted[1].id)), fleet(*counted)) == [
        {"node": "n", "gpus": None, "count": 2}
    ]
    used = {counted[0].id: Fraction(1)}
    given = find_slots(a_grant({"node": "n", "gpus": None, "count": 2}), KINDS["a100"], fleet(*counted), used)
    assert given == (Slot(counted[1].id), Slot(counted[2].id))
    assert find_slots(a_grant({"node": "n", "gpus": None, "count": 3}), KINDS["a100"], fleet(*counted), used) is None


@pytest.mark.parametrize("name", [None, "a100-1"])
def test_two_entries_of_a_node_are_two_gpus_and_a_gpu_that_is_named_twice_is_no_grant(name):
    entry = {"node": "node-1", "gpus": [name] if name else None, "count": 1}
    given = find_slots(a_grant(entry, entry), KINDS["a100"], fleet(gpu(1), gpu(2)), {})
    assert given == (None if name else slots("a100-1", "a100-2"))
    twice = {"node": "node-1", "gpus": ["a100-1", "a100-1"], "count": 2}
    assert find_slots(a_grant(twice), KINDS["a100"], fleet(gpu(1), gpu(2)), {}) is None


@pytest.mark.parametrize(("node", "name"), [("elsewhere", "a100-1"), ("node-1", "x")])
def test_gpus_that_are_not_seen_here_are_no_grant(node, name):
    slot = {"node": node, "gpus": [name], "count": 1}
    assert find_slots(a_grant(slot), KINDS["a100"], fleet(gpu(1)), {}) is None


@pytest.mark.parametrize(("field", "value"), [("healthy", False), ("foreign", True), ("closed", "drained")])
@pytest.mark.parametrize("names", [None, ["a100-1"]], ids=["counted", "named"])
def test_gpus_that_cannot_be_granted_are_no_grant(field, value, names):
    slot = {"node": "node-1", "gpus": names, "count": 1}
    assert find_slots(a_grant(slot), KINDS["a100"], fleet(gpu(1)), {}) == slots("a100-1")
    assert find_slots(a_grant(slot), KINDS["a100"], fleet(replace(gpu(1), **{field: value})), {}) is None


def test_gpus_of_two_nodes_are_no_grant():
    here, there = ({"node": node, "gpus": None, "count": 1} for node in ("node-1", "node-2"))
    both = fleet(gpu(1), gpu(2, node="node-2"))
    assert find_slots(a_grant(here), KINDS["a100"], both, {}) == slots("a100-1")
    assert find_slots(a_grant(here, there), KINDS["a100"], both, {}) is None


def test_a_required_domain_is_asked_for_and_other_gpus_are_no_grant():
    request = a_request(count=2, topology="require")
    body = claim_body(claim_of(a_lease(request=request)), 1, write_timestamp, NAMES)
    single = claim_body(claim_of(a_lease(request=replace(request, count=1))), 1, write_timestamp, NAMES)
    assert (body["topology"], single.get("topology")) == ("require", None)
    apart = fleet(*(replace(gpu(n), domains=(f"NUMA {n > 1}",)) for n in range(1, 4)))

    def found(names, one_domain):
        grant = a_grant({"node": "node-1", "gpus": names, "count": 2})
        return find_slots(grant, KINDS["a100"], apart, {}, one_domain=one_domain)

    assert found(["a100-1", "a100-2"], one_domain=False) == slots("a100-1", "a100-2")
    assert found(["a100-1", "a100-2"], one_domain=True) is None
    assert found(["a100-2", "a100-3"], one_domain=True) == found(None, one_domain=True) == slots("a100-2", "a100-3")


@pytest.mark.parametrize(
    ("field", "value"), [("position", 0), ("position", 10**30), ("of", -1), ("revision", 2**53), ("revision", 0)]
)
def test_a_number_that_cannot_be_is_no_answer(field, value):
    with pytest.raises(ValidationError, match=r"(greater|less) than or equal to"):
        a_state(**{field: value})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("cost_per_hour", -5),
        ("cost_per_hour", 1e300),
        ("notice_seconds", 1e15),
        ("count", -1),
        pytest.param("cluster", "x" * 101, id="cluster-long"),
    ],
)
def test_an_offer_that_no_page_can_show_is_no_answer(field, value):
    nothing = dict.fromkeys(("cost_per_hour", "earliest_start", "latest_start", "notice_seconds", "position", "reason"))
    offer = {**nothing, "kind": "a100", "count": 1, "cluster": "ea\u202est"}
    assert describe_offer(ContractOffer.model_validate(offer), "Batch") == "Batch offers it on east."
    with pytest.raises(ValidationError):
        ContractOffer.model_validate({**offer, field: value})


def test_unknown_is_never_zero():
    place = to_place(a_state(), "Batch", NOW, 0.0)
    assert (place.number, place.of, place.likely_seconds, place.unchanged_seconds) == (None, None, None, None)
    assert "at an unknown position" in place.says
    mine = [Offer("a100", 3, 3, 2, 1, simulated=False)]
    entry = {"kind": "a100", "total": 4, "free": 2, "waiting": None, "as_of": AT}
    stock = [
        Stock.model_validate({**entry, "cluster": "east"}),
        Stock.model_validate({**entry, "cluster": "west", "free": None}),
    ]
    (told,) = merge_stock(mine, stock, "Batch", NAMES)
    assert (told.free, told.total, told.waiting) == (None, 8, 1)
    (told,) = merge_stock(mine, None, "Batch", NAMES)
    assert (told.free, told.total) == (None, None)


@pytest.mark.parametrize("field", ["as_of", "latest_start"])
@pytest.mark.parametrize("at", ["0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z"])
def test_a_moment_that_cannot_be_is_no_answer_rather_than_a_page_that_fails(field, at):
    with pytest.raises(ValidationError, match="a time is between 2000 and 2099"):
        to_place(a_state(**{field: at}), "Batch", NOW, 0.0)


def test_infinite_seconds_are_no_answer_rather_than_a_page_that_fails():
    nothing = dict.fromkeys(("cost_per_hour", "earliest_start", "latest_start", "position", "reason"))
    offer = {**nothing, "kind": "a100", "count": 1, "cluster": "east", "notice_seconds": math.inf}
    with pytest.raises(ValidationError, match="finite number"):
        describe_offer(Offers.model_validate_json(json.dumps({"offers": [offer], "refused": None})).offers[0], "Batch")


def test_a_place_is_told_in_its_owner_s_name_and_words_with_when_it_was_so():
    words = {"code": "quota", "words": "Project X has used its hours."}
    state = a_state(position=3, of=7, latest_start="2026-11-25T17:00:00Z", reason=words)
    as_of = state.as_of.timestamp()
    place = to_place(state, "Batch", as_of, 0.0)
    assert (place.number, place.of, place.unchanged_seconds) == (3, 7, 1800.0)
    assert place.says.startswith("Batch says, as of ")
    assert "position 3 of 7, to start by" in place.says
    assert place.says.endswith("Project X has used its hours.")
    assert held_by(state.reason) == ("quota", "Project X has used its hours.")
    assert held_by(a_state(reason={"code": "no_gpus_free", "words": "All are in use."}).reason) is None


def capable(**changes):
    yes = dict.fromkeys(("positions", "estimates", "substitutes", "callbacks"), True)
    told = {"contract": "1.0", "name": "B", "version": "3", "hold_seconds": 60, "preemption_notice_seconds": None}
    return Capabilities.model_validate({**told, **yes, **changes})


def test_another_contract_or_a_grant_held_too_briefly_is_refused_with_both_numbers():
    assert not explain_unusable(capable())
    assert not explain_unusable(capable(contract="1.7"))
    assert "contract 2.0, and gpuspawner 1.x" in explain_unusable(capable(contract="2.0"))
    assert "holds a grant for 39 s, but a start needs 40 s" in explain_unusable(capable(hold_seconds=39))


def test_a_callback_counts_once_within_five_minutes_and_only_by_the_token_of_both():
    deliveries, body = CallbackVerifier(), b'{"hub": "h"}'
    signed = signature("token", 1000, body)

    def why(delivery="delivery-1", *, token="token", text=body, sign=signed, now=1010.0):
        return deliveries.why_refused(token, sign, delivery, text, now)

    assert "does not match this body" in why(token="another")
    assert "does not match this body" in why(text=body + b" ")
    assert "Send X-Signature" in why(sign="")
    assert "Send X-Signature" in why(delivery="")
    assert "Send X-Signature" in why(token="", sign=signature("", 1000, body))
    assert "more than 300 s ago" in why(now=1301.0)
    assert why() == ""
    assert "received before" in why()
    assert "received before" in why(sign=signature("token", 1005, body))
    assert "received before" in why("delivery-2"), "it is the same one under another name"
    assert why("delivery-2", sign=signature("token", 1005, body)) == ""
