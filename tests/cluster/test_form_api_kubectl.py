"""A workspace asked for by the form, the API or kubectl: page, API and kubectl then say the same of it."""

import json
import re
import time
from datetime import datetime
from html import unescape

import pytest
import requests
from custom import Typed
from kube_hub import eventually
from nodes import wait_for
from test_requests import WAIT_SECONDS, ask, gone, gpus, hub, names, seen, until  # noqa: F401 - some are fixtures

from gpuspawner.core.leases.lease import Phase
from gpuspawner.core.units import show_time
from gpuspawner.service.custom_resources.status import PHASES, written_at

SPEC = {"template": "lab", "gpu": "a100", "count": 1, "lifetime": "8h"}


@pytest.fixture
def kubectl(one_machine, hub):  # noqa: F811
    return Typed(one_machine, hub.namespace)


def own_token(hub, user):  # noqa: F811
    return hub.api("POST", f"/users/{user}/tokens", {}).json()["token"]


def by_form(hub, _kubectl, user, session):  # noqa: F811
    sent = hub.submit(session, user, **{name: str(value) for name, value in SPEC.items()})
    assert sent.status_code == 302, sent.text[:500]


def by_api(hub, _kubectl, user, _session):  # noqa: F811
    hub.gpu("/workspaces", "POST", SPEC, token=own_token(hub, user))


def by_kubectl(_hub, kubectl, user, _session):
    ask(kubectl, user, user=user, **SPEC)


WAYS = {"form": by_form, "api": by_api, "kubectl": by_kubectl}


def resource_of(kubectl, lease):
    """Return the status of the request that has this workspace, or {} if no request has it."""
    found = [seen(kubectl, name).get("status", {}) for name in names(kubectl)]
    return next((status for status in found if status.get("lease") == lease), {})


def views(hub, kubectl, lease, user):  # noqa: F811
    """Return phase, GPUs, node, end, queue position and reason of a workspace by the API and by its request.

    The position and the reason are those that its user reads. Ids of GPUs are for administrators.
    """
    view, status = hub.gpu(f"/workspaces/{lease}"), resource_of(kubectl, lease)
    own = hub.gpu(f"/workspaces/{lease}", token=own_token(hub, user)) if view["queue"] else view
    gpu_ids = [gpu["id"] for gpu in view["gpus"]]
    reason = view["end"]["why"] if view["end"] else own["queue"]["sentence"] if own["queue"] else view["words"]
    allocation = status.get("allocation", {})
    api = {
        "phase": PHASES[Phase(view["phase"])],
        "gpus": gpu_ids,
        "node": gpu_ids[0].split("/")[0] if gpu_ids else None,
        "ends": None if view["ends_at"] is None else written_at(view["ends_at"]),
        "position": own["queue"]["place"] if own["queue"] else None,
        "reason": reason,
    }
    request = {
        "phase": status.get("phase"),
        "gpus": allocation.get("gpus", []),
        "node": allocation.get("node"),
        "ends": status.get("endsAt"),
        "position": status.get("position"),
        "reason": status.get("message"),
    }
    return api, request


ORDINALS = {1: "1st", 2: "2nd", 3: "3rd"}


def page_text(hub, session, lease):  # noqa: F811
    """Return the text of a workspace's page."""
    page = session.get(f"{hub.url}/services/gpu/workspaces/{lease}", timeout=20)
    assert page.status_code == 200, page.url
    return " ".join(unescape(re.sub(r"<[^>]+>", "", page.text)).split())


def missing_on_page(text, view):
    """Return the values of the API that its user's page lacks. Ids of GPUs are for administrators."""
    words = []
    if view["ends"]:  # with its day if that is not today
        ends_at = datetime.fromisoformat(view["ends"].replace("Z", "+00:00")).timestamp()
        words.append(f"Ends {show_time(ends_at, time.time())}")
    if view["phase"] != "Running":  # the page of a running workspace shows its use instead of a sentence
        place = ORDINALS.get(view["position"])  # the page says it above the sentence
        words.append(view["reason"].replace(f" You are {place} in line.", ""))
        words += [f"{place} of "] if place else []
    return [one for one in words if one not in text]


def same_views(hub, kubectl, session, lease, phase, user):  # noqa: F811
    """Wait until API, kubectl and page agree about a workspace in that phase. Return their values."""
    last = []

    def agree():
        api, request = views(hub, kubectl, lease, user)
        text = page_text(hub, session, lease)
        last[:] = [api, request, missing_on_page(text, api), text]
        return api == request and api["phase"] == phase and not last[2]

    try:
        eventually(agree, WAIT_SECONDS, f"API, kubectl and page agree on {phase}")
    except AssertionError as error:
        raise AssertionError(f"{error}: {last}") from error
    return last[0]


def test_a_workspace_and_its_end_look_the_same_after_each_way_to_ask(hub, kubectl):  # noqa: F811
    found = {}
    for way, asks in WAYS.items():
        user = f"runs-by-{way}"
        hub.add_user(user)
        session = hub.login(user)  # before anything of theirs runs: the hub would lead there
        asks(hub, kubectl, user, session)
        lease = hub.until(user, "running", WAIT_SECONDS)
        look = same_views(hub, kubectl, session, lease["id"], "Running", user)
        assert (look["node"], look["reason"], len(look["gpus"])) == ("gpu-node", "Running on 1 A100", 1)
        assert lease["ends_at"] - lease["running_at"] == pytest.approx(8 * 3600, abs=2)
        found[way] = (lease["request"], {**look, "ends": None, "gpus": len(look["gpus"])})
        hub.gpu(f"/workspaces/{lease['id']}/stop", "POST", token=own_token(hub, user))
        ended = hub.until_ended(user, "stopped", WAIT_SECONDS)
        why = ended["end"]["why"].replace(user, "You", 1)  # an administrator asked, and reads the name
        assert why in page_text(hub, session, lease["id"])
        if way == "kubectl":
            assert until(kubectl, user, "Ended")["message"] == why
            kubectl("delete", "gvm", user)
        eventually(lambda: not names(kubectl), WAIT_SECONDS, "its request goes with it")
    assert found["form"] == found["api"] == found["kubectl"]


