"""The software that a user adds: allowed repositories, images and tools, and refusals of others."""

import pytest

from gpuspawner.catalog import LINKED, from_form, load_text, resolve, to_options
from gpuspawner.core.errors import RequestRefused
from gpuspawner.core.text_fields import read_packages
from gpuspawner.core.units import BadValue

CATALOG = load_text("""
version: 1
templates:
  lab:
    title: Lab
    image: "own:1"
    own_images: "registry.example.org:5000/ml/*"
    tools: {nlp: [transformers], vision: ["timm>=1"]}
  plain: {title: Plain}
""")
OWN = "registry.example.org:5000/ml/team/torch:2.9"


def asked(**options):
    return resolve(CATALOG, options, "alice")


@pytest.mark.parametrize(
    ("address", "read"),
    [
        ("https://git.example.org/team/work.git", "https://git.example.org/team/work.git"),
        (" https://git.example.org:8443/~a/work/ ", "https://git.example.org:8443/~a/work/"),
        ("ssh://git@git.example.org:2222/team/work", "ssh://git@git.example.org:2222/team/work"),
        ("git@git.example.org:team/work.git", "ssh://git@git.example.org/team/work.git"),
        ("", ""),
        (None, ""),
    ],
)
def test_addresses_of_repositories_as_users_copy_them(address, read):
    request = asked(repository=address)
    assert request.repository == read
    assert resolve(CATALOG, to_options(request), "alice") == request


@pytest.mark.parametrize(
    "address",
    [
        *["http://h.org/a", "file:///etc", "git://h.org/a", "ext::sh -c x", "--upload-pack=x", "/etc", "https://h.org"],
        *[
            "https://h.org/a b",
            "https://h.org/a?token=x",
            "https://h.org/a#x",
            "https://h.org/..",
            "https://h.org/.ssh",
        ],
        *["https://h.org/" + "a" * 300, 7, ["https://h.org/a"], "https://h.org/a\nb", "ssh://-oProxyCommand=x/a"],
    ],
)
def test_other_repositories_are_refused_with_the_two_forms(address):
    with pytest.raises(RequestRefused, match=r"Repository: .* Allowed: https://host/path or ssh://user@host/path"):
        asked(repository=address)


@pytest.mark.parametrize("address", ["https://a:s3cret@h.org/a", "https://s3cret@h.org/a", "ssh://git:s3cret@h.org/a"])
def test_a_password_in_an_address_is_refused_and_never_repeated(address):
    with pytest.raises(RequestRefused, match="You asked for an address with a user or a password") as caught:
        asked(repository=address)
    assert "s3cret" not in str(caught.value)


def test_an_own_image_whose_whole_name_matches_replaces_the_templates_image():
    request = asked(own_image=OWN)
    assert (request.image, request.own_image) == (OWN, True)
    assert (asked().image, asked().own_image) == ("own:1", False)
    assert resolve(CATALOG, to_options(request), "alice") == request


@pytest.mark.parametrize(
    "image",
    [
        *["ml/torch:2", "torch", "docker.io/ml/torch", "evil.org/registry.example.org:5000/ml/torch", f"{OWN} x", 7],
        *["registry.example.org:5000/other/torch", "xregistry.example.org:5000/ml/torch", "registry.example.org/ml/a"],
        *["registryXexample.org:5000/ml/torch", "registry.example.org:5000/ml/../x", "registry.example.org:5000/ml/"],
    ],
)
def test_any_other_image_is_refused_with_the_pattern(image):
    with pytest.raises(RequestRefused, match=r"Own image: .* Allowed: registry.example.org:5000/ml/\*\. Write"):
        asked(own_image=image)


def test_a_template_without_own_images_allows_no_image():
    with pytest.raises(RequestRefused, match=r"Allowed: none\. Leave it out: Plain has its own image."):
        asked(template="plain", own_image=OWN)


@pytest.mark.parametrize("ticked", [["vision", "nlp"], "vision, nlp", ("nlp", "vision")])
def test_tools_are_those_of_the_template_in_its_order(ticked):
    request = asked(tools=ticked)
    assert request.tools == ("nlp", "vision")
    assert resolve(CATALOG, to_options(request), "alice") == request
    assert asked(tools=[]).tools == asked(tools="").tools == asked(tools=None).tools == ()
    form = {"template": ["lab"], "gpu": ["none"], "tools": ["nlp", "vision"]}
    assert from_form(CATALOG, form)["tools"] == "nlp,vision"


@pytest.mark.parametrize("ticked", ["lost", ["nlp", "lost"], 7, [7], {"nlp": True}])
def test_a_tool_that_is_not_offered_is_refused_with_those_that_are(ticked):
    with pytest.raises(RequestRefused, match=r"Tools: .* Allowed: nlp, vision\. Choose from them"):
        asked(tools=ticked)
    with pytest.raises(RequestRefused, match=r"Tools: .* Allowed: none\. Leave it out: Plain offers none\."):
        asked(template="plain", tools=ticked)


@pytest.mark.parametrize(
    "package", ["torch", "torch ~= 2.9", "datasets>=3,<4", "ray[default,tune]==2.*", "a.b-c_d", "x!=1!2.0+cpu"]
)
def test_packages_that_pip_installs_by_name(package):
    assert list(read_packages([package, package])) == [package.replace(" ", "")]


@pytest.mark.parametrize(
    "package",
    [
        *["", "-e .", "--index-url=x", "./x", "/x", "x.whl/y", "git+https://h/x", "a @ https://h/x", "a;b", "a\nb"],
        *["a b", "a" * 101, 7],
    ],
)
def test_options_addresses_and_paths_of_pip_are_refused(package):
    with pytest.raises(BadValue, match="is not a package"):
        read_packages([package])


def test_a_link_carries_nothing_that_is_run():
    assert set(LINKED) == {"template", "gpu", "count", "cpu", "memory", "lifetime", "gpu_memory"}
