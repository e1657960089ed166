"""Catalog entries that are custom resources, in the console: over an API server of the tests, with the real client."""

import re
from html import unescape

import pytest
import yaml
from harness.waiting import eventually
from kube_api import KubeApi
from page_world import CATALOG, Browser, api, command_fixture
from test_catalog_pages import form_of, send
from test_keys import send as send_with_key

from gpuspawner.backends.custom_resources.cluster import CustomResources
from gpuspawner.backends.kubernetes.settings import ClusterSettings
from gpuspawner.catalog.watched_file import CatalogFile
from gpuspawner.service.custom_resources.entries import Entries
from gpuspawner.service.rules.catalog_reload import reload_of

BIG = {"title": "Big", "gpus": {"a100": 4}}
RIGHT = ("patch", "devgpuvmtemplates")
run = command_fixture("run")


@pytest.fixture
def world(make_web_world, tmp_path):
    """A service as the chart runs it: others write its file, and it may write the resources of its namespace."""
    path = tmp_path / "catalog.yaml"
    path.write_text(yaml.safe_dump(CATALOG, sort_keys=False))
    made = make_web_world(CatalogFile(path))
    made.observe()
    made.path, made.cluster = path, KubeApi()
    made.call(made.cluster.start)
    made.cluster.rights.add(RIGHT)
    settings = ClusterSettings("jhub", made.cluster.kubeconfig(tmp_path), custom_resources="jhub")
    resources = CustomResources(settings)
    entries = Entries(made.parts.in_force, resources, made.parts.clock, made.parts.store)
    object.__setattr__(made.parts, "entries", entries)  # as the service starts with them
    made.reload = reload_of(made.parts)
    made.call(made.reload.look)
    yield made
    made.call(resources.close)
    made.call(made.cluster.stop)


def apply(world, name, spec, kind="DevGPUVMTemplate", generation=1, **metadata):
    """As kubectl does it."""
    metadata = {"name": name, "uid": f"uid-{name}", "creationTimestamp": "2026-11-26T08:00:00Z", **metadata}
    metadata |= {"generation": generation} | ({} if "Cluster" in kind else {"namespace": "jhub"})
    world.call(world.cluster.put, {"kind": kind, "metadata": metadata, "spec": spec})


def in_cluster(world, plural="devgpuvmtemplates"):
    objects = world.cluster.objects.get(f"/apis/gpuspawner.io/v1alpha1/{plural}", {})
    return {one["metadata"]["name"]: one["spec"] for one in objects.values()}


def follow(world, holds=lambda: True):
    """Let the service look until it has seen what the cluster has."""

    def is_so():
        world.call(world.reload.look)
        seen = {one.name: one.spec for one in world.parts.entries.seen or () if one.section == "templates"}
        return seen == in_cluster(world) and holds()

    eventually(is_so)
    world.call(world.reload.look)


def ask(world, path="", method="GET", body=None, name="admin", status=200):
    return api(world, name, f"admin/catalog{path}", method, body, status=status).json()


def resource(world, entry="templates.big"):
    return next((one for one in ask(world)["resources"] if one["entry"] == entry), None)


def change(world, path="", spec=None, status=201, entry="templates.big", **more):
    base = (resource(world, entry) or {"version": 0})["version"]
    text = None if spec is None else yaml.safe_dump(spec)
    reason = {} if path else {"reason": "a reason"}
    return ask(world, path, "POST", {"base": base, "entry": entry, "text": text, **reason, **more}, status=status)


def error(answered):
    return answered["error"]["message"]


def versions(world):
    found = ask(world, "/versions")["versions"]
    return [(one["number"], one["entry"], one["by"], one["changes"], one["in_force"]) for one in found]


def test_a_resource_has_a_form_and_a_version_of_each_change_by_others(world):
    assert (ask(world)["editable"], ask(world)["adds_resources"]) == (False, True)
    apply(world, "big", BIG)
    follow(world)
    shown = resource(world)
    assert (shown["kind"], shown["version"], shown["editable"], shown["why_not"]) == ("DevGPUVMTemplate", 2, True, "")
    assert yaml.safe_load(shown["text"]) == BIG
    apply(world, "big", {**BIG, "title": "Bigger"}, generation=2)
    follow(world)
    follow(world)
    added, changed = (
        (2, "templates.big", "", "templates: added big"),
        (3, "templates.big", "", "templates: changed big"),
    )
    assert versions(world)[:2] == [(*changed, True), (*added, False)]
    assert resource(world)["version"] == 3
    world.call(world.parts.entries.history.__init__, world.parts.store, world.parts.clock)  # the service starts again
    follow(world)
    assert len(versions(world)) == 3


