"""Kueue on one cluster, as a process of the machine: its kinds, its webhooks, and its API of the queue's places."""

from __future__ import annotations

import base64
import json
import shutil
import time
from pathlib import Path
from typing import Any

import yaml

from tools.cluster.build import ensure_component
from tools.cluster.cluster import START_SECONDS, Cluster
from tools.cluster.pki import Authority
from tools.cluster.recipes import KUEUE
from tools.progress import StepError

NAME = "kueue"
WEBHOOKS, PLACES = 9443, 8082
"""The ports of its webhooks, and of the API of places."""
PLACES_SERVICE = "kueue-visibility-server"
PLACES_GROUP, PLACES_VERSIONS = "visibility.kueue.x-k8s.io", ("v1beta1", "v1beta2")
MANAGED = {"kueue.x-k8s.io/managed-namespace": "true"}
"""The label of namespaces whose pods and jobs Kueue holds back; it leaves those of others alone."""
OF_ITS_KINDS = frozenset({"clusterqueue", "cohort", "localqueue", "resourceflavor", "workload"})
OF_JOBS = frozenset({"job", "pod"})
CONFIGURATION = {
    "apiVersion": "config.kueue.x-k8s.io/v1beta2",
    "kind": "Configuration",
    "health": {"healthProbeBindAddress": "127.0.0.1:8081"},
    "metrics": {"bindAddress": "0"},
    "leaderElection": {"leaderElect": False},
    "internalCertManagement": {"enable": False},
    "webhook": {"port": WEBHOOKS, "certDir": "/webhook"},
    "managedJobsNamespaceSelector": {"matchLabels": MANAGED},
    "manageJobsWithoutQueueName": True,
    "integrations": {"frameworks": ["batch/job", "pod"]},
}


class Kueue:
    """Kueue of one cluster: installed and started by ``start``; ``crash`` and ``again`` are a restart of it."""

    def __init__(self, cluster: Cluster) -> None:
        """Start nothing yet."""
        self.cluster = cluster

    def start(self) -> None:
        """Build it where that is not done yet, install it, start it, and wait until it answers.

        Raises:
            StepError: it was not built, or does not answer.
        """
        programs = ensure_component(KUEUE)
        root, authority = self._make_root(programs / NAME)
        manifests = self.cluster.kubectl("kustomize", str(programs.parent / "config" / "default"))
        found = [one for one in yaml.safe_load_all(manifests) if one and one["kind"] != "Deployment"]
        ca = base64.b64encode(Path(authority.path("ca")).read_bytes()).decode()
        objects = [kept for one in found if (kept := _here(one, ca))]
        text = json.dumps({"apiVersion": "v1", "kind": "List", "items": [*objects, _endpoints(self.cluster.address)]})
        # Server-side: what Kueue's kinds describe of pods is too long for the annotation of the other way.
        self.cluster.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", given=text)
        # kubectl wait fails while the kinds are not served yet.
        self.cluster.kubectl("wait", "--for=condition=Established", f"--timeout={START_SECONDS}s", "crd", "--all")
        self.cluster.start_process(
            NAME, ["chroot", str(root), f"/{NAME}", "--config=/config.json", "--kubeconfig=/kubeconfig"]
        )
        self.wait_until_ready()

    def stop(self) -> None:
        """End it, and its API of places: while one that is registered does not answer, no namespace is removed."""
        self.cluster.stop_process(NAME)
        for version in PLACES_VERSIONS:
            self.cluster.kubectl("delete", "apiservice", f"{version}.{PLACES_GROUP}", "--ignore-not-found")

    def crash(self) -> None:
        """End it, as a crash would."""
        self.cluster.stop_process(NAME)

    def again(self) -> None:
        """Start it again, and wait until it answers."""
        self.cluster.start_process(NAME)
        self.wait_until_ready()

    def hide_places(self) -> None:
        """Make Kueue's visibility API unreachable."""
        self.cluster.kubectl("delete", "endpointslice", PLACES_SERVICE, "--namespace=kueue-system")

    def show_places(self) -> None:
        """Have its API of places reached again."""
        self.cluster.kubectl("apply", "-f", "-", given=json.dumps(_endpoints(self.cluster.address)))

    def wait_until_ready(self) -> None:
        """Wait until its webhooks let a queue be made, and its API of places answers.

        Raises:
            StepError: that took too long, with its log.
        """
        flavor = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "ResourceFlavor", "metadata": {"name": "ready"}}
        until = time.monotonic() + START_SECONDS
        while True:
            try:
                self.cluster.kubectl("apply", "--dry-run=server", "-f", "-", given=json.dumps(flavor))
                self.cluster.kubectl("get", f"--raw=/apis/{PLACES_GROUP}/{PLACES_VERSIONS[-1]}")
            except StepError as error:
                if time.monotonic() > until:
                    raise StepError(f"After {START_SECONDS} s {error}", self.cluster.log(NAME)) from error
                time.sleep(0.2)
            else:
                return

    def _make_root(self, program: Path) -> tuple[Path, Authority]:
        """Make the folder that it takes for the whole machine: where it looks for certificates can't be said to it."""
        root, authority = self.cluster.folder / NAME, Authority(self.cluster.folder / "pki")
        if not Path(authority.path(NAME)).exists():
            authority.issue(NAME, f"/CN={NAME}", ("IP:127.0.0.1", "DNS:localhost", f"IP:{self.cluster.address}"))
        (root / "tmp").mkdir(parents=True, exist_ok=True)
        for folder in ("visibility", "webhook", "etc/kueue/metrics/certs"):
            (root / folder).mkdir(parents=True, exist_ok=True)
            shutil.copy(authority.path(NAME), root / folder / "tls.crt")
            shutil.copy(authority.path(NAME, "key"), root / folder / "tls.key")
        shutil.copy(program, root / NAME)
        shutil.copy(self.cluster.kubeconfig, root / "kubeconfig")
        (root / "config.json").write_text(json.dumps(CONFIGURATION, indent=1))
        return root, authority


