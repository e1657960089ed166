"""Each wrong entry of the rules is reported with line, name and message."""

from pathlib import Path

import pytest
from harness.cases import read_cases

GPUS = """\
version: 1
gpus:
  a100: {match: A100, memory: 80GiB, compute: 8.0}
  h100: {match: H100, memory: 80GiB, compute: 9.0}
  t4: {match: T4, memory: 16GiB}
templates:
"""
PLAIN = GPUS.replace("templates:\n", "templates: {lab: {}}\n")


@pytest.mark.parametrize(("appended", "problem"), read_cases(Path(__file__).with_name("problems_of_rules.txt")))
def test_promise_10_a_rule_that_is_wrong_is_refused_by_its_line(appended, problem, problems_of):
    assert problems_of(GPUS + appended if appended[0] == " " else PLAIN + appended) == [problem]


def test_promise_10_all_errors_in_lists_are_reported_at_once(problems_of):
    found = problems_of(
        GPUS
        + """\
  lab: {}
hours:
  - night
  - {when: never, policy: p, instead_of: default}
  - {when: Mon 1:00-2:00, policy: default, instead_of: defalt, day: Mon}
holds:
  - {group: g, gpu: T4, count: 0}
quotas:
  q: {group: v, gpus: {soft: 2, hard: 1}, types: {x: {hard: 1}}, cost: {hard: -1}}
"""
    )
    assert [problem.split(": ")[0] for problem in found] == [
        "9 hours.0",
        "10 hours.1.when",
        "10 hours.1.policy",
        "11 hours.2.day",
        "11 hours.2.instead_of",
        "13 holds.0.gpu",
        "13 holds.0.count",
        "13 holds.0",
        "15 quotas.q.cost.hard",
        "15 quotas.q.gpus.soft",
        "15 quotas.q.types.x",
        "15 quotas.q.cost",
    ]
