"""``gpuspawner server doctor`` asks a real API server what the service's account may do, and tries a real exec."""

import json

import pytest
from gpus import simulated
from test_rights import LEASE, Service
from workspaces import start

from gpuspawner.cli import main

GPU = "nvidia.com/gpu"
ABOUT_GPUS = {"device plugin", "GPU labels"}
NOBODY = ["--hub", "http://127.0.0.1:9/hub/api", "--service", "http://127.0.0.1:9"]


@pytest.fixture(scope="module")
def gpus(one_machine):
    with simulated(one_machine, count=2) as found:
        yield found


@pytest.fixture
def service(one_machine, namespace, tmp_path):
    service = Service(one_machine, namespace, tmp_path)
    yield service
    service.revoke()


def examined(service, capsys):
    """Return doctor's findings with the account's own token, by check, without the GPUs of other tests."""
    where = ["--kubernetes", "--kubeconfig", service.kubeconfig(), "--namespace", service.namespace]
    main(["server", "doctor", "--json", *NOBODY, *where])
    found = json.loads(capsys.readouterr().out)["findings"]
    return {one["check"]: one for one in found if one["check"] not in ABOUT_GPUS or f" {GPU} " in one["words"]}


def test_the_rights_of_the_manifest_are_enough_and_an_exec_works(service, gpus, capsys):
    service.grant()
    start(service.cluster, service.namespace, "one", LEASE)
    found = examined(service, capsys)
    states = {name: found[name]["state"] for name in ("API server", "clock", "rights", "exec")}
    assert set(states.values()) == {"good"}, found
    assert not ABOUT_GPUS & set(found)
    assert found["network policy"]["state"] == "unknown", "the service itself may not list them"


@pytest.mark.slow
def test_a_right_that_is_missing_is_named_and_so_is_the_exec_that_fails(service, gpus, capsys):
    service.grant(("Role", "pods/exec", "create"))
    start(service.cluster, service.namespace, "one", LEASE)
    found = examined(service, capsys)
    assert found["rights"]["words"].startswith(f"The right to create pods/exec in namespace {service.namespace} is")
    assert found["exec"]["state"] == "bad"
    assert "pods/exec: get and create" in found["exec"]["remedy"]
