"""Tests are no package: what they share is found beside them."""

import sys
from pathlib import Path

import pytest
from traitlets.config import Config

sys.path.insert(0, str(Path(__file__).parent))

from kube_catalog import CATALOG

from gpuspawner.spawner import configure


@pytest.fixture
def outside_a_cluster(monkeypatch, tmp_path):
    """The hub is in no cluster, and reaches one by a file that is not there."""
    for name in ("KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))


@pytest.fixture
def configured(outside_a_cluster, tmp_path):
    """Return a function that configures a hub of pods by KubeSpawner's settings."""

    def make(c=None, spawner_class="kubespawner.KubeSpawner", catalog=CATALOG, **settings):
        c = c or Config()
        c.JupyterHub.spawner_class = spawner_class
        for name, value in settings.items():
            c.KubeSpawner[name] = value
        configure(c, catalog=catalog, data_dir=tmp_path / "gpu")
        return c

    return make
