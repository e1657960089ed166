"""Common fixtures. Tests are no package: common modules are found in this folder."""

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from kubernetes_asyncio.client import ApiClient, Configuration
from kubespawner import spawner as kubespawner
from traitlets.config import Config

sys.path.insert(0, str(Path(__file__).parent))

from kube_catalog import CATALOG, SIZED

from gpuspawner.spawner import configure
from gpuspawner.spawner.kubernetes.spawner import GPUSpawner


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


class User(SimpleNamespace):
    """A user as a spawner meets one."""

    def __getattr__(self, name):
        if name.startswith("_"):
            raise AttributeError(name)
        return ""


@pytest.fixture
async def a_spawner(monkeypatch):
    """Return a function that makes the spawner of a user with these options, and KubeSpawner's settings."""
    monkeypatch.setattr(kubespawner, "load_config", lambda **_settings: None)
    monkeypatch.setattr(kubespawner, "shared_client", lambda _name: None)
    async with ApiClient(Configuration()) as client:

        def make(options, catalog=SIZED, **settings):
            c = Config({"KubeSpawner": {"image": "usual:1", **settings}})
            user = User(name="alice", id=1, escaped_name="alice", orm_user=SimpleNamespace(id=1))
            spawner = GPUSpawner(
                config=c,
                user=user,
                orm_spawner=SimpleNamespace(name="", oauth_client_id="o", user_options={}, server=None),
                hub=SimpleNamespace(api_url="http://hub", public_host="", base_url="/hub/"),
                _mock=True,
            )
            spawner.gpu_read_catalog = lambda: catalog
            spawner.api = SimpleNamespace(api_client=client)
            spawner.user_options = options
            return spawner

        yield make
