"""The commands of the catalog over a real service."""

import json

import pytest
import yaml
from page_world import CATALOG, NOW, command_fixture

from gpuspawner.catalog.watched_file import CatalogFile
from gpuspawner.service.rules.catalog_reload import reload_of

SMALL = "gpus: {t4: 1}\n"


@pytest.fixture
def path(tmp_path):
    found = tmp_path / "catalog.yaml"
    found.write_text(yaml.safe_dump(CATALOG, sort_keys=False))
    return found


@pytest.fixture
def world(make_web_world, path, monkeypatch):
    monkeypatch.setattr("time.time", lambda: NOW)
    made = make_web_world(CatalogFile(path, source=path))
    made.call(reload_of(made.parts).look)
    return made


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
