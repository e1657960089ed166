"""Where a workspace would start, and what another cluster would bring."""

import pytest

from gpuspawner.catalog import load_text
from gpuspawner.core.idle.policies import LifecyclePolicy, PreemptionPolicy
from gpuspawner.core.leases.request import Request
from gpuspawner.service.start.check import spot_words, where_words

CATALOG = """
version: 1
gpus:
  a100: {title: A100, match: NVIDIA-A100*, memory: 80GiB, price: 3}
  h100: {title: H100, match: NVIDIA-H100*, memory: 80GiB, price: 5}
clusters:
  eu-west: {data: [genomes]}
  us-east: {kubeconfig: /etc/us-east, hub: "https://hub.example.org", price_factor: 0.8, title: US East}
templates:
  lab: {gpus: {a100: 1, h100: 1}, substitutes: {a100: [h100]}}
  genomes: {gpus: {a100: 1}, data: [genomes]}
"""
HERE, THERE, H100 = "a100", "a100@us-east", "h100"


@pytest.fixture
def catalog():
    return load_text(CATALOG)


def a_request(template="genomes", gpu=HERE):
    return Request("ada", template, "default", gpu, 1, 2.0, 8 << 30, 3600)


@pytest.mark.parametrize(
    ("template", "alone", "seconds", "told"),
    [
        pytest.param(
            "genomes", 1500, {THERE: 0}, "In eu-west, where its data is; US East starts now and costs 20 % less.",
            id="now",
        ),
        pytest.param(
            "genomes", 1500, {THERE: 300},
            "In eu-west, where its data is; US East starts about 20 min sooner and costs 20 % less.", id="sooner",
        ),
        pytest.param("lab", 0, {THERE: 0, H100: 0}, "In eu-west; US East costs 20 % less.", id="cheaper alone"),
        pytest.param("genomes", 0, {}, "In eu-west, where its data is.", id="no choice"),
        pytest.param("lab", 0, {H100: 0}, "", id="another kind is no other place"),
        pytest.param("lab", None, {THERE: None}, "In eu-west; US East costs 20 % less.", id="unknown"),
    ],
)  # fmt: skip
def test_the_sentence_names_the_cluster_and_what_another_one_would_change(catalog, template, alone, seconds, told):
    assert where_words(catalog, a_request(template), HERE, alone, seconds) == told


def test_in_the_other_cluster_the_sentence_compares_with_the_first_one(catalog):
    assert where_words(catalog, a_request(gpu=THERE), THERE, 0, {HERE: 0}) == "In US East; eu-west costs 25 % more."


def test_with_one_cluster_there_is_no_sentence():
    one = load_text(CATALOG[: CATALOG.index("clusters:")] + CATALOG[CATALOG.index("templates:") :])
    assert where_words(one, a_request(), HERE, 0, {}) == ""


SPOT_CATALOG = """
version: 1
currency: CHF
gpus:
  t4: {title: T4, match: Tesla-T4, memory: 16GiB, price: 1}
  t4-spot: {title: T4 (spot), match: Tesla-T4, memory: 16GiB, price: 0.35, spot: true}
simulated: {t4: 1, t4-spot: 1}
templates:
  lab: {title: Lab, gpus: {t4: 1}, substitutes: {t4: [t4-spot]}}
"""


def test_a_start_on_a_spot_node_says_what_the_cloud_may_do():
    catalog = load_text(SPOT_CATALOG)
    words = spot_words(catalog, "t4-spot", LifecyclePolicy("default"))
    assert words == (
        "Spot: the cloud may take its node back at any time, two minutes before or less; it then returns to the "
        "queue before later requests, and starts again by itself."
    )
    assert spot_words(
        catalog, "t4-spot", LifecyclePolicy("default", preemption=PreemptionPolicy(back_in_queue=False))
    ).endswith("it then ends.")
    assert spot_words(catalog, "t4", LifecyclePolicy("default")) == ""
    assert spot_words(catalog, None, LifecyclePolicy("default")) == ""
