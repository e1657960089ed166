"""One cluster for all tests of this folder, and a namespace for each.

The cluster is, in this order: the one that ``GPUSPAWNER_TEST_KUBECONFIG`` names; the one that `make cluster` started;
one that is started here and ended after the last test. ``KUBECONFIG`` is never read.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "hub"))
sys.path.insert(0, str(Path(__file__).parent))  # tests are no package: `from nodes import ...`

from nodes import ROOT, TestCluster

from tools.cluster.__main__ import FOLDER
from tools.cluster.cluster import Cluster


@pytest.fixture(scope="session")
def cluster():
    """A cluster that answers, as `TestCluster`."""
    named = os.environ.get("GPUSPAWNER_TEST_KUBECONFIG")
    own = Cluster.load(FOLDER)
    started = not named and not (own and own.runs)
    if started:
        subprocess.run([sys.executable, "-m", "tools.cluster", "start"], cwd=ROOT, check=True)
        own = Cluster.load(FOLDER)
    test_cluster = TestCluster(Path(named), None) if named else TestCluster(own.kubeconfig, own)
    yield test_cluster
    test_cluster.close()
    if started:
        subprocess.run([sys.executable, "-m", "tools.cluster", "stop"], cwd=ROOT, check=True)


@pytest.fixture(scope="session")
def one_machine(cluster):
    """The cluster as `make cluster` starts it, whose parts a test may stop; skipped on another."""
    if cluster.own is None:
        pytest.skip("it changes nodes, which a cluster named by GPUSPAWNER_TEST_KUBECONFIG may not want")
    return cluster


@pytest.fixture
def namespace(cluster):
    """The name of a namespace of this test's own, removed after it."""
    with cluster.namespace() as name:
        yield name
