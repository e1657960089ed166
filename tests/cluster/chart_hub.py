"""A hub in a pod that behaves as Zero to JupyterHub's: its values become its pod, and its configuration runs them.

Of that chart it has what the values of `gpuspawner kube values` meet: volumes, variables, init containers, extraConfig
by its keys, the hub's account with its rights, the culler. Its image has no gpuspawner in it.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from chart_release import NAME, Release
from harness.hub import ADMIN_TOKEN, REPO, eventually
from kube_hub import KubeHub
from reach import Reach

from tools.cluster import hub as hub_image
from tools.cluster.layers import write_image

OTHERS = "localhost/a-hub-of-others"
LABELS = {"app": "jupyterhub", "component": "hub", "release": "jhub"}
CONFIGURATION = """
import os
import yaml

values = yaml.safe_load(open("/usr/local/etc/jupyterhub/secret/values.yaml"))
c.JupyterHub.spawner_class = "kubespawner.KubeSpawner"
c.JupyterHub.bind_url = "http://0.0.0.0:8000"
c.JupyterHub.hub_bind_url = "http://:8081"
c.JupyterHub.hub_connect_url = os.environ["HUB_URL"]
c.JupyterHub.db_url = "sqlite:///jupyterhub.sqlite"
c.JupyterHub.cookie_secret_file = "/srv/jupyterhub/cookie_secret"
c.JupyterHub.cleanup_servers = False
c.JupyterHub.tornado_settings = {"slow_spawn_timeout": 0}
c.JupyterHub.authenticator_class = "dummy"
c.Authenticator.allow_all = True
c.Authenticator.admin_users = {"admin"}
c.ConfigurableHTTPProxy.pid_file = "/tmp/proxy.pid"
c.KubeSpawner.namespace = os.environ["POD_NAMESPACE"]
c.KubeSpawner.image = values["singleuser"]["image"]
c.KubeSpawner.image_pull_policy = "Never"
FAILS = 'test "$JUPYTERHUB_USER" != fails || { echo told by the server; exit 3; }'
c.KubeSpawner.cmd = ["sh", "-c", FAILS + "; exec python3 -m http.server 8888"]
c.KubeSpawner.http_timeout = 60
c.KubeSpawner.start_timeout = 300
c.KubeSpawner.allow_privilege_escalation = False
c.KubeSpawner.uid = 1000
c.KubeSpawner.container_security_context = {
    "capabilities": {"drop": ["ALL"]}, "runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"},
}
c.JupyterHub.services = [{"name": "tests", "api_token": values["token"]}]
if values["cull"]["enabled"]:
    c.JupyterHub.services.append({"name": "jupyterhub-idle-culler", "url": "http://127.0.0.1:1"})
c.JupyterHub.load_roles = [{"name": "tests", "services": ["tests"], "scopes": values["scopes"]}]
for _, text in sorted(values["hub"].get("extraConfig", {}).items()):
    exec(text)
