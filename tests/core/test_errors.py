"""Texts of errors."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuspawner.core.errors import SHOWN_CHARACTERS, CatalogError, Problem, RequestRefused, quoted


class Nasty:
    def __repr__(self):
        raise RuntimeError


@pytest.mark.parametrize("value", [None, ""])
def test_a_missing_value_is_named_as_missing(value):
    refused = RequestRefused("why", quoted(value), "a reason of at most 500 letters", "Say why.")
    assert refused.details == "Nothing was given. Allowed: a reason of at most 500 letters. Say why."


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        pytest.param("a100", "'a100'", id="text"),
        pytest.param("a\nb\x00", r"'a\nb\x00'", id="control characters"),
        pytest.param(True, "True", id="a boolean"),
        pytest.param(2**200, str(2**200)[:18] + "..." + str(2**200)[-19:], id="a large number"),
        pytest.param(10**5000, "a very large number", id="a number too large for Python to print"),
        pytest.param([10**5000], "a list that cannot be shown", id="the same inside a list"),
        pytest.param(Nasty(), None, id="a value whose repr fails"),
        pytest.param("x" * 10**6, "'" + "x" * (SHOWN_CHARACTERS - 2) + "…", id="a megabyte"),
    ],
)
def test_a_refused_value_is_quoted_on_one_short_line(value, shown):
    text = quoted(value)
    assert shown is None or text == shown
    assert len(text) <= SHOWN_CHARACTERS
    assert text.isprintable()


@given(st.recursive(st.none() | st.floats() | st.integers() | st.text() | st.binary(), st.lists))
def test_quoting_never_fails(value):
    text = quoted(value)
    assert text.isprintable()
    assert len(text) <= SHOWN_CHARACTERS


def test_a_problem_reads_like_a_compiler_s():
    problem = Problem("catalog.yaml", 12, "gpus.a100.memory", "'80' has no unit", "write 80GiB.")
    assert str(problem) == "catalog.yaml:12: gpus.a100.memory: '80' has no unit. write 80GiB."
    assert str(Problem("configure()", None, "gpus", "missing", "add it")) == "configure(): gpus: missing. add it"


@pytest.mark.parametrize(("count", "words"), [(1, "1 problem in the catalog"), (3, "3 problems in the catalog")])
def test_a_catalog_error_shows_all_problems_and_their_number(count, words):
    error = CatalogError((Problem("f", 1, "e", "w", "r"),) * count)
    assert str(error).splitlines() == ["f:1: e: w. r"] * count + [words]


def test_a_refusal_tells_what_was_asked_the_bound_and_the_next_step():
    error = RequestRefused("count", "5", "1 to 4", "Ask for fewer.")
    assert str(error) == "GPUs: You asked for 5. Allowed: 1 to 4. Ask for fewer."
    assert error.status == 400
