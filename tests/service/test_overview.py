"""The overview for administrators: problems are on top with their remedy, and its numbers are those of the metrics."""

import re
from dataclasses import replace
from html import unescape

import page_world
import pytest
from page_world import NOW, Browser, asked, world_fixture

from gpuspawner.catalog import load_catalog
from gpuspawner.core.errors import Unavailable
from gpuspawner.core.events import Stopped
from gpuspawner.core.idle.verdicts import SampleKind, Streak
from gpuspawner.core.leases.exits import ExitReason
from gpuspawner.core.leases.lease import Phase
from gpuspawner.core.outages import DATABASE, GPU_SOURCE, HUB, Outage
from gpuspawner.service.custom_resources.relay import Relay

IMAGE = "The server did not start: registry.example.org/ml/pytorch:2.9 cannot be pulled."


world = world_fixture()


def overview(world, query=""):
    return asked(world, f"console/{query}").text


def section(page, name):
    end = "</dl>" if name == "overview-figures" else "</section>"
    return page.partition(f'id="{name}"')[2].partition(end)[0]


def test_a_kind_without_gpus_is_a_problem_and_no_problem_is_said_so(make_web_world):
    world = make_web_world()
    world.observe()
    assert "No GPU matches the kind t4 (match: *T4)" in section(overview(world), "problems")
    gpus = {"a100": page_world.CATALOG["gpus"]["a100"]}
    template = {**page_world.CATALOG["templates"]["pytorch"], "gpus": {"a100": "1-4"}}
    catalog = load_catalog({**page_world.CATALOG, "gpus": gpus, "templates": {"pytorch": template}})
    world.parts.in_force.catalog = catalog
    assert "There are no problems." in section(overview(world), "problems")


def test_failures_around_the_service_are_reported_with_their_remedy(world):
    world.parts.store.outages.begin(DATABASE, "The store does not answer (disk is full).", NOW - 60)
    world.parts.allocator.observed.hub_outage = Outage(HUB, NOW - 120, "The hub does not answer (timed out).")
    world.parts.engine.observer.orphans.alert = "5 of 9 workspaces run that the hub does not know: nothing is ended."
    world.parts.engine.observer.orphans.lost_identities = ("2 workspaces of this hub run under another id.",)
    world.parts.in_force.problem = "catalog.yaml:3: gpus: nonsense"
    world.parts.notifier.counts.update(sent=5, failed=9, dropped=2)
    told = unescape(section(overview(world), "problems"))
    for sentence in (
        f"{Outage(DATABASE, NOW - 60).words(NOW)} The store does not answer (disk is full).",
        f"{Outage(HUB, NOW - 120).words(NOW)} The hub does not answer (timed out).",
        "5 of 9 workspaces run that the hub does not know",
        "2 workspaces of this hub run under another id.",
        "The catalog was changed and cannot be used. The previous one stays in force.",
        "2 of 7 messages since the last start were lost (2 dropped).",
    ):
        assert sentence in told
    graves = re.findall(r"<li( data-grave|)>", told)
    assert graves[0] == " data-grave"
    assert graves == sorted(graves, reverse=True), "grave problems come first"


def test_an_old_or_missing_list_of_gpus_is_a_problem(world):
    world.clock.at += 600
    assert "The list of GPUs is 10 min old." in section(overview(world), "problems")
    world.backend.unreachable = "The cluster does not let the service observe it: nodes is forbidden."
    with pytest.raises(Unavailable):
        world.observe()
    told = section(overview(world), "problems")
    assert Outage(GPU_SOURCE, NOW).words(world.clock.at) in told
    assert "nodes is forbidden" in told


def test_a_node_out_of_service_is_named_with_its_users(world):
    world.save(page_world.running("runs", user="bob", gpus=(0,)))
    note = "node-1 is not ready"
    for gpu in world.backend.gpus:
        world.backend.change_gpu(gpu.id, healthy=False, reachable=False, note=note)
    world.observe()
    told = section(overview(world), "problems")
    assert "All 4 GPUs of node-1 are out of service: node-1 is not ready." in told
    assert '<a href="/services/gpu/workspaces/runs">bob / default workspace</a>' in told
    world.backend.change_gpu(world.backend.gpus[0].id, healthy=True, reachable=True, note="")
    world.observe()
    assert "out of service" not in overview(world)
    told = section(overview(world), "problems")
    assert "3 GPUs are faulty: 3 of node-1." in told


def test_a_faulty_gpu_is_a_problem_until_it_is_taken_out_of_service(world):
    assert "faulty" not in section(overview(world), "problems")
    world.backend.change_gpu(world.backend.gpus[3].id, healthy=False, note="it had 2 memory errors: reset it.")
    world.observe()
    told = section(overview(world), "problems")
    assert "GPU 3 of node-1 is faulty: it had 2 memory errors: reset it." in told
    assert '<a href="/services/gpu/console/gpus?view=list&amp;state=suspect">View it</a>' in told
    world.backend.change_gpu(world.backend.gpus[3].id, closed="quarantine")
    world.observe()
    assert "faulty" not in section(overview(world), "problems")


