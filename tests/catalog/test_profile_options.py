"""Options of profiles: form and API check them in the same way."""

from dataclasses import replace

import pytest

from gpuspawner.catalog import from_form, load_text, resolve
from gpuspawner.catalog.requests.profile_options import Menu, MenuOption, Unlisted, choices_of, read_menus, write_menus
from gpuspawner.core.errors import RequestRefused

IMAGE = MenuOption(
    "image", "Image", {"old": "PyTorch 1", "new": "PyTorch 2"}, "new",
    Unlisted("Another image", r"^quay\.io/.+", "Only images of quay.io."),
)  # fmt: skip
SMALL = Menu("small", (IMAGE, MenuOption("site", "Site", unlisted=Unlisted("Site"))))
BIG = Menu("big", (MenuOption("image", "Image", {"huge": "Huge"}, "huge"),))
CATALOG = replace(
    load_text("version: 1\ntemplates: {first: {}, lab: {profile: small}, lab-2: {profile: small}, large: {}}\n"),
    menus={"lab": SMALL, "lab-2": SMALL, "large": BIG},
)
SITE = {"site--unlisted-choice": "a"}


@pytest.mark.parametrize(
    ("options", "template", "applied"),
    [
        ({"profile": "small", **SITE}, "lab", {"profile": "small", **SITE}),
        ({"profile": "big"}, "large", {"profile": "big"}),
        ({"profile": "big", "image": "huge"}, "large", {"profile": "big", "image": "huge"}),
        ({"template": "lab-2", "profile": "small", "image": "old", **SITE}, "lab-2",
         {"profile": "small", "image": "old", **SITE}),
        ({"template": "lab", "image--unlisted-choice": "quay.io/a:1", "image": None, **SITE}, "lab",
         {"profile": "small", "image--unlisted-choice": "quay.io/a:1", **SITE}),
    ],
)  # fmt: skip
def test_options_of_profiles_are_passed_on_to_kubespawner(options, template, applied):
    request = resolve(CATALOG, options, "alice")
    assert request.template == template
    assert choices_of(CATALOG.menus[template], options) == applied


LAB = {"template": "lab", **SITE}
TOO_LONG = "quay.io/" + 500 * "a"
WRONG = [
    ({"profile": "huge"}, "profile", "You asked for 'huge'. Allowed: small, big. Choose one of them."),
    ({"profile": ["small"]}, "profile", "You asked for ['small']. Allowed: small, big. Choose one of them."),
    (
        {"template": "lab", "profile": "big", **SITE},
        "profile",
        "You asked for 'big'. Allowed: small, of the template lab. Leave the profile out, or name a template of 'big'.",
    ),
    ({**LAB, "image": "newest"}, "image", "You asked for 'newest'. Allowed: old, new. Choose one of them."),
    ({**LAB, "image": ["old"]}, "image", "You asked for ['old']. Allowed: old, new. Choose one of them."),
    ({**LAB, "image": {"old": 1}}, "image", "You asked for {'old': 1}. Allowed: old, new. Choose one of them."),
    ({"template": "lab"}, "site--unlisted-choice", "You asked for nothing. Allowed: Site. Write one."),
    (
        {**LAB, "image--unlisted-choice": "docker.io/a"},
        "image--unlisted-choice",
        r"You asked for 'docker.io/a'. Allowed: ^quay\.io/.+. Only images of quay.io.",
    ),
    (
        {**LAB, "image--unlisted-choice": "quay.io/a:{username}"},
        "image--unlisted-choice",
        r"You asked for 'quay.io/a:{username}'. Allowed: ^quay\.io/.+. Only images of quay.io.",
    ),
    (
        {**LAB, "image--unlisted-choice": "quay.io/a\nb"},
        "image--unlisted-choice",
        r"You asked for 'quay.io/a\nb'. Allowed: 500 characters of text. Write a shorter one.",
    ),
    (
        {**LAB, "image--unlisted-choice": TOO_LONG},
        "image--unlisted-choice",
        "You asked for " + f"{TOO_LONG[:58]!r}"[:59] + "…. Allowed: 500 characters of text. Write a shorter one.",
    ),
    (
        {**LAB, "image--unlisted-choice": 5},
        "image--unlisted-choice",
        "You asked for 5. Allowed: 500 characters of text. Write a shorter one.",
    ),
]


@pytest.mark.parametrize(("options", "field", "words"), WRONG, ids=[str(number) for number in range(len(WRONG))])
def test_promise_10_choices_that_no_profile_offers_are_refused(options, field, words):
    with pytest.raises(RequestRefused) as refused:
        resolve(CATALOG, options, "alice")
    assert (refused.value.field, refused.value.status) == (field, 400)
    assert str(refused.value) == f"{field}: {words}"


@pytest.mark.parametrize(
    "options", [{"image": "old"}, {"template": "large", **SITE}, {"template": "first", "profile": ""}]
)
def test_promise_10_an_option_of_another_profile_is_unknown(options):
    with pytest.raises(RequestRefused, match="an option that does not exist"):
        resolve(CATALOG, options, "alice")


def test_a_form_sends_the_fields_of_every_profile_and_the_templates_own_count():
    fields = {
        "template": ["lab"],
        "profile-option-small--image": ["old"],
        "profile-option-small--image--unlisted-choice": [""],
        "profile-option-small--site--unlisted-choice": [" a "],
        "profile-option-big--image": ["huge"],
    }
    assert from_form(CATALOG, fields) == {"template": "lab", "image": "old", **SITE}
    with pytest.raises(RequestRefused, match="an option that does not exist"):
        from_form(CATALOG, {"template": ["lab"], "profile-option-small--other": ["x"]})


def test_the_service_reads_what_the_hub_wrote(tmp_path):
    assert read_menus(tmp_path) == {}
    write_menus(tmp_path, CATALOG.menus)
    assert read_menus(tmp_path) == CATALOG.menus
    (tmp_path / "menus.json").write_text("[1]")
    with pytest.raises(ValueError, match=r"menus\.json holds no menus of profiles"):
        read_menus(tmp_path)
