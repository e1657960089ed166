"""Whether the GPU monitor runs in a workspace: its page, the API and the console say so where it does not."""

import html
import json
from dataclasses import replace

import page_world
import pytest
from page_world import Browser, api

from gpuspawner.backends.base import ProbeResult
from gpuspawner.backends.fake import probe_text
from gpuspawner.core.idle.readings import GpuReading, Measure, Sample, Source, SourceReading
from gpuspawner.service.administration.problems import find_problems
from gpuspawner.service.engine.sampling.sampler import SAMPLES, MonitorWatch
from gpuspawner.service.workspaces.idleness import NO_MONITOR, NO_MONITOR_IN_IMAGE

READING = SourceReading("a", Source.MONITOR, Measure.UTILIZATION, 0.0, 60.0)
ACTIVITY = replace(READING, source=Source.EXPORTER, measure=Measure.ENGINE)
INSTANT = replace(READING, source=Source.EXPORTER)


def sample(*sources, problem=""):
    gpus = () if problem else (GpuReading("a"),)
    return Sample(("a",), gpus, 60.0, 600.0, problem=problem, sources=sources)


def seen(watch, *samples):
    for one in samples:
        watch.see("mine", one)
    return watch.runs("mine")


def test_the_monitor_counts_as_missing_after_some_samples_without_it():
    watch = MonitorWatch()
    assert watch.runs("mine") is None
    assert seen(watch, *[sample()] * (SAMPLES - 1)) is None, "a server takes a minute to start"
    assert seen(watch, sample(problem="no exec"), sample(problem="no exec")) is None, "these show nothing"
    assert seen(watch, sample(INSTANT)) is False, "an instant of utilization is no replacement"
    assert seen(watch, sample(READING)) is True
    assert seen(watch, sample()) is None, "one sample may be late"
    watch.forget("mine")
    assert watch.runs("mine") is None


def test_the_monitor_is_not_missed_beside_dcgm_exporter():
    assert seen(MonitorWatch(), *[sample(ACTIVITY)] * (2 * SAMPLES)) is None


@pytest.fixture
def world(make_web_world, monkeypatch):
    world = make_web_world()
    monkeypatch.setattr("gpuspawner.service.workspaces.idleness.is_simulated", lambda _parts, _lease: False)
    world.observe()
    return world


@pytest.mark.parametrize(("lacks", "sentence"), [((), NO_MONITOR), (("monitor",), NO_MONITOR_IN_IMAGE)])
def test_page_api_and_console_say_that_it_does_not_run(world, lacks, sentence):
    world.save(replace(page_world.running("mine"), lacks=lacks))
    watch = world.parts.sampler.monitors

    def told():
        view = api(world, "alice", "workspaces/mine").json()
        page = html.unescape(Browser(world, "alice").look("workspaces/mine").text)
        found = [one for one in world.call(find_problems, world.parts, [], []) if "GPU monitor" in one.what]
        return view["idle"]["monitor"], sentence in view["explained"], f"<li>{sentence}</li>" in page, found

    assert told() == (None, False, False, [])
    seen(watch, *[sample()] * SAMPLES)
    monitor, in_api, on_page, (trouble,) = told()
    assert (monitor, in_api, on_page) == (False, True, True)
    assert trouble.what == "The GPU monitor does not run in 1 workspace. GPU work of a few seconds may be missed there."
    assert "gpuspawner[workspace]" in trouble.remedy
    seen(watch, sample(READING))
    assert told() == (True, False, False, [])


async def test_the_sampler_finds_the_monitor_in_what_a_probe_printed(make_world):
    world = make_world()
    lease = await world.up("alice")
    (gpu,) = [slot.gpu for slot in lease.slots]
    for _ in range(SAMPLES + 1):
        await world.go_on(60)
    assert world.parts.sampler.monitors.runs(lease.id) is False
    clock = 170.0
    told = {"uuid": gpu, "since": 1.0, "unseen": 0.0, "percents": [[0, 100.0, clock - 2]], "joules": None}
    document = json.dumps({"begin": 1, "pid": 100, "uptime": clock - 1, "gpus": [told], "end": 1})
    text = probe_text({gpu: 0}, clock_seconds=clock, soft=[f"monitor 100 100 {document}"])
    world.backend.probes[lease.id] = [ProbeResult(text)]
    await world.go_on(60)
    assert world.parts.sampler.monitors.runs(lease.id) is True
