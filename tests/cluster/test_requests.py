"""Workspaces as custom resources, on a real hub and cluster: applied, edited, deleted, and the service killed."""

import json
import os
import re
import time
from datetime import datetime, timedelta, timezone

import pytest
from custom import CHART, Typed, hub_with_requests, manifest, names, seen
from gpus import simulated
from harness import pages
from kube_hub import eventually
from nodes import wait_for

from gpuspawner.catalog.resources.definitions import API_GROUP, REQUESTS
from gpuspawner.cli.kube.objects import definitions_text

pytestmark = pytest.mark.slow

WAIT_SECONDS = 300
REQUEST = "DevGPUVMRequest"
FLOOD = int(os.environ.get("GPUSPAWNER_TEST_REQUESTS", "60"))
"""How many requests come at once: 1,000 take some minutes."""


@pytest.fixture(scope="module")
def gpus(one_machine):
    with simulated(one_machine, 2) as gpus:
        yield gpus


@pytest.fixture(scope="module")
def hub(one_machine, gpus, tmp_path_factory):
    with hub_with_requests(one_machine, tmp_path_factory.mktemp) as hub:
        yield hub


@pytest.fixture
def kubectl(one_machine, hub):
    return Typed(one_machine, hub.namespace)


def ask(kubectl, name, **spec):
    kubectl("apply", "--filename=-", given=manifest(REQUEST, spec, name))


def until(kubectl, name, phase):
    return wait_for(
        lambda: (status := seen(kubectl, name).get("status", {})).get("phase") == phase and status,
        f"{name} is {phase}: {kubectl('get', 'gvm')}",
        WAIT_SECONDS,
    )


def gone(kubectl, name):
    wait_for(lambda: name not in names(kubectl), f"{name} is gone", WAIT_SECONDS)


