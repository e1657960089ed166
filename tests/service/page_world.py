"""The service's pages with a fake backend and a small hub, served on 127.0.0.1."""

import asyncio
import inspect
import itertools
import json
import re
import threading
from dataclasses import replace
from urllib.parse import urlencode

import pytest
import requests
from databases import Database
from jupyterhub.services.auth import HubOAuth
from service_world import open_gate
from tornado.httpserver import HTTPServer
from tornado.routing import AnyMatches, PathMatches, RuleRouter
from tornado.testing import bind_unused_port
from tornado.web import Application, RequestHandler

from gpuspawner.backends.fake import FakeBackend, fake_gpus
from gpuspawner.catalog import load_catalog
from gpuspawner.cli.main import main
from gpuspawner.core import events
from gpuspawner.core.authentication import RequestTarget, new_nonce, request_headers
from gpuspawner.core.gpus.fleet import Slot
from gpuspawner.core.idle.policies import Mode
from gpuspawner.core.idle.verdicts import SampleKind, Streak
from gpuspawner.core.leases.exits import ExitReason
from gpuspawner.core.leases.lease import Key, Lease, Phase
from gpuspawner.core.leases.request import Request
from gpuspawner.service.app import Options, wire
from gpuspawner.service.settings import Settings
from gpuspawner.service.store import AuditLine, ReadingRow

GIB = 2**30
PREFIX = "/services/gpu"
NOW = 1_800_000_000.0
GPUS = fake_gpus("a100", 4)
CATALOG = {
    "version": 1,
    "gpus": {
        "a100": {"title": "A100 80 GB", "match": "*A100*", "memory": "80GiB", "price": 2.10},
        "t4": {"title": "T4 16 GB", "match": "*T4", "memory": "16GiB"},
    },
    "templates": {
        "pytorch": {
            "title": "PyTorch",
            "gpus": {"a100": "1-4", "t4": 1},
            "bounds": {"cpu": "1-16", "memory": "1GiB-64GiB", "lifetime": "30m-24h"},
            "default": {"gpu": "a100", "count": 1, "cpu": 2, "memory": "8GiB", "lifetime": "8h"},
        },
    },
    "policies": {
        "default": {"mode": "enforce", "idle": {"below": "5%", "for": "30m", "grace": "10m"}},
        "kernels": {"mode": "enforce", "idle": {"below": "5%", "for": "30m", "soft": "2h"}, "also_counts": ["kernel"]},
    },
}
PEOPLE = {
    "alice": ["custom:gpu:use"],
    "bob": ["custom:gpu:use"],
    "admin": ["custom:gpu:use", "custom:gpu:admin"],
    "prometheus": ["read:metrics"],
    "mallory": [],
    "robot": ["custom:gpu:use"],
}
STAFF = {
    "lena": ["custom:gpu:use", "custom:gpu:lead!group=vision"],
    "otto": ["custom:gpu:use", "custom:gpu:audit"],
    "vera": ["custom:gpu:use", "custom:gpu:operate"],
}
"""Users with special roles. They are not in the hub's list of users."""
METRICS_TOKEN = "m3trics-" * 4
_worlds = itertools.count()


class HandClock:
    """A clock that a test sets."""

    def __init__(self):
        self.at = NOW

    def now(self):
        return self.at

    def wall(self):
        return self.at

    def awake_since(self):
        return 0.0


