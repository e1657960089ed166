"""Values of DCGM exporter, through a real Prometheus that scrapes a simulated exporter in its text format.

The lines follow real outputs of exporters for a T4 (driver 580) and for an A800 in MIG mode (driver 535).
"""

import asyncio
import json
import threading
import time
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from harness.waiting import eventually
from prometheus import prometheus
from service_world import a_catalog

from gpuspawner.backends.base import PodName, ProbeResult
from gpuspawner.catalog import Exporter
from gpuspawner.core.errors import Unavailable
from gpuspawner.core.idle.readings import Measure, Source
from gpuspawner.core.leases.lease import Phase
from gpuspawner.service.engine.sampling import dcgm_values
from gpuspawner.service.engine.sampling.dcgm import Dcgm, ask
from gpuspawner.service.engine.sampling.dcgm_values import (
    KEPT_SECONDS,
    SOURCE,
    ExporterValues,
    Metric,
    Series,
    query_of,
    read,
)
from gpuspawner.service.engine.sampling.sampler import TOLD_SECONDS

ACTIVITY, UTILIZATION = "DCGM_FI_PROF_GR_ENGINE_ACTIVE", "DCGM_FI_DEV_GPU_UTIL"
ENCODER, ENERGY = "DCGM_FI_DEV_ENC_UTIL", "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION"
OWN = ProbeResult(pod=PodName("jhub", "jupyter-ada"))
SLICE = replace(OWN, shared=True)
REPLICA = replace(SLICE, divided=True)


def line(metric, value, **labels):
    shown = ",".join(f'{name}="{text}"' for name, text in labels.items())
    return f"{metric}{{{shown}}} {value}\n"


def real_line(metric, value, gpu, uuid, more=""):
    """Return a line as the exporter writes it: with all of its labels, and ratios with six decimals."""
    fixed = f'device="nvidia{gpu}",modelName="NVIDIA A800-SXM4-80GB"{more},Hostname="node-1"'
    return f'{metric}{{gpu="{gpu}",UUID="{uuid}",{fixed},DCGM_FI_DRIVER_VERSION="535.129.03"}} {value}\n'


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
    """A clock of ours that stands still, far behind that of Prometheus unless a test says otherwise."""

    def __init__(self, at=1000.0):
        self.at = at

    def now(self):
        return self.at

    def wall(self):
        return self.at


def looked(seen):
    """Look once, and return what was seen."""
    asyncio.run(seen.look())
    return seen


def until_seen(seen, found):
    """Look, each time as if for the first, until it is found."""

    def is_found():
        seen.values = None
        return found(looked(seen))

    eventually(is_found)


def told(seen, leased=(), result=OWN, shared=(), since=0.0):
    """Return GPU, engine or "utilization", percent, and whose it is, of each reading."""
    found = seen.readings(leased, result, shared, since)
    return sorted((one.gpu, one.engine or one.measure.value, round(one.percent, 4), one.is_own) for one in found)


LINES = [
    line(ACTIVITY, "0.700000", UUID="GPU-a", gpu="0"),
    line(UTILIZATION, 70, UUID="GPU-a", gpu="0"),
    line(ACTIVITY, "0.000000", UUID="GPU-b", gpu="1"),
    line(ENCODER, 72, UUID="GPU-b", gpu="1"),
    line(ACTIVITY, "0.000004", UUID="GPU-c", gpu="2", pod="jupyter-ada", namespace="jhub"),
    line(ACTIVITY, "0.900000", UUID="GPU-d", gpu="3", pod="jupyter-ada", namespace="other"),
    real_line(UTILIZATION, 9223372036854775794, 4, "GPU-e"),
    real_line(ACTIVITY, "0.310000", 4, "GPU-e", ',GPU_I_PROFILE="1g.10gb",GPU_I_ID="7",pod="mig",namespace="jhub"'),
    real_line(ACTIVITY, "0.000000", 4, "GPU-e", ',GPU_I_PROFILE="1g.10gb",GPU_I_ID="8"'),
]