def _here(one: dict[str, Any], ca: str) -> dict[str, Any]:
    """Return an object as it is installed here, {} for one that is not: webhooks are asked on the machine itself."""
    if one["kind"] == "CustomResourceDefinition" and "conversion" in one["spec"]:
        reached = {"url": f"https://127.0.0.1:{WEBHOOKS}/convert", "caBundle": ca}
        one["spec"]["conversion"]["webhook"]["clientConfig"] = reached
    if one["kind"].endswith("WebhookConfiguration"):
        one["webhooks"] = [kept for hook in one["webhooks"] if (kept := _hook(hook, ca))]
    if one["kind"] == "Service":
        one["spec"].pop("selector", None)
    if one["kind"] == "Namespace":
        one["metadata"]["labels"].pop("control-plane", None)
    return one


def _hook(hook: dict[str, Any], ca: str) -> dict[str, Any]:
    """Return one webhook, {} for one of kinds that this cluster has not."""
    of = hook["name"].partition(".")[0][1:]
    if of not in OF_ITS_KINDS | OF_JOBS:
        return {}
    reached = {"url": f"https://127.0.0.1:{WEBHOOKS}{hook['clientConfig']['service']['path']}", "caBundle": ca}
    selector = {"namespaceSelector": {"matchLabels": MANAGED}} if of in OF_JOBS else {}
    return {**hook, "clientConfig": reached, **selector}


def _endpoints(address: str) -> dict[str, Any]:
    """Return where the service of places leads."""
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": PLACES_SERVICE,
            "namespace": "kueue-system",
            "labels": {"kubernetes.io/service-name": PLACES_SERVICE},
        },
        "addressType": "IPv4",
        "ports": [{"name": "https", "port": PLACES, "protocol": "TCP"}],
        "endpoints": [{"addresses": [address], "conditions": {"ready": True}}],
    }
