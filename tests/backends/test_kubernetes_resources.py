"""Requests as custom resources: when the policy that keeps people from asking for others is as strict as ours."""

import copy

import pytest

from gpuspawner.backends.custom_resources.cluster import _is_as_strict
from gpuspawner.catalog.resources.definitions import admission

POLICY, BINDING = (one["spec"] for one in admission())


def as_there(**rule):
    """The policy as the API server has it, with what it fills in, and one rule changed."""
    there = copy.deepcopy(POLICY)
    there["matchConstraints"] |= {"matchPolicy": "Equivalent", "namespaceSelector": {}, "objectSelector": {}}
    there["matchConstraints"]["resourceRules"][0] |= {"scope": "*", **rule}
    return there


def test_defaults_of_the_api_server_keep_a_policy_strict():
    assert _is_as_strict(as_there(), POLICY)
    assert _is_as_strict({**BINDING}, BINDING)


@pytest.mark.parametrize("rule", [{"resourceNames": ["train"]}, {"scope": "Cluster"}, {"operations": ["CREATE"]}])
def test_a_policy_for_some_requests_alone_is_not_as_strict(rule):
    assert not _is_as_strict(as_there(**rule), POLICY)