@pytest.mark.parametrize("honours", [False, True])
def test_a_real_prometheus_tells_activity_by_gpu_and_by_pod(tmp_path, honours):
    lines = [*LINES]
    nobody = ProbeResult()
    with exporter(lines) as target:
        labels = {"pod": "dcgm-exporter-x", "namespace": "monitoring"}  # of the exporter itself
        job = {"job_name": "dcgm", "honor_labels": honours, "static_configs": [{"targets": [target], "labels": labels}]}
        with prometheus(tmp_path, job) as url:
            seen = Dcgm(InForce(url), Clock(4e9))
            until_seen(seen, lambda one: len(told(one, ["GPU-a"], nobody)) == 2)
            assert seen.trouble == ""
            assert told(seen, ["GPU-a"], nobody) == [("GPU-a", "engine", 70, True), ("GPU-a", "utilization", 70, True)]
            (late_seconds, *_) = (one.end_seconds for one in seen.readings(["GPU-a"], nobody, (), 0.0))
            assert 30 <= late_seconds < 60, "its clock is not ours"
            assert told(seen, ["GPU-b"], nobody) == [("GPU-b", "encoder", 72, True), ("GPU-b", "engine", 0, True)]
            assert {one[3] for one in told(seen, ["GPU-a"], nobody, shared={"GPU-a"})} == {False}
            assert told(seen) == [("", "engine", 0.0004, True)], "of its own namespace, however little"
            assert told(seen, result=SLICE) == [("", "engine", 0.0004, False)], "the whole device's"
            mig = PodName("jhub", "mig")
            assert told(seen, result=replace(SLICE, pod=mig)) == [("", "engine", 31, True)], "an instance's is its own"
            assert told(seen, result=replace(REPLICA, pod=mig)) == [("", "engine", 31, False)]
            assert told(seen, ["GPU-e"], nobody) == [], "an instance's work is not by its device's name"
            part = ProbeResult(devices={"MIG-1": "GPU-e"})
            assert told(seen, ["MIG-1"], part) == [("MIG-1", "engine", 31, False)], "that of any instance"
            seen._in_force = InForce(url, activity="NO_SUCH", utilization="NOR_THIS", encoder="", decoder="", energy="")
            assert told(looked(seen), ["GPU-a"], nobody) == []
            assert seen.trouble == "", "absence proves nothing"


def test_a_prometheus_that_is_away_is_told_and_proves_nothing(tmp_path):
    seen = looked(Dcgm(InForce("http://127.0.0.1:9"), Clock()))
    assert seen.trouble.startswith("Prometheus does not answer at http://127.0.0.1:9")
    assert told(seen, ["GPU-a"]) == []
    seen._in_force = InForce("http://127.0.0.1:9", token_file=str(tmp_path / "none"))
    assert "The token for Prometheus can't be read" in looked(seen).trouble
    seen._in_force = InForce("")
    assert looked(seen).trouble == ""


def answer(*series):
    """Return an answer of Prometheus: (metric, labels, values by time) of each series."""
    result = [
        {"metric": {"__name__": name, **labels}, "values": [[at, str(value)] for at, value in values.items()]}
        for name, labels, values in series
    ]
    return json.dumps({"data": {"result": result}}).encode()


def fed(*series, at=1000.0, clock=None, seen=None, **more):
    """Return the Dcgm that read this answer, at times of a clock that Prometheus shares."""
    seen = seen or Dcgm(InForce("http://p", **more), clock or Clock(at))
    seen._clock.at = at
    values = seen.values or ExporterValues(seen._in_force.catalog.exporter)
    found, seen.trouble = read(answer(*series), values.exporter, 0.0, at)
    seen.values = values.with_look(found, at)
    return seen


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{}",
        b'{"data": {"result": [{}]}}',
        answer(("NO_SUCH", {}, {0: 1})),
        answer((ACTIVITY, {}, {0: "x"})),
        b'{"data": {"result": [{"metric": {"__name__": "%b"}, "values": 3}]}}' % ACTIVITY.encode(),
    ],
)
def test_an_invalid_answer_is_refused(body):
    with pytest.raises(Unavailable, match="not understood"):
        read(body, Exporter("http://p"), 0.0, 0.0)


