"""Kinds of GPUs as a request takes them: what a grant may turn into, and who waits for the same GPUs."""

from dataclasses import replace
from fractions import Fraction

import pytest
from lease_builders import A100, GIB, HALF, KINDS, T4, a_lease, a_request

from gpuspawner.core.gpus.fleet import DeviceClaim
from gpuspawner.core.gpus.placement import (
    accepted_kinds,
    interchangeable_kinds,
    is_wanted_by_others,
    pools_of,
    quota_weight,
)
from gpuspawner.core.leases.lease import Phase
from gpuspawner.core.rules import Limit, LimitedResource, Quota, QuotaScope
from gpuspawner.core.text_fields import is_service_address

CLAIM = DeviceClaim("gpu.example.org")
CLAIMED = {name: replace(kind, claim=CLAIM) for name, kind in KINDS.items()}
HELD = a_lease(phase=Phase.RUNNING, request=a_request(substitutes=("t4",)))


def test_a_kind_removed_from_the_catalog_is_not_granted_and_counts_one():
    assert accepted_kinds(a_request(gpu="v100"), KINDS) == accepted_kinds(a_request(gpu=None), KINDS) == ()
    assert pools_of(a_lease(request=a_request(gpu="v100")), KINDS) == ("v100",)
    assert (quota_weight(None), quota_weight(HALF), quota_weight(replace(T4, counts=Fraction(2)))) == (
        1,
        Fraction(1, 2),
        2,
    )


@pytest.mark.parametrize(
    ("has", "is_accepted"),
    [
        pytest.param({"driver": "570.86.15", "cuda": "12.8", "compute": "8.0"}, True, id="as needed"),
        pytest.param({"driver": "580", "cuda": "13.0", "compute": "10.0"}, True, id="newer"),
        pytest.param({"driver": "570.86.15", "cuda": "12.4", "compute": "8.0"}, False, id="older CUDA"),
        pytest.param({"driver": "570.86.10", "cuda": "12.8", "compute": "8.0"}, False, id="older driver"),
        pytest.param({"driver": "570.86.15", "cuda": "12.8", "compute": "7.5"}, False, id="older GPU"),
        pytest.param({"driver": "570", "cuda": "12.8", "compute": "8.0"}, False, id="perhaps an older driver"),
        pytest.param({}, False, id="unknown"),
    ],
)
def test_promise_7_a_substitute_has_the_driver_that_a_request_needs(has, is_accepted):
    needs = {"needs_driver": "570.86.15", "needs_cuda": "12.8", "needs_compute": "8.0"}
    kinds = {**KINDS, "t4": replace(T4, **{"compute": "", **has})}
    found = accepted_kinds(a_request(substitutes=("t4",), **needs), kinds)
    assert [kind.name for kind in found] == ["a100", *(["t4"] if is_accepted else [])]


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        pytest.param({}, ["t4"], id="claimed as the granted one"),
        pytest.param({"claim": None}, [], id="not claimed"),
        pytest.param({"cluster": "east"}, [], id="in another cluster"),
        pytest.param({"counts": Fraction(2)}, [], id="counts more"),
        pytest.param({"price_per_hour": 1.0}, [], id="costs more"),
        pytest.param({"memory_bytes": GIB}, ["t4"], id="smaller, where nothing is needed"),
    ],
)
def test_the_cluster_may_give_another_kind_that_its_user_takes_and_that_costs_no_more(changes, names):
    kinds = {**CLAIMED, "t4": replace(CLAIMED["t4"], **changes)}
    assert [kind.name for kind in interchangeable_kinds(HELD, kinds, ())] == names
    named = Quota("few", QuotaScope.EACH_USER, limits=(Limit(LimitedResource.GPUS, kind="t4", hard=Fraction(1)),))
    assert interchangeable_kinds(HELD, kinds, (named,)) == ()
    assert interchangeable_kinds(HELD, KINDS, ()) == interchangeable_kinds(a_lease(), {}, ()) == ()


def test_others_wait_for_a_lease_s_gpus_where_they_ask_for_its_pool():
    waits = a_lease("waits", user="bob", request=a_request("bob", "half"))
    assert is_wanted_by_others(HELD, [HELD, waits], KINDS)
    assert not is_wanted_by_others(HELD, [HELD, replace(waits, request=a_request("bob", "t4"))], KINDS)
    assert not is_wanted_by_others(HELD, [a_lease("mine")], KINDS), "their own do not count"
    assert not is_wanted_by_others(HELD, [waits], {"t4": T4}), "its kind left the catalog"
    assert A100.pool == HALF.pool


@pytest.mark.parametrize(
    ("url", "is_one"),
    [
        ("http://gpus:9470", True),
        ("http://gpus/", True),
        ("https://gpus:9470", False),
        ("http://gpus:9470/api", False),
        ("http://:9470", False),
        ("http://gpus:0", False),
        ("http://gpus:many", False),
        (None, False),
    ],
)
def test_an_address_of_the_service_is_http_with_a_host_and_without_a_path(url, is_one):
    assert is_service_address(url) is is_one