"""
SCOPES = ["admin:users", "admin:servers", "tokens", "access:services", "shutdown"]
RULES = [
    {
        "apiGroups": [""],
        "resources": ["pods", "persistentvolumeclaims", "secrets", "services"],
        "verbs": ["get", "watch", "list", "create", "delete"],
    },
    {"apiGroups": [""], "resources": ["events"], "verbs": ["get", "watch", "list"]},
]


@dataclass
class ChartHub(KubeHub):
    """One such hub; ``claim`` is a claim for its database."""

    claim: str = ""
    values: dict[str, Any] = field(default_factory=dict)
    """Values of its chart release."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.api_address = Reach(self.cluster, self.namespace, "hub")
        self.public = Reach(self.cluster, self.namespace, "proxy-public")
        self.url = self.public.url
        own = self.cluster.own
        image = own.give_image(write_image(own.folder, OTHERS, hub_image.ensure_hub_layers(), {}, hub_image.CONFIG))
        self.image = image
        self.objects = [
            self._made("v1", "ServiceAccount"),
            self._made("rbac.authorization.k8s.io/v1", "Role", rules=RULES),
            self._made(
                "rbac.authorization.k8s.io/v1",
                "RoleBinding",
                roleRef={"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "hub"},
                subjects=[{"kind": "ServiceAccount", "name": "hub", "namespace": self.namespace}],
            ),
            self._made("v1", "Service", spec={"selector": LABELS, "ports": [{"port": 8081, "targetPort": 8081}]}),
            self._made("v1", "ConfigMap", data={"jupyterhub_config.py": CONFIGURATION}),
        ]
        public = self._made("v1", "Service", spec={"selector": LABELS, "ports": [{"port": 80, "targetPort": 8000}]})
        public["metadata"]["name"] = "proxy-public"
        self.objects.append(public)

    def start(self) -> "ChartHub":
        """Install the hub, or give its release other values."""
        values = yaml.safe_load(json.dumps(self.values))  # a copy
        values |= {"token": ADMIN_TOKEN, "scopes": [*SCOPES, *(["custom:gpu:admin"] if values.get("hub") else [])]}
        values.setdefault("hub", {})
        values.setdefault("cull", {"enabled": True})
        values.setdefault("singleuser", {})["image"] = self.cluster.image
        secret = self._made("v1", "Secret", stringData={"values.yaml": yaml.safe_dump(values)})
        deployment = self._made("apps/v1", "Deployment", spec=self._deployment(values))
        listed = {"apiVersion": "v1", "kind": "List", "items": [*self.objects, secret, deployment]}
        self.kubectl("apply", "--filename=-", given=json.dumps(listed))
        self.kubectl("rollout", "restart", "deployment/hub")
        self.kubectl("rollout", "status", "deployment/hub", "--timeout=180s")
        eventually(lambda: self.api("GET", "/users").status_code == 200, 60, "the hub answers")
        return self

    def use(self, name: str, service_url: str, *images: str) -> None:
        """Give it the values that the command prints for it with ``images``, its options that name such."""
        command = [sys.executable, "-m", "gpuspawner.cli", "kube", "values", f"--name={name}", "--values=-"]
        command += [f"--service-url={service_url}", *images]
        done = subprocess.run(
            command, input=yaml.safe_dump(self.values), cwd=REPO, capture_output=True, text=True, check=True, timeout=60
        )
        self.values = yaml.safe_load(done.stdout)

    def kill(self) -> None:
        """End the hub's process at once, as a node that runs out of memory does."""
        own = f"POD_NAMESPACE={self.namespace}".encode()
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                found = own in (process / "environ").read_bytes().split(b"\0")
                if found and b"jupyterhub_config.py" in (process / "cmdline").read_bytes():
                    os.kill(int(process.name), signal.SIGKILL)

    def restarts(self) -> int:
        """How often the hub was started again in its pod."""
        path = "jsonpath={.items[0].status.containerStatuses[0].restartCount}"
        return int(self.kubectl("get", "pods", "--selector=component=hub", f"--output={path}"))

    def kubectl(self, *arguments: str, given: str = "") -> str:
        return self.cluster.own.kubectl(f"--namespace={self.namespace}", *arguments, given=given)

    def close(self) -> None:
        self.public.close()
        self.api_address.close()

    def _made(self, version: str, kind: str, **more: Any) -> dict[str, Any]:
        return {"apiVersion": version, "kind": kind, "metadata": {"name": "hub", "namespace": self.namespace}, **more}

    def _deployment(self, values: dict[str, Any]) -> dict[str, Any]:
        hub = values["hub"]
        env = {"HUB_URL": self.api_address.url, "PYTHONUNBUFFERED": "1", **hub.get("extraEnv", {})}
        own = hub.get("image")
        container = {
            "name": "hub",
            "image": f"{own['name']}:{own['tag']}" if own else self.image,
            "imagePullPolicy": "Never",
            "args": ["jupyterhub", "--config=/usr/local/etc/jupyterhub/jupyterhub_config.py", "--upgrade-db"],
            "workingDir": "/srv/jupyterhub",
            "env": [
                *({"name": name, "value": value} for name, value in env.items()),
                {"name": "POD_NAMESPACE", "valueFrom": {"fieldRef": {"fieldPath": "metadata.namespace"}}},
            ],
            "readinessProbe": {
                "httpGet": {"path": "/hub/health", "port": 8081},
                "periodSeconds": 1,
                "timeoutSeconds": 5,
            },
            "securityContext": {
                "runAsUser": 1000,
                "runAsGroup": 1000,
                "allowPrivilegeEscalation": False,
                "capabilities": {"drop": ["ALL"]},
            },
            "volumeMounts": [
                {"name": "config", "mountPath": "/usr/local/etc/jupyterhub"},
                {"name": "secret", "mountPath": "/usr/local/etc/jupyterhub/secret"},
                {"name": "db", "mountPath": "/srv/jupyterhub"},
                *hub.get("extraVolumeMounts", []),
            ],
        }
        secure = {"runAsNonRoot": True, "fsGroup": 1000, "seccompProfile": {"type": "RuntimeDefault"}}
        pod = {
            "serviceAccountName": "hub",
            "securityContext": secure,
            "terminationGracePeriodSeconds": 5,
            "initContainers": hub.get("initContainers", []),
            "containers": [container],
            "volumes": [
                {"name": "config", "configMap": {"name": "hub"}},
                {"name": "secret", "secret": {"secretName": "hub"}},
                {"name": "db", "persistentVolumeClaim": {"claimName": self.claim}},
                *hub.get("extraVolumes", []),
            ],
        }
        return {
            "strategy": {"type": "Recreate"},
            "selector": {"matchLabels": LABELS},
            "template": {"metadata": {"labels": LABELS}, "spec": pod},
        }


@contextmanager
def beside(release: Release, folder: Path, *images: str) -> Iterator[ChartHub]:
    """Start a hub without gpuspawner, install the chart next to it, and give the hub the values printed for it.

    ``images`` are options of the command that prints them; without any, the service's image brings the package.
    """
    release.volume("hub-db-dir")
    release.volume(f"{NAME}-data")
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "hub-db-dir", "namespace": release.namespace},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
    }
    release.cluster.own.kubectl("apply", "--filename=-", given=json.dumps(claim))
    hub = ChartHub(folder, cluster=release.cluster, namespace=release.namespace, claim="hub-db-dir")
    try:
        hub.start()
        release.write(hub.api_address.url)
        done = release.run("install")
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
        assert "gpuspawner kube values --name gpuspawner" in done.stdout, "what to do next is told"
        hub.use(NAME, release.reach.url, *(images or [f"--image={release.image}"]))
        yield hub.start()
    finally:
        hub.close()
