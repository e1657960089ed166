"""Replaces kube-proxy for Services of type NodePort. The nodes of the tests' clusters run no kube-proxy."""

import contextlib
import threading

from kubernetes import client
from urllib3.exceptions import HTTPError

from tools.cluster.cluster import PATH

LOOK_SECONDS = 1.0
CHAIN = "NODE-PORTS"
MADE = f"iptables -t nat -N {CHAIN} && iptables -t nat -A PREROUTING -j {CHAIN}"
FORGOTTEN = f"iptables -t nat -D PREROUTING -j {CHAIN}; iptables -t nat -F {CHAIN}; iptables -t nat -X {CHAIN}"


def ways(cluster, namespace):
    """Where each NodePort of a namespace leads, as Services and EndpointSlices say: {port: "address:port"}."""
    slices = client.DiscoveryV1Api(cluster.api).list_namespaced_endpoint_slice(namespace).items
    behind = {one.metadata.labels["kubernetes.io/service-name"]: one for one in slices if one.endpoints and one.ports}
    found = {}
    for service in cluster.core.list_namespaced_service(namespace).items:
        one = behind.get(service.metadata.name)
        if service.spec.type == "NodePort" and one is not None:
            found[service.spec.ports[0].node_port] = f"{one.endpoints[0].addresses[0]}:{one.ports[0].port}"
    return found


@contextlib.contextmanager
def served(cluster, namespace):
    """Have the node lead each NodePort of a namespace to the pod behind it, and leave no rule.

    Yields a lock: while it is held, the API server gets no request. Hold it to end an API server, because Python 3.11
    loses a TLS socket that is reset before its handshake: open still, it is met by the garbage collector.
    """
    run, ended = lambda script: cluster.own.namespaces.run(script, env={"PATH": PATH}), threading.Event()
    asking = threading.Lock()

    def follow():
        known = {}
        while not ended.wait(LOOK_SECONDS):
            # While the API server is away, rules stay.
            with asking, contextlib.suppress(client.ApiException, HTTPError, OSError):
                found = ways(cluster, namespace)
                if found != known:
                    known = found
                    rules = (f"-A {CHAIN} -p tcp --dport {p} -j DNAT --to-destination {to}" for p, to in found.items())
                    run(" && ".join(f"iptables -t nat {rule}" for rule in (f"-F {CHAIN}", *rules)))

    run(MADE)
    following = threading.Thread(target=follow)
    following.start()
    try:
        yield asking
    finally:
        ended.set()
        following.join()
        run(FORGOTTEN)
