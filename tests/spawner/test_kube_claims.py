"""The claim that a start makes for its pod, against an API server that says what a test says."""

from types import SimpleNamespace

import pytest
from api_answers import refused

from gpuspawner.spawner.attempts import Attempt
from gpuspawner.spawner.kubernetes import spawner as kube_spawner
from gpuspawner.spawner.kubernetes import starting as kube_start
from gpuspawner.spawner.kubernetes.spawner import KubePods

POD = {"metadata": {"name": "jupyter-alice", "uid": "u"}}
OWNER = {"apiVersion": "v1", "kind": "Pod", "name": "jupyter-alice", "uid": "u", "controller": True}


class Start:
    """The part of a start that makes its claim. ``answers`` are the API server's answers in order."""

    namespace = "hub"
    _gpu_claim, _gpu_asked = KubePods._gpu_claim, KubePods._gpu_asked

    def __init__(self, answers):
        self.answers, self.made, self.told = answers, [], []
        self.api = SimpleNamespace(api_client=self)
        self._gpu_attempt = Attempt(patch={"pod": {"claim": {"devices": {}}}}).with_new_pod("m1")

    def _gpu_step(self, _progress, words):
        self.told.append(words)

    async def create_namespaced_custom_object(self, *arguments):
        if self.answers and (answer := self.answers.pop(0)) is not None:
            raise answer
        self.made.append(arguments)


@pytest.fixture(autouse=True)
def quickly(monkeypatch):
    monkeypatch.setattr(kube_start, "ASK_SECONDS", 0.01)
    monkeypatch.setattr(kube_spawner, "CustomObjectsApi", lambda client: client)


async def test_a_pod_that_is_made_gets_its_claim_and_owns_it():
    start = Start([])
    await start._gpu_claim(POD)
    ((group, version, namespace, plural, claim),) = start.made
    assert (group, version, namespace, plural) == ("resource.k8s.io", "v1", "hub", "resourceclaims")
    assert (claim["metadata"]["name"], claim["metadata"]["ownerReferences"]) == ("gpuspawner-m1", [OWNER])


async def test_a_temporary_failure_is_tried_again_and_the_claim_is_made_once():
    start = Start([refused(503), TimeoutError(), refused(409, "already exists")])
    await start._gpu_claim(POD)
    assert start.made == []
    assert start.answers == []
    assert start.told[-1] == "The cluster does not answer (time-out); asking it again."


@pytest.mark.parametrize(
    ("status", "told"),
    [(403, "must give the hub the rights of hub_config/kubernetes-claims-rbac.yaml"), (422, "Tell your administrator")],
)
async def test_a_claim_that_is_refused_ends_the_start_with_the_remedy(status, told):
    with pytest.raises(Exception, match="Its GPU cannot be claimed: no") as error:
        await Start([refused(status, "no")])._gpu_claim(POD)
    assert told in str(error.value)


async def test_a_pod_that_claims_nothing_gets_no_claim():
    start = Start([])
    start._gpu_attempt = Attempt().with_new_pod("m1")
    await start._gpu_claim(POD)
    assert start.made == []
