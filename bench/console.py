"""Cost of each admin page: 5,000 GPUs, 1,000 workspaces, a year of 400,000 that ended.

The store is a file of SQLite, or with STORE=postgresql on a server of this machine, which writes as by default. The
real service on fake GPUs is a process of its own; the hub, which only says who asks, is in this one. 800 workspaces
hold 4,000 GPUs, 200 wait, 1,000 people in 20 teams have quotas. Each page is asked for ASKED times, one after the
other. Meanwhile 13 samples are stored a second, as each workspace is measured once a minute, and all GPUs are looked at
every 5 s. How much CPU that takes is measured first, and not counted: on a loaded machine a page takes long, and more
of it falls into that time.
"""

from __future__ import annotations

import asyncio
import atexit
import json
import multiprocessing
import os
import random
import sqlite3
import statistics
import sys
import tempfile
import time
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from fractions import Fraction
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import aiohttp
from pydantic import TypeAdapter
from tornado.httpserver import HTTPServer
from tornado.testing import bind_unused_port
from tornado.web import Application, RequestHandler

from gpuspawner.backends.fake import FakeBackend
from gpuspawner.catalog import load_catalog
from gpuspawner.core.gpus.fleet import Gpu, Slot
from gpuspawner.core.leases.exits import ExitReason
from gpuspawner.core.leases.lease import Key, Lease, Phase
from gpuspawner.core.leases.request import Request
from gpuspawner.core.rules import Rate
from gpuspawner.service.app import Options, application, wire
from gpuspawner.service.clock import SteadyClock
from gpuspawner.service.process.start_up import collect_garbage_seldom
from gpuspawner.service.settings import Settings
from gpuspawner.service.store import Store
from gpuspawner.service.store.database.backup import DATABASE
from gpuspawner.service.store.database.copying import copy_store
from gpuspawner.service.store.usage_sums import UsageAmounts, UsagePart, rows_of
from tools.postgres import Server

PREFIX = "/services/gpu"
GPUS, RUNNING, WAITING, PEOPLE, TEAMS = 5000, 800, 200, 1000, 20
ENDED = int(os.environ.get("ENDED", "400000"))
ASKED = int(os.environ.get("ASKED", "100"))
PAGES = {
    "Overview": "",
    "GPUs": "gpus",
    "GPUs, filtered": "gpus?state=idle&node=12",
    "GPUs as a list": "gpus?view=list",
    "Usage, a month by user": "usage",
    "Usage, a month by node": "usage?by=node",
    "Usage, a year by user": "usage?by=user&since={year}",
    "Usage, a year by week": "usage?by=week&since={year}",
    "Workspaces": "workspaces",
    "Workspaces, filtered": "workspaces?find=user12&sort=user",
    "Ended": "ended",
    "Ended of a user": "ended?user=user12&reason=idle",
    "Queue": "queue",
    "People": "people",
    "A person": "people/user12",
    "Quotas": "quotas",
    "Quotas of people": "quotas?of=people&sort=whose",
    "Audit log": "audit",
    "Restrictions": "restrictions",
}
KINDS = ("a100", "h100")
CATALOG: dict[str, Any] = {
    "version": 1,
    "gpus": {
        kind: {"title": f"{kind.upper()} 80 GB", "match": f"*{kind.upper()}*", "memory": "80GiB", "price": 2.1}
        for kind in KINDS
    },
    "templates": {
        "lab": {
            "title": "Lab",
            "gpus": dict.fromkeys(KINDS, "1-8"),
            "bounds": {"cpu": "1-16", "memory": "1GiB-64GiB", "lifetime": "30m-24h"},
            "default": {"gpu": "a100", "count": 1, "cpu": 2, "memory": "8GiB", "lifetime": "8h"},
        }
    },
    "policies": {"default": {"mode": "enforce", "idle": {"below": "5%", "for": "30m", "grace": "10m"}}},
    "teams": {f"team{number}": {"title": f"Team {number}"} for number in range(TEAMS)},
    "quotas": {
        "each": {
            "each": "user",
            "gpus": {"soft": 4, "hard": 16},
            "gpu_hours": {"per": "week", "soft": 100, "hard": 400},
        },
        "all": {"everybody": True, "gpus": {"hard": 5000}},
    },
}
_json: TypeAdapter[Lease] = TypeAdapter(Lease)


class Cpu(RequestHandler):
    """How much CPU the service has used: seconds."""

    def get(self) -> None:
        self.finish(str(time.process_time()))


class HubUser(RequestHandler):
    """The hub: everybody is the administrator."""

    def get(self) -> None:
        scopes = ["custom:gpu:use", "custom:gpu:admin"]
        self.finish({"name": "admin", "kind": "user", "scopes": scopes, "created": "admin born"})


class HubUsers(RequestHandler):
    """The users of the hub, each in a group."""

    def get(self) -> None:
        offset = int(self.get_argument("offset"))
        users = [
            {"name": f"user{n}", "created": f"user{n} born", "groups": [f"team{n % TEAMS}"]}
            for n in range(offset, min(PEOPLE, offset + 200))
        ]
        following = {"offset": offset + 200} if offset + 200 < PEOPLE else None
        self.finish({"items": users, "_pagination": {"next": following}})


