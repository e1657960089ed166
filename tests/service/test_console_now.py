"""The console's first page: what does not work is on top with its remedy, and its numbers are those of the metrics."""

import re
from dataclasses import replace
from html import unescape

import page_world
import pytest
import requests
from page_world import NOW, Browser

from gpuspawner.catalog import load_catalog
from gpuspawner.core.errors import Unavailable
from gpuspawner.core.idle.verdicts import SampleKind, Streak
from gpuspawner.core.leases.exits import ExitReason
from gpuspawner.core.leases.lease import Phase
from gpuspawner.core.outages import DATABASE, GPU_SOURCE, HUB, Outage
from gpuspawner.service.operator.relay import Relay

IMAGE = "The server did not start: registry.example.org/ml/pytorch:2.9 cannot be pulled."


@pytest.fixture
def world(make_web_world):
    made = make_web_world()
    made.observe()
    return made


def now_page(world, query=""):
    headers = {"Authorization": f"token {world.token('admin')}"}
    answer = requests.get(f"{world.home}console/{query}", headers=headers, timeout=20)
    assert answer.status_code == 200, answer.text
    return answer.text


def section(page, name):
    return page.partition(f'id="{name}"')[2].partition("</section>")[0]


def test_a_kind_that_matches_nothing_is_told_and_where_all_works_that_is_said(make_web_world):
    world = make_web_world()
    world.observe()
    assert "No GPU matches the kind t4 (match: *T4)" in section(now_page(world), "troubles")
    gpus = {"a100": page_world.CATALOG["gpus"]["a100"]}
    template = {**page_world.CATALOG["templates"]["pytorch"], "gpus": {"a100": "1-4"}}
    catalog = load_catalog({**page_world.CATALOG, "gpus": gpus, "templates": {"pytorch": template}})
    world.parts.in_force.catalog = catalog
    assert "everything that is watched works" in section(now_page(world), "troubles")


def test_what_can_fail_around_the_service_is_told_with_its_remedy(world):
    world.parts.store.outages.begin(DATABASE, "The store does not answer (disk is full).", NOW - 60)
    world.parts.allocator.observed.hub_outage = Outage(HUB, NOW - 120, "The hub does not answer (timed out).")
    world.parts.engine.observer.orphans.alert = "5 of 9 workspaces run that the hub does not know: nothing is ended."
    world.parts.engine.observer.orphans.lost_identities = ("2 workspaces of this hub run under another id.",)
    world.parts.in_force.problem = "catalog.yaml:3: gpus: nonsense"
    world.parts.notifier.counts.update(sent=5, failed=9, dropped=2)
    told = unescape(section(now_page(world), "troubles"))
    for sentence in (
        f"{Outage(DATABASE, NOW - 60).words(NOW)} The store does not answer (disk is full).",
        f"{Outage(HUB, NOW - 120).words(NOW)} The hub does not answer (timed out).",
        "5 of 9 workspaces run that the hub does not know",
        "2 workspaces of this hub run under another id.",
        "The catalog was changed and cannot be used: the one before stays in force.",
        "2 of 7 messages were not delivered since the service started (2 dropped).",
    ):
        assert sentence in told
    graves = re.findall(r'gs-alert (gs-\w+)"', told)
    assert graves == sorted(graves)  # gs-problem before gs-warning


def test_a_view_that_is_not_had_or_old_is_told(world):
    world.clock.at += 600
    assert "The GPUs were last seen 10 min ago." in section(now_page(world), "troubles")
    world.backend.unreachable = "The cluster does not let the service see it: nodes is forbidden."
    with pytest.raises(Unavailable):
        world.observe()
    told = section(now_page(world), "troubles")
    assert Outage(GPU_SOURCE, NOW).words(world.clock.at) in told
    assert "nodes is forbidden" in told


def test_a_node_of_which_no_gpu_can_be_granted_is_named_with_who_runs_there(world):
    world.save(page_world.running("runs", user="bob", gpus=(0,)))
    note = "node-1 is not ready"
    for gpu in world.backend.gpus:
        world.backend.change_gpu(gpu.id, healthy=False, reachable=False, note=note)
    world.observe()
    told = section(now_page(world), "troubles")
    assert "All 4 GPUs of the node node-1 are out of service: node-1 is not ready." in told
    assert '<a href="/services/gpu/workspaces/runs">bob: default workspace</a>' in told
    world.backend.change_gpu(world.backend.gpus[0].id, healthy=True, reachable=True, note="")
    world.observe()
    assert "out of service" not in now_page(world)


def test_an_operator_of_its_own_that_is_not_heard_is_told(world):
    relay = Relay(EntriesAlone(), world.clock.now)
    world.parts.lacking.append(relay.lacking)
    assert "No operator" not in now_page(world), "it may still start"
    world.clock.at += 45
    assert "No operator of custom resources was heard for 45 s." in section(now_page(world), "troubles")


class EntriesAlone:
    """Stands for the catalog's entries, of which this service has none."""

    entries = close = None


def test_a_node_that_is_not_measured_is_named_with_who_runs_there(world):
    streak = Streak(kind=SampleKind.UNKNOWN, because="nvidia-smi timed out")
    world.save(page_world.running("unknown", user="bob", gpus=(0, 1), streak=streak))
    told = section(now_page(world), "troubles")
    assert "On the node node-1 1 workspace can&#39;t be measured: nvidia-smi timed out." in told
    assert '<a href="/services/gpu/workspaces/unknown">bob: default workspace</a>' in told
    world.save(page_world.running("unknown", user="bob", gpus=(0, 1)))
    assert "can&#39;t be measured" not in now_page(world)
    young = page_world.running("unknown", user="bob", gpus=(0, 1), streak=streak, running_at=NOW - 100, sampled_at=NOW)
    world.save(young)
    assert "can&#39;t be measured" not in now_page(world), "it has just started"