def test_a_waiting_request_has_the_same_position_and_sentence_after_each_way_to_ask(hub, kubectl):  # noqa: F811
    hub.add_user("holds")
    hub.begin("holds", template="lab", gpu="a100", count=2)
    hub.until("holds", "running", WAIT_SECONDS)
    waiting = {}
    for place, (way, asks) in enumerate(WAYS.items(), 1):
        user = f"waits-by-{way}"
        hub.add_user(user)
        session = hub.login(user)  # before anything of theirs runs: the hub would lead there
        asks(hub, kubectl, user, session)
        waiting[user] = eventually(lambda user=user: hub.lease(user), WAIT_SECONDS, f"{user} waits")["id"]
        look = same_views(hub, kubectl, session, waiting[user], "Queued", user)
        assert (look["position"], look["gpus"]) == (place, [])
    for user, lease in waiting.items():
        hub.gpu(f"/workspaces/{lease}/stop", "POST", token=own_token(hub, user))
    hub.stop("holds")
    kubectl("delete", "gvm", "--all", "--wait=false")
    eventually(lambda: not names(kubectl), WAIT_SECONDS, "all are gone")


def test_a_request_is_refused_in_the_same_words_after_each_way_to_ask(hub, kubectl, monkeypatch):  # noqa: F811
    monkeypatch.setitem(SPEC, "gpu", "t4")
    for way in WAYS:
        hub.add_user(f"asks-by-{way}")
    by_kubectl(hub, kubectl, "asks-by-kubectl", None)
    said = until(kubectl, "asks-by-kubectl", "Refused")["message"]
    assert "t4" in said
    with pytest.raises(requests.HTTPError, match="400") as refused:
        by_api(hub, kubectl, "asks-by-api", None)
    assert refused.value.response.json()["error"]["message"] == said
    sent = hub.submit(hub.login("asks-by-form"), "asks-by-form", **{name: str(value) for name, value in SPEC.items()})
    assert said in " ".join(unescape(re.sub(r"<[^>]+>", "", sent.text)).split())
    kubectl("delete", "gvm", "asks-by-kubectl")
    gone(kubectl, "asks-by-kubectl")


def test_an_applied_request_runs_an_edited_one_is_extended_a_deleted_one_stops(hub, kubectl):  # noqa: F811
    hub.add_user("ada")
    ask(kubectl, "train", user="ada", server="train", template="lab", gpu="a100", count=1, lifetime="8h")
    status = until(kubectl, "train", "Running")
    lease = hub.lease("ada", "train")
    assert lease["phase"] == "running"
    assert status["lease"] == lease["id"] == seen(kubectl, "train")["metadata"]["uid"].replace("-", "")
    assert (status["allocation"]["summary"], status["allocation"]["count"]) == ("1 x a100", 1)
    assert status["allocation"]["gpus"] == [gpu["id"] for gpu in lease["gpus"]]
    ready = {one["type"]: (one["status"], one["observedGeneration"]) for one in status["conditions"]}
    assert ready == {"Accepted": ("True", 1), "Ready": ("True", 1)}
    assert [line["actor"] for line in hub.audit(lease["id"], "asked")] == ["ada"]
    assert len(json.dumps(status)) < 8192
    managers = {one["manager"] for one in seen(kubectl, "train")["metadata"].get("managedFields", [])}
    assert managers <= {"gpuspawner", "kubectl-client-side-apply"}
    kubectl("patch", "gvm", "train", "--type=merge", '--patch={"spec":{"lifetime":"10h"}}')
    said = wait_for(
        lambda: [one for one in seen(kubectl, "train")["status"]["conditions"] if one["type"] == "LifetimeExtended"],
        "what came of it",
    )
    assert (said[0]["status"], said[0]["observedGeneration"]) == ("True", 2), said
    assert hub.lease("ada", "train")["ends_at"] - lease["ends_at"] == pytest.approx(4 * 3600, abs=5)
    kubectl("patch", "gvm", "train", "--type=merge", '--patch={"spec":{"lifetime":"1h"}}')
    wait_for(
        lambda: any("can only be raised" in one["message"] for one in seen(kubectl, "train")["status"]["conditions"]),
        "why it is not shortened",
    )
    kubectl("patch", "gvm", "train", "--type=merge", '--patch={"spec":{"lifetime":"banana"}}')
    events = ("get", "events", "--field-selector=involvedObject.name=train", "--output=json")
    reasons = wait_for(
        lambda: (
            (found := {one["reason"]: one for one in json.loads(kubectl(*events))["items"]})
            and "banana" in found.get("LifetimeRefused", {}).get("message", "")
            and found
        ),
        "an event tells of it",
    )
    assert {"Running", "LifetimeExtended"} <= reasons.keys()
    refused = reasons["LifetimeRefused"]
    assert (refused["type"], refused["count"]) == ("Warning", 2), "one that is refused again is counted"
    assert refused["message"].startswith("Run time: You asked for 'banana'. Allowed: ")
    kubectl("delete", "gvm", "train", "--wait=false")
    gone(kubectl, "train")
    ended = hub.until_ended("ada", "stopped", WAIT_SECONDS)
    assert ended["id"] == lease["id"]
    assert hub.server("ada", "train") is None
    assert hub.pod("ada") is None