def test_an_average_covers_its_time_and_an_instant_does_not():
    times = dict.fromkeys(range(850, 1000, 15), 0.0)
    seen = fed((ACTIVITY, {"UUID": "GPU-a"}, times), (UTILIZATION, {"UUID": "GPU-a"}, times))
    by_measure = {one.measure: one for one in seen.readings(["GPU-a"], ProbeResult(), (), since=940.0)}
    activity, utilization = by_measure[Measure.ENGINE], by_measure[Measure.UTILIZATION]
    assert (activity.source, activity.percent, activity.coverage) == (Source.EXPORTER, 0.0, 1.0)
    assert activity.end_seconds == 1000 - 985 + 30, "the newest value is of one interval before it, at the latest"
    assert activity.begin_seconds == 1000 - (850 - 30) + 30
    assert utilization.coverage == pytest.approx(10 / (985 - 820)), "ten seconds of it"


def test_values_further_apart_than_the_exporters_interval_have_gaps():
    sparse = dict.fromkeys(range(700, 1000, 60), 0.0)
    seen = fed((ACTIVITY, {"UUID": "GPU-a"}, sparse))
    (reading,) = seen.readings(["GPU-a"], ProbeResult(), (), since=0.0)
    assert reading.coverage == pytest.approx((30 + 4 * 30) / (30 + 4 * 60))
    seen.values = replace(seen.values, exporter=Exporter("http://p", interval_seconds=60.0))
    (reading,) = seen.readings(["GPU-a"], ProbeResult(), (), since=0.0)
    assert reading.coverage == 1.0


def test_each_value_counts_once_from_one_sample_to_the_next():
    label = {"UUID": "GPU-a"}
    clock = Clock()
    seen = fed((ACTIVITY, label, {960.0: 0.5, 990.0: 0.0}), at=1000.0, clock=clock)
    assert [one.percent for one in seen.readings(["GPU-a"], ProbeResult(), (), since=950.0)] == [50.0]
    fed((ACTIVITY, label, {960.0: 0.5, 990.0: 0.0, 1020.0: 0.0}), at=1030.0, seen=seen)
    (reading,) = seen.readings(["GPU-a"], ProbeResult(), (), since=1005.0)
    assert (reading.percent, reading.coverage) == (0.0, 1.0), "the work at 960 s was counted before"
    assert reading.begin_seconds == 1030 - 990 + 30, "it goes on where the one before ended"
    clock.at = 1040.0
    (again,) = seen.readings(["GPU-a"], ProbeResult(), (), since=1035.0)
    assert (again.percent, again.end_seconds) == (0.0, 1040 - 1020 + 30), "the last look, where there was none since"


def test_an_exporter_whose_energy_counter_stands_still_is_frozen_and_covers_nothing():
    def reading(joules):
        times = range(880, 1000, 20)
        label = {"UUID": "GPU-a"}
        activity = (ACTIVITY, label, dict.fromkeys(times, 0.0))
        counter = (ENERGY, label, {at: joules(at) for at in times})
        return fed(activity, counter).readings(["GPU-a"], ProbeResult(), (), since=0.0)[0]

    assert reading(lambda at: at * 60_000).coverage == 1.0
    assert reading(lambda _: 48_287_135).coverage == 0.0
    assert reading(lambda _: 0).coverage == 1.0, "a GPU that has no counter"
    assert reading(lambda at: 5 if at < 960 else 6).coverage == 1.0, "one interval"


def test_activity_that_is_stuck_at_0_covers_nothing_until_it_is_above_0_again():
    """DCGM#303: after a fault the profiling counters tell 0 while the GPU works on."""

    def at(time, activity, utilization, seen=None):
        times, label = range(time - 90, time, 30), {"UUID": "GPU-a"}
        series = [(ACTIVITY, activity), (UTILIZATION, utilization)]
        return fed(*((name, label, dict.fromkeys(times, value)) for name, value in series), at=time, seen=seen)

    def coverage(seen):
        found = seen.readings(["GPU-a"], ProbeResult(), (), since=seen.values.looked_at)
        return {one.measure: one.coverage for one in found}[Measure.ENGINE]

    seen = at(1000, 0.0, 0)
    assert (coverage(seen), seen.values.stuck_sentence) == (1.0, "")
    at(1300, 0.0, 97, seen)
    assert coverage(seen) == 0.0
    assert seen.values.stuck_sentence == (
        "DCGM exporter reports no activity of GPU-a, although the utilization shows work. Short work is missed there. "
        "Restart DCGM on the node."
    )
    at(1600, 0.0, 0, seen)
    assert coverage(seen) == 0.0, "nothing shows that it works again"
    at(1900, 0.01, 97, seen)
    at(1990, 0.0, 0, seen)
    assert (coverage(seen), seen.values.stuck_sentence) == (1.0, "")