def test_a_template_whose_last_starts_failed_is_told_until_one_starts(world):
    for back in range(3):
        ended = page_world.reclaimed(f"failed{back}", at=NOW - 900 + back)
        world.save(replace(ended, reason=ExitReason.FAILED, running_at=None, message=IMAGE))
    assert f"The template PyTorch failed to start 3 of the last 3 times: {IMAGE}" in section(
        now_page(world), "troubles"
    )
    world.save(page_world.reclaimed("fine", at=NOW))
    assert "failed to start" not in now_page(world)


def test_what_gpus_do_is_counted_by_kind_and_drawn_by_node(world):
    half = page_world.running("half", user="bob", gpus=(0, 1), streak=page_world.idle_streak(12))
    world.save(half, readings=page_world.readings(half, [1]))
    world.backend.change_gpu(world.backend.gpus[3].id, healthy=False, note="reported <b>unhealthy</b>")
    world.observe()
    page = now_page(world)
    row = re.search(r'<th scope="row">A100 80 GB <span class="gs-tag">simulated</span></th>.*?</tr>', page, re.DOTALL)[
        0
    ]
    assert re.findall(r">(\d+)</td>", row) == ["1", "0", "2", "0", "0", "1", "0", "4"]
    assert "A100 80 GB: 1 free, 2 held but idle, 1 suspect" in page
    assert 'aria-label="GPU 0: held but idle, held by bob"' in page
    assert "GPU 3: suspect. reported &lt;b&gt;unhealthy&lt;/b&gt;" in page
    assert "0 nodes, of 1 in all" in now_page(world, "?state=busy")
    assert "<h3>node-1 " in now_page(world, "?state=idle&node=NODE&kind=A100")


def test_why_free_gpus_of_a_kind_are_not_given_stands_beside_them(world):
    assert "none is given now" not in now_page(world)
    Browser(world, "admin").submit("console/act/pause", reason="x", kind="a100", back="", step="do")
    assert '<span class="gs-quiet">paused</span>' in section(now_page(world), "kinds")


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
    first, second, third = (now_page(world, f"?page={number}&node=o") for number in (1, 2, 3))
    for page, words, count in (
        (first, "Nodes 1 to 40 of 82", 40),
        (second, "41 to 80 of 82", 40),
        (third, "81 to 82", 2),
    ):
        assert words in page
        assert page.count('<li class="gs-node">') == count
    names = [name for page in (first, second, third) for name in re.findall(r"<h3>([\w-]+) ", page)]
    assert len(set(names)) == 82
    assert 'rel="next" href="/services/gpu/console/?node=o&amp;page=2#map"' in first
    assert 'rel="next"' not in third
    assert "There is no page 4 of 82 nodes" in now_page(world, "?page=4")
    listed = Browser(world, "admin").look("console/gpus?sort=-node").text
    assert "1 to 50 of 82" in listed
    held = Browser(world, "admin").look("console/gpus?state=busy").text
    assert held.count("data-key=") == 1
    assert 'console/people/alice">alice</a>' in held


def test_a_node_is_told_with_its_zone_and_cluster_and_two_of_one_name_are_two(world):
    for number, cluster in enumerate(("", "", "west", "west")):
        world.backend.change_gpu(world.backend.gpus[number].id, zone="eu-1a", cluster=cluster)
    world.observe()
    page = now_page(world)
    assert "A100 80 GB in zone eu-1a: 2 free" in page
    assert "A100 80 GB in zone eu-1a of west: 2 free" in page


def test_who_else_holds_gpus_is_named_by_what_people_know_it_by(world):
    assert "Who else holds GPUs" not in now_page(world)
    for number, holder in enumerate(("RayCluster team-a/nightly", "RayCluster team-a/nightly", "")):
        note = "used by namespace team-b"
        world.backend.change_gpu(world.backend.gpus[number].id, foreign=True, holder=holder, note=note)
    world.observe()
    told = re.sub(r"<[^>]+>", "", section(now_page(world), "others"))
    assert told.split("\n")[0].endswith("Who else holds GPUs")
    assert re.findall(r"\S.* holds \d.*", told) == [
        "RayCluster team-a/nightly holds 2 A100 80 GB",
        "Somebody unknown holds 1 A100 80 GB",
    ]
    assert "GPU 1: foreign, held by RayCluster team-a/nightly" in now_page(world)


def test_next_ends_and_who_waits_stand_with_their_reason(world):
    world.save(page_world.in_grace("warned", user="bob", gpus=(0,)))
    world.save(page_world.running("long", user="alice", gpus=(1, 2, 3)))
    world.save(page_world.waiting("carols", user="carol", count=2))
    page = now_page(world)
    ends = section(page, "ends")
    assert ends.index("bob: default workspace") < ends.index("alice: default workspace")
    assert "idle, unless it is used or kept" in ends
    assert "carol: default workspace</a>, 2 simulated A100 80 GB" in section(page, "waits")
    assert "Nobody holds more than the share" in section(page, "borrows")
    lease = world.lease("warned")
    world.save(replace(lease, phase=Phase.RUNNING))
    assert "idle, unless it is used or kept" not in now_page(world)
