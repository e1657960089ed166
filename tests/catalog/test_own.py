"""What a user brings along: which repositories and images are taken, and what is said of others."""

import pytest

from gpuspawner.catalog import LINKED, load_text, resolve, to_options
from gpuspawner.core.errors import RequestRefused

CATALOG = load_text("""
version: 1
templates:
  lab: {title: Lab, image: "own:1", own_images: "registry.example.org:5000/ml/*"}
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
def test_a_repository_is_read_as_people_copy_it(address, read):
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
    with pytest.raises(RequestRefused, match=r"Repository: .* allowed: https://host/path or ssh://user@host/path"):
        asked(repository=address)


@pytest.mark.parametrize("address", ["https://a:s3cret@h.org/a", "https://s3cret@h.org/a", "ssh://git:s3cret@h.org/a"])
def test_a_password_in_an_address_is_refused_and_never_repeated(address):
    with pytest.raises(RequestRefused, match="an address with a user or a password asked") as caught:
        asked(repository=address)
    assert "s3cret" not in str(caught.value)


def test_an_own_image_takes_the_place_of_the_templates_where_its_whole_name_matches():
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
    with pytest.raises(RequestRefused, match=r"Own image: .* allowed: registry.example.org:5000/ml/\*\. Write"):
        asked(own_image=image)


def test_a_template_that_says_nothing_takes_none():
    with pytest.raises(RequestRefused, match=r"allowed: none\. Leave it out: Plain has its own image."):
        asked(template="plain", own_image=OWN)


def test_a_link_carries_nothing_that_is_run():
    assert set(LINKED) == {"template", "gpu", "count", "cpu", "memory", "lifetime", "gpu_memory"}
