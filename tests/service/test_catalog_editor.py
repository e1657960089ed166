"""The catalog in the console: versions, preview, saving, conflicts and going back, by API."""

import json
import os
import sqlite3
import time
from concurrent.futures import ThreadPoolExecutor
from random import Random

import pytest
import yaml
from page_world import CATALOG, NOW, Browser, api, command_fixture, running, waiting

from gpuspawner.catalog.watched_file import CatalogFile, fingerprint_of
from gpuspawner.service.catalog_editor import editor
from gpuspawner.service.rules.catalog_reload import reload_of
from gpuspawner.service.store.personal import Preset

TEXT = yaml.safe_dump({**CATALOG, "teams": {"vision": {"title": "Vision"}}}, sort_keys=False)
PYTORCH = yaml.safe_dump({**CATALOG["templates"]["pytorch"], "gpus": {"a100": "1-2"}}, sort_keys=False)


@pytest.fixture
def path(tmp_path):
    found = tmp_path / "catalog.yaml"
    found.write_text(f"# ours\n{TEXT}")
    return found


@pytest.fixture
def world(make_web_world, path):
    """A service that follows a file, which the console may write."""
    made = make_web_world(CatalogFile(path, source=path))
    made.observe()
    made.reload = reload_of(made.parts)
    made.call(made.reload.look)
    return made


def follow(world, path):
    """Let the service look at the file, as it does every two seconds."""
    at = time.time() - 60
    os.utime(path, (at, at))
    world.call(world.reload.look)


def ask(world, path="", method="GET", body=None, name="admin", status=200):
    return api(world, name, f"admin/catalog{path}", method, body, status=status).json()


def preview(world, status=200, **change):
    return ask(world, "/preview", "POST", {"base": 1, **change}, status=status)


def save(world, status=201, name="admin", **change):
    return ask(world, "", "POST", {"base": 1, "reason": "a reason", **change}, name, status)


def words(found, kind=None):
    return [one["words"] for one in found["effects"] if kind in {None, one["kind"]}]


def test_the_catalog_at_the_start_is_the_first_version(world):
    found = ask(world)
    assert (found["text"], found["editable"], found["why_not"]) == (f"# ours\n{TEXT}", True, "")
    assert (found["version"]["number"], found["version"]["by"], found["version"]["in_force"]) == (1, "", True)


def test_one_entry_is_saved_as_a_new_version_and_is_then_in_force(world, path):
    saved = save(world, entry="templates.pytorch", text=PYTORCH)
    assert (saved["number"], saved["by"], saved["reason"]) == (2, "admin", "a reason")
    assert saved["changes"] == "templates: changed pytorch"
    assert path.read_text().startswith("# ours\nversion: 1\n")
    assert yaml.safe_load(path.read_text())["templates"]["pytorch"]["gpus"] == {"a100": "1-2"}
    assert not saved["in_force"]
    follow(world, path)
    assert list(world.parts.catalog.templates["pytorch"].gpus) == ["a100"]
    listed = ask(world, "/versions")["versions"]
    assert [(one["number"], one["in_force"]) for one in listed] == [(2, True), (1, False)]


def test_a_saved_version_is_in_the_audit_once_with_its_author_and_reason(world, path):
    save(world, entry="templates.pytorch", text=PYTORCH)
    follow(world, path)
    lines = api(world, "admin", "admin/audit?what=catalog changed").json()["audit"]
    assert [(one["actor"], one["where"], one["why"]) for one in lines] == [
        ("admin", "the API, as administrator", "version 2: templates: changed pytorch: a reason"),
        ("gpuspawner", "the catalog's file", "the first catalog of this audit log"),
    ]


def test_a_change_outside_of_the_console_is_a_version_without_an_author(world, path):
    path.write_text(TEXT.replace("title: PyTorch", "title: Torch"))
    follow(world, path)
    newest, first = ask(world, "/versions")["versions"]
    assert (newest["number"], newest["by"], newest["changes"]) == (2, "", "templates: changed pytorch")
    assert newest["fingerprint"] == fingerprint_of(path.read_bytes())
    assert first["number"] == 1


