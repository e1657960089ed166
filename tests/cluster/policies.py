"""Enforces network policies on a cluster with kube-router's firewall, as a process of the node."""

import contextlib

from tools.cluster.build import ensure_component
from tools.cluster.cluster import PATH
from tools.cluster.recipes import KUBE_ROUTER
from tools.cluster.settings import NODE

NAME = "kube-router"
BRIDGED = "echo 1 > /proc/sys/net/bridge/bridge-nf-call-iptables"
"""Without this setting, traffic between two pods of a node goes over a bridge and avoids the firewall."""
FORGOTTEN = """
for table in filter mangle nat; do
    iptables --table $table --flush
    iptables --table $table --delete-chain
done
ipset destroy
echo 0 > /proc/sys/net/bridge/bridge-nf-call-iptables
"""
"""The node has no rules of anybody else. kube-router's own way, --cleanup-config, needs a kernel with IPVS."""


@contextlib.contextmanager
def enforced(cluster):
    """Enforce them for as long as a test needs it, and leave no rule."""
    own, program = cluster.own, ensure_component(KUBE_ROUTER) / NAME
    own.namespaces.run(BRIDGED)
    roles = ["--run-firewall=true", "--run-router=false", "--run-service-proxy=false"]
    own.start_process(NAME, [str(program), f"--kubeconfig={own.kubeconfig}", f"--hostname-override={NODE}", *roles])
    try:
        yield
    finally:
        own.stop_process(NAME)
        own.namespaces.run(FORGOTTEN, env={"PATH": PATH})
