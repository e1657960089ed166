"""Spot nodes in what people read before they press Start."""

import pytest

from gpuspawner.catalog import load_text
from gpuspawner.core.idle.policies import LifecyclePolicy, PreemptionPolicy
from gpuspawner.service.start.check import spot_words

CATALOG = """
version: 1
currency: CHF
gpus:
  t4: {title: T4, match: Tesla-T4, memory: 16GiB, price: 1}
  t4-spot: {title: T4 (spot), match: Tesla-T4, memory: 16GiB, price: 0.35, spot: true}
simulated: {t4: 1, t4-spot: 1}
templates:
  lab: {title: Lab, gpus: {t4: 1}, substitutes: {t4: [t4-spot]}}
"""


@pytest.fixture
def catalog():
    return load_text(CATALOG)


def test_before_start_it_is_told_what_the_cloud_may_do_and_what_follows(catalog):
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