def a_lease(number: int, now: float, slots: tuple[Slot, ...], kind: str) -> Lease:
    """Return a lease that runs, or without ``slots`` one that waits."""
    user, count = f"user{number % PEOPLE}", len(slots) or 4
    request = Request(user, "lab", "default", kind, count, 2.0, 2**33, 8 * 3600, team=f"team{number % TEAMS}")
    lease = Lease(f"{number:06}", Key("hub", f"{user} born", str(number)), user, request, {}, asked_at=now - number)
    if not slots:
        return replace(lease, phase=Phase.PARKED, phase_since=now, unattended=True)
    began = now - random.Random(number).uniform(600, 20 * 3600)
    times = {"phase_since": began, "granted_at": began, "running_at": began, "deadline_at": began + 86400}
    rate = Rate(Fraction(count), Fraction(2 * count))
    return replace(
        lease, phase=Phase.RUNNING, slots=slots, server_started="then", sampled_at=now - 20, rate=rate, **times
    )


def fill(path: Path, now: float) -> float:
    """Write a year of ended workspaces, with their lines of the ledger, audit and sums. Return the file's GiB."""
    random_, today = random.Random(1), datetime.fromtimestamp(now, timezone.utc)
    sums: list[UsagePart] = []
    leases, ledger, audit = [], [], []
    pattern = replace(
        a_lease(1, now, (Slot("g"),), "a100"), phase=Phase.ENDED, reason=ExitReason.IDLE, ended_by="gpuspawner"
    )
    document = _json.dump_python(replace(pattern, message="The GPU has been idle for 40 min."), mode="json")
    for number in range(ENDED):
        at = now - 365 * 86400 * random_.random()
        user, kind, hours = f"user{random_.randrange(PEOPLE)}", random_.choice(KINDS), random_.uniform(0.2, 12)
        reason = random_.choice(["idle", "stopped", "stopped", "expired"])
        name, created, team = f"ended-{number}", f"{user} born", f"team{random_.randrange(TEAMS)}"
        day = (today - timedelta(seconds=now - at)).date().isoformat()
        key = {"hub": "hub", "user_created": created, "server": ""}
        own = {"id": name, "user": user, "key": key, "reason": reason, "ended_at": at, "running_at": at - hours * 3600}
        text = json.dumps({**document, **own})
        leases.append((name, "hub", created, "", user, "ended", at - 99, at, text, None, reason))
        ms = int(hours * 3_600_000)
        ledger.append(
            (
                at,
                "hub",
                created,
                user,
                team,
                name,
                kind,
                "use",
                day,
                int(at * 1000) - ms,
                int(at * 1000),
                ms,
                "1",
                "2",
                "",
                "",
            )
        )
        audit += [
            (at - 600, name, user, "gpuspawner", "warned", '{"gpus": 1, "idle_seconds": 1800.0}'),
            (at, name, user, "gpuspawner", "stop", '{"reason": "idle", "message": "idle"}'),
        ]
        used = UsageAmounts(hours * 0.6, hours * 0.3, hours * 0.1, 1.0, 1.0, hours, 0.0, 2 * hours)
        sums.append(UsagePart(day, created, user, team, kind, "lab", f"node-{random_.randrange(GPUS // 8)}", used))
    with sqlite3.connect(path) as connection:
        insert(
            connection,
            "leases",
            "id hub user_created server user phase asked_at ended_at document disputed_at reason",
            leases,
        )
        columns = (
            "at hub user_created user team lease kind what day start_ms end_ms milliseconds gpus price_per_hour by why"
        )
        insert(connection, "ledger", columns, ledger)
        insert(connection, "audit", "at lease user actor action fields", audit)
        rows = rows_of(sums)
        insert(connection, "usage_sums", " ".join(rows[0]), [tuple(row.values()) for row in rows])
    return path.stat().st_size / 2**30


def filled(path: Path, now: float) -> float:
    """Make a store and fill it; return how large it is, in GiB."""
    store = Store(f"sqlite:///{path}")
    store.open()
    gib = fill(path, now)
    store.close()
    return gib


def insert(connection: sqlite3.Connection, table: str, columns: str, rows: list[Any]) -> None:
    names = columns.split()
    quoted = ", ".join(f'"{name}"' for name in names)
    connection.executemany(f"INSERT INTO {table} ({quoted}) VALUES ({', '.join('?' * len(names))})", rows)


