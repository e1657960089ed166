"""The cost of a page as the queue grows, and its response time while 200 tabs are open.

The real service, on SQLite and fake GPUs, in a process of its own; the hub, which only says who asks, and the browsers
are in this one. All GPUs are held, and every user waits for one or several. Each second one waiting user gives up
and another user joins the queue.

Compared with: the same tabs, each asking every 5 s.

Then the pages that hold most: Home of a user with 20 workspaces, each with an hour of readings, and the list of all
limits of 600 users. Chromium loads both, and says when it first painted and how far the page shifted while it was open.
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import os
import random
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import aiohttp
from playwright.async_api import Browser, async_playwright
from tornado.httpserver import HTTPServer
from tornado.testing import bind_unused_port
from tornado.web import Application, RequestHandler

from gpuspawner.backends.fake import FakeBackend
from gpuspawner.catalog import load_catalog
from gpuspawner.core.gpus.fleet import Gpu, Slot
from gpuspawner.core.leases.lease import Key, Lease, Phase
from gpuspawner.core.leases.request import Request
from gpuspawner.service.app import Options, application, wire
from gpuspawner.service.clock import SteadyClock
from gpuspawner.service.settings import Settings
from gpuspawner.service.store import ReadingRow

PREFIX = "/services/gpu"
SIZES = [(gpus, waiting) for gpus in (100, 1000) for waiting in (10, 100, 500)]
PAGES = {"Home": "/", "offers": "/api/v1/offers", "queue": "/api/v1/queue"}
ASKED, TABS, SECONDS = 10, int(os.environ.get("TABS", "200")), float(os.environ.get("SECONDS", "30"))
PAUSE_SECONDS, POLLED_SECONDS, ASKS_SECONDS = 0.2, 5.0, 30.0
OPEN, TAB_KINDS = ((100, 100), (1000, 500)), os.environ.get("KINDS", "asks is_told").split()
CATALOG = {
    "version": 1,
    "gpus": {"a100": {"title": "A100 80 GB", "match": "*A100*", "memory": "80GiB"}},
    "templates": {
        "lab": {
            "title": "Lab",
            "gpus": {"a100": "1-8"},
            "bounds": {"cpu": "1-16", "memory": "1GiB-64GiB", "lifetime": "30m-24h"},
            "default": {"gpu": "a100", "count": 1, "cpu": 2, "memory": "8GiB", "lifetime": "8h"},
        }
    },
    "policies": {"default": {"mode": "enforce", "idle": {"below": "5%", "for": "30m", "grace": "10m"}}},
    "quotas": {"each-user": {"each": "user", "gpus": {"soft": 2, "hard": 40}}},
}
LARGEST = (100, 500)
"""GPUs and waiting users behind the largest pages: 600 users."""
OWN_WORKSPACES, HOUR_MINUTES = 20, 60
LARGE_PAGES = {"Home": ("/", "user0"), "all limits": ("/console/quotas", "admin")}
OPEN_SECONDS = 10
"""How long Chromium looks at a page, while the queue moves each second."""
PAINTED = """() => new Promise((resolve) => {
  let shift = 0;
  new PerformanceObserver((list) => { for (const one of list.getEntries()) shift += one.value; })
    .observe({ type: "layout-shift", buffered: true });
  const paint = () => performance.getEntriesByName("first-contentful-paint")[0]?.startTime ?? NaN;
  setTimeout(() => resolve([paint(), shift]), %d);
})"""


class Cpu(RequestHandler):
    """How much CPU the service has used: seconds."""

    def get(self) -> None:
        self.finish(str(time.process_time()))


class HubUser(RequestHandler):
    """The hub: a token is its user's name."""

    def get(self) -> None:
        name = self.request.headers["Authorization"].partition(" ")[2]
        scopes = ["custom:gpu:use", *(["custom:gpu:admin"] if name == "admin" else [])]
        self.finish({"name": name, "kind": "user", "scopes": scopes, "created": f"{name} born"})


def a_lease(number: int, now: float, *, held: bool) -> Lease:
    """Return a lease that runs until some time of the next eight hours, or one that waits for 1, 2 or 4 GPUs."""
    user = f"user{number}"
    count = 1 if held else (1, 1, 2, 4)[number % 4]
    request = Request(user, "lab", "default", "a100", count, 2.0, 2**33, 8 * 3600)
    lease = Lease(f"{number:06}", Key("hub", f"{user} born", ""), user, request, {}, asked_at=now - 1e6 + number)
    if not held:
        return replace(lease, phase=Phase.PARKED, phase_since=now, unattended=True)
    ends_at = now + random.Random(number).uniform(600, 8 * 3600)
    slots = (Slot(f"gpu{number}"),)
    times = {"phase_since": now, "granted_at": now, "running_at": now, "deadline_at": ends_at, "sampled_at": now}
    return replace(lease, phase=Phase.RUNNING, slots=slots, server_started="then", **times)


def own_lease(number: int, now: float) -> Lease:
    """Return a lease of ``user0``, who has several workspaces."""
    lease = a_lease(number, now, held=True)
    key = Key("hub", "user0 born", f"workspace-{number}" if number else "")
    return replace(lease, id=f"{number:032x}", key=key, user="user0", request=replace(lease.request, user="user0"))


