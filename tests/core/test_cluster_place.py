"""Which of several accepted clusters a request gets."""

from dataclasses import replace

import pytest
from lease_builders import A100, NOW, a_lease, a_request, fleet, gpu

from gpuspawner.core.gpus.fleet import Autoscale
from gpuspawner.core.queue.decisions import decide
from gpuspawner.core.queue.snapshot import Snapshot

THERE = replace(A100, name="a100@there", cluster="there")
NODES = Autoscale(most=2, each=2, start_seconds=240.0)
SOON = replace(NODES, start_seconds=60.0)


def granted(here, there, gpus, place="", order=()):
    """Return the kind that a request for GPUs here gets, whose user also accepts GPUs there."""
    kinds = {here.name: here, there.name: there}
    request = a_request(gpu=here.name, substitutes=(there.name,), place=place, cluster_order=order)
    (grant,) = decide(Snapshot(NOW, kinds, (a_lease(request=request),), fleet(*gpus))).grants
    return grant.kind


@pytest.mark.parametrize(
    ("place", "order", "kind"),
    [
        pytest.param("", (), "a100", id="as the user chose"),
        pytest.param("soonest", (), "a100", id="both are free now"),
        pytest.param("cheapest", ("a100@there", "a100"), "a100@there", id="cheapest"),
        pytest.param("nearest", ("a100@there", "a100"), "a100@there", id="nearest"),
        pytest.param("nearest", ("a100",), "a100", id="a kind that joined the template later comes last"),
    ],
)
def test_free_gpus_are_given_in_the_template_s_order(place, order, kind):
    gpus = gpu(0), gpu(0, "a100@there", node="node-2", cluster="there")
    assert granted(A100, THERE, gpus, place, order) == kind


def test_a_full_cluster_is_passed_over():
    gpus = (gpu(0),)
    assert granted(A100, THERE, gpus, "cheapest", ("a100@there", "a100")) == "a100"


@pytest.mark.parametrize(("place", "kind"), [("", "a100"), ("soonest", "a100@there")])
def test_a_node_that_must_start_comes_after_free_gpus_elsewhere(place, kind):
    gpus = (gpu(0, "a100@there", node="node-2", cluster="there"),)
    assert granted(replace(A100, autoscale=NODES), THERE, gpus, place) == kind


def test_the_node_that_starts_sooner_is_started():
    here, there = replace(A100, autoscale=NODES), replace(THERE, autoscale=SOON)
    assert granted(here, there, (), "soonest") == "a100@there"
    assert granted(there, here, (), "soonest") == "a100@there"
