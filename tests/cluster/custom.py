"""The custom resources' chart on the cluster, and kubectl as people type it."""

import contextlib
import json
import subprocess

from kube_hub import KubeHub
from kubernetes import client
from nodes import ROOT

from gpuspawner.catalog.resources.definitions import API_GROUP, KINDS, REQUESTS
from tools.cluster.clients import Helm

CHART = ROOT / "helm" / "gpuspawner-crds"
EXTRA = """
c.KubeSpawner.cmd = ["python3", "-m", "http.server", "8888"]
c.KubeSpawner.gpu_cluster["custom_resources"] = {namespace!r}
"""


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


@contextlib.contextmanager
def hub_with_requests(cluster, new_folder, more=""):
    """A hub whose namespace's requests are workspaces; ``hub.helm`` is what installed the definitions."""
    with installed(cluster, new_folder("helm")) as helm, cluster.namespace() as namespace:
        extra = EXTRA.format(namespace=namespace) + more
        hub = KubeHub(new_folder("hub"), cluster=cluster, namespace=namespace, extra=extra)
        hub.helm = helm
        try:
            yield hub.start()
        finally:
            hub.close()
            kubectl = Typed(cluster, namespace)
            for name in names(kubectl):  # the service that would remove the finalizers has ended
                kubectl.run("patch", "gvm", name, "--type=merge", '--patch={"metadata":{"finalizers":null}}')


def names(kubectl):
    """The names of all requests in its namespace. It asks without kubectl, which takes 20 times as long."""
    listed = kubectl.objects.list_namespaced_custom_object(*kubectl.requests)
    return [one["metadata"]["name"] for one in listed["items"]]


def seen(kubectl, name):
    """A request as the API server has it."""
    return kubectl.objects.get_namespaced_custom_object(*kubectl.requests, name)


def manifest(kind, spec, name="one"):
    return json.dumps({"apiVersion": f"{API_GROUP}/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec})


class Typed:
    """kubectl in one namespace, as the administrator or as another user."""

    def __init__(self, cluster, namespace):
        self.objects = client.CustomObjectsApi(cluster.api)
        self.requests = (API_GROUP, "v1alpha1", namespace, REQUESTS)
        self.command = [str(cluster.own.folder / "kubectl"), f"--namespace={namespace}"]

    def __call__(self, *arguments, given=""):
        done = self.run(*arguments, given=given)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def run(self, *arguments, given=""):
        return subprocess.run(
            [*self.command, *arguments], input=given, capture_output=True, text=True, check=False, timeout=300
        )