def test_fewer_reported_gpus_than_leased_cover_no_gpu():
    def of(uuid):
        labels = {"UUID": uuid, "pod": "jupyter-ada", "namespace": "jhub"}
        return ACTIVITY, labels, dict.fromkeys(range(900, 1000, 30), 0.0)

    names = ["node-1/0", "node-1/1"]
    (both,) = fed(of("GPU-a"), of("GPU-b")).readings(names, OWN, (), since=0.0)
    (one,) = fed(of("GPU-a")).readings(names, OWN, (), since=0.0)
    assert (both.coverage, one.coverage) == (1.0, 0.0)


def test_a_metric_under_the_wrong_key_does_not_count_and_is_told():
    label = {"UUID": "GPU-a"}
    busy = {"UUID": "GPU-b"}
    seen = fed(("my_ratio", label, {990.0: 0.0}), ("my_ratio", busy, {990.0: 0.97}), utilization="my_ratio")
    assert seen.trouble == (
        "The metric my_ratio of GPU-b has the value 0.97, so it is a ratio, not a percentage, and does not count. Set "
        "readings.activity to it if it is an average over time."
    )
    assert told(seen, ["GPU-b"], ProbeResult()) == []
    seen = fed(("my_percentage", label, {990.0: 97.0}), activity="my_percentage")
    assert seen.trouble == (
        "The metric my_percentage of GPU-a has the value 97, so it is no ratio and does not count. Set "
        "readings.activity to a ratio such as DCGM_FI_PROF_GR_ENGINE_ACTIVE."
    )
    assert told(seen, ["GPU-a"], ProbeResult()) == []
    seen = fed((UTILIZATION, label, {990.0: 4e6}))
    no_percentage = "has the value 4e+06, so it is no percentage and does not count."
    assert seen.trouble == f"The metric {UTILIZATION} of GPU-a {no_percentage}"
    seen = fed((UTILIZATION, label, {990.0: 1.0}), (ACTIVITY, label, {990.0: 1.0000012}))
    assert (seen.trouble, {one[2] for one in told(seen, ["GPU-a"], ProbeResult())}) == ("", {1.0, 100.0})


ADA, MALLORY = ({"pod": pod, "namespace": "jhub"} for pod in ("jupyter-ada", "jupyter-mallory"))
BUSY = (ACTIVITY, {"UUID": "GPU-a", **ADA}, dict.fromkeys(range(880, 1000, 30), 0.9))
IDLE = (ACTIVITY, {"UUID": "GPU-a", **ADA}, dict.fromkeys(range(880, 1000, 30), 0.0))


def of_ada(*series):
    """Return percent and coverage of ada's readings by the name of her GPU, and the trouble."""
    seen = fed(*series)
    found = seen.readings(["GPU-a"], OWN, (), since=900.0)
    return [(round(one.percent), round(one.coverage, 2)) for one in found if one.gpu], seen.trouble


@pytest.mark.parametrize(
    ("metric", "labels", "value", "trouble"),
    [
        (ACTIVITY, {"UUID": "GPU-m", **MALLORY}, 7, "GPU-m in the pod jhub/jupyter-mallory has the value 7, so it"),
        (ACTIVITY, {"UUID": "GPU-m"}, 1.6, "GPU-m has the value 1.6, so it is no ratio"),
        (ACTIVITY, {"UUID": "GPU-a", **MALLORY}, 7, "GPU-a in the pod jhub/jupyter-mallory has the value 7, so it"),
        (UTILIZATION, {"UUID": "GPU-m", **MALLORY}, 0.5, "GPU-m in the pod jhub/jupyter-mallory has the value 0.5, so"),
        (UTILIZATION, {**MALLORY, "UUID": "\x1b[2J" * 99}, 400, "?[2J?[2J"),
    ],
)
def test_an_odd_value_counts_against_its_own_series_alone_and_is_named(metric, labels, value, trouble):
    told, said = of_ada(BUSY, (UTILIZATION, {"UUID": "GPU-a", **ADA}, {990.0: 80.0}), (metric, labels, {990.0: value}))
    assert told == [(90, 1.0), (80, 0.03)]
    assert said.startswith(f"The metric {metric} of {trouble}")
    assert len(said) < 500


