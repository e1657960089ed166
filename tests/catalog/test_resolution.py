import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
from harness.cases import read_cases

from gpuspawner.catalog import (
    RESERVED,
    from_form,
    resolve,
    resolve_all,
    scaled,
    to_options,
    understood,
    what_is_wrong,
    without_defaults,
)
from gpuspawner.core.calendar import Window
from gpuspawner.core.errors import RequestRefused, TooLarge
from gpuspawner.core.leases.request import Request
from gpuspawner.core.rules import ClassHold, Rules

GIB = 2**30
DEFAULT = Request(
    "alice", "pytorch", "default", "a100", 2, 8, 64 * GIB, 28800, image="", opens=(), least_lifetime_seconds=1800
)


@pytest.mark.parametrize("options", [None, {}, {"template": "pytorch"}, {"gpu": "a100"}, {"count": 2}])
def test_an_option_that_is_left_out_has_its_default(catalog, options):
    assert resolve(catalog, options, "alice") == DEFAULT


def test_a_request_keeps_the_classes_of_its_user(catalog):
    hold = ClassHold("cs231", "a100", 1, Window(frozenset({3}), 540, 660))
    catalog = replace(catalog, rules=Rules(holds=(hold,)))
    assert resolve(catalog, {}, "alice", groups={"cs231", "chess"}).classes == ("cs231",)
    assert resolve(catalog, {}, "alice").classes == ()


@pytest.mark.parametrize(
    "options",
    [
        {"gpu": "a100", "count": 3, "cpu": 2.5, "memory": "16GiB", "lifetime": "1h30m"},
        {"gpu": "a100", "count": "3", "cpu": "2.5", "memory": 16 * GIB, "lifetime": "5400s"},
        {"gpu": "a100", "count": "3", "cpu": "2.5 cores", "memory": "16", "lifetime": "90"},
        {"gpu": "a100", "count": "3", "cpu": "2.5", "memory": "16 GB", "lifetime": "1h30"},
    ],
)
def test_numbers_and_texts_mean_the_same(catalog, options):
    request = Request(
        "alice", "pytorch", "default", "a100", 3, 2.5, 16 * GIB, 5400, image="", opens=(), least_lifetime_seconds=1800
    )
    assert resolve(catalog, options, "alice") == request
    assert resolve(catalog, options, "alice").digest == request.digest


@pytest.mark.parametrize(
    ("options", "gpu", "count"),
    [
        pytest.param({"gpu": "t4"}, "t4", 1, id="the default count moves into the kind's range"),
        pytest.param({"gpu": "half"}, "half", 1, id="a share"),
        pytest.param({"template": "pytorch-4x"}, "a100", 4, id="a whole node"),
        pytest.param({"template": "cpu"}, None, 0, id="a template without GPUs"),
        pytest.param({"template": "cpu", "gpu": "none", "count": 0}, None, 0, id="none of none"),
        pytest.param({"gpu": "none"}, None, 0, id="none where there are some"),
        pytest.param({"gpu": None}, None, 0, id="null is none"),
    ],
)
def test_gpus(catalog, options, gpu, count):
    request = resolve(catalog, options, "alice")
    assert (request.gpu, request.count) == (gpu, count)


def test_the_policy_is_the_templates(catalog):
    assert resolve(catalog, {"template": "pytorch-4x"}, "alice").policy == "night"


def test_a_scaled_catalog_takes_scaled_lifetimes(catalog):
    fast = scaled(catalog, 30)
    assert resolve(fast, {"lifetime": "60s"}, "alice").lifetime_seconds == 60
    with pytest.raises(RequestRefused, match="Allowed: 1 min to 48 min"):
        resolve(fast, {"lifetime": "8h"}, "alice")


BAD = [
    *[True, False, [2, 3], {}, {"a": 1}, math.nan, math.inf, 1e309, 10**30, 10**5000, -1, "-1", "٣", "\uff13", "1e3"],
    *["", " ", "x" * 60_000, "9" * 60_000, "\0", "\ud800", "a\nb", "<script>", "none;", 0],
]
LIMITS = {
    "template": "pytorch, pytorch-4x, cpu",
    "gpu": "a100, t4, half, any, none",
    "count": "1 to 4",
    "cpu": "2 to 32",
    "memory": "8 GiB to 256 GiB",
    "lifetime": "30 min to 24 h",
}


@pytest.mark.parametrize("field", LIMITS)
@pytest.mark.parametrize("value", BAD, ids=range(len(BAD)))
def test_promise_10_a_bad_value_is_refused_with_value_bound_and_remedy(catalog, field, value):
    with pytest.raises(RequestRefused) as caught:
        resolve(catalog, {field: value}, "alice")
    refused = caught.value
    assert (refused.field, refused.limit, refused.status) == (field, LIMITS[field], 400)
    assert refused.asked
    assert refused.remedy.endswith(".")
    assert len(str(refused)) < 300


@pytest.mark.parametrize(("options", "message"), read_cases(Path(__file__).with_name("refused_options.txt")))
def test_promise_10_refusals_in_words(catalog, options, message):
    with pytest.raises(RequestRefused) as caught:
        resolve(catalog, json.loads(options), "alice")
    assert str(caught.value) == message


