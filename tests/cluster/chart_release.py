"""A release of the chart on the cluster, with volumes of the node, which makes none by itself."""

import os
import subprocess

import yaml
from nodes import ROOT
from reach import Reach

from tools.cluster.clients import Helm
from tools.cluster.hub import ensure_service_image

CHART = ROOT / "helm" / "gpuspawner"
NAME = "gpuspawner"
CATALOG = """
version: 1
gpus:
  a100: {title: A100, match: NVIDIA-A100*, memory: 80GiB}
templates:
  cpu:
    title: No GPU
    bounds: {cpu: 0.1-2, memory: 128MiB-2GiB, lifetime: 1s-24h}
    default: {cpu: 0.2, memory: 256MiB, lifetime: 8h}
  lab:
    extends: cpu
    title: Lab
    gpus: {a100: 1-2}
    default: {gpu: a100, count: 1}
policies:
  default:
    mode: enforce
    lifetime: 1s-24h
    idle: {below: 5%, for: 20s, sample: 4s, grace: 15s, start_up: 10s}
    keep: {times: 9, each: 1h}
"""


class Release:
    """The release `gpuspawner` of ``chart`` in ``namespace``. By default, its image is built from this checkout."""

    def __init__(self, cluster, namespace, folder, image="", chart=CHART):
        self.cluster, self.namespace, self.folder, self.chart = cluster, namespace, folder, chart
        self.helm = Helm(folder / "helm", cluster.kubeconfig)
        self.image = image or cluster.own.give_image(ensure_service_image(cluster.own.folder))
        self.reach = Reach(cluster, namespace, NAME)
        self.volumes = []
        self.catalog = CATALOG
        self.values = {}

    def write(self, hub_url):
        """Write the values for the installation."""
        self.values = {
            "hub": {"url": f"{hub_url}/hub/api", "rights": {"output": True}},
            "settings": {"hub_seconds": 1.0, "settle_seconds": 1.0},
            "resources": {"requests": {"cpu": "50m", "memory": "128Mi"}},
        }

    def run(self, action, *more):
        """Run helm's ``install``, ``upgrade`` or ``template`` with the values as they are; return how it ended."""
        name, _, tag = self.image.rpartition(":")
        self.values["image"] = {"name": name, "tag": tag, "pullPolicy": "Never"}
        (self.folder / "values.yaml").write_text(yaml.safe_dump(self.values))
        (self.folder / "catalog.yaml").write_text(self.catalog)
        given = [f"--values={self.folder}/values.yaml", f"--set-file=catalog={self.folder}/catalog.yaml"]
        wait = [] if action == "template" else ["--wait", "--timeout=180s"]
        return self.helm.run(action, NAME, self.chart, f"--namespace={self.namespace}", *given, *wait, *more)

    def typed(self, line, folder):
        """Run in ``folder`` a line with kubectl that a page has people type; return what it prints."""
        line = line.replace("--namespace jhub", f"--namespace {self.namespace}")
        path = f"{self.cluster.own.folder}:{os.environ['PATH']}"
        command = ["sh", "-ec", line]
        done = subprocess.run(
            command, cwd=folder, env={**os.environ, "PATH": path}, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{line}: {done.stdout}{done.stderr}"
        return done.stdout

    def volume(self, claim):
        """Have a folder of the node for a claim of that name."""
        path = self.cluster.own.folder / f"{self.namespace}-{claim}-{len(self.volumes)}"
        path.mkdir()
        os.chown(path, 1000, 1000)
        spec = {
            "accessModes": ["ReadWriteOnce"],
            "capacity": {"storage": "5Gi"},
            "claimRef": {"namespace": self.namespace, "name": claim},
            "hostPath": {"path": str(path)},
            "persistentVolumeReclaimPolicy": "Retain",
        }
        self.volumes.append(path.name)
        self.cluster.core.create_persistent_volume({"metadata": {"name": path.name}, "spec": spec})

    def secret(self):
        """Return the secret of hub and service, and the UID of its object."""
        found = self.cluster.core.read_namespaced_secret(f"{NAME}-secret", self.namespace)
        return found.data["secret"], found.metadata.uid

    def service_pods(self):
        """The service's pods that are not going."""
        selector = f"app.kubernetes.io/name={NAME},app.kubernetes.io/component=service"
        pods = self.cluster.core.list_namespaced_pod(self.namespace, label_selector=selector).items
        return [pod for pod in pods if pod.metadata.deletion_timestamp is None]

    def service_pod(self):
        """The one of them."""
        return self.service_pods()[0]

    def left(self):
        """Whatever of the release is in its namespace, or of the whole cluster."""
        kinds = "all,secrets,configmaps,persistentvolumeclaims,serviceaccounts,roles,rolebindings"
        kinds += ",networkpolicies,poddisruptionbudgets,clusterroles,clusterrolebindings,priorityclasses"
        listed = self.cluster.own.kubectl("get", kinds, f"--namespace={self.namespace}", "--output=name").split()
        return [name for name in listed if NAME in name.partition("/")[2].replace(self.namespace, "")]

    def close(self):
        """Take the whole cluster's part of it away."""
        self.helm.run("uninstall", NAME, f"--namespace={self.namespace}", "--ignore-not-found", "--wait")
        self.reach.close()
        for name in self.volumes:
            self.cluster.core.delete_persistent_volume(name)