def serve(pipe: Connection, folder: str, hub: str, elsewhere: tuple[str, Path] | None) -> None:
    """Be the service, until this process is ended."""
    for name, value in {"API_URL": f"{hub}/hub/api", "API_TOKEN": "t", "CLIENT_ID": "service-gpu"}.items():
        os.environ[f"JUPYTERHUB_{name}"] = value
    os.environ |= {"JUPYTERHUB_SERVICE_PREFIX": f"{PREFIX}/", "JUPYTERHUB_BASE_URL": "/"}

    async def run() -> None:
        path = Path(folder) / DATABASE
        fleet = tuple(
            Gpu(f"gpu{i}", KINDS[i // 8 % 2], f"node-{i // 8}", i % 8, KINDS[i // 8 % 2].upper(), 2**36)
            for i in range(GPUS)
        )
        store, password_file = elsewhere or (f"sqlite:///{path}", None)
        now = SteadyClock().now()
        gib = filled(path, now)
        if elsewhere:
            copy_store(path.parent, store, password_file, str, lambda *_: None)
        options = Options(
            store, b"s" * 32, "hub", f"{hub}/hub/api", "t", hub, f"{PREFIX}/", None, store_password_file=password_file
        )
        parts = wire(options, load_catalog(CATALOG), FakeBackend(fleet), Settings(), SteadyClock())
        parts.store.open()
        await parts.allocator.accounting.load()
        await parts.scheduler.observe(now)
        each = GPUS * 4 // 5 // RUNNING
        for number in range(RUNNING):
            gpus = fleet[number * each : (number + 1) * each]
            await parts.registry.save(a_lease(number, now, tuple(Slot(gpu.id) for gpu in gpus), gpus[0].pool))
        for number in range(RUNNING, RUNNING + WAITING):
            await parts.registry.save(a_lease(number, now, (), random.Random(number).choice(KINDS)))
        parts.allocator.observed.processes_known = parts.allocator.observed.hub_answers = True
        app = application(parts)
        app.add_handlers(r".*", [("/cpu", Cpu)])
        collect_garbage_seldom()
        socket, port = bind_unused_port()
        HTTPServer(app).add_socket(socket)
        pipe.send((f"http://127.0.0.1:{port}", gib))
        turn = 0
        while True:
            await asyncio.sleep(60 / RUNNING)
            if turn % (5 * RUNNING // 60) == 0:
                await parts.scheduler.observe(parts.clock.now())
            lease = parts.registry.get(f"{turn % RUNNING:06}")
            if lease is not None:
                await parts.registry.save(replace(lease, sampled_at=parts.clock.now()))
            turn += 1

    asyncio.run(run())


async def main() -> None:
    socket, port = bind_unused_port()
    HTTPServer(Application([("/hub/api/user", HubUser), ("/hub/api/users", HubUsers)])).add_socket(socket)
    with tempfile.TemporaryDirectory() as folder:
        ours, theirs = multiprocessing.Pipe()
        elsewhere = None
        if os.environ.get("STORE") == "postgresql":
            server = Server()
            atexit.register(server.close)
            server.sql("CREATE DATABASE console")
            elsewhere = server.url("console"), server.password_file
        arguments = (theirs, folder, f"http://127.0.0.1:{port}", elsewhere)
        process = multiprocessing.get_context("spawn").Process(target=serve, args=arguments)
        process.start()
        try:
            url, gib = await asyncio.to_thread(ours.recv)
            print(
                f"{GPUS} GPUs, {RUNNING} workspaces run and {WAITING} wait, {ENDED} ended; the store has {gib:.1f} GiB"
            )
            print(f"{'page':<24} {'CPU, ms':>8} {'median':>8} {'p99, ms':>8} {'KB':>6}")
            year = (datetime.now(timezone.utc) - timedelta(days=365)).date().isoformat()
            patience = aiohttp.ClientTimeout(total=None)
            async with aiohttp.ClientSession(timeout=patience, headers={"Authorization": "token admin"}) as session:
                beside = await beside_it(session, url)
                print(f"{beside:.3f} s of CPU a second beside the pages", flush=True)
                for name, path in PAGES.items():
                    await ask(session, url, name, path.format(year=year), beside)
        finally:
            process.kill()
            process.join()


async def get(session: aiohttp.ClientSession, address: str) -> bytes:
    async with session.get(address) as response:
        assert response.status == 200, await response.text()
        return await response.read()


async def beside_it(session: aiohttp.ClientSession, url: str, seconds: float = 20) -> float:
    """Return the CPU seconds that the service uses in a second without page requests."""
    before, began = float(await get(session, f"{url}/cpu")), time.perf_counter()
    await asyncio.sleep(seconds)
    return (float(await get(session, f"{url}/cpu")) - before) / (time.perf_counter() - began)


async def ask(session: aiohttp.ClientSession, url: str, name: str, path: str, beside: float) -> None:
    """Ask for a page and print what it takes."""
    address = f"{url}{PREFIX}/console/{path}"
    taken, size = [], len(await get(session, address))
    cpu, began = float(await get(session, f"{url}/cpu")), time.perf_counter()
    for _ in range(ASKED):
        await asyncio.sleep(0.02)
        begin = time.perf_counter()
        await get(session, address)
        taken.append(1000 * (time.perf_counter() - begin))
    all_of_it = float(await get(session, f"{url}/cpu")) - cpu
    spent = 1000 * (all_of_it - beside * (time.perf_counter() - began)) / ASKED
    ranks = statistics.quantiles(taken, n=100, method="inclusive")
    print(f"{name:<24} {spent:>8.1f} {ranks[49]:>8.1f} {ranks[98]:>8.1f} {size / 1000:>6.0f}", flush=True)


if __name__ == "__main__":
    asyncio.run(main())
