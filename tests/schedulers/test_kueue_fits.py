"""A cluster whose Kueue cannot be used is refused at the start, with the remedy."""

import pytest
from fake_kueue import FakeKueue

from gpuspawner.backends.kubernetes.settings import ClusterSettings
from gpuspawner.core.errors import Unavailable
from gpuspawner.schedulers.base import UnusableScheduler
from gpuspawner.schedulers.kueue.cluster import KueueCluster

HUB = "h" * 32


def of(kueue, **settings):
    return KueueCluster(kueue, ClusterSettings("jhub", **settings), "jhub", HUB)


@pytest.fixture
def kueue():
    return FakeKueue({"big": 1}, {"big": {}}, {"big": []})


async def test_a_suitable_kueue_is_accepted(kueue):
    await of(kueue).connect()


@pytest.mark.parametrize(
    ("serves", "words"), [((), "the cluster has no Kueue. Install 0.19"), (("v1beta1",), "serves v1beta1, and")]
)
async def test_no_kueue_or_an_old_one_is_refused_with_what_to_install(kueue, serves, words):
    kueue.serves = serves
    with pytest.raises(UnusableScheduler, match=words):
        await of(kueue).connect()


async def test_an_unreachable_kueue_is_waited_for(kueue):
    kueue.away = True
    with pytest.raises(Unavailable) as told:
        await of(kueue).connect()
    assert not isinstance(told.value, UnusableScheduler)


async def test_a_namespace_whose_pods_kueue_holds_back_is_refused_with_the_remedy(kueue):
    kueue.gates = True
    with pytest.raises(UnusableScheduler) as told:
        await of(kueue).connect()
    assert "Leave jhub out of managedJobsNamespaceSelector" in str(told.value)
    assert "manageJobsWithoutQueueName: false" in str(told.value)


async def test_where_no_pod_may_be_made_or_each_user_has_a_namespace_it_is_not_tried(kueue):
    kueue.gates = True
    await of(kueue, all_namespaces=True).connect()
    kueue.lets_make_pods = False
    await of(kueue).connect()
