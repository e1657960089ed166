"""The picture of a template is one of the sprite, is checked, and is shown on the form."""

import re

import pytest

from gpuspawner.catalog import load_catalog
from gpuspawner.core.errors import CatalogError
from gpuspawner.core.text_fields import ICONS
from gpuspawner.look import LOOK

PICTURE = "data:image/svg+xml;base64,PHN2ZyB4bWxucz0iaHR0cDovL3d3dy53My5vcmcvMjAwMC9zdmciLz4="


def test_each_icon_is_in_the_sprite():
    assert set(ICONS) <= set(re.findall(r'id="i-([a-z-]+)"', (LOOK / "gs_icons.svg").read_text()))


def test_a_template_shows_its_icon_or_the_usual_one():
    gpus = {"a100": {"title": "A100", "match": "*", "memory": "80GiB"}}
    templates = {"lab": {"icon": "flame"}, "plain": {}, "gpu": {"gpus": {"a100": 1}}}
    found = load_catalog({"version": 1, "gpus": gpus, "templates": templates}).templates
    assert [found[name].shown_icon for name in templates] == ["flame", "notebook", "layers"]


def test_a_template_may_have_a_picture_of_its_own():
    found = load_catalog({"version": 1, "templates": {"lab": {"icon": PICTURE}}}).templates["lab"]
    assert (found.shown_icon, found.picture) == ("template-lab", PICTURE)


@pytest.mark.parametrize(
    "icon",
    [
        pytest.param("../x.svg", id="a file"),
        pytest.param("https://example.org/x.svg", id="from elsewhere"),
        pytest.param("data:text/html;base64,PGI+", id="no picture"),
        pytest.param('data:image/svg+xml;base64,PGI+" onload="x', id="markup"),
        pytest.param("data:image/svg+xml,<svg/>", id="not in base64"),
        pytest.param(f"data:image/png;base64,{'A' * 6000}", id="too large"),
        pytest.param("flame\n", id="a line"),
    ],
)
def test_another_icon_is_refused_with_those_that_there_are(icon):
    with pytest.raises(CatalogError, match="flame"):
        load_catalog({"version": 1, "templates": {"lab": {"icon": icon}}})