class World:
    """The service, its hub and their server. A test uses the service by `call`, in the loop of the server.

    ``names`` has the present name of a token's user, or None for an invalid token. ``created`` has the creation of a
    user by name: None for a deleted user, ``error`` for an error, or a function that returns one of these. ``groups``
    has the groups of a user by name.
    """

    def __init__(self, folder, monkeypatch, catalog=None):
        self.signing_in, self.servers, self.hub_down = "alice", {}, False
        self.names, self.created, self.models_asked, self.groups = {}, {}, [], {}
        self.hub_version, self.named_servers = "6.1.1", True
        self.number = next(_worlds)
        self.clock = HandClock()
        self.backend = FakeBackend(GPUS)
        socket, port = bind_unused_port()
        self.url = f"http://127.0.0.1:{port}"
        self.home = f"{self.url}{PREFIX}/"
        variables = {
            "API_URL": f"{self.url}/hub/api",
            "API_TOKEN": "service",
            "CLIENT_ID": "service-gpu",
            "SERVICE_PREFIX": f"{PREFIX}/",
            "BASE_URL": "/",
            "OAUTH_CALLBACK_URL": f"{PREFIX}/oauth_callback",
        }
        for name, value in variables.items():
            monkeypatch.setenv(f"JUPYTERHUB_{name}", value)
        HubOAuth.clear_instance()
        store = Database.of_world(folder / "service.sqlite")
        options = Options(
            store.url, b"s" * 32, "hub-1", variables["API_URL"], "service", self.url, f"{PREFIX}/", None,
            store_password_file=store.password_file, metrics_token=METRICS_TOKEN,
        )  # fmt: skip
        self.parts = wire(options, catalog or load_catalog(CATALOG), self.backend, Settings(), self.clock)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self.call(self._open, socket)

    def _open(self, socket):
        self.parts.store.open()
        self.parts.allocator.observed.hub_answers = self.parts.allocator.observed.processes_known = True
        world = {"world": self}
        hub = Application(
            [
                (r"/hub/api/user", HubUser, world),
                (r"/hub/api/", HubVersion, world),
                (r"/hub/api/groups", HubGroups, world),
                (r"/hub/api/users", HubUsers, world),
                (r"/hub/api/oauth2/authorize", HubAuthorize, world),
                (r"/hub/api/oauth2/token", HubToken, world),
                (r"/hub/api/users/([^/]+)(?:/servers?/?([^/]*))?", HubServers, world),
                (r"/hub/.*|/user/.*", HubPage, world),
            ]
        )
        # Hub and service on one port, as behind the hub's proxy.
        rules = [(PathMatches(f"{PREFIX}.*"), open_gate(self.parts)), (AnyMatches(), hub)]
        self._server = HTTPServer(RuleRouter(rules))
        self._server.add_socket(socket)

    def call(self, function, *arguments, **named):
        """Run a function, or one whose result is awaited, in the server's loop."""

        async def run():
            result = function(*arguments, **named)
            return await result if inspect.isawaitable(result) else result

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(20)

    def observe(self):
        self.call(self.parts.scheduler.observe, self.clock.at)

    def save(self, lease, audit=(), readings=()):
        """Store a lease as the service would, with its newest readings known."""
        lines = [AuditLine(at, lease.id, lease.user, actor, event) for at, actor, event in audit]
        self.call(self.parts.registry.save, lease, audit=lines, readings=readings)
        newest = {row.gpu: row for row in readings}
        if newest and lease.live:
            self.parts.sampler._newest[lease.id] = newest
        return lease

    def lease(self, lease_id):
        return self.call(lambda: self.parts.registry.get(lease_id) or self.parts.store.leases.get(lease_id))

    def token(self, name):
        return f"{name}-{self.number}"

    def close(self):
        async def close():
            self._server.stop()
            await self._server.close_all_connections()
            await self.parts.allocator.estimator.close()

        self.call(close)
        self.call(self.parts.store.close)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()
        HubOAuth.clear_instance()


def world_fixture(*leases, catalog=None, is_observed=True):
    """Return the fixture ``world``: the service's pages with these leases, once the GPUs were observed."""

    @pytest.fixture(name="world")
    def made(make_web_world):
        world = make_web_world(catalog)
        if is_observed:
            world.observe()
        for lease in leases:
            world.save(lease)
        return world

    return made


def command_fixture(fixture, *words, user="admin"):
    """Return a fixture of this name: a function that runs a command, and returns its exit code, output and errors."""

    @pytest.fixture(name=fixture)
    def made(world, monkeypatch, capsys):
        def run(*arguments, name=user):
            monkeypatch.setenv("GPUSPAWNER_TOKEN", world.token(name))
            code = main([*words, *arguments, "--url", world.home.rstrip("/")])
            return code, *capsys.readouterr()

        return run

    return made


class HubHandler(RequestHandler):
    """The part of the hub that the service and a browser use."""

    def initialize(self, world):
        self.world = world

    def prepare(self):
        if self.world.hub_down:
            self.send_error(503)

    def check_xsrf_cookie(self):
        pass


