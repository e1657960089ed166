"""The other cluster's side of `clusters:`, as the how-to page `clusters.md` has an administrator prepare it."""

import os
import subprocess

from harness import pages
from harness.hub import eventually
from nodes import ROOT

PAGE = pages.page("how-to/administrators/clusters")
MADE, KUEUE = "kubernetes-other-cluster.yaml", "kubernetes-kueue-rbac.yaml"
NAMESPACE, CONTEXT = "gpu-workspaces", "--context us-east "
HUB_S = "{kind: ServiceAccount, name: gpuspawner-hub, namespace: jhub}"
ITS_OWN = f"{{kind: ServiceAccount, name: gpuspawner, namespace: {NAMESPACE}}}"
"""The account with rights in the manifests for the hub's own cluster, and the account with rights in another one."""
WAIT_SECONDS = 90


def apply(cluster, manifest, namespace):
    """Apply a manifest of hub_config, for that namespace of workspaces and the account that is made there."""
    text = (ROOT / "hub_config" / manifest).read_text()
    text = text.replace(HUB_S, ITS_OWN).replace(NAMESPACE, namespace)
    cluster.own.kubectl("apply", "--filename=-", given=text)


def prepare(cluster, namespace, folder):
    """Make the namespace with the account of hub and service; return its kubeconfig, made by the page's lines."""
    apply(cluster, MADE, namespace)
    core = cluster.core
    eventually(lambda: core.list_namespaced_service_account(namespace).items[1:], WAIT_SECONDS, "both its accounts")
    token = lambda: core.read_namespaced_secret("gpuspawner-token", namespace).data  # noqa: E731
    eventually(lambda: "token" in (token() or {}), WAIT_SECONDS, "the token is written")
    _, *lines = pages.commands(pages.section(PAGE.partition("3. Give that file")[0], "2. Prepare the other cluster"))
    env = {**os.environ, "PATH": f"{cluster.own.folder}:{os.environ['PATH']}"}  # its kubectl needs no context
    script = "\n".join(lines).replace(CONTEXT, "").replace(NAMESPACE, namespace)
    subprocess.run(["sh", "-euc", script], cwd=folder, env=env, check=True, capture_output=True)
    return folder / "us-east"
