"""Requests for any GPU that is large enough, and for substitutes, which need the user's consent."""

import json
from pathlib import Path

import pytest
from harness.cases import read_cases
from hypothesis import given
from hypothesis import strategies as st

from gpuspawner.catalog import from_form, load_text, resolve, to_options, without_defaults
from gpuspawner.core.errors import RequestRefused
from gpuspawner.core.leases.request import Request

GIB = 2**30
CATALOG = load_text("""\
version: 1
gpus:
  h100: {title: H100, match: H100, memory: 80GiB, compute: 9.0, price: 4.00}
  a100: {title: A100, match: A100, memory: 80GiB, compute: 8.0, price: 2.10}
  a40: {title: A40, match: A40, memory: 48GiB, compute: 8.6}
  l40: {title: L40, match: L40, memory: 48GiB, compute: 8.9, price: 1.20}
  t4: {title: T4, match: T4, memory: 16GiB, compute: 7.5, price: 0.35}
  leads: {title: B200, match: B200, memory: 180GiB, compute: 10.0, groups: [leads]}
templates:
  lab:
    title: Lab
    gpus: {t4: 1, a100: 1-4, h100: 1-2, a40: 1, l40: 1-2, leads: 1}
    default: {gpu: a100, count: 1}
    substitutes: {a100: [h100, l40, leads], t4: [a40]}
    needs: {memory: 10GiB, compute: 7.5}
  cpu:
""")


def asked(groups=frozenset(), **options) -> Request:
    return resolve(CATALOG, options, "alice", groups=groups)


def refusal(groups=frozenset(), **options) -> str:
    with pytest.raises(RequestRefused) as caught:
        asked(groups, **options)
    return str(caught.value)


def test_a_request_has_the_driver_that_its_template_needs() -> None:
    catalog = load_text("""\
version: 1
gpus:
  new: {match: A100, memory: 80GiB, driver: 570.86.15, cuda: 12.8}
  half: {of: new, shares: 2}
templates: {lab: {gpus: {new: 1, half: 1}, needs: {driver: 570, cuda: 12.4}}}
""")
    request = resolve(catalog, {"template": "lab"}, "alice")
    assert (request.needs_driver, request.needs_cuda) == ("570", "12.4")
    request = resolve(catalog, {"template": "lab", "gpu": "none"}, "alice")
    assert (request.needs_driver, request.needs_cuda) == ("", "")
    assert (catalog.gpus["half"].driver, catalog.gpus["half"].cuda) == ("570.86.15", "12.8"), (
        "as the GPU that it divides"
    )


def test_promise_7_no_substitute_without_consent():
    request = asked(gpu="a100")
    assert (request.gpu, request.substitutes) == ("a100", ())
    assert (request.needs_memory_bytes, request.needs_compute) == (10 * GIB, "7.5")


@pytest.mark.parametrize("written", ["l40,h100", "l40, h100", ["l40", "h100"], ["h100", "l40", "l40"]])
def test_consent_is_a_list_or_a_text_and_has_the_templates_order(written):
    assert asked(gpu="a100", substitutes=written).substitutes == ("h100", "l40")


@pytest.mark.parametrize("written", ["", " ", [], None])
def test_consent_to_nothing(written):
    assert asked(gpu="a100", substitutes=written).substitutes == ()


@pytest.mark.parametrize(("options", "message"), read_cases(Path(__file__).with_name("refused_gpu_options.txt")))
def test_promise_10_wrong_gpu_options_are_refused_with_what_is_allowed(options, message):
    assert refusal(**json.loads(options)) == message


@pytest.mark.parametrize(
    ("options", "gpu", "others", "floor"),
    [
        ({"gpu": "any", "gpu_memory": "40GiB"}, "l40", ("a40", "a100", "h100"), 40),
        ({"gpu_memory": "40GiB"}, "l40", ("a40", "a100", "h100"), 40),
        ({"gpu": "any", "gpu_memory": "40GiB", "count": 2}, "l40", ("a100", "h100"), 40),
        ({"gpu": "any", "gpu_memory": "60GiB", "count": 3}, "a100", (), 60),
        ({"gpu": "any"}, "t4", ("a40", "l40", "a100", "h100"), 16),
        ({"gpu": "any", "gpu_memory": "40GiB", "substitutes": "h100"}, "l40", ("h100",), 40),
        ({"gpu": "any", "gpu_memory": "40GiB", "substitutes": "l40,h100"}, "l40", ("h100",), 40),
        ({"gpu": "any", "gpu_memory": "40GiB", "substitutes": []}, "l40", (), 40),
        ({"gpu": "a100", "gpu_memory": "40GiB"}, "a100", (), 40),
        ({"gpu": "a100", "gpu_memory": "80GiB", "substitutes": "h100"}, "a100", ("h100",), 80),
        ({"gpu": "t4", "gpu_memory": "12GiB", "substitutes": "h100,a40"}, "t4", ("a40", "h100"), 12),
    ],
)
def test_any_gpu_is_the_smallest_then_the_cheapest_and_consents_to_the_others(options, gpu, others, floor):
    request = asked(**options)
    assert (request.gpu, request.substitutes, request.needs_memory_bytes) == (gpu, others, floor * GIB)


def test_a_kind_for_a_group_is_there_for_its_members():
    request = asked({"leads"}, gpu="any", gpu_memory="100GiB")
    assert (request.gpu, request.substitutes) == ("leads", ())
    assert asked({"leads"}, gpu="a100", substitutes="leads").substitutes == ("leads",)


KINDS = sorted(CATALOG.gpus)
OPTIONS = st.fixed_dictionaries(
    {},
    optional={
        "gpu": st.sampled_from([*KINDS, "any", "none"]),
        "count": st.integers(1, 4),
        "gpu_memory": st.integers(1, 190).map(lambda size: f"{size}GiB"),
        "substitutes": st.lists(st.sampled_from(KINDS), max_size=3),
    },
)


@given(OPTIONS, st.sampled_from([frozenset(), frozenset({"leads"}), None]))
def test_promise_7_substitutes_meet_all_needs_and_options_resolve_again(options, groups):
    try:
        request = asked(groups, **options)
    except RequestRefused:
        return
    template = CATALOG.templates["lab"]
    for name in (request.gpu, *request.substitutes) if request.gpu else ():
        kind = CATALOG.gpus[name]
        assert kind.memory_bytes >= max(request.needs_memory_bytes, template.needs.memory_bytes)
        assert not kind.groups or groups is None or kind.groups & groups
        least, most = template.gpus[name]
        assert least <= request.count <= most
    assert request.gpu not in request.substitutes
    again = to_options(request)
    assert resolve(CATALOG, again, "alice", groups=groups) == request
    form = {key: [str(value)] for key, value in again.items()}
    assert resolve(CATALOG, from_form(CATALOG, form), "alice", groups=groups) == request
    fewer = without_defaults(CATALOG, {"template": "lab", **options}, "alice", groups=groups)
    assert resolve(CATALOG, fewer, "alice", groups=groups) == request


def test_ticked_boxes_of_a_form_are_dropped_without_a_gpu():
    form = {"template": ["lab"], "gpu": ["a100"], "substitutes": ["h100", "l40"], "gpu_memory": [""]}
    assert from_form(CATALOG, form) == {"template": "lab", "gpu": "a100", "substitutes": "h100,l40"}
    without = {**form, "gpu": ["none"], "gpu_memory": ["16GiB"], "count": ["1"]}
    assert from_form(CATALOG, without) == {"template": "lab", "gpu": "none"}
