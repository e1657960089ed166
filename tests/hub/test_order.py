"""Queue order, passing, classes, hours and preemption for users under their share, on one real hub."""

from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from groups import end_all, gpu, join, ruled_hub, token_of
from harness.hub import eventually
from moved_clock import MovedClock

HOUR = 3600.0
ZURICH = ZoneInfo("Europe/Zurich")
CATALOG = """
version: 1
timezone: Europe/Zurich
gpus:
  a100: {title: A100, match: NVIDIA-A100, memory: 80GiB}
  t4: {title: T4, match: Tesla-T4, memory: 16GiB}
simulated: {a100: 2, t4: 1}
templates:
  lab: {title: Lab, gpus: {a100: 1-2, t4: 1}, default: {gpu: a100, lifetime: 8h}}
  urgent: {extends: lab, title: For a deadline, priority: 1}
policies:
  default: {mode: enforce, lifetime: 10m-24h, extend: {warn: [10m]}, preemption: {protected: 1s, grace: 5s}}
teams: {vision: {title: Vision}}
quotas: {each-of-vision: {each: user, group: vision, gpus: {soft: 1}}}
make_room: {after: 1s}
holds: [{group: cs231, gpu: t4, count: 1, when: Mon-Sun 09:00-11:00}]
"""


@pytest.fixture(scope="module")
def hub(tmp_path_factory):
    folder = tmp_path_factory.mktemp("order")
    clock = MovedClock(folder)
    noon = datetime.fromtimestamp(clock.now(), ZURICH).replace(hour=12, minute=0)
    clock.move_to(noon.timestamp())  # at other times the class has the T4
    with ruled_hub(folder, CATALOG, "vision", "cs231", clock=clock, wait=600.0) as real:
        yield real


@pytest.fixture(autouse=True)
def nothing_is_left(hub):
    yield
    end_all(hub)


def begin(hub, user, **options):
    join(hub, user)
    assert hub.begin(user, **options).status_code in {201, 202}


def stop(hub, user):
    hub.stop(user)
    eventually(lambda: hub.server(user) is None, what=f"{user} is stopped")


def check(hub, user, **options):
    return gpu(hub, token_of(hub, user), "/check", options).json()["sentence"]


def test_a_higher_priority_goes_first_and_who_waits_is_told_why_the_place_changed(hub):
    begin(hub, "alva", count=2)
    hub.until("alva", "running")
    begin(hub, "bert", count=2)
    assert hub.until("bert", "queued")["queue"]["place"] == 1
    begin(hub, "cora", count=2, template="urgent")
    assert hub.until("cora", "queued")["queue"]["place"] == 1
    eventually(lambda: hub.lease("bert")["queue"]["place"] == 2, what="who asked first is second")
    eventually(lambda: hub.lease("bert")["queue"]["changed"].startswith("Place 1 became 2 at "), what="it is told")
    stop(hub, "alva")
    hub.until("cora", "running")
    assert hub.lease("bert")["phase"] == "queued"


def test_a_smaller_request_passes_only_if_it_ends_before_and_its_end_is_fixed(hub):
    begin(hub, "dirk", lifetime="1h")
    hub.until("dirk", "running")
    begin(hub, "edda", count=2)
    hub.until("edda", "queued")
    join(hub, "finn")
    assert "You would be 2nd in line" in check(hub, "finn", lifetime="2h")
    told = check(hub, "finn", lifetime="30m")
    assert told.startswith("Starts now on 1 simulated A100 (1 free).")
    assert ", because a request ahead of it needs its GPUs then." in told
    assert hub.begin("finn", lifetime="30m").status_code in {201, 202}
    lease = hub.until("finn", "running")
    assert lease["latest_end"]["at"] <= hub.lease("dirk")["ends_at"] + 1
    refused = gpu(hub, token_of(hub, "finn"), f"/workspaces/{lease['id']}/extend", {})
    assert refused.status_code == 409 or refused.json()["ends_at"] <= lease["latest_end"]["at"]
    assert hub.lease("edda")["queue"]["place"] == 1


def test_a_user_over_the_share_gives_way_to_one_under_it_and_returns(hub):
    join(hub, "gesa", "vision")
    begin(hub, "gesa", count=2)
    over = hub.until("gesa", "running")
    join(hub, "hans", "vision")
    told = check(hub, "gesa", server="more", gpu="t4")
    assert "When GPUs run short, this workspace makes room first." in told
    begin(hub, "hans")
    warned = eventually(lambda: hub.lease("gesa")["warning"], what="it is told before")
    assert warned["text"].startswith("A request within its share has waited for 1 A100 for long, and you use more")
    ended = hub.until_ended("gesa", "made room")
    assert (ended["id"], ended["end"]["at"] >= warned["ends_at"]) == (over["id"], True)
    assert hub.until("hans", "running")
    assert hub.lease("gesa")["asked_at"] == over["asked_at"], "it waits as asked then"


def test_gpus_are_kept_for_a_class_and_others_are_told_before_start_and_end_in_time(hub):
    tomorrow = datetime.fromtimestamp(hub.clock.now(), ZURICH) + timedelta(days=1)
    begins = tomorrow.replace(hour=9, minute=0, second=0, microsecond=0).timestamp()
    hub.clock.move_to(begins - HOUR)
    join(hub, "iris")
    join(hub, "jan", "cs231")
    told = check(hub, "iris", gpu="t4")
    assert "Ends at 09:00, when 1 T4 is reserved for cs231." in told, "by the clocks of the catalog's zone"
    assert "reserved for" not in check(hub, "jan", gpu="t4")
    begin(hub, "iris", gpu="t4")
    lease = hub.until("iris", "running")
    assert lease["ends_at"] == begins
    hub.clock.move_to(begins - 595)
    eventually(lambda: hub.lease("iris")["warning"], what="its end is told")
    hub.clock.move_to(begins + 1)
    hub.until_ended("iris", "expired")
    join(hub, "karl")
    assert hub.begin("karl", gpu="t4").status_code in {201, 202}
    held = eventually(lambda: hub.lease("karl")["queue"]["wait_reason"], what="it is kept from others")
    assert "reserved for cs231" in held["words"]
    assert hub.begin("jan", gpu="t4").status_code in {201, 202}
    hub.until("jan", "running")
    assert hub.lease("karl")["phase"] in {"queued", "parked"}, "who waited before keeps nothing from the class"
