"""Edits of one value in a catalog's text: everything around it stays as it was written."""

import pytest

from gpuspawner.catalog.document import read_text
from gpuspawner.catalog.edits import text_at, with_value
from gpuspawner.core.units import BadValue

TEXT = """\
# Our catalog
version: 1

gpus:
  a100: {match: "*A100*", memory: 80GiB}  # two nodes
  t4:
    match: "*T4"   # old ones

# What users choose
templates:
  # for everybody
  lab:  # the first
    title: Lab
    gpus: {a100: 1-2}
    bounds:
      cpu: 1-4   # cores
      # not more memory than this
      memory: 1GiB-8GiB
  # for the class
  small:
    gpus: {t4: 1}

policies:
  default:
    mode: enforce
"""


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        pytest.param(
            ("templates", "lab"),
            "title: Lab\ngpus: {a100: 1-2}\nbounds:\n  cpu: 1-4   # cores\n"
            "  # not more memory than this\n  memory: 1GiB-8GiB",
            id="block",
        ),
        pytest.param(("gpus", "a100"), '{match: "*A100*", memory: 80GiB}', id="braces"),
        pytest.param(("templates", "lab", "bounds", "cpu"), "1-4", id="scalar"),
        pytest.param(("templates", "none"), "", id="missing"),
        pytest.param(("teams", "vision"), "", id="missing-section"),
    ],
)
def test_the_text_of_a_value_is_returned_as_it_is_written(path, expected):
    assert text_at(TEXT, path) == expected


@pytest.mark.parametrize(
    ("path", "value", "before", "after"),
    [
        pytest.param(("templates", "lab", "title"), "PyTorch", "title: Lab", "title: PyTorch", id="scalar"),
        pytest.param(("templates", "lab", "bounds", "cpu"), "1-8", "cpu: 1-4   #", "cpu: 1-8   #", id="keeps-comment"),
        pytest.param(
            ("templates", "small"),
            "title: Small\n# one each\ngpus: {t4: 1}",
            "    gpus: {t4: 1}\n",
            "    title: Small\n    # one each\n    gpus: {t4: 1}\n",
            id="entry-with-comment",
        ),
        pytest.param(
            ("templates", "small"), None, "  small:\n    gpus: {t4: 1}\n", "", id="removed, the comment above stays"
        ),
        pytest.param(
            ("gpus", "a100"),
            'match: "*A100*"\nprice: 2',
            '  a100: {match: "*A100*", memory: 80GiB}  # two nodes\n',
            '  a100:  # two nodes\n    match: "*A100*"\n    price: 2\n',
            id="braces-become-lines",
        ),
        pytest.param(
            ("gpus", "t4"), "{match: x}", '  t4:\n    match: "*T4"   # old ones\n', "  t4: {match: x}\n", id="in"
        ),
        pytest.param(
            ("templates", "big"),
            "gpus: {a100: 8}",
            "    gpus: {t4: 1}\n",
            "    gpus: {t4: 1}\n  big:\n    gpus: {a100: 8}\n",
            id="added-entry",
        ),
        pytest.param(
            ("teams", "vision"),
            "{}",
            "    mode: enforce\n",
            "    mode: enforce\nteams:\n  vision: {}\n",
            id="added-section",
        ),
        pytest.param(
            ("gpus", "a100", "price"),
            "2.5",
            '{match: "*A100*", memory: 80GiB}',
            '{"match": "*A100*", "memory": "80GiB", "price": 2.5}',
            id="key-in-braces",
        ),
        pytest.param(
            ("templates", "small", "default", "gpu"),
            "t4",
            "    gpus: {t4: 1}\n",
            "    gpus: {t4: 1}\n    default:\n      gpu: t4\n",
            id="added-levels",
        ),
    ],
)
def test_one_value_is_edited_and_all_else_stays_as_it_was_written(path, value, before, after):
    assert TEXT.count(before) == 1
    assert with_value(TEXT, path, value) == TEXT.replace(before, after)


@pytest.mark.parametrize(
    ("text", "path", "value", "expected"),
    [
        pytest.param("", ("a", "b"), "1", "a:\n  b: 1\n", id="empty"),
        pytest.param("a:\nb: 1\n", ("a", "x"), "{}", "a:\n  x: {}\nb: 1\n", id="empty-section"),
        pytest.param("a: {}\nb: 1", ("a", "x"), "k: v", "a:\n  x:\n    k: v\nb: 1\n", id="empty-braces"),
        pytest.param('{"a": {"b": 1}}', ("a", "c"), "k: [x]", '{"a": {"b": 1, "c": {"k": ["x"]}}}\n', id="json"),
        pytest.param("a: 1\n", ("b",), None, "a: 1\n", id="nothing-to-remove"),
        pytest.param("a:\n  b:\n    c: 1\nd: 2\n", ("a", "b", "c"), None, "d: 2\n", id="removes-empty-mappings"),
        pytest.param("a:\n- 1\n- 2\nb: 3\n", ("a",), "- 4", "a:\n  - 4\nb: 3\n", id="list"),
        pytest.param("a: |\n  one\n  two\nb: 3\n", ("a",), "x", "a: x\nb: 3\n", id="long-text"),
        pytest.param("a: 1\n", ("a",), "|\n  one\n  two", "a: |\n    one\n    two\n", id="to-long-text"),
        pytest.param("a: 1\n", ("no", "x y"), "2", 'a: 1\nno:\n  "x y": 2\n', id="quoted-key"),
    ],
)
def test_values_are_placed_where_nothing_was(text, path, value, expected):
    assert with_value(text, path, value) == expected
    if value is not None:
        assert read_text(text_at(expected, path)).data == read_text(value).data


def test_a_value_that_is_not_yaml_is_refused_with_its_line():
    with pytest.raises(BadValue) as refused:
        with_value(TEXT, ("templates", "lab"), "title: a\n\tgpus: 1")
    assert refused.value.wrong == "line 2: there is a tab where YAML needs spaces"
