"""What DCGM exporter saw, through a real Prometheus that scrapes a stand-in with the exporter's names."""

import asyncio
import json
import threading
import time
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from prometheus import prometheus
from service_world import a_catalog

from gpuspawner.backends.base import PodName, ProbeResult
from gpuspawner.catalog import Exporter
from gpuspawner.core.errors import Unavailable
from gpuspawner.core.leases.lease import Phase
from gpuspawner.service.observe import dcgm
from gpuspawner.service.observe.dcgm import SOURCE, Dcgm, read
from gpuspawner.service.observe.doubts import TOLD_SECONDS

UTILIZATION, ACTIVITY = "DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_PROF_GR_ENGINE_ACTIVE"
OWN = ProbeResult(pod=PodName("jhub", "jupyter-ada"))
SLICE = replace(OWN, shared=True)
REPLICA = replace(SLICE, divided=True)


def line(metric, value, **labels):
    shown = ",".join(f'{name}="{text}"' for name, text in labels.items())
    return f"{metric}{{{shown}}} {value}\n"


@contextmanager
def exporter(lines):
    """Serve what the list holds, or what its functions return, at the moment."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            body = "".join(one() if callable(one) else one for one in lines).encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_some):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


class InForce:
    """A catalog that names this exporter."""

    def __init__(self, url, **more):
        self.catalog = replace(a_catalog(), exporter=Exporter(url, **more) if url else None)


class Clock:
    def now(self):
        return 1000.0


def looked(seen):
    """Look once, and return what was seen."""
    asyncio.run(seen.look())
    return seen


def percents(seen, leased=(), result=OWN, shared=(), since=0.0):
    return [(one.gpu, one.percent) for one in seen.outside(leased, result, shared, since)]


LINES = [
    line(UTILIZATION, 70, UUID="GPU-a", gpu="0"),
    line(UTILIZATION, 0, UUID="GPU-b", gpu="1"),
    line(UTILIZATION, 44, UUID="GPU-c", gpu="2", pod="jupyter-ada", namespace="jhub"),
    line(UTILIZATION, 90, UUID="GPU-d", gpu="3", pod="jupyter-ada", namespace="other"),
    line(ACTIVITY, 0.97, UUID="GPU-c", gpu="2", pod="jupyter-ada", namespace="jhub"),
    line(UTILIZATION, 0, UUID="GPU-e", gpu="4"),
    line(ACTIVITY, 0.31, UUID="GPU-e", GPU_I_ID="7", GPU_I_PROFILE="1g.10gb", pod="jupyter-mig", namespace="jhub"),
]


@pytest.mark.parametrize("honours", [False, True])
def test_a_real_prometheus_tells_work_by_gpu_and_by_pod(tmp_path, honours):
    lines = [*LINES]
    with exporter(lines) as target:
        labels = {"pod": "dcgm-exporter-x", "namespace": "monitoring"}  # of the exporter itself
        job = {"job_name": "dcgm", "honor_labels": honours, "static_configs": [{"targets": [target], "labels": labels}]}
        with prometheus(tmp_path, job) as url:
            seen = Dcgm(InForce(url), Clock())
            until = time.monotonic() + 30
            while not percents(looked(seen), ["GPU-a"], ProbeResult()):
                assert time.monotonic() < until, seen.trouble
                time.sleep(0.2)
            assert seen.trouble == ""
            assert percents(seen, ["GPU-a", "GPU-b"], ProbeResult()) == [("GPU-a", 70.0)]
            assert percents(seen, ["GPU-a"], ProbeResult(), shared={"GPU-a"}) == []
            assert percents(seen) == [("", 44.0)], "of its own namespace, and utilization, not activity"
            assert percents(seen, result=SLICE) == [], "of a slice the whole device's value says nothing"
            mig = PodName("jhub", "jupyter-mig")
            assert percents(seen, result=replace(SLICE, pod=mig)) == [("", 31.0)]
            assert percents(seen, result=replace(REPLICA, pod=mig)) == []
            assert percents(seen, ["GPU-e"], ProbeResult()) == [], "an instance's work is not by its device's name"
            assert percents(seen, ["GPU-a"], ProbeResult(), since=1001.0) == [], "seen before"
            seen._in_force = InForce(url, utilization="NO_SUCH", instances="NOR_THIS")
            seen._seen = {}
            assert percents(looked(seen), ["GPU-a"], ProbeResult()) == []
            assert seen.trouble == "", "absence proves nothing"


def test_a_prometheus_that_is_away_is_told_and_proves_nothing(tmp_path):
    seen = looked(Dcgm(InForce("http://127.0.0.1:9"), Clock()))
    assert seen.trouble.startswith("Prometheus does not answer at http://127.0.0.1:9")
    assert percents(seen, ["GPU-a"]) == []
    seen._in_force = InForce("http://127.0.0.1:9", token_file=str(tmp_path / "none"))
    assert "The token for Prometheus can't be read" in looked(seen).trouble
    seen._in_force = InForce("")
    assert looked(seen).trouble == ""


def answer(value):
    return json.dumps({"data": {"result": [{"metric": {}, "value": value}]}})


@pytest.mark.parametrize("body", ["", "[]", "{}", '{"data": {"result": [{}]}}', answer(3), answer([0, 10**400])])
def test_what_is_no_answer_is_refused(body):
    with pytest.raises(Unavailable, match="not understood"):
        read(body.encode(), 0.0)


def eventually(seen, found):
    """Look until it is found."""
    until = time.monotonic() + 60
    while not found(looked(seen)):
        assert time.monotonic() < until, (seen.trouble, seen._seen)
        seen._seen = {}
        time.sleep(0.3)


def test_series_that_are_late_frozen_missing_or_begin_anew(tmp_path, monkeypatch):
    monkeypatch.setattr(dcgm, "WINDOW_SECONDS", 6)

    def late(seconds):
        return lambda: line(UTILIZATION, 80, UUID="GPU-late")[:-1] + f" {int((time.time() - seconds) * 1000)}\n"

    frozen = line(UTILIZATION, 70, UUID="GPU-a", pod="jupyter-ada", namespace="jhub")
    lines = [frozen, late(3)]
    with (
        exporter(lines) as target,
        prometheus(tmp_path, {"job_name": "dcgm", "static_configs": [{"targets": [target]}]}) as url,
    ):
        seen = Dcgm(InForce(url), Clock())

        def told():
            return percents(seen, ["GPU-a", "GPU-late"], ProbeResult())

        eventually(seen, lambda _: told() == [("GPU-a", 70.0), ("GPU-late", 80.0)])
        lines[1:] = []  # its sample grows old, and that of the other stays as it is
        eventually(seen, lambda _: told() == [("GPU-a", 70.0)])
        lines[:] = [line(UTILIZATION, 0, UUID="GPU-a"), late(600)]  # begins anew, by other labels and at rest
        seen._seen = {}
        looked(seen)
        assert told() == [("GPU-a", 70.0)], "the work of a moment ago"
        eventually(seen, lambda _: told() == [])
        assert seen.trouble == "", "neither what rests nor what is missing or too old is a fault"
        lines[:] = []
        looked(seen)
        assert (told(), seen.trouble) == ([], "")


def test_five_thousand_workspaces_are_one_question_and_an_answer_of_a_megabyte(tmp_path):
    lines = [
        line(UTILIZATION, i % 101, UUID=f"GPU-{i:036}", gpu=str(i % 8), pod=f"jupyter-{i}", namespace="jhub")
        for i in range(5000)
    ]
    job = {"job_name": "dcgm", "honor_labels": True}
    with exporter(lines) as target, prometheus(tmp_path, {**job, "static_configs": [{"targets": [target]}]}) as url:
        seen = Dcgm(InForce(url), Clock())
        eventually(seen, lambda _: len(seen._seen) == 2 * (5000 - 50))  # without those at 0, by GPU and by pod
        assert len(asyncio.run(dcgm._ask(seen._in_force.catalog.exporter))) < 2 * 2**20
        assert percents(seen, ["GPU-" + f"{4000:036}"], ProbeResult()) == [(f"GPU-{4000:036}", 4000.0 % 101)]


def test_what_is_no_percentage_is_not_work():
    result = [{"metric": {"UUID": "GPU-x"}, "value": [1.0, text]} for text in ("NaN", "+Inf", "-5", "1e9")]
    assert read(json.dumps({"data": {"result": result}}).encode(), 5.0) == {}


def by_gpu(world, percent, gpu):
    """From now on the exporter tells so of a GPU, at each look."""
    body = json.dumps({"data": {"result": [{"metric": {"UUID": gpu}, "value": [0, str(percent)]}]}}).encode()

    async def look():
        world.parts.sampler.dcgm._seen = read(body, world.clock.now())

    return look


async def test_what_the_probe_misses_keeps_a_workspace_and_the_administrator_is_told_if_they_differ_for_hours(world):
    lease = await world.up("alice")
    world.shows(lease, 0)
    look = by_gpu(world, 60, lease.slots[0].gpu)
    for _ in range(int(TOLD_SECONDS / 60) + 5):
        await look()
        await world.go_on(60)
    assert world.phase(lease) is Phase.RUNNING
    row = world.parts.store.readings.of_lease(lease.id)[-1]
    assert (row.kind, row.because, row.utilization_percent) == ("busy", "GPU 0 at 60 % by DCGM exporter", 0.0)
    (told,) = world.parts.sampler.doubts.sentences(world.clock.now())
    assert told.startswith(f"{SOURCE} sees work in the workspace {lease.id} of alice")
    world.parts.sampler.dcgm._seen = {}
    await world.go_on(60)
    assert world.parts.sampler.doubts.sentences(world.clock.now()) == (), "they agree again"
    await world.go_on(12 * 60)
    assert world.phase(lease) is not Phase.RUNNING, "what nobody sees any more is idle"


async def test_a_shared_gpu_is_not_busy_by_what_the_whole_device_does(world):
    lease = await world.up("alice", gpu="half")
    world.parts.sampler.dcgm._seen = read(
        json.dumps({"data": {"result": [{"metric": {"UUID": lease.slots[0].gpu}, "value": [0, "99"]}]}}).encode(),
        world.clock.now() + 3600,
    )
    world.shows(lease, 0)
    await world.go_on(60)
    assert {row.kind for row in world.parts.store.readings.of_lease(lease.id)} <= {"idle", "unknown"}