def test_a_change_of_comments_alone_is_a_version_that_can_be_changed(world, path):
    path.write_text(f"# theirs\n{TEXT}")
    follow(world, path)
    assert ask(world, "/versions")["versions"][0]["changes"] == "comments or order only"
    assert save(world, base=2, entry="teams.speech", text="title: Speech")["number"] == 3
    assert path.read_text().startswith("# theirs\n")


def test_a_preview_says_what_changes_for_whom_and_saves_nothing(world, path):
    world.save(running("runs", "alice", gpus=(0, 1, 2)))
    world.save(waiting("waits", "bob", count=4))
    owner = running("runs").key.owner
    world.call(
        world.parts.store.presets.save,
        owner,
        Preset("big", {"template": "pytorch", "gpu": "a100", "count": "4"}, NOW),
        9,
    )
    before = path.read_text()
    found = preview(world, entry="templates.pytorch", text=PYTORCH)
    assert found["number"] == 2
    assert found["problems"] == []
    assert words(found, "warn")[0] == "1 running workspace goes on, but can't start again: alice / default workspace."
    assert words(found, "bad")[0].startswith("The waiting request of bob ends. GPUs: You asked for 4. Allowed: 1 to 2")
    assert "1 saved choice can't start any more: preset big of alice." in words(found)
    assert {"sign": "-", "text": "      a100: 1-4"} in found["diff"]
    assert (path.read_text(), len(ask(world, "/versions")["versions"])) == (before, 1)


def test_a_preview_says_what_quotas_and_prices_change(world):
    world.save(running("runs", "alice", gpus=(0, 1, 2)))
    quota = {"each-user": {"each": "user", "gpus": {"hard": 2}, "gpu_hours": {"per": "week", "hard": 40}}}
    gpus = {**CATALOG["gpus"], "a100": {**CATALOG["gpus"]["a100"], "price": 3.6}}
    found = preview(world, text=yaml.safe_dump({**CATALOG, "quotas": quota, "gpus": gpus}, sort_keys=False))
    told = words(found)
    limits = "Each user may have at most 2 GPUs at once, at most 40 GPU hours a week."
    assert f"{limits} Before: no such limit. alice uses more GPUs now and goes on." in words(found, "warn")
    assert "A100 80 GB costs 3.60 instead of 2.10 per hour for workspaces that start from now on." in told
    assert "1 running workspace goes on without a change." in told


@pytest.mark.parametrize(
    ("quotas", "kind", "expected"),
    [
        pytest.param(
            {"alice": {"user": "alice", "gpus": {"hard": 2}}},
            "warn",
            "alice may have at most 2 GPUs at once. Before: alice may have at most 4 GPUs at once.",
            id="tighter",
        ),
        pytest.param(
            {"alice": {"user": "alice", "gpus": {"hard": 8}}},
            "good",
            "alice may have at most 8 GPUs at once. Before: alice may have at most 4 GPUs at once.",
            id="wider",
        ),
        pytest.param({}, "good", "This limit ends: alice may have at most 4 GPUs at once.", id="removed"),
    ],
)
def test_a_preview_says_before_and_after_of_a_quota(world, path, quotas, kind, expected):
    before = {**CATALOG, "quotas": {"alice": {"user": "alice", "gpus": {"hard": 4}}}}
    path.write_text(yaml.safe_dump(before, sort_keys=False))
    follow(world, path)
    found = preview(world, base=2, text=yaml.safe_dump({**CATALOG, "quotas": quotas}, sort_keys=False))
    assert words(found, kind) == [expected]


def test_a_preview_says_who_may_choose_templates_and_gpus(world):
    pytorch, gpus = CATALOG["templates"]["pytorch"], CATALOG["gpus"]
    templates = {"pytorch": {**pytorch, "groups": ["vision"]}, "small": {"title": "Small", "gpus": {"a100": 1}}}
    changed = {
        **CATALOG,
        "templates": templates,
        "gpus": {**gpus, "l4": {"title": "L4", "match": "*L4", "memory": "24GiB"}},
    }
    found = preview(world, text=yaml.safe_dump(changed, sort_keys=False))
    assert words(found) == [
        "PyTorch is offered to members of vision instead of everybody.",
        "Small is offered to everybody.",
        "L4 is offered to everybody.",
    ]
    gone = preview(world, entry="gpus.t4", text=None)
    assert gone["problems"], "a template names it"