def test_a_silent_separate_operator_is_a_problem(world):
    relay = Relay(EntriesAlone(), world.clock.now)
    world.parts.lacking.append(relay.lacking)
    assert "No operator" not in overview(world), "it may still start"
    world.clock.at += 45
    assert "No operator of custom resources was heard for 45 s." in section(overview(world), "problems")


class EntriesAlone:
    """Replaces the catalog's entries, which this service lacks."""

    entries = close = None


def test_a_node_without_readings_is_named_with_its_users(world):
    streak = Streak(kind=SampleKind.UNKNOWN, because="nvidia-smi timed out")
    world.save(page_world.running("unknown", user="bob", gpus=(0, 1), streak=streak))
    told = section(overview(world), "problems")
    assert "1 workspace on node-1 can&#39;t be measured: nvidia-smi timed out." in told
    assert '<a href="/services/gpu/workspaces/unknown">bob / default workspace</a>' in told
    world.save(page_world.running("unknown", user="bob", gpus=(0, 1)))
    assert "can&#39;t be measured" not in overview(world)
    young = page_world.running("unknown", user="bob", gpus=(0, 1), streak=streak, running_at=NOW - 100, sampled_at=NOW)
    world.save(young)
    assert "can&#39;t be measured" not in overview(world), "it has just started"


def test_a_template_whose_starts_fail_is_a_problem_until_one_succeeds(world):
    for back in range(3):
        ended = page_world.reclaimed(f"failed{back}", at=NOW - 900 + back)
        world.save(replace(ended, reason=ExitReason.FAILED, running_at=None, message=IMAGE))
    assert f"The template PyTorch failed to start 3 of the last 3 times. {IMAGE}" in section(
        overview(world), "problems"
    )
    world.save(page_world.reclaimed("fine", at=NOW))
    assert "failed to start" not in overview(world)


def gpu_map(world, query=""):
    return Browser(world, "admin").look(f"console/gpus{query}").text


def test_gpus_are_counted_by_kind_and_drawn_by_node(world):
    half = page_world.running("half", user="bob", gpus=(0, 1), streak=page_world.idle_streak(12))
    world.save(half, readings=page_world.readings(half, [1]))
    world.backend.change_gpu(world.backend.gpus[3].id, healthy=False, note="reported <b>unhealthy</b>")
    world.observe()
    kinds = section(overview(world), "kinds")
    assert "Simulated GPUs" in kinds
    assert "2 idle, 1 free, 1 faulty" in kinds
    assert [kinds.count(f'<i class="gs-swatch gs-g-{one}"></i>') - 1 for one in ("idle", "free", "suspect")] == [
        2,
        1,
        1,
    ]
    page = gpu_map(world)
    assert 'title="GPU 0: idle, 1 %, allocated to bob"' in page
    assert "GPU 3: faulty. reported &lt;b&gt;unhealthy&lt;/b&gt;" in page
    assert "<b>node-1, GPU 3</b> is faulty" in section(page, "attention")
    assert "Nothing matches these filters." in gpu_map(world, "?state=busy")
    assert "<h2>node-1</h2>" in gpu_map(world, "?state=idle&node=NODE&kind=A100")
    assert "<h2>node-1</h2>" in gpu_map(world, "?node=bob"), "a node is found by its user, too"


def test_the_use_of_each_gpu_is_on_the_map_and_in_the_list(world):
    busy = page_world.running("busy", user="alice", gpus=(0,))
    world.save(busy, readings=page_world.readings(busy, [44]))
    assert "<b>44 %</b>" in gpu_map(world)
    rows = Browser(world, "admin").look("console/gpus.json").json()["rows"]
    assert [row["utilization_percent"] for row in rows] == [44, None, None, None]


def test_a_quarantine_shows_its_time_actor_and_reason(world):
    Browser(world, "admin").submit("console/act/quarantine", gpu="node-1/2", reason="ECC", back="", step="do")
    world.observe()
    row = Browser(world, "admin").look("console/gpus.json").json()["rows"][2]
    assert (row["state"], row["since"], row["note"]) == ("drained", NOW, "In quarantine by admin: ECC")


def test_the_reason_for_ungranted_free_gpus_of_a_kind_is_next_to_them(world):
    assert "4 free. paused" not in overview(world)
    Browser(world, "admin").submit("console/act/pause", reason="x", kind="a100", back="", step="do")
    assert "4 free. paused" in section(overview(world), "kinds")


