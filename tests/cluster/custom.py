"""The custom resources' chart on the cluster, and kubectl as people type it."""

import contextlib
import json
import subprocess

from nodes import ROOT

from gpuspawner.catalog.resources.definitions import API_GROUP, KINDS
from tools.cluster.helm import Helm

CHART = ROOT / "helm" / "gpuspawner-crds"


@contextlib.contextmanager
def installed(cluster, folder):
    """The chart's release `crds`, taken away with all that it made at the end."""
    helm = Helm(folder, cluster.kubeconfig)
    helm("upgrade", "--install", "crds", CHART, "--namespace=default", "--wait")
    names = [f"{kind.plural}.{API_GROUP}" for kind in KINDS]
    kubectl = Typed(cluster, "default")
    for name in names:
        kubectl("wait", "--for=condition=Established", f"crd/{name}", "--timeout=60s")
    yield helm
    helm("uninstall", "crds", "--namespace=default", "--ignore-not-found")
    kubectl("delete", "crd", *names, "--timeout=60s", "--ignore-not-found")


def manifest(kind, spec, name="one"):
    return json.dumps({"apiVersion": f"{API_GROUP}/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec})


class Typed:
    """kubectl in one namespace, as the administrator or as somebody else."""

    def __init__(self, cluster, namespace):
        self.command = [str(cluster.own.folder / "kubectl"), f"--namespace={namespace}"]

    def __call__(self, *arguments, given=""):
        done = self.run(*arguments, given=given)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def run(self, *arguments, given=""):
        return subprocess.run(
            [*self.command, *arguments], input=given, capture_output=True, text=True, check=False, timeout=300
        )
