"""A separate process shows requests to the service: enough for decisions, however many requests users make."""

import json
from dataclasses import replace

import pytest

from gpuspawner.backends.custom_resources.base import ENDED, REFUSED, Resource
from gpuspawner.service.custom_resources.decisions import LONGEST, LONGEST_OPTION, NEW_BYTES, visible_requests

SPEC = {"user": "alice", "server": "one", "template": "lab", "lifetime": "8h"}


def a_resource(number, **changes):
    """The request with a number, by which it was made; alice's, of which nothing was told."""
    values = {"uid": f"u-{number:04}", "version": "1", "created": f"2026-11-25T08:{number:02}:00Z", "spec": SPEC}
    return Resource(f"r{number}", **{**values, **changes})


def names(requests):
    return [one.name for one in requests]


def test_a_flood_shows_the_oldest_requests_and_all_held_or_asked_ones():
    large = {**SPEC, "repository": "x" * (NEW_BYTES // 3)}
    flood = [a_resource(number, spec=large) for number in range(1, 8)]
    runs = a_resource(20, status={"phase": "Running", "lease": "u20"})
    held = a_resource(30, held=True, spec={**SPEC, "user": "bob"})
    assert names(visible_requests([held, runs, *reversed(flood)])) == ["r1", "r2", "r3", "r20", "r30"]
    many_held = [replace(one, held=True) for one in flood]
    assert names(visible_requests([*many_held, a_resource(9)])) == names(flood), "these are judged first"


def test_repeated_edits_of_a_refused_request_delay_no_users_first_request():
    large = {**SPEC, "repository": "x" * (NEW_BYTES // 3)}
    refused = {"generation": 2, "status": {"phase": REFUSED, "observedGeneration": 1}}
    edited = [a_resource(number, spec=large, **refused) for number in range(1, 8)]
    assert names(visible_requests([*edited, a_resource(9)])) == ["r1", "r2", "r3", "r9"]


@pytest.mark.parametrize("changes", [{"held": True}, {"deleting": True}], ids=["held", "deleting"])
def test_unconditionally_shown_requests_have_only_short_texts(changes):
    """Users may write finalizers: the service's own, or one that is never removed."""
    large = {**SPEC, "cpu": "1" * 2**20}
    flood = [a_resource(number, spec=large, **changes) for number in range(1, 60)]
    told = visible_requests(flood)
    assert names(told) == names(flood)
    assert {one.spec["cpu"] for one in told} == {"1" * LONGEST_OPTION}
    assert sum(len(json.dumps(dict(one.spec))) for one in told) < NEW_BYTES


@pytest.mark.parametrize("phase", [ENDED, REFUSED])
def test_an_ended_request_is_shown_only_by_its_status(phase):
    status = {"phase": phase, "lease": "u1", "observedGeneration": 1, "conditions": [{"type": "Ready"}]}
    long = {**SPEC, "user": "a" * 1000}
    (over,) = visible_requests([a_resource(1, spec=long, status=status, finalizers=("gpuspawner.io/workspace",))])
    assert over.status == {"phase": phase, "lease": "u1", "observedGeneration": 1}
    assert over.spec == {"user": "a" * LONGEST, "server": "one", "lifetime": "8h"}
    assert over.finalizers == ()
    (edited,) = visible_requests([a_resource(1, generation=2, status={**status, "lease": ""})])
    assert edited.spec == SPEC, "it is judged anew"


def test_running_requests_keep_their_status_and_scheduled_ones_all_of_it():
    status = {"phase": "Running", "lease": "u1", "reason": "Running on 2 A100"}
    (runs,) = visible_requests([a_resource(1, status=status)])
    assert (runs.status, "template" in runs.spec) == (status, False)
    wish = {**SPEC, "ready_at": {"time": "8:00"}}
    (stands,) = visible_requests([a_resource(1, spec=wish, status=status)])
    assert stands.spec == wish