def hour_of_readings(lease: Lease, now: float) -> list[ReadingRow]:
    """Return a reading for each minute of the last hour."""
    gpu, use = lease.slots[0].gpu, random.Random(lease.id)
    return [
        ReadingRow(lease.id, now - 60.0 * minute, 60.0, gpu, use.uniform(0, 100), 2**34, 2**36, "busy", "")
        for minute in reversed(range(HOUR_MINUTES))
    ]


def serve(pipe: Connection, folder: str, hub: str, gpus: int, waiting: int) -> None:
    """Be the service, until this process is ended."""
    for name, value in {"API_URL": f"{hub}/hub/api", "API_TOKEN": "t", "CLIENT_ID": "service-gpu"}.items():
        os.environ[f"JUPYTERHUB_{name}"] = value
    os.environ |= {"JUPYTERHUB_SERVICE_PREFIX": f"{PREFIX}/", "JUPYTERHUB_BASE_URL": "/"}

    async def run() -> None:
        fleet = tuple(Gpu(f"gpu{i}", "a100", f"node{i // 8}", i % 8, "A100", 2**36) for i in range(gpus))
        store = f"sqlite:///{Path(folder) / f'{gpus}-{waiting}-{os.getpid()}.sqlite'}"
        options = Options(store, b"s" * 32, "hub", f"{hub}/hub/api", "t", hub, f"{PREFIX}/", None)
        parts = wire(options, load_catalog(CATALOG), FakeBackend(fleet), Settings(), SteadyClock())
        parts.store.open()
        now = parts.clock.now()
        for lease in (own_lease(i, now) for i in range(OWN_WORKSPACES)):
            readings = hour_of_readings(lease, now)
            await parts.registry.save(lease, readings=readings)
            parts.sampler._newest[lease.id] = {readings[-1].gpu: readings[-1]}  # noqa: SLF001 - as if just sampled
        await parts.registry.save(*(a_lease(i, now, held=True) for i in range(OWN_WORKSPACES, gpus)))
        await parts.registry.save(*(a_lease(i, now, held=False) for i in range(gpus, gpus + waiting)))
        parts.allocator.observed.processes_known = parts.allocator.observed.hub_answers = True
        app = application(parts)
        app.add_handlers(r".*", [("/cpu", Cpu)])
        socket, port = bind_unused_port()
        HTTPServer(app).add_socket(socket)
        await parts.scheduler.observe(now)
        pipe.send(f"http://127.0.0.1:{port}")
        turn = 0
        while True:
            await asyncio.sleep(1.0)
            if turn % 5 == 0:
                await parts.scheduler.observe(parts.clock.now())
            leaves = sorted((x for x in parts.registry if x.phase is Phase.PARKED), key=lambda x: x.id)[turn % waiting]
            await parts.attempts.forget(leaves.key)
            comes = a_lease(int(leaves.id), parts.clock.now(), held=False)
            await parts.registry.save(replace(comes, asked_at=parts.clock.now()))
            turn += 1

    asyncio.run(run())


class Browsers:
    """State that all benchmark clients share."""

    def __init__(self, url: str, session: aiohttp.ClientSession) -> None:
        self.url, self._session = url, session

    def get(self, path: str, user: str) -> Any:
        """Ask for a page of the service as its user."""
        return self._session.get(f"{self.url}{path}", headers={"Authorization": f"token {user}"})

    async def page(self, path: str, user: str) -> str:
        async with self.get(path, user) as response:
            assert response.status == 200, response.status
            return await response.text()

    async def cpu(self) -> float:
        return float(await self.page("/cpu", ""))

    async def cost(self, path: str, user: str) -> float:
        """Return the mean CPU seconds that the service uses for one page."""
        await self.page(PREFIX + path, user)
        begin = await self.cpu()
        for _ in range(ASKED):
            await self.page(PREFIX + path, user)
            await asyncio.sleep(PAUSE_SECONDS)
        return (await self.cpu() - begin) / ASKED


@contextlib.asynccontextmanager
async def a_service(folder: str, hub: str, gpus: int, waiting: int) -> AsyncIterator[Browsers]:
    """Run a service, and answer who asks it."""
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=serve, args=(theirs, folder, hub, gpus, waiting))
    process.start()
    try:
        url = await asyncio.to_thread(ours.recv)
        limits, patience = aiohttp.TCPConnector(limit=0), aiohttp.ClientTimeout(total=None)
        async with aiohttp.ClientSession(connector=limits, timeout=patience) as session:
            yield Browsers(url, session)
    finally:
        process.kill()
        process.join()


