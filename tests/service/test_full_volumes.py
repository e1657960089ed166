"""A quota of the namespace that allows no further volume: who reads it before the start, and in the console."""

import pytest
from page_world import CATALOG, api

from gpuspawner.catalog import load_catalog
from gpuspawner.core.quotas.namespaces import NamespaceBounds, NamespaceQuota
from gpuspawner.service.administration.problems import find_problems

FULL = "The cluster's quota team allows no further volume: 200 of 200 are in use."
NOTE = f" {FULL} If this workspace needs a new one, it cannot start. Ask an administrator to raise the quota."
DATA = {"data": {"per_user": "10GiB", "mount": "/data"}}


def told_before_start(world, **options):
    response = api(world, "alice", "check", "POST", options)
    assert response.status_code == 200, response.text
    return response.json()["sentence"]


def has_volumes(world, used):
    quotas = (NamespaceQuota("team", "persistentvolumeclaims", 200, used), NamespaceQuota("team", "pods", 9))
    world.parts.scheduler.room = NamespaceBounds(quotas=quotas)


@pytest.fixture
def world(make_web_world):
    with_data = {"with-data": {**CATALOG["templates"]["pytorch"], "volumes": DATA}}
    world = make_web_world(load_catalog({**CATALOG, "templates": {**CATALOG["templates"], **with_data}}))
    world.observe()
    return world


def test_only_a_start_that_may_make_a_volume_reads_that_none_is_allowed(world):
    has_volumes(world, 199)
    assert FULL not in told_before_start(world)
    has_volumes(world, 200)
    assert told_before_start(world).endswith(NOTE), "alice has had no workspace"
    assert told_before_start(world, gpu="none").endswith(NOTE)
    started = api(world, "alice", "workspaces", "POST", {"server": "one"})
    assert started.status_code == 202, started.text
    assert FULL not in told_before_start(world, server="two"), "she has a home now"
    assert told_before_start(world, server="two", template="with-data").endswith(NOTE), "it makes a volume for her"


def test_administrators_read_it_among_the_problems(world):
    has_volumes(world, 200)
    (found,) = [one for one in find_problems(world.parts, [], []) if one.what == FULL]
    assert found.remedy == "Users without a home volume cannot start. Raise the quota, or delete unused volumes."
    has_volumes(world, 199)
    assert FULL not in {one.what for one in find_problems(world.parts, [], [])}
