"""The page Catalog without JavaScript: form, preview, saving, conflicts, comparison and roll-back."""

import re
from html import unescape

import pytest
import yaml
from page_world import CATALOG, Browser, running
from test_catalog_editor import follow

from gpuspawner.catalog.watched_file import CatalogFile
from gpuspawner.service.rules.catalog_reload import reload_of

TEXT = f"# ours\n{yaml.safe_dump(CATALOG, sort_keys=False)}"


@pytest.fixture
def path(tmp_path):
    found = tmp_path / "catalog.yaml"
    found.write_text(TEXT)
    return found


@pytest.fixture
def world(make_web_world, path):
    made = make_web_world(CatalogFile(path, source=path))
    made.observe()
    made.save(running("runs", "alice"))
    made.reload = reload_of(made.parts)
    made.call(made.reload.look)
    return made


def form_of(page):
    """Return the values of the form, as a browser sends them."""
    form = re.search(r'<form class="gs-split.*?</form>', page.text, re.DOTALL)[0]
    values = {}
    for tag in re.findall(r"<input [^>]*>", form):
        name, value = re.search(r' name="([^"]*)"', tag), re.search(r' value="([^"]*)"', tag)
        if name and 'type="checkbox"' not in tag:
            values[name[1]] = unescape(value[1] if value else "")
    values["text"] = unescape(re.search(r"<textarea[^>]*>\n(.*?)</textarea>", form, re.DOTALL)[1])
    return values


def send(browser, page, step, status=200, **changes):
    return browser.submit("console/catalog", status, **{**form_of(page), **changes, "step": step})


def test_a_field_is_changed_previewed_and_saved_as_a_version(world, path):
    browser = Browser(world, "admin")
    page = browser.look("console/catalog?part=templates&entry=pytorch")
    values = form_of(page)
    assert (values["title"], values["gpus"], values["bounds.cpu"]) == ("PyTorch", "a100: 1-4, t4: 1", "1-16")
    looked = send(browser, page, "look", title="Torch 2.9", gpus="a100: 1-2, t4: 1")
    assert "1 running workspace goes on without a change." in looked.text
    assert "<ins>    title: Torch 2.9</ins>" in looked.text
    assert path.read_text() == TEXT
    saved = send(browser, looked, "do", reason="a new image")
    assert saved.url.endswith("console/catalog?part=templates&entry=pytorch&saved=1")
    assert "Version 2 is saved: templates: changed pytorch." in saved.text
    written = yaml.safe_load(path.read_text())["templates"]["pytorch"]
    assert (written["title"], written["gpus"]) == ("Torch 2.9", {"a100": "1-2", "t4": 1})
    assert path.read_text().startswith("# ours\n")


def test_the_form_has_the_keys_that_are_in_use_first_and_every_other_key(world):
    page = Browser(world, "admin").look("console/catalog?part=policies&entry=default").text
    first, more = page.split("More settings")
    assert 'name="mode"' in first
    assert 'name="idle.for"' in first
    assert 'name="idle.encoder"' not in first
    assert 'name="lifetime"' in more or 'name="keep.times"' in more


def test_the_yaml_of_an_entry_is_edited_with_its_comments(world, path):
    browser = Browser(world, "admin")
    page = browser.look("console/catalog?part=templates&entry=pytorch")
    text = f"# for everybody\n{form_of(page)['text']}"
    saved = send(browser, page, "do", text=text.replace("\n", "\r\n"), title="Torch", reason="x")
    assert "Version 2 is saved" in saved.text
    assert "  pytorch:\n    # for everybody\n    title: Torch\n" in path.read_text()


def test_an_entry_is_added_and_removed(world, path):
    browser = Browser(world, "admin")
    page = browser.look("console/catalog?part=teams&entry=")
    assert "Give the new entry a name" in send(browser, page, "look", 400, entry="", text="title: Vision").text
    added = send(browser, page, "do", entry="vision", text="title: Vision", reason="new team")
    assert yaml.safe_load(path.read_text())["teams"] == {"vision": {"title": "Vision"}}
    looked = send(browser, added, "look", remove="1")
    assert "<del>  vision:</del>" in looked.text
    send(browser, looked, "do", remove="1", reason="gone")
    assert path.read_text() == TEXT


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        pytest.param({"gpus": "h100: 1"}, "no GPU kind is called `h100`", id="field"),
        pytest.param({"text": "titel: x"}, "unknown key", id="unknown-key"),
    ],
)
def test_what_is_wrong_is_said_beside_the_form_and_nothing_is_saved(world, path, changes, expected):
    browser = Browser(world, "admin")
    page = browser.look("console/catalog?part=templates&entry=pytorch")
    looked = send(browser, page, "look", **changes)
    assert expected in unescape(looked.text)
    assert "Save version 2" not in looked.text
    send(browser, page, "do", 400, reason="x", **changes)
    assert path.read_text() == TEXT