def test_a_change_is_previewed_and_written_to_the_cluster_as_a_version(world):
    apply(world, "big", BIG)
    follow(world)
    looked = change(world, "/preview", {**BIG, "gpus": {"a100": 2}, "groups": ["vision"]}, 200)
    assert (looked["number"], looked["problems"], looked["changes"]) == (3, [], "templates: changed big")
    assert "Big is offered to members of vision instead of everybody." in [one["words"] for one in looked["effects"]]
    assert ("-", "  a100: 4") in [(one["sign"], one["text"]) for one in looked["diff"]]
    assert in_cluster(world)["big"] == BIG, "a preview changes nothing"
    saved = change(world, spec={**BIG, "gpus": {"a100": 2}})
    assert (saved["number"], saved["by"], saved["reason"], saved["entry"]) == (3, "admin", "a reason", "templates.big")
    assert in_cluster(world)["big"] == {**BIG, "gpus": {"a100": 2}}
    follow(world)
    assert versions(world)[0] == (3, "templates.big", "admin", "templates: changed big", True)
    assert world.parts.catalog.templates["big"].gpus == {"a100": (2, 2)}
    lines = api(world, "admin", "admin/audit?what=catalog changed").json()["audit"]
    assert [(one["actor"], one["target"]) for one in lines][:1] == [("admin", "templates.big")]
    assert sum(one["actor"] == "admin" for one in lines) == 1
    assert len(lines) == 3, "one of each change"


def test_a_repeated_request_saves_once(world):
    apply(world, "big", BIG)
    follow(world)
    body = {"base": 2, "entry": "templates.big", "text": "title: Bigger\ngpus: {a100: 4}", "reason": "a name"}
    saved = [send_with_key(world, "admin", "POST", "admin/catalog", body) for _ in range(2)]
    assert [(one.status_code, one.json()["number"]) for one in saved] == [(201, 3), (201, 3)]
    follow(world)
    assert versions(world)[0][:3] == (3, "templates.big", "admin")


def test_a_change_of_the_resource_meanwhile_is_a_conflict_and_stays(world):
    apply(world, "big", BIG)
    follow(world)
    theirs = {**BIG, "title": "Theirs"}
    apply(world, "big", theirs, generation=2)
    refused = change(world, spec={**BIG, "title": "Ours"}, status=409)
    assert "Nothing was saved." in error(refused)
    assert in_cluster(world)["big"] == theirs
    follow(world)
    stale = change(world, spec={**BIG, "title": "Ours"}, status=409, base=2)
    assert "Version 3 was saved outside of the console after you loaded version 2" in error(stale)
    change(world, spec={**BIG, "title": "Ours"})
    assert in_cluster(world)["big"]["title"] == "Ours"


@pytest.mark.parametrize(
    ("metadata", "words"),
    [
        pytest.param({"labels": {"argocd.argoproj.io/instance": "gpu"}}, "Argo CD manages this", id="argo"),
        pytest.param({"labels": {"helm.toolkit.fluxcd.io/name": "gpu"}}, "Flux manages this", id="flux"),
        pytest.param({"annotations": {"meta.helm.sh/release-name": "gpu"}}, "Helm manages this", id="helm"),
    ],
)
def test_a_resource_that_a_tool_manages_is_read_only_with_the_reason(world, metadata, words):
    apply(world, "big", BIG, **metadata)
    follow(world)
    assert words in resource(world)["why_not"]
    assert words in error(change(world, spec={**BIG, "title": "Ours"}, status=409))
    page = Browser(world, "admin").look("console/catalog?part=templates&entry=big").text
    assert words in page
    assert "<textarea" not in page
    assert in_cluster(world)["big"] == BIG


def test_without_the_right_the_page_says_how_to_allow_it(world):
    world.cluster.rights.clear()
    apply(world, "big", BIG)
    apply(world, "night", {"mode": "warn"}, "DevGPUVMClusterLifecyclePolicy")
    follow(world)
    words = "Set customResources.edit of the chart to true, or change this one with kubectl."
    assert words in resource(world)["why_not"]
    assert words in Browser(world, "admin").look("console/catalog?part=templates&entry=big").text
    assert words in error(change(world, spec={**BIG, "title": "Ours"}, status=409))
    assert not ask(world)["adds_resources"]
    world.cluster.rights.add(RIGHT)
    assert resource(world)["editable"]
    assert "each hub of the cluster" in resource(world, "policies.night")["why_not"]
    world.path.write_text(yaml.safe_dump({**CATALOG, "console": {"edit": False}}))
    eventually(lambda: world.call(world.reload.look) or not world.parts.catalog.console.edit)
    assert "switched off by console.edit" in resource(world)["why_not"]


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        pytest.param({"gpus": {"a10": 1}}, "no GPU kind is called `a10`", id="by the service"),
        pytest.param({**BIG, "title": "refuse"}, "unknown field", id="by the cluster"),
    ],
)
def test_a_spec_that_cannot_be_used_is_refused_before_it_is_saved(world, spec, words):
    apply(world, "big", BIG)
    follow(world)
    (problem,) = change(world, "/preview", spec, 200)["problems"]
    assert words in problem["words"] if "words" in problem else words in problem["wrong"]
    assert words in error(change(world, spec=spec, status=400))
    assert in_cluster(world)["big"] == BIG