def test_several_odd_series_are_one_sentence():
    odd = ((ACTIVITY, {"UUID": f"GPU-{i}"}, {990.0: 7}) for i in range(50))
    told, said = of_ada(BUSY, *odd)
    assert told == [(90, 1.0)]
    assert said.count("has the value") == 1
    assert said.endswith("50 of its 51 series do not count.")


def test_a_constant_1_of_a_metric_that_looks_like_a_ratio_is_no_percentage():
    full, idle, half = (
        (UTILIZATION, {"UUID": f"GPU-{name}"}, {990.0: n}) for name, n in (("a", 1), ("b", 0), ("c", 0.5))
    )
    seen = fed(full, idle, half)
    assert [told(seen, [f"GPU-{name}"], ProbeResult()) for name in "ac"] == [[], []]
    assert told(seen, ["GPU-b"], ProbeResult()) == [("GPU-b", "utilization", 0, True)], "0 is idle in both units"


@pytest.mark.parametrize(
    "forged",
    [
        (ENERGY, dict.fromkeys(range(880, 1000, 20), 5)),  # as of a frozen exporter
        (UTILIZATION, {990.0: 97}),  # as of activity that is stuck at 0
        (ACTIVITY, {990.0: 0.2}),  # as of a GPU that works, with gaps
    ],
)
def test_values_that_another_pod_writes_under_a_gpus_name_do_not_count(forged):
    name, values = forged
    expected = [(0, 1.0)]
    moving = (ENERGY, {"UUID": "GPU-a", **ADA}, {at: at * 60_000 for at in range(880, 1000, 20)})
    for honest in ([IDLE], [IDLE, moving]):
        found, _ = of_ada(*honest, (name, {"UUID": "GPU-a", **MALLORY}, values))
        assert (found, honest) == (expected, honest)


def test_the_counter_of_a_mig_device_counts_for_its_instances():
    def coverage(*counters):
        labels = {"UUID": "GPU-a", "GPU_I_ID": "7", **ADA}
        energy = [(ENERGY, {"UUID": "GPU-a", **pod}, values) for pod, values in counters]
        seen = fed((ACTIVITY, labels, dict.fromkeys(range(880, 1000, 30), 0.0)), *energy)
        (one,) = seen.readings(["node-1/0"], OWN, (), since=900.0)
        return one.coverage

    still, moving = dict.fromkeys(range(880, 1000, 20), 5), {at: at * 60_000 for at in range(880, 1000, 20)}
    assert coverage(({}, still)) == 0.0
    assert coverage(({}, moving), (MALLORY, still)) == 1.0


def test_an_exporter_without_profiling_counters_is_told_unless_they_are_left_out(tmp_path):
    lines = [line(UTILIZATION, 70, UUID="GPU-a", gpu="0")]
    job = {"job_name": "dcgm"}
    with exporter(lines) as target, prometheus(tmp_path, {**job, "static_configs": [{"targets": [target]}]}) as url:
        seen = Dcgm(InForce(url), Clock())
        until_seen(seen, lambda one: told(one, ["GPU-a"], ProbeResult()))
        assert seen.trouble == (
            "DCGM exporter does not report DCGM_FI_PROF_GR_ENGINE_ACTIVE. So it sees one instant of each interval, and "
            "misses short work. Export it, or set readings.activity to none."
        )
        seen._in_force = InForce(url, activity="")
        assert looked(seen).trouble == ""