@pytest.mark.parametrize("changes", [{"text": "\tx: ["}, {"gpus": "a100: ["}], ids=["text", "field"])
def test_text_that_is_not_yaml_stays_in_the_form(world, changes):
    browser = Browser(world, "admin")
    page = browser.look("console/catalog?part=templates&entry=pytorch")
    refused = send(browser, page, "look", 400, **changes)
    assert "Nothing was saved." in refused.text
    if "text" in changes:
        assert form_of(refused)["text"] == changes["text"]


def test_a_reason_is_required(world):
    browser = Browser(world, "admin")
    looked = send(browser, browser.look("console/catalog?part=teams&entry="), "look", entry="vision", text="{}")
    refused = send(browser, looked, "do", 400, reason="")
    assert "Say why." in refused.text


def test_the_second_of_two_administrators_sees_the_difference_and_saves_on_top(world, path):
    browser = Browser(world, "admin")
    mine = browser.look("console/catalog?part=templates&entry=pytorch")
    theirs = browser.look("console/catalog?part=gpus&entry=t4")
    send(browser, theirs, "do", title="T4", reason="shorter")
    refused = send(browser, mine, "do", 409, title="Torch", reason="mine")
    assert "Version 2 was saved by admin after you loaded version 1: shorter." in refused.text
    assert "Version 2 compared with version 1" in refused.text
    assert "<ins>    title: T4</ins>" in refused.text
    assert form_of(refused)["text"].startswith("title: Torch\n")
    send(browser, refused, "do")
    written = yaml.safe_load(path.read_text())
    assert (written["templates"]["pytorch"]["title"], written["gpus"]["t4"]["title"]) == ("Torch", "T4")


def test_versions_are_compared_and_an_earlier_one_is_restored(world, path):
    browser = Browser(world, "admin")
    page = browser.look("console/catalog?part=templates&entry=pytorch")
    send(browser, page, "do", title="Torch", reason="shorter")
    follow(world, path)
    page = browser.look("console/catalog?part=templates&compare=1")
    assert "<del>    title: PyTorch</del><ins>    title: Torch</ins>" in page.text
    restore = browser.look("console/catalog/restore/1")
    assert "Version 1 of" in restore.text
    assert "templates: changed pytorch." in restore.text
    assert "Say why." in browser.submit("console/catalog/restore/1", 400, base="2", reason="").text
    done = browser.submit("console/catalog/restore/1", base="2", reason="users were used to it")
    assert "Version 3 is saved" in done.text
    assert path.read_text() == TEXT
    browser.look("console/catalog/restore/9", 404)


def test_the_whole_file_is_edited(world, path):
    browser = Browser(world, "admin")
    page = browser.look("console/catalog?part=file")
    assert form_of(page)["text"] == TEXT
    send(browser, page, "do", text=f"{TEXT}timezone: Europe/Zurich\n", reason="our zone")
    assert path.read_text() == f"{TEXT}timezone: Europe/Zurich\n"


def test_a_file_that_is_too_long_for_a_form_is_changed_entry_by_entry(world, path):
    path.write_text(TEXT + "# long\n" * 6000)
    follow(world, path)
    browser = Browser(world, "admin")
    whole = browser.look("console/catalog?part=file").text
    assert "Change it entry by entry." in whole
    assert "<textarea" not in whole
    page = browser.look("console/catalog?part=templates&entry=pytorch")
    assert "Version 3 is saved" in send(browser, page, "do", title="Torch", reason="x").text


def test_auditors_read_the_catalog_and_see_no_form(world):
    browser = Browser(world, "otto")
    page = browser.look("console/catalog?part=templates&entry=pytorch").text
    assert "<span>title: PyTorch</span>" in page
    assert "<textarea" not in page
    assert "Roll back" not in page
    browser.submit("console/catalog", 403, part="templates", entry="pytorch", text="{}", base="1", step="look")
    browser.look("console/catalog/restore/1", 403)


def test_a_catalog_that_is_kept_in_git_names_its_place_and_has_no_form(world, path):
    path.write_text(f"{TEXT}console: {{edit: false, kept_in: 'https://git.example.org/catalog'}}\n")
    follow(world, path)
    page = Browser(world, "admin").look("console/catalog").text
    assert '<a href="https://git.example.org/catalog">' in page
    assert "<textarea" not in page


@pytest.mark.parametrize(
    ("address", "status"),
    [("part=none", 404), ("x=1", 400), ("entry=none", 200), ("compare=77", 404), ("compare=x", 400), ("before=1", 200)],
)
def test_an_address_that_names_nothing_is_answered(world, address, status):
    Browser(world, "admin").look(f"console/catalog?{address}", status)
