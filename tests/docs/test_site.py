"""The documentation as a site: it builds strictly, and what it shows is typed and written as the program takes it."""

import re
from pathlib import Path

import pytest
import yaml

from gpuspawner.catalog import load_catalog
from gpuspawner.catalog.keys import descriptions_of, keys_of
from gpuspawner.catalog.template_models import Bounds, Defaults
from gpuspawner.core.idle.policies import LifecyclePolicy
from tools.docs import diagrams, site, staging
from tools.docs.reference import PAGES, write_reference

pytestmark = pytest.mark.filterwarnings("ignore:.*Check CHANGES for Sphinx API")
"""Sphinx's own extensions still use an old Sphinx API."""
REPO = Path(__file__).parents[2]
FROM_ELSEWHERE = re.compile(
    r"""<(?:script|img|iframe)[^>]*\ssrc=["']?(?:https?:)?//|<link[^>]*\shref=["']?(?:https?:)?//"""
)


def test_the_site_is_built_without_a_warning_and_takes_nothing_from_elsewhere(tmp_path):
    assert site.build(tmp_path / "site") == []
    made = {path.relative_to(tmp_path / "site").as_posix(): path.read_text() for path in tmp_path.rglob("*.html")}
    assert {"index.html", "compared.html", "security.html", "reference/catalog.html"} <= set(made)
    assert [name for name, text in made.items() if FROM_ELSEWHERE.search(text)] == []
    assert "gpuspawner kube values" in made["reference/command-line.html"]
    styles = "".join(path.read_text() for path in tmp_path.rglob("*.css"))
    assert not re.search(r"@import|url\(\s*[\"']?(?:https?:)?//", styles)


@pytest.mark.parametrize("name", PAGES)
def test_each_page_of_the_reference_is_the_one_that_the_code_makes(name):
    assert (REPO / "docs" / "reference" / f"{name}.md").read_text() == PAGES[name](), (
        "run: python -m tools.docs.reference"
    )


def test_the_reference_is_written_into_a_folder(tmp_path):
    write_reference(tmp_path)
    assert {path.stem for path in tmp_path.glob("*.md")} == set(PAGES)


def test_each_diagram_is_a_picture_of_what_its_block_says():
    pages = (REPO / "docs").rglob("*.md")
    drawn = {diagrams.file_of(page, block) for page in pages for block in diagrams.BLOCK.findall(page.read_text())}
    assert len(drawn) == 3
    assert drawn == set(diagrams.DRAWN.glob("*.svg")), "run: python -m tools.docs.diagrams MERMAID"
    for file in drawn:
        assert not re.search(r"<script|foreignObject|(?:href|src)=", file.read_text())


@pytest.fixture
def own_pages(tmp_path, monkeypatch):
    """Let the site be of one page, whose text is given."""
    for name, value in {"ROOT": tmp_path, "DOCS": tmp_path / "docs", "FROM_ROOT": {}}.items():
        monkeypatch.setattr(staging, name, value)
    (tmp_path / "docs").mkdir()

    def build(text):
        (tmp_path / "docs" / "index.md").write_text(text)
        return site.build(tmp_path / "site")

    return build


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        pytest.param("# A\n\n[gone](gone.md)\n", "docs/index.md: no file docs/gone.md", id="page"),
        pytest.param("# A\n\n[out](../../etc/passwd)\n", "docs/index.md: no file", id="outside"),
        pytest.param("# A\n\n```mermaid\nflowchart\n```\n", "docs/index.md: a diagram changed", id="diagram"),
        pytest.param("# A\n\n[heading](#gone)\n", "docs/index.md:3: WARNING: ", id="heading"),
    ],
)
def test_a_broken_link_fails_and_says_where(own_pages, text, wrong):
    (line,) = own_pages(text)
    assert line.startswith(wrong)


def test_a_file_that_a_page_links_to_is_in_the_site(own_pages, tmp_path):
    (tmp_path / "unit.service").write_text("[Unit]\n")
    assert own_pages("# A\n\n[unit](../unit.service)\n") == []
    assert [path.read_text() for path in (tmp_path / "site").rglob("unit.service")] == ["[Unit]\n"]


def defaults(model):
    """Return the default of each key that the reference page states."""
    found = {}
    for name, description in descriptions_of(model).items():
        _, says_default, default = description.partition(" Default: ")
        section = keys_of(model)[name].section
        if says_default:
            found[name] = yaml.safe_load(default.removesuffix("."))
        elif section is not None:
            found[name] = defaults(section)
    return found


def test_the_defaults_that_the_reference_tells_are_those_that_hold():
    usual = {one: said for one, said in defaults(Defaults).items() if one in {"cpu", "memory", "lifetime"}}
    template = {"bounds": defaults(Bounds), "default": usual}
    policy = defaults(LifecyclePolicy)
    assert len(template["bounds"]) == len(usual) == 3
    assert policy["idle"]["for"] == "30m"
    bare = {"version": 1, "templates": {"lab": {}}, "policies": {"default": {"activity": {}}}}
    told = {"version": 1, "templates": {"lab": template}, "policies": {"default": policy}}
    assert load_catalog(told) == load_catalog(bare)


def test_the_state_of_testing_names_tests_that_are_there():
    named = set(
        re.findall(r"`(tests/[a-z_/]+\.py)`", (staging.ROOT / "docs" / "tested.md").read_text(encoding="utf-8"))
    )
    assert len(named) > 10
    assert [name for name in sorted(named) if not (staging.ROOT / name).exists()] == []
