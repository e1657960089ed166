"""The service's port is public: floods of connections and of bodies leave spawner, people and sampling theirs."""

import contextlib
import itertools
import json
import logging
import re
import resource
import socket
import threading
import time
from functools import partial
from pathlib import Path

import pytest
from lease_builders import a_lease, a_request, slots
from page_world import NOW, Browser, api, world_fixture
from service_process import SERVE, call
from service_world import open_gate
from tornado.testing import bind_unused_port

from gpuspawner.backends.fake import fake_gpus
from gpuspawner.core.authentication import RequestTarget, new_nonce, request_headers, sign_ticket
from gpuspawner.core.leases.lease import Key, Phase
from gpuspawner.service.api.base import is_spawner
from gpuspawner.service.process import connections
from gpuspawner.service.process.connections import PublicServer
from gpuspawner.service.store import Store

# Each sample takes a process with pipes, as on a real machine, and says when it was.
PROBING = SERVE.replace(
    "store, port, hub =",
    """
import time
class ProbingBackend(FakeBackend):
    async def probe(self, *asked):
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec("true", stdin=pipe, stdout=pipe, stderr=pipe)
        await process.communicate()
        print("sampled at", time.monotonic(), flush=True)
        return await super().probe(*asked)
FakeBackend, old = ProbingBackend, FakeBackend
store, port, hub =""",
).replace(
    '"templates": {"lab"',
    '"policies": {"default": {"mode": "enforce", "idle": {"below": "5%", "for": "30m", "sample": "1s"}}},\n'
    '"templates": {"lab"',
)
log = logging.getLogger(__name__)  # its figures: --log-cli-level=INFO

DESCRIPTORS = 1024
HALF_OPEN = 1100
SENDERS, SENT_BYTES = 12, 95_000_000
WATCHED_SECONDS = 6
POST = "POST /services/gpu/api/v1/check HTTP/1.1\r\nHost: gpu\r\nContent-Type: application/json\r\n"


@pytest.fixture
def service(serve, tmp_path):
    """A service that samples one workspace each second, and has no more descriptors than systems allow by default."""
    store = Store(f"sqlite:///{tmp_path / 'service.sqlite'}")
    store.open()
    held = slots(*(gpu.id for gpu in fake_gpus("a100", 1)))
    request = a_request(template="lab")
    key = Key("hub-1", "alice born", "")
    store.save([a_lease("one", Phase.RUNNING, asked_at=time.time(), held=held, request=request, key=key)])
    store.close()
    process = serve(script=PROBING)
    resource.prlimit(process.process.pid, resource.RLIMIT_NOFILE, (DESCRIPTORS, DESCRIPTORS))
    process.says("serving")
    process.says("sampled at")
    return process


@pytest.fixture(autouse=True)
def _descriptors():
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (before[1], before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def connect(port, text="", source="127.0.0.1"):
    one = socket.create_connection(("127.0.0.1", port), timeout=15, source_address=(source, 0))
    one.sendall(text.encode())
    return one


def memory_mb(service, name="VmRSS"):
    return int(re.search(rf"{name}:\s+(\d+) kB", Path(f"/proc/{service.process.pid}/status").read_text())[1]) / 1024


def watch(service, port):
    """Ask as the spawner for some seconds; return the longest time of an answer and the longest pause of samples."""
    began, slowest = time.monotonic(), 0.0
    while time.monotonic() - began < WATCHED_SECONDS:
        asked = time.monotonic()
        answer = call(port, "internal/leases/x/heartbeat?attempt=1")
        slowest = max(slowest, time.monotonic() - asked)
        assert answer is not None, "the spawner gets no answer"
        assert answer.status_code == 410
        time.sleep(0.05)
    times = [float(x) for x in re.findall(r"sampled at (\S+)", service.text)]
    times = [began, *(x for x in times if x > began), time.monotonic()]
    return slowest, max(after - before for before, after in itertools.pairwise(times))


def test_half_open_requests_block_neither_api_nor_sampling(service, port):
    with contextlib.ExitStack() as stack:
        for _ in range(HALF_OPEN):
            stack.enter_context(connect(port, POST))
        slowest, pause = watch(service, port)
        free = DESCRIPTORS - len(list(Path(f"/proc/{service.process.pid}/fd").iterdir()))
        page = call(port, "api/v1/offers", "GET")
    told = f"{HALF_OPEN} half-open: slowest answer {slowest:.2f} s, longest pause {pause:.1f} s, {free} free"
    log.info(told)
    assert slowest < 2
    assert pause < 5
    assert free > DESCRIPTORS // 3
    assert page is not None
    assert page.status_code == 403
    assert service.text.count("connections at once") == 1, "the log says it once"


def test_large_bodies_without_a_user_are_not_kept(service, port):
    before = memory_mb(service)

    def send():
        with contextlib.suppress(OSError), connect(port, f"{POST}Content-Length: {SENT_BYTES}\r\n\r\n") as one:
            for _ in range(SENT_BYTES // 1_000_000):
                one.sendall(b"x" * 1_000_000)
            one.recv(1000)

    senders = [threading.Thread(target=send) for _ in range(SENDERS)]
    for one in senders:
        one.start()
    slowest, pause = watch(service, port)
    for one in senders:
        one.join()
    most = memory_mb(service, "VmHWM")
    told = (
        f"{SENDERS} bodies: {before:.0f} to {most:.0f} MB, slowest answer {slowest:.2f} s, longest pause {pause:.1f} s"
    )
    log.info(told)
    assert most - before < 40
    assert slowest < 2
    assert pause < 5


def as_spawner(target="/", method="GET"):
    """The lines by which a request, without a body, is the hub's spawner's."""
    headers = request_headers(b"s" * 32, new_nonce(), NOW, RequestTarget(method, target), b"")
    return "".join(f"{name}: {value}\r\n" for name, value in headers.items())


SHORT = "Content-Length: 2\r\nExpect: 100-continue\r\n"


world = world_fixture(is_observed=False)


def sent_to(world, headers):
    return connect(int(world.url.rpartition(":")[2]), f"{POST}{headers}\r\n")


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ("Content-Length: 95000000\r\n", 413),
        (f"Content-Length: 95000000\r\n{as_spawner()}", 413),
        (f"Content-Length: {'9' * 5000}\r\n", 411),
        ("Content-Length: many\r\n", 411),
        ("Transfer-Encoding: chunked\r\n", 411),
        (SHORT, 403),
        (f"{SHORT}Authorization: spawner {'0' * 64}\r\n", 403),
        (f"{SHORT}Authorization: ticket forged.ticket\r\n", 403),
        (f"{SHORT}Authorization: token of-nobody-known\r\n", 403),
        (f"{SHORT}Cookie: service-gpu=forged\r\n", 403),
    ],
)
def test_an_unwanted_body_is_refused_before_it_is_sent(world, headers, status):
    with sent_to(world, headers) as one:
        head, _, body = one.makefile("rb").read().partition(b"\r\n\r\n")  # to the end: the connection is closed
    assert head.startswith(f"HTTP/1.1 {status} ".encode())
    assert json.loads(body)["error"]["message"]


