"""KubeSpawner's profiles and the catalog: refused options, and the choices of users."""

import pytest
from traitlets.config import Config

from gpuspawner.catalog import load_catalog
from gpuspawner.catalog.requests.profile_options import Menu, MenuOption, Unlisted
from gpuspawner.spawner.kubernetes.conflicts import find_profile_conflicts, read_menus
from gpuspawner.spawner.kubernetes.spawner import GPUSpawner

IMAGES = {
    "display_name": "Image",
    "choices": {
        "old": {"display_name": "PyTorch 1", "kubespawner_override": {"image": "torch:1"}},
        "new": {"default": True, "kubespawner_override": {"image": "torch:2"}},
    },
    "unlisted_choice": {
        "enabled": True,
        "display_name": "Another",
        "validation_regex": "quay.+",
        "validation_message": "Of quay.io",
        "kubespawner_override": {"image": "{value}"},
    },
}
MENU = MenuOption(
    "image", "Image", {"old": "PyTorch 1", "new": "new"}, "new", Unlisted("Another", "quay.+", "Of quay.io")
)


def judged(profiles, templates):
    c = Config({"KubeSpawner": {"profile_list": profiles}})
    return c, GPUSpawner, load_catalog({"version": 1, "templates": templates})


PLAIN = {"display_name": "Plain"}
TORCH = {"display_name": "Torch", "slug": "torch", "profile_options": {"image": IMAGES}}


@pytest.mark.parametrize("profiles", [[PLAIN, TORCH], {"a": PLAIN, "b": TORCH}], ids=["list", "dict"])
def test_a_template_has_the_options_of_its_profile_else_of_the_default_one(profiles):
    found = read_menus(*judged(profiles, {"lab": {"profile": "torch"}, "usual": {}}))
    assert found == {"lab": Menu("torch", (MENU,)), "usual": Menu("plain")}


def test_a_profile_function_reveals_only_its_profiles():
    found = read_menus(*judged(lambda _spawner: [TORCH], {"lab": {"profile": "torch"}, "usual": {}}))
    assert found == {"lab": Menu("torch")}


WRONG = {
    "no dict": (["image"], "profile_options takes a dict, not list."),
    "our own name": (
        {"memory": IMAGES},
        "memory: an option of every template has this name already. Give it another name.",
    ),
    "no option": ({"x": "a"}, "x: an option is a dict with display_name and a dict of choices. Write it so."),
    "no choices": (
        {"x": {"choices": ["a"]}},
        "x: an option is a dict with display_name and a dict of choices. Write it so.",
    ),
    "no choice": (
        {"x": {"choices": {"a": "b"}}},
        "x, a: a choice is a dict under a text, with display_name. Write it so.",
    ),
    "nothing": (
        {"x": {"unlisted_choice": {}}},
        "x: there is nothing to choose. Write choices, or unlisted_choice with enabled: True.",
    ),
    "no expression": (
        {"x": {"unlisted_choice": {"enabled": True, "validation_regex": "("}}},
        (
            "x: unlisted_choice: validation_regex is no regular expression (missing ), unterminated subpattern at "
            "position 0). Mend it."
        ),
    ),
}  # fmt: skip


@pytest.mark.parametrize(("options", "words"), WRONG.values(), ids=WRONG)
def test_promise_10_unavailable_options_are_refused_by_name(options, words):
    profile = {"display_name": "Big", "profile_options": options}
    place = "c.KubeSpawner.profile_list, big" + (": " if words.startswith("profile_options") else ", ")
    assert list(find_profile_conflicts(*judged([profile], {"lab": {}}))) == [f"{place}{words}"]


def test_promise_10_an_image_of_the_template_that_would_undo_every_choice_is_refused():
    (found,) = find_profile_conflicts(*judged([TORCH], {"lab": {"image": "lab:1", "profile": "torch"}}))
    assert found == (
        "templates.lab.image replaces the image that people choose by c.KubeSpawner.profile_list, torch, image. "
        "Take one of them out."
    )


def test_an_image_of_the_template_stands_where_it_names_no_profile():
    told = judged([TORCH], {"lab": {"image": "lab:1"}})
    assert list(find_profile_conflicts(*told)) == []
    assert read_menus(*told) == {"lab": Menu("torch")}