class HubVersion(HubHandler):
    def get(self):
        self.finish({"version": self.world.hub_version})


class HubUser(HubHandler):
    def get(self):
        name = self.request.headers["Authorization"].partition(" ")[2].rpartition("-")[0]
        called = self.world.names.get(name, name)
        scopes = {**PEOPLE, **STAFF}
        if name not in scopes or called is None:
            self.send_error(403)
        else:
            kind = "service" if name == "robot" else "user"
            self.finish({"name": called, "kind": kind, "scopes": scopes[name], "admin": False, "groups": []})


class HubAuthorize(HubHandler):
    def get(self):
        query = urlencode({"code": self.world.signing_in, "state": self.get_argument("state")})
        self.redirect(f"{self.get_argument('redirect_uri')}?{query}")


class HubToken(HubHandler):
    def post(self):
        self.finish({"access_token": self.world.token(self.get_argument("code")), "token_type": "Bearer"})


class HubServers(HubHandler):
    def get(self, name, _server):
        self.world.models_asked.append(name)
        created = self.world.created.get(name, f"{name} born")
        if callable(created):
            created = created()
        if created is None:
            self.send_error(404)
        elif created == "error":
            self.send_error(500)
        else:
            groups = sorted(self.world.groups.get(name, ()))
            model = {"name": name, "created": created, "servers": self.world.servers, "groups": groups}
            self.finish(json.dumps(model))

    def delete(self, _name, server):
        if server and not self.world.named_servers:
            self.set_status(400)
            self.finish({"message": "Named servers are not enabled."})
        elif server and server not in self.world.servers:
            self.send_error(404)
        else:
            self.world.servers.pop(server or "", None)
            self.set_status(204)


class HubUsers(HubHandler):
    def get(self):
        names = {*PEOPLE, *self.world.created} - {name for name, born in self.world.created.items() if born is None}
        groups = self.world.groups
        users = [
            {
                "name": name,
                "created": self.world.created.get(name, f"{name} born"),
                "groups": sorted(groups.get(name, ())),
            }
            for name in sorted(names)
        ]
        self.finish({"items": users, "_pagination": {"next": None}})


class HubGroups(HubHandler):
    def get(self):
        there = sorted({group for groups in self.world.groups.values() for group in groups})
        self.finish({"items": [{"kind": "group", "name": name} for name in there], "_pagination": {"next": None}})


class HubPage(HubHandler):
    def get(self):
        self.finish(f"<!doctype html><title>hub</title><p>{self.request.uri.partition('?')[0]}")


class Browser(requests.Session):
    """A browser without JavaScript: it follows redirects, and sends forms with the token of the page."""

    def __init__(self, world, name):
        super().__init__()
        world.signing_in = name
        self.world = world
        self.home = self.look("")

    def look(self, page, status=200):
        response = self.get(self.world.home + page)
        assert response.status_code == status, response.text
        return response

    def submit(self, page, status=200, **fields):
        token = re.search(r'name="xsrf" content="([^"]*)"', self.home.text)[1]
        response = self.post(self.world.home + page, data={"_xsrf": token, **fields})
        assert response.status_code == status, response.text
        return response


def api(world, name, path="workspaces?ended=5", method="GET", body=None, status=None):
    """Return the API's answer to a user's token, and check its status if one is given."""
    headers = {"Authorization": f"token {world.token(name)}"}
    address = f"{world.home}api/v1/{path}"
    answer = requests.request(method, address, headers=headers, data=json.dumps(body or {}), timeout=20)
    assert status in {None, answer.status_code}, answer.text
    return answer


def asked(world, path, who="admin", status=200):
    """Return the service's answer to a user's token at any address, and check its status."""
    answer = requests.get(world.home + path, headers={"Authorization": f"token {world.token(who)}"}, timeout=20)
    assert status in {None, answer.status_code}, answer.text
    return answer


def spawner(world, path, body=None, method="POST"):
    """Return the service's answer to the hub's spawner."""
    target, sent = f"{PREFIX}/internal/{path}", json.dumps(body or {}) if method == "POST" else ""
    headers = request_headers(b"s" * 32, new_nonce(), world.clock.wall(), RequestTarget(method, target), sent.encode())
    return requests.request(method, world.url + target, headers=headers, data=sent or None, timeout=20)