def test_only_permitted_clients_are_asked_for_a_body(world):
    cookies = "; ".join(f"{one.name}={one.value}" for one in Browser(world, "alice").cookies)
    ticket = sign_ticket(b"s" * 32, "alice", "alice born", NOW, form=True)
    for who in (f"Cookie: {cookies}", as_spawner().strip(), f"Authorization: ticket {ticket}"):
        with sent_to(world, f"{SHORT}{who}\r\n") as one:
            assert one.recv(1000).startswith(b"HTTP/1.1 100 "), who


def test_an_oversized_request_under_way_is_reported_with_a_remedy(world):
    told = api(world, "alice", "check", "POST", {"memory": "x" * 2_000_000})
    assert (told.status_code, told.json()["error"]["remedy"]) == (413, "Shorten its longest value.")


@contextlib.contextmanager
def served(world):
    """A public port for ten strangers; gives its number."""
    server = world.call(lambda: PublicServer(open_gate(world.parts), partial(is_spawner, b"s" * 32), 10))
    found, port = bind_unused_port("0.0.0.0")
    world.call(server.add_socket, found)
    try:
        yield port
    finally:
        world.call(server.stop)
        world.call(server.close_all_connections)


@pytest.mark.parametrize("slow", ["WAITING_SECONDS", "BODY_SECONDS"])
def test_slow_headers_and_bodies_have_a_time_limit(world, monkeypatch, slow):
    monkeypatch.setattr(connections, slow, 0.2)
    sent = POST if slow == "WAITING_SECONDS" else f"{POST}Content-Length: 5\r\n{as_spawner()}\r\nhalf"
    with served(world) as port, connect(port, sent) as one:
        assert one.recv(1) == b"", "the connection is closed"


def test_a_flood_from_one_address_closes_only_its_own_connections(world):
    path = "/services/gpu/internal/leases/gone?attempt=1"
    ask, again = (f"GET {path} HTTP/1.1\r\nHost: gpu\r\n{as_spawner(path)}\r\n" for _ in range(2))
    with served(world) as port, contextlib.ExitStack() as stack:
        spawner = stack.enter_context(connect(port, ask))
        assert spawner.recv(1000).startswith(b"HTTP/1.1 410 ")
        other = stack.enter_context(connect(port, "GET /services/gpu/api/v1/", source="127.0.0.2"))
        flood = [stack.enter_context(connect(port, POST)) for _ in range(30)]
        for one in flood[:20]:
            assert one.recv(1) == b"", "an old one of the flood is closed"
        other.sendall(b" HTTP/1.1\r\nHost: gpu\r\n\r\n")
        assert other.recv(1000).startswith(b"HTTP/1.1 403 ")
        spawner.sendall(again.encode())
        assert spawner.recv(1000).startswith(b"HTTP/1.1 410 ")