def test_series_that_are_late_frozen_missing_or_restarted(tmp_path, monkeypatch):
    monkeypatch.setattr(dcgm_values, "WINDOW_SECONDS", 6)

    def late(seconds):
        return lambda: line(UTILIZATION, 80, UUID="GPU-late")[:-1] + f" {int((time.time() - seconds) * 1000)}\n"

    frozen = line(UTILIZATION, 70, UUID="GPU-a", pod="jupyter-ada", namespace="jhub")
    lines = [frozen, late(3)]
    job = {"job_name": "dcgm"}
    with exporter(lines) as target, prometheus(tmp_path, {**job, "static_configs": [{"targets": [target]}]}) as url:
        seen = Dcgm(InForce(url, activity=""), Clock())

        def percents():
            found = seen.readings(["GPU-a", "GPU-late"], ProbeResult(), (), 0.0)
            return [(one.gpu, one.percent) for one in found]

        until_seen(seen, lambda _: percents() == [("GPU-a", 70.0), ("GPU-late", 80.0)])
        lines[1:] = []  # its sample grows old, and that of the other stays as it is
        until_seen(seen, lambda _: percents() == [("GPU-a", 70.0)])
        lines[:] = [line(UTILIZATION, 0, UUID="GPU-a"), late(600)]  # restarts with other labels, idle
        until_seen(seen, lambda _: percents() == [("GPU-a", 0.0)])
        assert seen.trouble == "", "neither what rests nor what is missing or too old is a fault"
        lines[:] = []
        until_seen(seen, lambda _: percents() == [])
        assert seen.trouble == ""


def test_five_thousand_workspaces_are_one_question_and_an_answer_of_a_few_megabytes(tmp_path):
    lines = [
        line(ACTIVITY, f"{i % 101 / 100:.6f}", UUID=f"GPU-{i:036}", pod=f"jupyter-{i}", namespace="jhub")
        for i in range(5000)
    ]
    job = {"job_name": "dcgm", "honor_labels": True}
    with exporter(lines) as target, prometheus(tmp_path, {**job, "static_configs": [{"targets": [target]}]}) as url:
        seen = Dcgm(InForce(url), Clock())
        until_seen(seen, lambda _: seen.values is not None and len(seen.values.by_uuid) == 5000)
        named = seen._in_force.catalog.exporter
        body, ahead_seconds = asyncio.run(ask(named, Clock(), query_of(named)))
        assert len(body) < 4 * 2**20
        assert ahead_seconds == pytest.approx(time.time() - 1000.0, abs=10)
        name = f"GPU-{4000:036}"
        assert told(seen, [name], ProbeResult()) == [(name, "engine", 4000 % 101, True)]


def test_an_invalid_measurement_is_not_work():
    series = [(ACTIVITY, {"UUID": "GPU-x"}, {at: text}) for at, text in enumerate(("NaN", "+Inf", "-5", "9e18"))]
    assert told(fed(*series), ["GPU-x"], ProbeResult()) == []


def by_gpu(world, percent, gpu):
    """From now on the exporter tells so of a GPU, at each look."""

    def look():
        now, dcgm = world.clock.now(), world.parts.sampler.dcgm
        values = {now - back: (percent, now) for back in (45.0, 30.0, 15.0, 0.0)}
        series = Series(Metric(100.0, Measure.ENGINE), gpu, "", None, values)
        dcgm.values = (dcgm.values or ExporterValues(Exporter("http://p"))).with_look([series], now)

    return look


async def test_work_missed_by_the_probe_keeps_a_workspace_and_long_differences_are_reported(world):
    lease = await world.up("alice")
    world.shows(lease, 0)
    look = by_gpu(world, 60.0, lease.slots[0].gpu)
    for _ in range(int(TOLD_SECONDS / 60) + 5):
        look()
        await world.go_on(60)
    assert world.phase(lease) is Phase.RUNNING
    row = world.parts.store.readings.of_lease(lease.id)[-1]
    assert (row.kind, row.because, row.utilization_percent) == ("busy", "GPU 0 at 60 % by DCGM exporter", 0.0)
    (sentence,) = world.parts.sampler.doubts.sentences(world.clock.now())
    assert sentence.startswith(f"{SOURCE} sees work in the workspace {lease.id} of alice")
    values = world.parts.sampler.dcgm.values
    world.parts.sampler.dcgm.values = values.with_look([], world.clock.now() + 2 * KEPT_SECONDS)
    await world.go_on(60)
    assert world.parts.sampler.doubts.sentences(world.clock.now()) == (), "they agree again"
    await world.go_on(12 * 60)
    assert world.phase(lease) is not Phase.RUNNING, "what nobody sees any more is idle"


async def test_a_shared_gpu_is_not_busy_by_what_the_whole_device_does(world):
    lease = await world.up("alice", gpu="half")
    by_gpu(world, 99.0, lease.slots[0].gpu)()
    world.shows(lease, 0)
    await world.go_on(60)
    assert {row.kind for row in world.parts.store.readings.of_lease(lease.id)} <= {"idle", "unknown"}