@pytest.mark.parametrize("text", ["{", "- a", "7", ""])
def test_text_that_is_no_entry_is_refused(world, text):
    apply(world, "big", BIG)
    follow(world)
    body = {"base": 2, "entry": "templates.big", "text": text, "reason": "a reason"}
    assert "YAML of one entry" in error(ask(world, "", "POST", body, status=400))
    assert in_cluster(world)["big"] == BIG


def test_a_resource_is_removed_and_an_earlier_version_of_it_restored(world):
    apply(world, "big", BIG)
    follow(world)
    looked = change(world, "/preview", None, 200)
    assert "Big is not offered any more." in [one["words"] for one in looked["effects"]]
    assert change(world, spec=None)["changes"] == "templates: removed big"
    assert in_cluster(world) == {}
    follow(world)
    assert "big" not in world.parts.catalog.templates
    browser = Browser(world, "admin")
    assert "console/catalog/restore/2" in browser.look("console/catalog?part=templates").text
    page = unescape(browser.look("console/catalog/restore/2").text)
    assert "Big is offered to everybody." in page
    base = re.search(r'name="base" value="(\d+)"', page)[1]
    browser.submit("console/catalog/restore/2", base=base, reason="it was wanted")
    assert in_cluster(world) == {"big": BIG}
    follow(world)
    assert versions(world)[0] == (4, "templates.big", "admin", "templates: added big", True)
    assert len(versions(world)) == 4


def test_a_new_entry_becomes_a_resource_where_the_file_is_not_writable(world):
    browser = Browser(world, "admin")
    page = browser.look("console/catalog?part=templates&entry=")
    assert "becomes a custom resource" in unescape(page.text)
    looked = send(browser, page, "look", entry="small", text="title: Small\ngpus: {t4: 1}\n")
    assert "Small is offered to everybody." in looked.text
    assert in_cluster(world) == {}
    saved = send(browser, looked, "do", reason="a class")
    assert "is saved: templates: added small" in saved.text
    assert in_cluster(world) == {"small": {"title": "Small", "gpus": {"t4": 1}}}
    taken = change(world, entry="templates.pytorch", spec=BIG, status=409)
    assert "Change it there" in error(taken) or "file" in error(taken)


def test_a_form_of_a_resource_is_saved_and_a_conflict_keeps_what_was_typed(world):
    apply(world, "big", BIG)
    follow(world)
    browser = Browser(world, "admin")
    page = browser.look("console/catalog?part=templates&entry=big")
    assert "A change is written to the cluster." in page.text
    assert form_of(page)["base"] == "2"
    looked = send(browser, page, "look", title="Bigger")
    assert "Save version 3" in looked.text
    apply(world, "big", {**BIG, "title": "Theirs"}, generation=2)
    refused = send(browser, looked, "do", 409, reason="ours")
    assert "Nothing was saved" in refused.text
    assert "title: Bigger" in form_of(refused)["text"]
    follow(world)
    stale = send(browser, looked, "do", 409, reason="ours")
    assert "<del>title: Big</del>" in stale.text, "the comparison of both versions"
    again = {**form_of(stale), "text": "title: Bigger\ngpus: {a100: 4}\n", "reason": "ours", "step": "do"}
    browser.submit("console/catalog", **again)
    assert in_cluster(world)["big"]["title"] == "Bigger"


def test_auditors_read_resources_and_change_none(world):
    apply(world, "big", BIG)
    follow(world)
    page = Browser(world, "otto").look("console/catalog?part=templates&entry=big").text
    assert "title: Big" in page
    assert "<textarea" not in page
    change_of = {"base": 2, "entry": "templates.big", "text": "title: x", "reason": "x"}
    assert api(world, "otto", "admin/catalog", "POST", change_of).status_code == 403
    assert api(world, "lena", "admin/catalog").status_code == 403


def test_a_version_of_a_resource_is_compared_and_restored_by_command(world, run):
    apply(world, "big", BIG)
    follow(world)
    change(world, spec={**BIG, "title": "Bigger"})
    follow(world)
    told = run("admin", "catalog", "diff", "3")[1]
    assert "- title: Big\n" in told
    assert "+ title: Bigger" in told
    told = run("admin", "catalog", "restore", "2", "--reason", "back", "--yes")[1]
    assert "Saved version 4: templates: changed big." in told
    assert in_cluster(world)["big"] == BIG
