"""Replaces a name server and kube-proxy: an address on the machine that leads to a Service's ready pods.

A process of its own, `python -m reach PKI API_SERVER NAMESPACE SERVICE ADDRESS PORT`, which prints its port.
"""

import asyncio
import contextlib
import json
import os
import ssl
import subprocess
import sys
import time
from pathlib import Path
from urllib.request import HTTPSHandler, ProxyHandler, build_opener

ROOT = Path(__file__).resolve().parents[2]
ASKED_SECONDS = 1.0


class Reach:
    """Leads ``url`` to the first port of a Service in ``namespace``, wherever its pods are by then.

    Its own ``port`` is any that is free, or the one that is given.
    """

    def __init__(self, cluster, namespace, service, port=0):
        own, address = cluster.own, cluster.own.host_address
        command = [sys.executable, "-m", "reach", own.folder / "pki", own.address, namespace, service]
        command += [address, str(port)]
        env = {**os.environ, "PYTHONPATH": f"{Path(__file__).parent}:{ROOT}"}
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env)
        self.url = f"http://{address}:{int(self._process.stdout.readline())}"

    def close(self):
        """End it, and every connection."""
        self._process.kill()
        self._process.wait()
        self._process.stdout.close()


class Target:
    """Where a Service leads, as the API server says it. Kubernetes' client takes a second to import."""

    def __init__(self, pki, address, namespace, service):
        tls = ssl.create_default_context(cafile=f"{pki}/ca.crt")
        tls.load_cert_chain(f"{pki}/admin.crt", f"{pki}/admin.key")
        self._opener = build_opener(ProxyHandler({}), HTTPSHandler(context=tls))
        of = f"labelSelector=kubernetes.io/service-name={service}"
        self._url = f"https://{address}/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices?{of}"
        self._known, self._asked_at = None, -ASKED_SECONDS

    def now(self):
        """The address and port of a pod that is ready, or None."""
        if time.monotonic() - self._asked_at >= ASKED_SECONDS:
            with self._opener.open(self._url, timeout=10) as answer:
                slices = json.load(answer)["items"]
            ready = [
                (end["addresses"][0], one["ports"][0]["port"])
                for one in slices
                for end in one["endpoints"] or ()
                if end["conditions"].get("ready")
            ]
            self._known, self._asked_at = next(iter(ready), None), time.monotonic()
        return self._known


async def serve(target, address, port):
    """Forward each connection for as long as this process lives."""
    from demo.forward import copy  # noqa: PLC0415 - of the process alone: its path has the checkout

    connections = set()  # asyncio keeps only weak references to the tasks

    async def forward(reader, writer):
        connections.add(task := asyncio.current_task())
        with contextlib.suppress(OSError):
            if found := await asyncio.to_thread(target.now):
                there_reader, there = await asyncio.open_connection(*found)
                await asyncio.gather(copy(reader, there), copy(there_reader, writer))
                there.close()
        writer.close()
        connections.discard(task)

    server = await asyncio.start_server(forward, address, port)
    print(server.sockets[0].getsockname()[1], flush=True)  # noqa: T201 - read by who started it
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(serve(Target(*sys.argv[1:5]), sys.argv[5], int(sys.argv[6])))
