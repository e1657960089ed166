"""``gpuspawner server doctor`` on DCGM exporter and the GPU monitor."""

import importlib.util

import pytest

from gpuspawner.adoption.doctor import source_checks
from gpuspawner.adoption.doctor.findings import Answer, State
from gpuspawner.catalog import Exporter, load_text
from gpuspawner.core.idle.readings import Measure
from gpuspawner.service.engine.sampling.dcgm_values import Metric, Series

EXPORTER = Exporter("http://p")
ACTIVITY, UTILIZATION = Metric(100.0, Measure.ENGINE), Metric(1.0, Measure.UTILIZATION)
CATALOG = "version: 1\ngpus: {a100: {match: A100, memory: 80GiB}}\ntemplates: {lab: {gpus: {a100: 1}}}\n"


def series(metric, uuid="GPU-a", every=15):
    return Series(metric, uuid, "", None, {float(at): (0.0, 0.0) for at in range(0, 120, every)})


@pytest.mark.parametrize(
    ("found", "refused", "state", "words"),
    [
        ([series(ACTIVITY), series(ACTIVITY, "GPU-b")], "", State.GOOD, "reports the engine activity of 2 GPUs."),
        ([], "", State.BAD, "Prometheus at http://p has no metric of DCGM exporter."),
        ([series(UTILIZATION)], "", State.BAD, "does not report DCGM_FI_PROF_GR_ENGINE_ACTIVE. So it sees one"),
        ([series(ACTIVITY, every=60)], "", State.BAD, "every 60 s, and the exporter collects every 30 s"),
        ([series(ACTIVITY)], "The metric x is no ratio.", State.BAD, "The metric x is no ratio."),
    ],
)
def test_values_of_the_exporter_in_prometheus_are_judged(found, refused, state, words):
    finding = source_checks.judge_exporter(EXPORTER, found, refused)
    assert (finding.state, words in finding.words) == (state, True), finding.words
    assert bool(finding.remedy) is (state is State.BAD)


def test_an_exporter_that_is_asked_for_no_activity_is_good():
    exporter = Exporter("http://p", activity="")
    finding = source_checks.judge_exporter(exporter, [series(UTILIZATION)], "")
    assert (finding.state, finding.words) == (State.GOOD, "DCGM exporter reports the utilization of 1 GPU.")


def test_an_unreachable_prometheus_is_bad_and_a_missing_one_is_not_mentioned():
    (finding,) = source_checks.of_exporter(load_text(CATALOG + "readings: {prometheus: 'http://127.0.0.1:9'}\n"))
    assert finding.words.startswith("Prometheus does not answer at http://127.0.0.1:9")
    assert list(source_checks.of_exporter(load_text(CATALOG))) == []
    assert list(source_checks.of_exporter(None)) == []


def workspaces(monitors):
    return Answer(200, {"workspaces": [{"template": "lab", "idle": {"monitor": one}} for one in monitors]})


def test_workspaces_without_the_monitor_are_counted():
    (finding,) = source_checks.monitors_running(workspaces([True, False, None, False]))
    assert finding.words == "The GPU monitor does not run in 2 of 3 workspaces with GPUs (lab)."
    assert (finding.state, "nvidia-ml-py" in finding.remedy) == (State.BAD, True)
    (finding,) = source_checks.monitors_running(workspaces([True]))
    assert (finding.state, finding.words) == (
        State.GOOD,
        "The GPU monitor runs in each of the 1 workspaces with GPUs.",
    )
    assert list(source_checks.monitors_running(workspaces([None]))) == [], "nothing is known yet"
    (finding,) = source_checks.monitors_running(Answer(403, {}))
    assert (finding.state, "administrator's token" in finding.remedy) == (State.UNKNOWN, True)


def test_a_python_without_nvidia_ml_py_is_bad_on_a_machine(monkeypatch):
    assert source_checks.monitor_here().state is State.GOOD
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    finding = source_checks.monitor_here()
    assert (finding.state, finding.remedy) == (State.BAD, "pip install 'gpuspawner[workspace]'")
