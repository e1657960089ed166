"""Events on requests: one object of each phase and refusal, and no failure of theirs holds up a status."""

import pytest

from gpuspawner.backends.custom_resources.base import LIFETIME, Resource
from gpuspawner.backends.custom_resources.cluster import Events, StatusChange, status_changes
from gpuspawner.backends.kubernetes.api import ApiRefused

PATH = "/api/v1/namespaces/jhub/events"


class Server:
    """An API server's handling of events: it keeps them by name. ``refuses`` answers 403."""

    def __init__(self):
        self.events, self.asked, self.refuses = {}, 0, False

    async def write(self, method, path, body, query=None, content_type=""):
        self.asked += 1
        name = path.rpartition("/")[2] if method == "PATCH" else body["metadata"]["name"]
        if self.refuses:
            raise ApiRefused(403, "no right")
        if method == "POST" and name in self.events:
            raise ApiRefused(409, "its name is taken")
        self.events[name] = {**self.events.get(name, {}), **body}

    async def get(self, path, query=None):
        return self.events[path.rpartition("/")[2]]


def request(phase="", message="", name="train", **conditions):
    status = {"phase": phase, "message": message, "conditions": list(conditions.values())} if phase else {}
    return Resource(name, "uid-1", "7", "then", status=status)


def edited(so, message, generation):
    status = "True" if so else "False"
    return {"type": LIFETIME, "status": status, "message": message, "observedGeneration": generation}


CASES = {
    "a new phase": (request(), request("Queued", "2nd in line."), [StatusChange("Queued", "2nd in line.")]),
    "a place in the queue that moves": (request("Queued", "2nd in line."), request("Queued", "1st in line."), []),
    "a refusal": (request(), request("Refused", "no t4"), [StatusChange("Refused", "no t4", is_warning=True)]),
    "another refusal": (
        request("Refused", "no t4"),
        request("Refused", "no p100"),
        [StatusChange("Refused", "no p100", is_warning=True)],
    ),
    "the same refusal": (request("Refused", "no t4"), request("Refused", "no t4"), []),
    "a lifetime that is refused": (
        request("Running", "on 1 A100"),
        request("Running", "on 1 A100", one=edited(so=False, message="Lifetime: 'banana'", generation=2)),
        [StatusChange("LifetimeRefused", "Lifetime: 'banana'", is_warning=True)],
    ),
    "a lifetime told before": (
        request("Running", "a", one=edited(so=True, message="It has 9 h.", generation=2)),
        request("Reclaiming", "b", one=edited(so=True, message="It has 9 h.", generation=2)),
        [StatusChange("Reclaiming", "b")],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_events_of_requests(case):
    before, after, expected = CASES[case]
    assert list(status_changes(before, after.status)) == expected


async def test_each_reason_has_one_event_that_counts():
    server = Server()
    events = Events(server, "jhub", "gpuspawner.io/v1alpha1", "DevGPUVMRequest")
    for _ in range(3):
        await events.write(request("Running", "on 1 A100"), request("Reclaiming", "idle for 1 h").status)
        await events.write(request("Reclaiming", "idle for 1 h"), request("Running", "on 1 A100 again").status)
    told = {one["reason"]: (one["count"], one["message"], one["type"]) for one in server.events.values()}
    assert told == {"Reclaiming": (3, "idle for 1 h", "Normal"), "Running": (3, "on 1 A100 again", "Normal")}
    (idle,) = (one for one in server.events.values() if one["reason"] == "Reclaiming")
    about = {"kind": "DevGPUVMRequest", "name": "train", "namespace": "jhub", "uid": "uid-1"}
    assert idle["involvedObject"].items() >= about.items()


@pytest.mark.parametrize("name", ["a" * 253, f"{'a' * 199}.b"])
async def test_the_name_of_an_event_is_valid_for_the_api_server(name):
    server = Server()
    await Events(server, "jhub", "v", "K").write(request(name=name), request("Queued", "x", name).status)
    (made,) = server.events
    assert len(made) <= 253
    assert ".." not in made


async def test_a_missing_right_is_logged_once_and_delays_nothing(caplog):
    server = Server()
    server.refuses = True
    events = Events(server, "jhub", "v", "K")
    await events.write(request(), request("Queued", "x").status)
    await events.write(request("Queued"), request("Running", "x").status)
    assert server.asked == 2
    assert [one.message for one in caplog.records] == ["Events about requests cannot be written: no right"]