SHIFTING = (
    (r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", "(time)"),
    (r"[0-9a-f]{8}(-?[0-9a-f]{4}){3}-?[0-9a-f]{12}", "(id)"),
    (r"\bws-[0-9a-f]{12}\b", "ws-(id)"),
    (r"(Resource Version:|Idle Seconds:|Utilization Percent:) \d+", r"\1 (number)"),
    (r"http\S+/services/gpu/", "(hub)/services/gpu/"),
    (r"\S+/nvidia.com/gpu/", "(node)/nvidia.com/gpu/"),
    (r"Node: \S+", "Node: (node)"),
    (r"Namespace: \S+", "Namespace: (namespace)"),
    (r" \d+[smhd](\d+[smh])?( gpuspawner|$)", r" (age)\2"),
)
"""Text that differs between runs, and its replacement."""


def steady(text):
    """Lines as they are in each run: their depth stays, and the width of columns does not."""
    for line in text.rstrip().splitlines():
        told = " ".join(line.split())
        for pattern, instead in SHIFTING:
            told = re.sub(pattern, instead, told)
        yield line[: len(line) - len(line.lstrip())] + told


def shown(command):
    """Return the output that the documents print after a command."""
    text = pages.page("how-to/administrators/custom-resources").partition(f"{command} --namespace jhub\n```\n")[2]
    return list(steady(pages.blocks(text, "text")[0]))


def test_lists_and_descriptions_are_as_the_documents_show(hub, kubectl):
    hub.add_user("ada", "bob")
    spec = {"user": "ada", "server": "train", "template": "lab", "gpu": "a100", "count": 2, "lifetime": "8h"}
    kubectl("create", "--filename=-", given=manifest(REQUEST, spec, "train"))
    hub.begin("bob", template="cpu")
    until(kubectl, "train", "Running")
    hub.until("bob", "running", WAIT_SECONDS)

    def same(*command):
        told = shown(" ".join(("kubectl", *command)))
        expected = [line for line in told if not line.startswith("  Page:")]  # this hub has no public address
        tries_until = time.monotonic() + 120  # what is measured is told with the next minute
        while (found := list(steady(kubectl(*command)))) != expected and time.monotonic() < tries_until:
            time.sleep(2)
        assert found == expected

    try:
        same("get", "devgpuvmrequests")
        same("describe", "devgpuvmrequest", "train")
    finally:
        kubectl("delete", "gvm", "--all", "--wait=false")
        wait_for(lambda: not names(kubectl), "all are gone", WAIT_SECONDS)


def test_workspaces_started_by_form_and_api_are_listed_alike(hub, kubectl):
    hub.add_user("form", "program")
    session = hub.login("form")
    assert hub.submit(session, "form", template="lab", gpu="a100", count="1").status_code == 302
    hub.begin("program", template="cpu")
    asked = {}
    for user in ("form", "program"):
        hub.until(user, "running", WAIT_SECONDS)
        lease = hub.lease(user)
        name = f"ws-{lease['id'][:12]}"
        wait_for(lambda name=name: name in names(kubectl), f"{user} has a request")
        status = until(kubectl, name, "Running")
        asked[user] = seen(kubectl, name)["spec"]
        assert (status["lease"], asked[user]["user"]) == (lease["id"], user)
        assert asked[user]["template"] == lease["request"]["template"]
        assert status.get("page") is None, "this hub names no public address"
    assert (asked["form"]["gpu"], asked["form"]["count"]) == ("a100", 1)
    hub.stop("program")
    hub.until_ended("program", "stopped", WAIT_SECONDS)
    wait_for(lambda: len(names(kubectl)) == 1, "a request that nobody wrote goes with its workspace")
    kubectl("delete", "gvm", "--all", "--wait=false")
    hub.until_ended("form", "stopped", WAIT_SECONDS)
    wait_for(lambda: not names(kubectl), "all are gone", WAIT_SECONDS)


def test_an_impossible_request_is_refused_in_words_and_a_scheduled_one_runs_in_time(hub, kubectl):
    hub.add_user("bob", "cal")
    soon = datetime.now(timezone.utc) + timedelta(minutes=4)
    ask(kubectl, "morning", user="cal", template="cpu", ready_at={"time": f"{soon:%H:%M}", "days": "daily"})
    until(kubectl, "morning", "Scheduled")
    ask(kubectl, "kind", user="bob", template="lab", gpu="t4")
    assert "t4" in until(kubectl, "kind", "Refused")["message"]
    ask(kubectl, "nobody", user="nobody", template="cpu")
    assert "The hub has no user nobody" in until(kubectl, "nobody", "Refused")["message"]
    ask(kubectl, "first", user="bob", template="cpu")
    until(kubectl, "first", "Running")
    ask(kubectl, "second", user="bob", template="cpu")
    assert "bob has a workspace without a name already" in until(kubectl, "second", "Refused")["message"]
    status = until(kubectl, "morning", "Running")
    assert hub.lease("cal")["id"] == status["lease"]
    kubectl("delete", "gvm", "--all", "--wait=false")
    wait_for(lambda: not names(kubectl), "all are gone", WAIT_SECONDS)


def test_without_its_policy_nothing_new_is_accepted(hub, kubectl):
    hub.add_user("eve")
    kubectl("delete", "validatingadmissionpolicybinding", "--all")
    ask(kubectl, "new", user="eve", template="cpu")
    assert "Users could request workspaces for others" in until(kubectl, "new", "Pending")["message"]
    assert all(one["user"] != "eve" for one in hub.workspaces())
    kubectl("apply", "--server-side", "--force-conflicts", "--filename=-", given=definitions_text())
    until(kubectl, "new", "Running")
    kubectl("delete", "gvm", "new", "--wait=false")
    gone(kubectl, "new")


def test_killed_at_each_step_it_converges(hub, kubectl):
    hub.add_user("kay")

    def kill():
        before = hub.service_pids()
        hub.kill_service()
        eventually(lambda: (now := hub.service_pids()) and now != before, WAIT_SECONDS, "another service is there")

    ask(kubectl, "kay", user="kay", template="lab", gpu="a100", count=1)
    uid = seen(kubectl, "kay")["metadata"]["uid"].replace("-", "")
    kill()
    wait_for(lambda: seen(kubectl, "kay")["metadata"].get("finalizers"), "it is held", WAIT_SECONDS)
    kill()
    wait_for(lambda: seen(kubectl, "kay").get("status", {}).get("lease") == uid, "it is asked for", WAIT_SECONDS)
    kill()
    until(kubectl, "kay", "Running")
    assert [one["id"] for one in hub.workspaces(ended=50) if one["user"] == "kay"] == [uid], "it was asked for once"
    kubectl("delete", "gvm", "kay", "--wait=false")
    kill()
    gone(kubectl, "kay")
    assert hub.until_ended("kay", "stopped", WAIT_SECONDS)["id"] == uid


def test_a_definition_that_is_deleted_stops_nothing(hub, kubectl):
    hub.add_user("dora")
    ask(kubectl, "dora", user="dora", template="cpu")
    until(kubectl, "dora", "Running")
    lease = hub.lease("dora")
    kubectl("delete", "crd", f"{REQUESTS}.{API_GROUP}", "--timeout=120s")
    time.sleep(10)  # five rounds
    assert (hub.lease("dora")["id"], hub.lease("dora")["phase"]) == (lease["id"], "running")
    hub.helm("upgrade", "--install", "crds", CHART, "--namespace=default", "--wait", "--force-conflicts")
    kubectl("apply", "--server-side", "--force-conflicts", "--filename=-", given=definitions_text())
    name = f"ws-{lease['id'][:12]}"
    wait_for(lambda: name in kubectl.run("get", "gvm", "--output=name").stdout, "it is listed again", WAIT_SECONDS)
    until(kubectl, name, "Running")
    kubectl("delete", "gvm", name, "--wait=false")
    hub.until_ended("dora", "stopped", WAIT_SECONDS)


def test_a_flood_of_requests_waits_in_the_queue(hub, kubectl):
    users = [f"flood{number}" for number in range(FLOOD)]
    assert hub.api("POST", "/users", {"usernames": users}, seconds=300).status_code == 201
    many = [
        json.loads(manifest(REQUEST, {"user": user, "template": "lab", "gpu": "a100", "count": 2}, user))
        for user in users
    ]
    kubectl("create", "--filename=-", given=json.dumps({"apiVersion": "v1", "kind": "List", "items": many}))

    def told():
        printed = kubectl("get", "gvm", "--output=jsonpath={.items[*].status.phase}").split()
        return len(printed) == FLOOD and set(printed) <= {"Queued", "Starting", "Running"} and printed

    phases = wait_for(told, "each has its place", 1200)
    assert phases.count("Queued") >= FLOOD - 1
    live, page = [], {"next": ""}
    while page["next"] is not None:
        page = hub.gpu(f"/workspaces?all=1&cursor={page['next']}")
        live += page["workspaces"]
    assert len({one["id"] for one in live}) == FLOOD
    kubectl("delete", "gvm", "--all", "--wait=false")
    wait_for(lambda: not names(kubectl), "all are gone", 1200)
    assert not hub.workspaces()