class Tabs:
    """Open tabs of Home, and how long each of their pages took."""

    def __init__(self, browsers: Browsers, first_user: int) -> None:
        self._browsers, self._first = browsers, first_user
        self.taken: list[float] = []

    async def page(self, user: str) -> None:
        begin = time.perf_counter()
        await self._browsers.page(f"{PREFIX}/", user)
        self.taken.append(time.perf_counter() - begin)

    async def asks(self, user: str) -> None:
        """Ask every 5 s, as pages without events do."""
        await asyncio.sleep(random.uniform(0, POLLED_SECONDS))
        while True:
            await self.page(user)
            await asyncio.sleep(POLLED_SECONDS)

    async def is_told(self, user: str) -> None:
        """Ask when told, and every half minute."""
        await asyncio.sleep(random.uniform(0, POLLED_SECONDS))
        changed = asyncio.Event()
        listening = asyncio.create_task(self._listen(user, changed))
        try:
            while True:
                with contextlib.suppress(TimeoutError, asyncio.TimeoutError):
                    await asyncio.wait_for(changed.wait(), ASKS_SECONDS * random.uniform(0.8, 1.2))
                changed.clear()
                await self.page(user)
        finally:
            listening.cancel()

    async def _listen(self, user: str, changed: asyncio.Event) -> None:
        async with self._browsers.get(f"{PREFIX}/api/v1/events", user) as response:
            assert response.status == 200, response.status
            async for line in response.content:
                if line == b"event: changed\n":
                    changed.set()

    async def run(self, tab: Callable[[str], Coroutine[Any, Any, None]]) -> str:
        """Return how many pages were asked for, their median and 99th percentile, and the service's CPU."""
        tasks = [asyncio.create_task(tab(f"user{self._first + i}")) for i in range(TABS)]
        await asyncio.sleep(2 * POLLED_SECONDS)
        self.taken.clear()
        cpu, begin = await self._browsers.cpu(), time.perf_counter()
        await asyncio.sleep(SECONDS)
        taken, seconds = list(self.taken), time.perf_counter() - begin
        percent = 100 * (await self._browsers.cpu() - cpu) / seconds
        while pending := {task for task in tasks if not task.done()}:  # wait_for can swallow a cancellation before 3.12
            for task in pending:
                task.cancel()
            await asyncio.wait(pending, timeout=1.0)
        if len(taken) < TABS / 10:
            return f"{len(taken):>7}: too few to say more, {percent:.0f} % of a core"
        ranks = [1000 * seconds for seconds in statistics.quantiles(taken, n=100)]
        return f"{len(taken):>7} {ranks[49]:>8.1f} {ranks[98]:>8.1f} {percent:>6.0f}"


async def look(browser: Browser, url: str, user: str) -> tuple[float, float]:
    """Return when Chromium first painted a page, in ms, and its cumulative layout shift."""
    page = await browser.new_page(extra_http_headers={"Authorization": f"token {user}"})
    await page.goto(url)
    painted, shift = await page.evaluate(PAINTED % (1000 * OPEN_SECONDS))
    await page.close()
    return painted, shift


async def print_large_pages(folder: str, hub: str) -> None:
    """Print size, CPU, first paint and layout shift of the pages that hold most."""
    print(f"\n{'page':>12} {'KB':>8} {'CPU ms':>8} {'paint ms':>9} {'shift':>8}")
    async with a_service(folder, hub, *LARGEST) as browsers, async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=shutil.which("chromium-headless-shell"), args=["--no-sandbox"]
        )
        for name, (path, user) in LARGE_PAGES.items():
            size = len((await browsers.page(PREFIX + path, user)).encode()) / 1000
            cost = await browsers.cost(path, user)
            await look(browser, browsers.url + PREFIX + path, user)  # the style sheet is then in the cache
            painted, shift = await look(browser, browsers.url + PREFIX + path, user)
            print(f"{name:>12} {size:>8.1f} {1000 * cost:>8.1f} {painted:>9.0f} {shift:>8.3f}", flush=True)
        await browser.close()


async def main() -> None:
    socket, port = bind_unused_port()
    HTTPServer(Application([("/hub/api/user", HubUser)])).add_socket(socket)
    hub = f"http://127.0.0.1:{port}"
    print(f"CPU of one page, ms, the mean of {ASKED}")
    print(f"{'GPUs':>6} {'waiting':>8}" + "".join(f"{name:>10}" for name in PAGES))
    with tempfile.TemporaryDirectory() as folder:
        for gpus, waiting in SIZES:
            async with a_service(folder, hub, gpus, waiting) as browsers:
                costs = [await browsers.cost(path, f"user{gpus}") for path in PAGES.values()]
            print(f"{gpus:>6} {waiting:>8}" + "".join(f"{1000 * cost:>10.1f}" for cost in costs), flush=True)
        print(f"\n{TABS} open tabs of Home for {SECONDS:g} s, ms")
        print(f"{'GPUs':>6} {'waiting':>8} {'tabs':>9} {'pages':>7} {'median':>8} {'p99':>8} {'CPU %':>6}")
        for gpus, waiting in OPEN:
            for name in TAB_KINDS:
                async with a_service(folder, hub, gpus, waiting) as browsers:
                    tabs = Tabs(browsers, gpus)
                    line = await tabs.run(getattr(tabs, name))
                print(f"{gpus:>6} {waiting:>8} {name.replace('_', ' '):>9} {line}", flush=True)
        await print_large_pages(folder, hub)


if __name__ == "__main__":
    asyncio.run(main())