def test_a_preview_names_workspaces_that_follow_another_policy(world):
    world.save(running("runs", "alice"))
    text = "mode: enforce\nidle: {below: 5%, for: 20m, grace: 10m}"
    found = preview(world, entry="policies.default", text=text)
    expected = "1 running workspace follows another policy: alice / default workspace. Idle time counts from now on."
    assert words(found) == [expected]


def test_a_wrong_catalog_is_never_written_and_each_problem_names_its_line(world, path):
    before = path.read_text()
    found = preview(world, entry="templates.pytorch", text="titel: x\ngpus: {h100: 1}")
    entries = [(one["entry"], one["line"] is not None) for one in found["problems"]]
    assert entries == [("templates.pytorch.titel", True), ("templates.pytorch.gpus.h100", True)]
    assert "Did you mean `title`?" in found["problems"][0]["right"]
    refused = save(world, 400, entry="templates.pytorch", text="titel: x\ngpus: {h100: 1}")["error"]
    assert "Did you mean `title`?" in refused["message"]
    assert path.read_text() == before
    assert preview(world, 400, entry="templates.pytorch", text="\tx: [")["error"]["field"] == "text"
    assert preview(world, 400, entry="templates", text="{}")["error"]["field"] == "entry"


def test_the_second_of_two_administrators_gets_a_conflict_and_nothing_is_lost(world, path):
    save(world, entry="templates.pytorch", text=PYTORCH)
    written = path.read_text()
    refused = save(world, 409, entry="teams.speech", text="title: Speech")["error"]["message"]
    assert "Version 2 was saved by admin after you loaded version 1: a reason." in refused
    assert path.read_text() == written
    assert save(world, base=2, entry="teams.speech", text="title: Speech")["number"] == 3
    assert yaml.safe_load(path.read_text())["templates"]["pytorch"]["gpus"] == {"a100": "1-2"}


def test_a_change_of_the_file_that_is_not_seen_yet_is_not_overwritten(world, path):
    outside = TEXT.replace("title: PyTorch", "title: Torch")
    path.write_text(outside)
    refused = save(world, 409, entry="teams.speech", text="title: Speech")["error"]["message"]
    assert "changed outside of the console" in refused
    assert (path.read_text(), len(ask(world, "/versions")["versions"])) == (outside, 1)


def test_going_back_saves_the_earlier_version_again(world, path):
    save(world, entry="templates.pytorch", text=PYTORCH)
    follow(world, path)
    again = save(world, base=2, version=1, reason="too few")
    assert (again["number"], again["changes"]) == (3, "templates: changed pytorch")
    follow(world, path)
    assert path.read_text() == f"# ours\n{TEXT}"
    assert [one["in_force"] for one in ask(world, "/versions")["versions"]] == [True, False, True]
    assert save(world, 400, base=3, version=9)["error"]["field"] == "version"


def test_versions_are_compared_with_the_one_before_and_with_any_other(world, path):
    save(world, entry="templates.pytorch", text=PYTORCH)
    save(world, base=2, entry="teams.speech", text="title: Speech")
    found = ask(world, "/versions/3")
    assert (found["against"], [one["text"] for one in found["diff"] if one["sign"]]) == (
        2,
        ["  speech:", "    title: Speech"],
    )
    far = ask(world, "/versions/3?against=1")
    removed = [one["text"].strip() for one in far["diff"] if one["sign"] == "-"]
    assert removed == ["a100: 1-4", "t4: 1"]
    assert ask(world, "/versions/1")["against"] is None
    ask(world, "/versions/77", status=404)
    ask(world, "/versions/3?against=77", status=404)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        pytest.param(
            {"console": {"edit": False, "kept_in": "https://git.example.org/catalog"}},
            "Changes here are switched off by console.edit in the catalog. "
            "Change it at https://git.example.org/catalog.",
            id="kept-in-git",
        ),
        pytest.param({"console": {"edit": False}}, "Change it in its file.", id="switched-off"),
    ],
)
def test_a_catalog_that_is_kept_elsewhere_is_read_only(world, path, change, expected):
    path.write_text(yaml.safe_dump({**CATALOG, **change}, sort_keys=False))
    follow(world, path)
    found = ask(world)
    assert not found["editable"]
    assert expected in found["why_not"]
    assert expected in save(world, 409, base=2, entry="teams.x", text="{}")["error"]["message"]


