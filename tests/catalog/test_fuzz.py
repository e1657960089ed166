"""Random catalogs and requests are accepted, or refused with a message. No other error occurs."""

import contextlib
import re
from copy import deepcopy
from pathlib import Path

import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuspawner.catalog import OPTIONS, RESERVED, check, from_form, load_text, resolve, to_options
from gpuspawner.core.errors import CatalogError, RequestRefused

EXAMPLE = (Path(__file__).parents[2] / "hub_config" / "catalog.yaml").read_text()
CATALOG = load_text(EXAMPLE)
RULES = """
timezone: Europe/Zurich
contact: the desk
teams: {vision: {title: Vision, weight: 2.5, priority: 3}}
hours: [{when: "Mon-Fri 20:00-07:00", policy: patient, instead_of: default}]
holds: [{group: cs231, gpu: t4, count: 8, when: "Thu 09:00-11:00", until: 2027-02-01}]
make_room: {after: 30m}
"""
QUOTA = {
    "group": "vision",
    "gpus": {"soft": 2, "hard": 4},
    "types": {"h100": {"hard": 8}},
    "gpu_hours": {"per": "week", "soft": 40, "hard": 120},
    "full": "refuse",
}
DATA = {**yaml.safe_load(EXAMPLE), **yaml.safe_load(RULES)}
DATA["quotas"]["vision"] = QUOTA
DATA["templates"]["pytorch"] |= {"needs": {"memory": "10GiB"}, "substitutes": {"a100": ["h100"]}, "groups": ["vision"]}

TEXT = st.text(max_size=40) | st.text("{}[]:,-?&*!|>'\"%@` \n\t#a1~.", max_size=40)
WORDS = st.sampled_from(sorted(set(re.findall(r"[a-z0-9][A-Za-z0-9%-]*", EXAMPLE + RULES))))
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXT | WORDS | st.binary(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS | TEXT | st.integers(), inner, max_size=4),
    max_leaves=8,
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXT | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=4,
)


@st.composite
def spoilt(draw):
    """Return the example with something else at one to three of its places."""
    data = deepcopy(DATA)
    for _ in range(draw(st.integers(1, 3))):
        place = data
        key = draw(st.sampled_from(sorted(place)))
        while isinstance(place[key], dict) and place[key] and draw(st.integers(0, 4)):
            place = place[key]
            key = draw(st.sampled_from(sorted(place, key=str)))
        place[draw(st.just(key) | WORDS)] = draw(VALUES)
    return data


@given(TEXT | st.builds(lambda at, what: EXAMPLE[:at] + what + EXAMPLE[at:], st.integers(900, 3000), TEXT))
def test_promise_10_any_text_loads_or_is_refused(text):
    with contextlib.suppress(CatalogError):
        load_text(text)


@given(st.dictionaries(WORDS, VALUES, max_size=4) | spoilt())
@settings(max_examples=300)
def test_promise_10_any_dict_loads_or_is_refused(tree):
    assert all(problem.wrong and problem.right and problem.line is None for problem in check(tree))


@given(JSON | st.dictionaries(st.sampled_from([*OPTIONS, *RESERVED]) | TEXT, JSON, max_size=3))
@settings(max_examples=500, deadline=1000)
def test_promise_10_any_json_resolves_or_is_refused(options):
    try:
        request = resolve(CATALOG, options, "alice")
    except RequestRefused as refused:
        text = str(refused)
    else:
        assert resolve(CATALOG, to_options(request), "alice") == request
        text = ""
    assert len(text) < 600
    assert text.isprintable()


@given(st.dictionaries(st.sampled_from([*OPTIONS, "_xsrf"]) | TEXT, st.lists(TEXT | WORDS, max_size=2), max_size=6))
def test_promise_10_any_form_resolves_or_is_refused(formdata):
    with contextlib.suppress(RequestRefused):
        resolve(CATALOG, from_form(CATALOG, formdata), "alice")