def test_the_map_has_pages_and_every_gpu_is_a_row_of_a_list(world):
    for number in range(4):
        world.backend.change_gpu(world.backend.gpus[number].id, node=f"node-{number}")
    more = [
        replace(world.backend.gpus[0], id=f"GPU-more-{number}", node=f"more-{number:02}", index=0)
        for number in range(78)
    ]
    world.backend.gpus = (*world.backend.gpus, *more)
    world.observe()
    busy = page_world.running("busy", user="alice", gpus=(3,))
    world.save(busy, readings=page_world.readings(busy, [80] * 3))
    first, second, third = (gpu_map(world, f"?page={number}&node=o") for number in (1, 2, 3))
    for page, words, count in ((first, "1 to 40 of 82", 40), (second, "41 to 80 of 82", 40), (third, "81 to 82", 2)):
        assert words in page
        assert page.count("gs-panel gs-node") == count
    names = [name for page in (first, second, third) for name in re.findall(r"<h2>([\w-]+)</h2>", page)]
    assert len(set(names)) == 82
    assert re.search(r'href="/services/gpu/console/gpus\?node=o&amp;page=2"[^>]*rel="next"', first)
    assert 'rel="next"' not in third
    assert "There is no page 4." in gpu_map(world, "?page=4")
    assert "1 to 50 of 82" in gpu_map(world, "?view=list&sort=-node")
    held = gpu_map(world, "?view=list&state=busy")
    assert held.count("data-key=") == 1
    assert 'console/people/alice">alice</a>' in held
    assert "map, list" in Browser(world, "admin").look("console/gpus?view=tree", 400).text


def test_a_node_has_its_zone_and_cluster_and_two_of_one_name_are_two(world):
    for number, cluster in enumerate(("", "", "west", "west")):
        world.backend.change_gpu(world.backend.gpus[number].id, zone="eu-1a", cluster=cluster)
    world.observe()
    page = gpu_map(world)
    assert "2 × A100 80 GB, zone eu-1a<" in page
    assert "2 × A100 80 GB, zone eu-1a, cluster west<" in page


def test_holders_outside_gpuspawner_are_named(world):
    assert "Other use:" not in overview(world)
    for number, holder in enumerate(("RayCluster team-a/nightly", "RayCluster team-a/nightly", "")):
        note = "used by namespace team-b"
        world.backend.change_gpu(world.backend.gpus[number].id, foreign=True, holder=holder, note=note)
    world.observe()
    told = "Other use: RayCluster team-a/nightly has 2 A100 80 GB, Not known has 1 A100 80 GB."
    assert told in section(overview(world), "kinds")
    assert "GPU 1: other use, allocated to RayCluster team-a/nightly" in gpu_map(world)


def test_next_ends_and_waiting_requests_have_their_reason(world):
    world.save(page_world.in_grace("warned", user="bob", gpus=(0,)))
    world.save(page_world.running("long", user="alice", gpus=(1, 2, 3)))
    world.save(page_world.waiting("carols", user="carol", count=2))
    page = overview(world)
    ends = section(page, "ends")
    assert ends.index("bob / default workspace") < ends.index("alice / default workspace")
    assert "idle, unless it is used or kept" in ends
    queue = section(page, "queue")
    assert "carol / default workspace</a>" in queue
    assert "2 × A100 80 GB, waiting 5 min" in queue
    assert "Nobody uses more than the share" in section(page, "above")
    lease = world.lease("warned")
    world.save(replace(lease, phase=Phase.RUNNING))
    assert "idle, unless it is used or kept" not in overview(world)


def test_hours_saved_by_idle_stops_today_are_counted(world):
    figures = section(overview(world), "overview-figures")
    assert '0.0 <small>GPU hours</small></dd><dd class="gs-quiet">0 stops, none reported wrong' in figures
    idle = page_world.running("idles", user="bob", gpus=(2,), minutes=120, streak=page_world.idle_streak(40))
    world.save(idle)
    stopped = replace(idle, phase=Phase.STOPPING, phase_since=NOW, reason=ExitReason.IDLE, ended_by="gpuspawner")
    world.save(stopped, audit=[(NOW, "gpuspawner", Stopped("idle", "idle"))])
    world.save(replace(stopped, phase=Phase.ENDED, ended_at=NOW))
    figures = section(overview(world), "overview-figures")
    assert '6.0 <small>GPU hours</small></dd><dd class="gs-quiet">1 stop, none reported wrong' in figures


def test_an_outage_of_the_database_hides_problems_that_follow_from_it(world, monkeypatch):
    late = page_world.running("late", user="bob", gpus=(0,), sampled_at=NOW - 3600)
    world.save(late)
    assert "can&#39;t be measured" in section(overview(world), "problems"), "late readings are a problem of their own"

    def refuse(*_):
        raise Unavailable("The store does not answer (disk is full).")

    world.parts.store.outages.begin(DATABASE, "The store does not answer (disk is full).", NOW - 60)
    for part, name in (("leases", "ended"), ("usage_sums", "of_days"), ("audit_log", "count_disputes")):
        monkeypatch.setattr(getattr(world.parts.store, part), name, refuse)
    page = overview(world)
    problems = unescape(section(page, "problems"))
    assert Outage(DATABASE, NOW - 60).words(NOW) in problems
    assert "can't be measured" not in problems, "readings are late because they can't be stored"
    assert "The database does not answer" in section(page, "overview-figures")
