"""A real JupyterHub on the machine whose workspaces are pods of the cluster: KubeSpawner under configure()."""

import json
import os
import sys
import textwrap
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "hub"))

import requests
from harness.hub import ADMIN_TOKEN, REPO, RealHub, eventually

__all__ = ["KubeHub", "eventually", "python_of"]
HUB5 = "GPUSPAWNER_HUB5_PYTHON"
WHICH = "GPUSPAWNER_TEST_HUB"
"""Names the version for the tests that do not choose one themselves."""


def python_of(version: str) -> str:
    """The Python with "newest" of JupyterHub and KubeSpawner, or with "5.5" and 7.1."""
    if version == "newest":
        return sys.executable
    assert os.environ.get(HUB5), f"{HUB5} must name a Python with JupyterHub 5.5 and KubeSpawner: `make test` sets it"
    return os.environ[HUB5]


CATALOG = """
version: 1
gpus:
  a100: {title: A100, match: NVIDIA-A100*, memory: 80GiB}
templates:
  cpu:
    title: No GPU
    bounds: {cpu: 0.1-2, memory: 128MiB-2GiB, lifetime: 1s-24h}
    default: {cpu: 0.2, memory: 512MiB, lifetime: 8h}
  lab:
    extends: cpu
    title: Lab
    gpus: {a100: 1-8}
  missing: {extends: cpu, title: No image, image: "localhost/there-is-none:1"}
policies:
  default: {mode: observe, lifetime: 1s-24h}
"""

CONFIG = """
import json
import os
import sys
sys.path.insert(0, {repo!r})
import jupyterhub.services.service as services


class QuickServiceSpawner(services._ServiceSpawner):
    poll_interval = 1.0


services._ServiceSpawner = QuickServiceSpawner

c = get_config()  # noqa
c.JupyterHub.bind_url = "http://127.0.0.1:{port}"
c.JupyterHub.hub_bind_url = "http://{address}:{hub_port}"
c.ConfigurableHTTPProxy.api_url = "http://127.0.0.1:{proxy_port}"
c.ConfigurableHTTPProxy.should_start = False
c.ConfigurableHTTPProxy.auth_token = "proxy-token"
c.JupyterHub.cleanup_proxy = False
c.JupyterHub.cleanup_servers = False
c.JupyterHub.db_url = "sqlite:///{folder}/hub.sqlite"
c.JupyterHub.cookie_secret_file = "{folder}/cookie_secret"
c.JupyterHub.authenticator_class = "dummy"
c.Authenticator.allow_all = True
c.Authenticator.admin_users = {{"admin"}}
c.JupyterHub.allow_named_servers = True
c.JupyterHub.spawner_class = "kubespawner.KubeSpawner"
c.JupyterHub.tornado_settings = {{"slow_spawn_timeout": {slow_spawn_timeout}}}
c.KubeSpawner.namespace = {namespace!r}
c.KubeSpawner.image = {image!r}
c.KubeSpawner.image_pull_policy = {pull_policy!r}
c.KubeSpawner.http_timeout = c.KubeSpawner.start_timeout = 120
c.KubeSpawner.poll_interval = 2
c.KubeSpawner.gpu_grace_seconds = 3
c.KubeSpawner.gpu_cluster = {{"kubeconfig": {kubeconfig!r}}}
c.JupyterHub.services = [{{"name": "tests", "api_token": {token!r}}}]
c.JupyterHub.load_roles = [{{"name": "tests", "services": ["tests"], "scopes": [
    "admin:users", "admin:servers", "tokens", "custom:gpu:admin", "access:services", "shutdown"]}}]
{extra}
from gpuspawner.spawner import configure
configure(
    c, catalog={catalog!r}, data_dir="{folder}/gpu", port={service_port}, fast={fast!r}, service_settings={settings!r}
)
c.GPUSpawnerMixin.gpu_wait_in_hub_seconds = {wait}
"""


@dataclass
class KubeHub(RealHub):
    """One hub whose workspaces are pods of ``cluster`` in ``namespace``."""

    python: str = field(default_factory=lambda: python_of(os.environ.get(WHICH, "newest")))
    cluster: Any = None
    namespace: str = ""
    hub_kubeconfig: str = ""
    """The hub's own rights; "" for those of the tests, which the service has in any case."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.catalog.write_text(CATALOG)
        # Set for this process too: the Kubernetes client reads it during its import.
        self.environment_of_hub["KUBECONFIG"] = self.hub_kubeconfig or str(self.cluster.kubeconfig)

    def config(self) -> str:
        own = self.cluster.own
        values = {**vars(self), "repo": str(REPO), "token": ADMIN_TOKEN, "catalog": str(self.catalog)}
        values |= {
            "kubeconfig": str(self.cluster.kubeconfig),
            "address": own.host_address,
            "image": self.cluster.image,
            "pull_policy": "Never" if own else "IfNotPresent",
            "settings": {**self.times, **self.settings},
            "extra": textwrap.dedent(self.extra),
        }
        return CONFIG.format(**values)

    def workspace_pids(self, lease: str = "") -> list[int]:
        return []  # they are pods, and end with their namespace

    def pod(self, user: str) -> Any:
        """The pod of a user's default server as the API server has it, or None."""
        pods = self.cluster.core.list_namespaced_pod(self.namespace).items
        return next(
            (pod for pod in pods if (pod.metadata.annotations or {}).get("hub.jupyter.org/username") == user), None
        )

    def first_steps(self, user: str, words: str) -> str:
        """Return the text of the progress page of a start, up to these words or for 15 s."""
        url = f"{self.url}/hub/api/users/{user}/server/progress"
        told, until = "", time.monotonic() + 15
        with requests.get(url, headers={"Authorization": f"token {ADMIN_TOKEN}"}, stream=True, timeout=15) as answer:
            try:
                for line in answer.iter_lines(decode_unicode=True):  # the hub sends an empty one every 8 s
                    told += line
                    if words in told or time.monotonic() > until:
                        break
            except requests.RequestException:
                pass
        return told

    def failure(self, user: str) -> str:
        """Why a start failed, as its progress page tells; waits for that."""

        def told() -> str:
            answer = self.api("GET", f"/users/{user}/server/progress", seconds=120)
            lines = [line.removeprefix("data:") for line in answer.text.splitlines() if line.startswith("data:")]
            last = json.loads(lines[-1]) if lines else {}
            return last["message"] if last.get("failed") else ""

        return str(eventually(told, 90, f"{user}'s start fails"))
