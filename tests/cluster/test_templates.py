"""Templates that are custom resources, on a real hub and cluster: offered, started by each door, refused in words."""

import pytest
from custom import Typed, hub_with_requests, manifest
from gpus import simulated
from kube_hub import eventually
from nodes import wait_for

pytestmark = pytest.mark.slow

WAIT_SECONDS = 300
BIG = {"extends": "lab", "title": "Big lab", "gpus": {"a100": "1-2"}, "policy": "night"}
DOORS = ("form", "program", "kay")


@pytest.fixture(scope="module")
def hub(one_machine, tmp_path_factory):
    with simulated(one_machine, 2), hub_with_requests(one_machine, tmp_path_factory.mktemp) as hub:
        yield hub


@pytest.fixture
def kubectl(one_machine, hub):
    return Typed(one_machine, hub.namespace)


def told(kubectl, kind, name, phase):
    """The reason of an entry, once it is in this phase."""
    path = "--output=jsonpath={.status.phase}: {.status.message}"
    return wait_for(
        lambda: (said := kubectl("get", kind, name, path)).startswith(f"{phase}: ") and said.partition(": ")[2],
        f"{kind} {name} is {phase}: {kubectl('get', kind)}",
        60,
    )


def test_a_template_that_is_a_resource_is_offered_and_started_by_each_door(hub, kubectl):
    hub.add_user(*DOORS, "visitor")
    kubectl("apply", "--filename=-", given=manifest("DevGPUVMTemplate", BIG, "big"))
    assert told(kubectl, "gvmt", "big", "Refused").startswith("spec.policy: no policy is called `night`")
    night = {"extends": "default", "claim": "2h"}
    kubectl("apply", "--filename=-", given=manifest("DevGPUVMLifecyclePolicy", night, "night"))
    assert told(kubectl, "gvmt", "big", "InForce") == "It is part of the catalog."
    kubectl("apply", "--filename=-", given=manifest("DevGPUVMTemplate", BIG, "lab"))
    assert "the catalog's file has one of this name, which stays" in told(kubectl, "gvmt", "lab", "Refused")
    session = hub.login("form")
    assert "Big lab" in session.get(f"{hub.url}/hub/spawn/form", timeout=60).text
    assert hub.submit(session, "form", template="big", gpu="a100", count="1").status_code == 302
    hub.begin("program", template="big", gpu="none")
    asked = {"user": "kay", "template": "big", "gpu": "a100", "count": 1}
    kubectl("apply", "--filename=-", given=manifest("DevGPUVMRequest", asked, "kay"))
    for user in DOORS:
        hub.until(user, "running", WAIT_SECONDS)
        lease = hub.lease(user)
        assert (lease["request"]["template"], lease["policy"]["name"]) == ("big", "night"), user
    # If a template becomes invalid, its last valid version stays in force, also over a restart of the service.
    bad = {**BIG, "gpus": {"a10": 1}}
    kubectl("apply", "--filename=-", given=manifest("DevGPUVMTemplate", bad, "big"))
    right = "The one before stays in force. spec.gpus.a10: no GPU kind is called `a10`."
    assert told(kubectl, "gvmt", "big", "Refused").startswith(right)
    before = hub.service_pids()
    hub.kill_service()
    eventually(lambda: (now := hub.service_pids()) and now != before, WAIT_SECONDS, "another service is there")
    eventually(lambda: len(hub.workspaces()) == len(DOORS), WAIT_SECONDS, "it knows the workspaces")
    session = hub.login("visitor")
    assert "Big lab" in session.get(f"{hub.url}/hub/spawn/visitor", timeout=60).text
    assert told(kubectl, "gvmt", "big", "Refused").startswith(right)
    kubectl("delete", "gvmt", "big")
    wait_for(
        lambda: "Big lab" not in session.get(f"{hub.url}/hub/spawn/visitor", timeout=60).text,
        "what is deleted is offered no more",
        60,
    )
    kubectl("delete", "gvm", "--all", "--wait=false")
    wait_for(lambda: not kubectl("get", "gvm", "--output=name").split(), "all are gone", WAIT_SECONDS)
