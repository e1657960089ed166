"""Each wrong entry is reported with line and entry, and several errors are reported at once."""

from pathlib import Path

import pytest
from harness.cases import read_cases

from gpuspawner.catalog.document import LARGEST_BYTES


@pytest.mark.parametrize(("appended", "problem"), read_cases(Path(__file__).with_name("problems_of_entries.txt")))
def test_promise_10_an_entry_that_is_wrong_is_refused_by_its_line(appended, problem, head, problems_of):
    assert problems_of(head + appended) == [problem]


def test_promise_10_all_errors_are_reported_at_once_in_the_order_of_the_file(problems_of):
    found = problems_of(
        """\
verson: 1
gpus:
  a100: {match: NVIDIA A100*, memory: 80GB}
templates:
  lab: {gpus: {a100: 1, h100: 1}, bounds: {cpu: 8-2}, policy: nigth}
policies:
  night: {mode: stop, idle: {for: 30}}
"""
    )
    assert [problem.split(": ")[0] for problem in found] == [
        "1 verson",
        "1 version",
        "3 gpus.a100.memory",
        "5 templates.lab.bounds.cpu",
        "5 templates.lab.gpus.h100",
        "5 templates.lab.policy",
        "7 policies.night.mode",
        "7 policies.night.idle.for",
    ]


def test_no_error_is_reported_that_follows_from_another(head, problems_of):
    found = problems_of(head.replace("80GiB", "much") + "  b: {extends: lab, gpus: {a100: 1}, policy: P}\n")
    assert [problem.split(": ")[0] for problem in found] == ["3 gpus.a100.memory", "6 templates.b.policy"]


def test_a_default_outside_its_bounds_is_reported_with_other_errors_of_its_template(head, problems_of):
    found = problems_of(
        head + "  b: {gpus: {a100: 4-1}, bounds: {cpu: 1-4, memory: lots}, default: {cpu: 99, memory: 99GiB}}\n"
    )
    assert [problem.split(": ")[0] for problem in found] == [
        "6 templates.b.gpus.a100",
        "6 templates.b.bounds.memory",
        "6 templates.b.default.cpu",
    ]


def test_a_large_catalog_full_of_errors_is_checked_to_its_end(head, problems_of):
    lines = [f"  t{i}: {{extends: t{i + 1}, gpus: {{z{i}: 1}}, policy: p}}\n" for i in range(2000)]
    text = head + "".join(lines)
    assert len(text) < LARGEST_BYTES
    assert len(problems_of(text)) > 4000


CATALOG_FULL_OF_ERRORS = """\
version: 1
gpus:
  a100: {match: NVIDIA A100*, price: cheap}
  t4: {match: Tesla T4, memory: 16GiB, price: dear, autoscale: {max: 2, each: 4, start: soon}}
  half: {of: a100, shares: 2, memory: 10GiB, match: x, price: none}
templates:
  lab:
    image: A B
    volumes: []
    gpus: {a100: 1-2, t4: 4-1}
    default: {gpu: a100, count: 3, memory: 99GiB}
    bounds: {cpu: x, lifetime: 1h-48h}
    policy: night
  heir:
    extends: lab
    title: ""
    default: {gpu: h100, lifetime: 9d}
policies:
  night: {mode: stop, idle: {for: 30s, below: lots}, extend: {total: 2h}, keep: {times: -1}, lifetime: 1h-4h}
quotas:
  each: {gpus: {hard: 2, soft: 1}}
"""


def test_a_correction_uncovers_no_error_that_was_known_before(problems_of):
    """Correct each reported entry. The next check reports no error that the first one did not."""
    found = {problem.split(": ")[0].partition(" ")[2] for problem in problems_of(CATALOG_FULL_OF_ERRORS)}
    mended = (
        ("price: cheap", "price: 1"),
        ("price: dear", "price: 1"),
        ("price: none", "price: 1"),
        ("start: soon", "start: 4m"),
        ("image: A B", "image: a"),
        ("    volumes: []\n", ""),
        ("t4: 4-1", "t4: 1-4"),
        ("cpu: x", "cpu: 1-2"),
        ('title: ""', "title: Heir"),
        ("mode: stop", "mode: warn"),
        ("below: lots", "below: 5%"),
        ("times: -1", "times: 1"),
        (", soft: 1", ""),
    )
    text = CATALOG_FULL_OF_ERRORS
    for wrong, right in mended:
        assert text.count(wrong) == 1, wrong
        text = text.replace(wrong, right)
    left = {problem.split(": ")[0].partition(" ")[2] for problem in problems_of(text)}
    assert left <= found, left - found
    assert len(left) > 8


@pytest.mark.parametrize(("appended", "problem"), read_cases(Path(__file__).with_name("problems_of_gpu_kinds.txt")))
def test_promise_10_a_gpu_kind_that_is_wrong_is_refused_by_its_line(appended, problem, head, problems_of):
    start, rest = head[: head.index("templates")], head[head.index("templates") :]
    assert problems_of(start + appended + rest) == [problem]
