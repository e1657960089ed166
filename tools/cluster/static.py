"""A cluster of static objects, for figures at scale: nodes and pods that nothing runs, and that nothing changes."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tools.cluster.__main__ import start
from tools.cluster.cluster import Cluster

CONTROLLERS = ("kubelet", "kube-scheduler", "kube-controller-manager")
WRITERS = 8

Objects = Iterable[Mapping[str, Any]]


@contextmanager
def static_cluster() -> Iterator[tuple[Cluster, Any]]:
    """Start a cluster of its own, for `fill`, and end it; yield it and a client of its API server."""
    from kubernetes import client, config  # noqa: PLC0415 - what measures memory must not import it

    with tempfile.TemporaryDirectory() as folder:
        start(Path(folder) / "cluster")
        cluster = Cluster.load(Path(folder) / "cluster")
        assert cluster is not None
        try:
            configuration = client.Configuration()
            config.load_kube_config(  # type: ignore[no-untyped-call]
                str(cluster.kubeconfig), client_configuration=configuration
            )
            configuration.connection_pool_maxsize = WRITERS
            yield cluster, client.CoreV1Api(client.ApiClient(configuration))
        finally:
            cluster.stop()


def fill(cluster: Cluster, core: Any, namespace: str, nodes: Objects, pods: Objects) -> None:
    """Create the objects, after stopping the parts that would act on them: kubelets never answer, pods never run."""
    began = time.perf_counter()
    core.create_namespace({"metadata": {"name": namespace}})
    while not core.list_namespaced_service_account(namespace).items:
        time.sleep(0.1)
    for name in CONTROLLERS:
        cluster.stop_process(name)

    def put_node(body: Mapping[str, Any]) -> None:
        node = core.create_node(body)
        core.patch_node(node.metadata.name, {"spec": {"taints": None}})  # each begins as not ready

    with ThreadPoolExecutor(WRITERS) as threads:
        list(threads.map(put_node, nodes))
        list(threads.map(lambda body: core.create_namespaced_pod(namespace, body), pods))
    print(f"the API server was filled in {time.perf_counter() - began:.0f} s", flush=True)