def request(user="alice", gpu="a100", count=1):
    return Request(user, "pytorch", "default", gpu, count, 2.0, 8 * GIB, 8 * 3600)


def waiting(lease_id="waits", user="bob", count=4, asked_at=NOW - 300, **changes):
    """Return a parked workspace in the queue, without a waiting spawner."""
    options = {"phase": Phase.PARKED, "phase_since": asked_at, "unattended": True, **changes}
    return Lease(lease_id, Key("hub-1", f"{user} born", ""), user, request(user, count=count), {}, asked_at, **options)


def running(lease_id="runs", user="alice", gpus=(0,), minutes=60, server="", **changes):
    """Return a workspace that has run for the given minutes."""
    since = NOW - 60 * minutes
    values = {
        "phase": Phase.RUNNING,
        "phase_since": since,
        "slots": tuple(Slot(GPUS[index].id) for index in gpus),
        "granted_at": since - 20,
        "running_at": since,
        "server_started": "then",
        "deadline_at": since + 8 * 3600,
        "sampled_at": NOW - 10,
        "streak": Streak(kind=SampleKind.BUSY, because="GPU 0 at 80 %", mode=Mode.ENFORCE),
        **changes,
    }
    gpu = "a100" if gpus else None
    key = Key("hub-1", f"{user} born", server)
    return Lease(lease_id, key, user, request(user, gpu, len(gpus)), {}, since - 30, **values)


def idle_streak(minutes, peak=1.0, grace=None):
    seconds = 60.0 * minutes
    return Streak(
        idle_seconds=seconds,
        observed_seconds=seconds,
        since_busy_seconds=seconds,
        peak_percent=peak,
        countdown_seconds=grace,
        mode=Mode.ENFORCE,
        kind=SampleKind.IDLE,
        because="GPU 0 at 1 %",
    )


def in_grace(lease_id="warned", **changes):
    """Return an idle workspace whose user was warned four minutes ago. It ends in six minutes."""
    values = {"phase": Phase.RECLAIMING, "phase_since": NOW - 240, "streak": idle_streak(34, grace=360.0)}
    return running(lease_id, **{**values, **changes})


def reclaimed(lease_id="gone", user="alice", at=NOW - 600, seen=False, **changes):
    """Return a workspace that was stopped because it was idle."""
    message = (
        "The GPU has been idle for 40 min. Its highest use was 1 %. Nobody kept it in the 10 min after the warning."
    )
    ended = {
        "phase": Phase.ENDED,
        "phase_since": at,
        "ended_at": at,
        "reason": ExitReason.IDLE,
        "ended_by": "gpuspawner",
        "message": message,
        "sampled_at": at,
        "streak": idle_streak(40, grace=0.0),
        "seen_by_user": seen,
    }
    return replace(running(lease_id, user, minutes=120), **{**ended, **changes})


def reclaimed_audit(at=NOW - 600, user="alice"):
    return [
        (at - 7000, user, events.Asked("pytorch", "1 a100", 8 * 3600.0)),
        (at - 6990, "gpuspawner", events.Granted((GPUS[0].id,))),
        (at - 6960, "gpuspawner", events.Started()),
        (at - 600, "gpuspawner", events.WarnedIdle(1, 1800.0, peak_percent=1.0)),
        (at, "gpuspawner", events.Stopped("idle", "The GPU has been idle for 40 min. Its highest use was 1 %.")),
    ]


def readings(lease, percents, until=NOW - 10, memory_gib=3, kept=False):
    """Return one reading a minute of each GPU, the last at ``until``. None means unknown, "gap" means no reading."""
    rows = []
    for back, percent in enumerate(reversed(percents)):
        for index, slot in enumerate(lease.slots):
            if percent == "gap":
                continue
            kind = "unknown" if percent is None else "busy" if percent >= 5 else "idle"
            because = "GPU 0 can't be read ([N/A])" if percent is None else f"GPU {index} at {percent:g} %"
            memory = None if percent is None else memory_gib * GIB
            at = until - 60 * back
            rows.append(ReadingRow(lease.id, at, 60.0, slot.gpu, percent, memory, 80 * GIB, kind, because, kept))
    return sorted(rows, key=lambda row: row.at)