def test_all_refusals_are_reported_at_once_with_the_labels_of_the_form(catalog):
    asked = {"count": "9", "memory": "64 boxes", "lifetime": "3 days", "cpu": "4 cores", "memroy": 1}
    found = resolve_all(catalog, asked, "alice")
    refused = found.refused
    assert (found.accepted, found.understood) == ({"cpu": "4 cores"}, {"cpu": "4"})
    assert [one.field for one in refused] == ["'memroy'", "count", "memory", "lifetime"]
    assert what_is_wrong(refused[1:]) == "Change GPUs, Memory and Run time first."
    beside = "You asked for '3 days' (3 d). Allowed: 30 min to 24 h. Write for example 8 h."
    assert (refused[3].details, what_is_wrong(refused[3:])) == (beside, f"Run time: {beside}")
    flood = {f"key-{n}": n for n in range(5000)}
    assert resolve_all(catalog, flood, "alice").accepted == {}


def test_sizes_and_times_are_shown_as_they_were_read(catalog):
    asked = {"memory": "64gb", "lifetime": "1h30", "gpu": "a100"}
    meant = understood(resolve(catalog, asked, "alice"), asked)
    assert meant == {"memory": "64 GiB", "lifetime": "1 h 30 min"}


@pytest.mark.parametrize("options", ["pytorch", 7, True, [], math.nan])
def test_promise_10_options_must_be_a_mapping(catalog, options):
    with pytest.raises(RequestRefused, match="options: "):
        resolve(catalog, options, "alice")


@pytest.mark.parametrize("key", ["", "x" * 60_000, 7, None, ("a",), "GPU", "\ud800"])
def test_promise_10_unknown_keys_are_refused(catalog, key):
    with pytest.raises(RequestRefused, match="an option that does not exist") as caught:
        resolve(catalog, {key: 1}, "alice")
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("options", ["x" * 70_000, {"x" * 70_000: 1}, {"count": "7" * 70_000}, {"count": [1] * 30_000}])
def test_promise_10_very_long_options_are_refused_before_they_are_read(catalog, options):
    with pytest.raises(
        TooLarge, match=r"request: You asked for more than 65,536 bytes\. .* Shorten its longest value\."
    ) as caught:
        resolve(catalog, options, "alice")
    assert caught.value.status == 413
    if isinstance(options, dict):
        with pytest.raises(TooLarge):
            from_form(catalog, {key: [str(value)] for key, value in options.items()})


@pytest.mark.parametrize("key", RESERVED)
def test_promise_10_jupyterhubs_own_names_are_refused_with_the_reason(catalog, key):
    with pytest.raises(RequestRefused, match="JupyterHub takes"):
        resolve(catalog, {key: {"gpu": "a100"}}, "alice")


@pytest.mark.parametrize("options", [{}, {"gpu": "none"}, {"gpu": "t4", "cpu": 2.125, "lifetime": "1h1m1s"}])
def test_a_requests_options_resolve_to_it_again(catalog, options):
    request = resolve(catalog, options, "alice")
    assert resolve(catalog, to_options(request), "alice") == request
    form = {key: [str(value)] for key, value in to_options(request).items()}
    assert resolve(catalog, from_form(catalog, form), "alice") == request


def test_a_form_sends_lists_and_empty_fields(catalog):
    form = {"_xsrf": ["2|abc"], "template": ["pytorch"], "gpu": [""], "count": ["3"], "memory": [" 16GiB "], "cpu": []}
    assert from_form(catalog, form) == {"template": "pytorch", "count": "3", "memory": "16GiB"}
    assert resolve(catalog, from_form(catalog, form), "alice").count == 3


def test_a_forms_count_means_nothing_without_a_gpu(catalog):
    form = {"template": ["cpu"], "gpu": ["none"], "count": ["1"]}
    assert resolve(catalog, from_form(catalog, form), "alice").gpu is None


def test_promise_10_a_form_with_two_values_for_a_field_is_refused(catalog):
    with pytest.raises(RequestRefused, match=r"GPUs: You asked for 2 values\. Allowed: one value"):
        from_form(catalog, {"count": ["1", "2"]})


@pytest.mark.parametrize("field", ["image", "display_name", "count_file"])
def test_promise_10_a_form_with_another_field_is_refused(catalog, field):
    with pytest.raises(RequestRefused, match="an option that does not exist"):
        from_form(catalog, {field: ["1"]})


def test_defaults_that_a_form_sends_are_not_choices(catalog):
    filled_in = {"template": "pytorch", "gpu": "a100", "count": "2", "cpu": "8", "memory": "64 GiB", "lifetime": "8h"}
    asked = resolve(catalog, filled_in, "alice")
    usual = catalog.templates["pytorch"].default
    same = (usual.gpu, usual.count, usual.cpu_cores, usual.memory_bytes, usual.lifetime_seconds)
    assert (asked.gpu, asked.count, asked.cpu_cores, asked.memory_bytes, asked.lifetime_seconds) == same
    assert without_defaults(catalog, filled_in, "alice") == {"template": "pytorch"}
    chosen = {**filled_in, "gpu": "t4", "count": "1", "memory": "32GiB"}
    assert without_defaults(catalog, chosen, "alice") == {"template": "pytorch", "gpu": "t4", "memory": "32GiB"}
    for options in (filled_in, chosen):
        assert resolve(catalog, without_defaults(catalog, options, "alice"), "alice") == resolve(
            catalog, options, "alice"
        )