def test_a_folder_that_is_read_only_is_refused_with_a_sentence(world, path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda where, _mode: where != path.parent)
    assert f"can't write to the folder {path.parent}" in ask(world)["why_not"]


def test_a_write_that_fails_saves_nothing(world, path, monkeypatch):
    monkeypatch.setattr(
        "gpuspawner.service.catalog_editor.editor.os.fsync",
        lambda _file: (_ for _ in ()).throw(OSError(28, "No space left on device")),
    )
    refused = save(world, 409, entry="teams.speech", text="title: Speech")["error"]["message"]
    assert "No space left on device" in refused
    assert len(ask(world, "/versions")["versions"]) == 1
    assert sorted(one.name for one in path.parent.iterdir() if "catalog" in one.name) == ["catalog.yaml"]


def test_a_catalog_without_a_file_names_the_place_where_it_is_written(make_web_world):
    found = ask(make_web_world())
    assert (found["version"], found["editable"]) == (None, False)
    assert "configure(c, catalog={...})" in found["why_not"]


def test_a_version_that_changes_nothing_is_refused(world):
    refused = save(world, 400, entry="teams.vision", text="title: Vision")["error"]["message"]
    assert "the catalog as it is" in refused


@pytest.mark.parametrize(("name", "reads"), [("admin", True), ("otto", True), ("vera", False), ("alice", False)])
def test_administrators_change_the_catalog_and_auditors_read_it(world, name, reads):
    for path in ("", "/versions", "/versions/1"):
        ask(world, path, name=name, status=200 if reads else 403)
    save(world, 201 if name == "admin" else 403, name, entry="teams.speech", text="title: Speech")


@pytest.mark.parametrize("address", ["/versions?before={}", "/versions/1?against={}"])
def test_promise_10_a_number_that_no_database_holds_is_refused(world, address):
    assert "2147483647" in ask(world, address.format(10**20), status=400)["error"]["message"]


def test_promise_10_text_that_is_no_utf_8_or_no_version_is_refused(world):
    assert preview(world, 400, text="a: \ud800")["error"]["limit"] == "UTF-8 text"
    assert preview(world, 400, version=10**20)["error"]["field"] == "version"


@pytest.mark.parametrize("column", ["text", "reason"])
def test_a_damaged_newest_version_holds_up_no_later_one(world, path, column):
    save(world, entry="templates.pytorch", text=PYTORCH)
    with sqlite3.connect(path.with_name("service.sqlite")) as raw:
        raw.execute(f"UPDATE catalog_versions SET {column} = ? WHERE number = 2", (b"\xff",))
    assert ask(world)["version"]["number"] == 1
    path.write_text(f"# changed by hand\n{TEXT}")
    world.reload = reload_of(world.parts)
    follow(world, path)
    found = ask(world)["version"]
    assert (found["number"], found["in_force"]) == (2, True)
    assert ask(world, "/preview", "POST", {"base": 2, "entry": "templates.pytorch", "text": PYTORCH})["number"] == 3


def test_a_version_whose_text_is_damaged_leaves_the_page_open(world, path):
    with sqlite3.connect(path.with_name("service.sqlite")) as raw:
        raw.execute("UPDATE catalog_versions SET text = 'x'")
    assert "Catalog" in Browser(world, "admin").look("console/catalog").text


