"""The judgement of a workspace and its reason: page, API and command line agree in every state."""

import html
from dataclasses import asdict, replace

import page_world
import pytest
from page_world import Browser, api

from gpuspawner.catalog import load_catalog
from gpuspawner.core.idle.readings import Measure, Source, SourceReading
from gpuspawner.core.idle.verdicts import SampleKind, Streak
from gpuspawner.core.leases.lease import Phase

IDLE = "Idle for 12 min of 30 min: GPU 0 at 1 %."


@pytest.fixture
def make(make_web_world):
    def make(**policy):
        catalog = load_catalog({**page_world.CATALOG, "policies": {"default": {"mode": "enforce", **policy}}})
        world = make_web_world(catalog)
        world.observe()
        return world

    return make


def unasked(**changes):
    lease = page_world.running("mine", gpus=(), deadline_at=None, adopted=True, **changes)
    return replace(lease, request=replace(lease.request, template=""))


def explained(world, name="mine"):
    """Check that the page agrees with the API, and return the API's answer."""
    view = api(world, "alice", f"workspaces/{name}").json()
    page = html.unescape(Browser(world, "alice").look(f"workspaces/{name}").text)
    assert [sentence for sentence in view["explained"] if f">{sentence}<" not in page and sentence not in page] == []
    return view["explained"]


@pytest.mark.parametrize(
    ("lease", "sentences"),
    [
        pytest.param(page_world.running("mine"), ["In use: GPU 0 at 80 %."], id="busy"),
        pytest.param(
            page_world.running("mine", streak=page_world.idle_streak(12)),
            [IDLE, "If nothing changes, a warning comes in 18 min."],
            id="idle",
        ),
        pytest.param(
            page_world.running("mine", streak=replace(page_world.idle_streak(12), observed_seconds=1440.0)),
            [IDLE, "Only 50 % of that time is known: below 80 % nobody is warned."],
            id="half of it unknown",
        ),
        pytest.param(
            page_world.running(
                "mine", streak=replace(page_world.idle_streak(0), kind=SampleKind.UNKNOWN, because="GPU 0: [N/A]")
            ),
            ["Not measured now: GPU 0: [N/A]."],
            id="unknown",
        ),
        pytest.param(
            page_world.running("mine", streak=replace(page_world.idle_streak(12), unknown_since=(("GPU-1", 7260.0),))),
            [
                IDLE,
                "If nothing changes, a warning comes in 18 min.",
                "We can't read GPU-1 for 2 h 1 min now. Nothing will be stopped because of it.",
            ],
            id="unreadable",
        ),
        pytest.param(
            page_world.running("mine", gpus=()),
            ["It has no GPU, and its policy does not judge such workspaces. It is not stopped for being idle."],
            id="no GPU",
        ),
    ],
)
def test_a_running_workspace(make, lease, sentences):
    world = make()
    world.save(lease)
    assert explained(world) == sentences


@pytest.mark.parametrize(
    ("mode", "sentences"),
    [
        ("observe", [IDLE, "This policy stops nothing for being idle."]),
        ("warn", [IDLE, "If nothing changes, a warning comes in 18 min.", "This policy stops nothing for being idle."]),
    ],
)
def test_a_policy_that_does_not_enforce_says_so(make, mode, sentences):
    world = make(mode=mode)
    world.save(page_world.running("mine", streak=page_world.idle_streak(12)))
    assert explained(world) == sentences


def test_it_says_which_sources_see_its_gpus_all_of_the_time(make):
    world = make()
    lease = page_world.running("mine", gpus=(0, 1))
    rows = page_world.readings(lease, [0.0])
    seen = [
        replace(row, sources=[asdict(SourceReading(row.gpu, Source.MONITOR, Measure.UTILIZATION, 0.0, 65.0, 5.0, 1.0))])
        for row in rows
    ]
    world.save(lease, readings=seen)
    words = "Its GPUs are seen all of the time by the workspace's monitor."
    assert words in explained(world)
    world.save(lease, readings=[seen[0], replace(seen[1], sources=None)])
    assert words not in explained(world), "of one GPU nothing is known"


def test_in_its_grace_it_says_when_it_stops(make):
    world = make()
    world.save(page_world.in_grace("mine"))
    (sentence,) = explained(world)
    assert sentence.startswith("Idle for 34 min, stops at ")
    assert sentence.endswith(": GPU 0 at 1 %.")


def test_kept_before_the_first_sample_it_says_that_too(make):
    world = make()
    lease = page_world.running("mine", streak=Streak())
    world.save(replace(lease, kept_until=world.parts.clock.now() + 3600.0))
    (sentence,) = explained(world)
    assert sentence.startswith("Kept until ")
    assert sentence.endswith("; not measured yet.")


def test_waiting_starting_and_ended(make):
    world = make()
    world.save(page_world.waiting("mine", user="alice", count=2))
    assert "You are 1st in line" in api(world, "alice", "workspaces/mine").json()["explained"][0]
    assert ">You are 1st of 1 in line<" in Browser(world, "alice").look("workspaces/mine").text
    world.save(page_world.running("starts", server="second", phase=Phase.STARTING))
    view = api(world, "alice", "workspaces/starts").json()
    assert view["explained"] == ["Idle time counts only once it runs."]
    world.save(page_world.reclaimed("gone"))
    api(world, "alice", "workspaces/gone/dispute", "POST", {"sentence": "It read data."})
    view = api(world, "alice", "workspaces/gone").json()
    assert view["explained"] == [view["end"]["why"], "Its user called this wrong: “It read data.”", "Not answered yet."]


def test_an_adopted_server_is_explained_to_its_user_and_to_administrators(make):
    world = make()
    world.save(unasked(minutes=0))
    taken_over, stops = explained(world)
    assert taken_over.startswith("It was started before the GPU service was installed, or while the service was away.")
    assert "It has no set end until it is started again, and earlier idle time does not count." in taken_over
    assert stops == "It is not measured, and it is not stopped for being idle."
    assert taken_over in html.unescape(Browser(world, "alice").home.text)
    admin = Browser(world, "admin").look("console/").text
    assert "without the GPU service, before its installation" in admin
    assert '<a href="/services/gpu/workspaces/mine">alice / default workspace</a>' in admin
    world.save(replace(unasked(), phase=Phase.RUNNING, adopted=False))
    assert "without the GPU service, before its installation" not in Browser(world, "admin").look("console/").text


def test_a_rebuilt_lease_is_explained_as_a_requested_one(make):
    world = make()
    world.save(page_world.running("mine", adopted=True))
    assert explained(world) == ["In use: GPU 0 at 80 %."]
    assert "without the GPU service, before its installation" not in Browser(world, "admin").look("console/").text
