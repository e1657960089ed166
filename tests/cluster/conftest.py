"""One cluster for all tests of this folder, and a namespace for each.

The cluster is, in this order: the one that ``GPUSPAWNER_TEST_KUBECONFIG`` names; where files run at once, one of each
process's own; the one that `make cluster` started; one that is started here and ended after the last test.
``KUBECONFIG`` is never read.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "hub"))
sys.path.insert(0, str(Path(__file__).parents[1] / "core"))
sys.path.insert(0, str(Path(__file__).parents[1] / "schedulers"))
sys.path.insert(0, str(Path(__file__).parent))  # tests are no package: `from nodes import ...`
sys.path.append(str(Path(__file__).parents[1] / "workspace"))  # `from a_wheel import ...`

from nodes import ROOT, TestCluster

from tools.cluster.__main__ import FOLDER
from tools.cluster.cluster import Cluster


@pytest.fixture(scope="session")
def cluster():
    """A cluster that answers, as `TestCluster`."""
    named, worker = os.environ.get("GPUSPAWNER_TEST_KUBECONFIG"), os.environ.get("PYTEST_XDIST_WORKER")
    folder = FOLDER.with_name(f"{FOLDER.name}-{worker}") if worker else FOLDER
    own = Cluster.load(folder)
    started = not named and (bool(worker) or not (own and own.runs))
    make = [sys.executable, "-m", "tools.cluster", "--folder", folder]
    if started:
        subprocess.run([*make, "stop"], cwd=ROOT, check=True)  # what a run that was killed left
        subprocess.run([*make, "start"], cwd=ROOT, check=True)
        own = Cluster.load(folder)
    test_cluster = TestCluster(Path(named), None) if named else TestCluster(own.kubeconfig, own)
    yield test_cluster
    if started:  # with all that is in it
        subprocess.run([*make, "stop"], cwd=ROOT, check=True)
    else:
        test_cluster.wait_until_gone()
    test_cluster.api.close()


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
