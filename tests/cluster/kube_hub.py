"""A real JupyterHub on the machine whose workspaces are pods of the cluster: KubeSpawner under configure()."""

import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "hub"))

from harness import ADMIN_TOKEN, FAST, REPO, RealHub, eventually

__all__ = ["KubeHub", "eventually"]

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
import os
import sys
os.environ["KUBECONFIG"] = {kubeconfig!r}
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
c.JupyterHub.tornado_settings = {{"slow_spawn_timeout": 1}}
c.KubeSpawner.namespace = {namespace!r}
c.KubeSpawner.image = {image!r}
c.KubeSpawner.image_pull_policy = {pull_policy!r}
c.KubeSpawner.http_timeout = 60
c.KubeSpawner.start_timeout = 120
c.KubeSpawner.poll_interval = 2
c.KubeSpawner.gpu_grace_seconds = 3
c.JupyterHub.services = [{{"name": "tests", "api_token": {token!r}}}]
c.JupyterHub.load_roles = [{{"name": "tests", "services": ["tests"], "scopes": [
    "admin:users", "admin:servers", "tokens", "custom:gpu:admin", "access:services", "shutdown"]}}]
{extra}
from gpuspawner.spawner import configure
configure(c, catalog={catalog!r}, data_dir="{folder}/gpu", port={service_port}, service_settings={settings!r})
c.GPUSpawnerMixin.wait_in_hub_seconds = {wait}
"""


@dataclass
class KubeHub(RealHub):
    """One hub whose workspaces are pods of ``cluster`` in ``namespace``."""

    cluster: Any = None
    namespace: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.catalog.write_text(CATALOG)

    def config(self) -> str:
        own = self.cluster.own
        values = {**vars(self), "repo": str(REPO), "token": ADMIN_TOKEN, "catalog": str(self.catalog)}
        values |= {
            "kubeconfig": str(self.cluster.kubeconfig),
            "address": own.host_address,
            "image": self.cluster.image,
            "pull_policy": "Never" if own else "IfNotPresent",
            "settings": {**FAST, **self.settings},
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

    def progress(self, user: str) -> list[str]:
        """What the progress page of a start that is over, or under way, tells until it ends."""
        response = self.api("GET", f"/users/{user}/server/progress", seconds=120)
        return [line for line in response.text.splitlines() if line.startswith("data:")]