def test_files_whose_lines_are_all_elsewhere_are_compared_within_bounds(monkeypatch):
    monkeypatch.setattr(editor, "MAX_PAIRS", 30_000)
    lines = [f"  key-{number % 110}: 1" for number in range(2_000)]
    moved = Random(1).sample(lines, len(lines))
    matcher = editor._BoundedMatcher(None, ["version: 1", *lines, "# end"], ["version: 1", *moved, "# end"])
    blocks = matcher.get_matching_blocks()
    assert matcher.pairs <= 30_000
    assert (blocks[0][:2], blocks[-2]) == ((0, 0), (2_001, 2_001, 1)), "the beginning and the end are found"
    found = editor.compare("\n".join(lines), "\n".join(moved))
    assert found != []


COMMENTS = [f"#{number % 110:02x}\n" for number in range(12_000)]


@pytest.mark.parametrize(
    ("lines", "after"),
    [
        pytest.param("\n" * 30_000, "\n" * 30_000, id="empty"),
        pytest.param("".join(COMMENTS), "".join(Random(1).sample(COMMENTS, len(COMMENTS))), id="shuffled"),
    ],
)
def test_the_service_answers_while_it_compares_files_with_very_many_lines(world, lines, after):
    with ThreadPoolExecutor(1) as pool:
        saved = pool.submit(save, world, text=f"# ours\n{TEXT}{lines}")
        assert saved.result(20)["number"] == 2
        compared = pool.submit(ask, world, "/preview", "POST", {"base": 2, "text": f"# theirs\n{TEXT}{after}# end\n"})
        assert ask(world, "/versions")["versions"][0]["number"] == 2
        signs = [line["sign"] for line in compared.result(20)["diff"]]
    assert (signs[:2], signs[-1]) == (["-", "+"], "+")


SMALL = "gpus: {t4: 1}\n"


run = command_fixture("run", "admin", "catalog")


def test_an_entry_is_tried_saved_compared_and_restored(run, path, tmp_path):
    first, entry = path.read_text(), tmp_path / "small.yaml"
    entry.write_text(SMALL)
    change = ("save", str(entry), "--entry", "templates.small", "--base", "1", "--reason", "for the class")
    code, out, _ = run(*change, "--dry-run")
    assert (code, out.splitlines()[0]) == (0, "It would be version 2: templates: added small.")
    assert "+   small:" in out
    assert path.read_text() == first
    assert "Saved version 2: templates: added small." in run(*change)[1]
    assert run("show")[1] == path.read_text()
    assert run("show", "--version", "1")[1] == first
    assert "+   small:" in run("diff", "2")[1]
    assert run("restore", "1", "--reason", "too small")[0] == 0
    assert path.read_text() == first
    listed = json.loads(run("versions", "--json")[1])["versions"]
    assert [one["reason"] for one in listed] == ["too small", "for the class", ""]


def test_a_wrong_catalog_and_an_old_base_are_refused(run, path, tmp_path):
    before, entry = path.read_text(), tmp_path / "wrong.yaml"
    entry.write_text("gpu: 1\n")
    code, _, err = run("save", str(entry), "--entry", "templates.x", "--base", "1", "--reason", "x")
    assert (code, "templates.x.gpu: unknown key" in err) == (2, True)
    entry.write_text(SMALL)
    code, _, err = run("save", str(entry), "--entry", "templates.x", "--base", "7", "--reason", "x")
    assert (code, "after you loaded version 7" in err) == (2, True)
    assert path.read_text() == before
    code, _, err = run("save", str(tmp_path / "none.yaml"), "--base", "1", "--reason", "x")
    assert (code, "No such file" in err) == (1, True)


def test_the_catalog_is_edited_in_an_editor(run, path, monkeypatch):
    monkeypatch.setattr("click.edit", lambda text, **_: text.replace("title: PyTorch", "title: Torch"))
    assert "Saved version 2: templates: changed pytorch" in run("edit", "--reason", "shorter")[1]
    assert "title: Torch" in path.read_text()
    monkeypatch.setattr("click.edit", lambda _text, **_: None)
    assert run("edit", "--reason", "shorter")[1] == "Nothing was changed.\n"
