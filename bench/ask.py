"""How many leases a second the service gives over HTTP where ASKING people press Start at once.

The service is a process of its own with its real application, its store a file; the hub is a fake in its memory. Each
asks once, as the spawner does, and is answered once the lease is stored: with GPUs free for all, and with one, so that
all others wait. With STORE=postgresql the store is on a server of this machine, which writes to the disk as by default.
SLOW_SECONDS is what each transaction takes longer, as with a database far away. With QUOTAS=1 the catalog has two,
for each user and for all users; with BUDGETS=1 these have GPU hours too. The CPU work of the service for each lease
tells more than seconds on a busy machine.
"""

from __future__ import annotations

import asyncio
import atexit
import json
import multiprocessing
import os
import statistics
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path

import sqlalchemy as sa
from tornado.httpclient import AsyncHTTPClient
from tornado.httpserver import HTTPServer
from tornado.testing import bind_unused_port

from gpuspawner.backends.fake import FakeBackend
from gpuspawner.catalog import load_catalog
from gpuspawner.core.authentication import new_nonce, request_headers
from gpuspawner.core.gpus.fleet import Gpu
from gpuspawner.service.app import Options, application, load, wire
from gpuspawner.service.clock import SteadyClock
from gpuspawner.service.fake import FakeHub, HandClock
from gpuspawner.service.settings import Settings
from tools.postgres import Server

ASKING = int(os.environ.get("ASKING", "1000"))
SLOW_SECONDS = [float(x) for x in os.environ.get("SLOW_SECONDS", "0 0.05 2").split()]
CONNECTIONS = 100
"""Number of requests that a hub keeps open at once. An arbitrary number below the backlog of a listening port."""
SECRET, PREFIX = b"s" * 32, "/services/gpu"
CATALOG: dict[str, object] = {
    "version": 1,
    "gpus": {"a100": {"title": "A100", "match": "*A100*", "memory": "80GiB"}},
    "templates": {
        "lab": {
            "title": "Lab",
            "gpus": {"a100": "1-8"},
            "default": {"gpu": "a100", "count": 1, "cpu": 2, "memory": "8GiB", "lifetime": "8h"},
        }
    },
}
if os.environ.get("QUOTAS"):
    CATALOG["quotas"] = {
        "each": {"each": "user", "gpus": {"hard": 8}},
        "all": {"everybody": True, "gpus": {"hard": 10 * ASKING}},
    }
if os.environ.get("BUDGETS"):
    CATALOG["quotas"] = {
        "each": {"each": "user", "gpus": {"hard": 8}, "gpu_hours": {"per": "week", "hard": 400}},
        "all": {"everybody": True, "gpus": {"hard": 10 * ASKING}, "gpu_hours": {"per": "week", "hard": 400 * ASKING}},
    }


def computed_seconds(pid: int | None) -> float:
    """Return the CPU seconds that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def serve(pipe: Connection, store: str, password_file: Path | None, gpus: int, slow_seconds: float) -> None:
    """Be the service, until this process is ended."""
    os.environ |= {"JUPYTERHUB_API_URL": "http://127.0.0.1:9/hub/api", "JUPYTERHUB_API_TOKEN": "t"}
    os.environ |= {"JUPYTERHUB_CLIENT_ID": "service-gpu", "JUPYTERHUB_SERVICE_PREFIX": f"{PREFIX}/"}

    async def run() -> None:
        hub, url = FakeHub(HandClock()), "http://127.0.0.1:9"
        options = Options(store, SECRET, "hub", url, "t", url, f"{PREFIX}/", None, store_password_file=password_file)
        settings = Settings(concurrent_starts=10 * ASKING)
        backend = FakeBackend(tuple(Gpu(f"gpu{i}", "a100", f"node{i // 8}", i % 8, "A100", 2**36) for i in range(gpus)))
        parts = wire(options, load_catalog(CATALOG), backend, settings, SteadyClock(), hub)  # type: ignore[arg-type]
        parts.store.open()
        await load(parts)
        parts.allocator.observed.processes_known = parts.allocator.observed.hub_answers = True
        await parts.scheduler.observe(parts.clock.now())
        sa.event.listen(sa.engine.Engine, "commit", lambda _: time.sleep(slow_seconds))
        socket, port = bind_unused_port()
        HTTPServer(application(parts)).add_socket(socket)
        pipe.send(port)
        await asyncio.Event().wait()

    asyncio.run(run())


async def ask(client: AsyncHTTPClient, port: int, number: int) -> float:
    """Ask as one start does; return the seconds until the answer."""
    path = f"{PREFIX}/internal/acquire"
    body = {"hub": "hub", "user": f"user{number}", "user_created": f"user{number} born", "server": "", "options": {}}
    sent = json.dumps({**body, "start_id": f"start {number}", "boot_id": "boot"})
    headers = request_headers(SECRET, new_nonce(), "POST", path, sent.encode())
    begun = time.perf_counter()
    url = f"http://127.0.0.1:{port}{path}"
    await client.fetch(url, method="POST", body=sent, headers=headers, request_timeout=300, connect_timeout=300)
    return time.perf_counter() - begun


async def asked_at_once(port: int) -> tuple[float, list[float]]:
    """Return the seconds until all are answered, and those of each."""
    AsyncHTTPClient.configure(None, max_clients=CONNECTIONS)
    client = AsyncHTTPClient()
    begun = time.perf_counter()
    seconds = await asyncio.gather(*(ask(client, port, number) for number in range(ASKING)))
    return time.perf_counter() - begun, sorted(seconds)


def main() -> None:
    """Print a line for each case."""
    server = Server() if os.environ.get("STORE") == "postgresql" else None
    if server:
        atexit.register(server.close)
    print(f"{ASKING} ask at once, on {'PostgreSQL' if server else 'SQLite'}; seconds of one's own wait")
    print(f"{'GPUs':>6} {'slower by':>10} {'leases/s':>9} {'p50':>7} {'p99':>7} {'ms of CPU each':>15}")
    for slow_seconds in SLOW_SECONDS:
        for gpus in (ASKING, 1):
            with tempfile.TemporaryDirectory() as folder:
                ours, theirs = multiprocessing.Pipe()
                store, password_file = f"sqlite:///{Path(folder) / 'ask.sqlite'}", None
                if server:
                    name = f"ask_{gpus}_{slow_seconds:g}".replace(".", "_")
                    server.sql(f"CREATE DATABASE {name}")
                    store, password_file = server.url(name), server.password_file
                arguments = (theirs, store, password_file, gpus, slow_seconds)
                service = multiprocessing.Process(target=serve, args=arguments, daemon=True)
                service.start()
                port, before = ours.recv(), computed_seconds(service.pid)
                all_seconds, each = asyncio.run(asked_at_once(port))
                each_ms = 1000 * (computed_seconds(service.pid) - before) / ASKING
                service.kill()
                service.join()
            p50, p99 = statistics.median(each), each[int(0.99 * (len(each) - 1))]
            told = f"{gpus:6} {slow_seconds:10g} {ASKING / all_seconds:9.0f} {p50:7.2f} {p99:7.2f} {each_ms:15.1f}"
            print(told, flush=True)


if __name__ == "__main__":
    main()
