"""The picture of a template is one of the sprite, is checked, and is shown on the form."""

import re

import pytest

from gpuspawner.catalog import load_catalog
from gpuspawner.core.errors import CatalogError
from gpuspawner.core.text_fields import ICONS
from gpuspawner.look import LOOK


def test_each_icon_is_in_the_sprite():
    assert set(ICONS) <= set(re.findall(r'id="i-([a-z-]+)"', (LOOK / "gs_icons.svg").read_text()))


def test_a_template_shows_its_icon_or_the_usual_one():
    gpus = {"a100": {"title": "A100", "match": "*", "memory": "80GiB"}}
    templates = {"lab": {"icon": "flame"}, "plain": {}, "gpu": {"gpus": {"a100": 1}}}
    found = load_catalog({"version": 1, "gpus": gpus, "templates": templates}).templates
    assert [found[name].shown_icon for name in templates] == ["flame", "notebook", "layers"]


def test_another_icon_is_refused_with_those_that_there_are():
    with pytest.raises(CatalogError, match="flame"):
        load_catalog({"version": 1, "templates": {"lab": {"icon": "../x.svg"}}})
