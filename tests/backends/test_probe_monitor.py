"""The report of a workspace's GPU monitor in the probe's output: it may add work, and never removes any."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuspawner.backends.base import ProbeResult
from gpuspawner.backends.probes.processes import ProcessTable
from gpuspawner.backends.probes.script import parse_probe
from gpuspawner.core.idle.readings import Measure, Sample, Source, SourceReading

A = "GPU-aaaaaaaa-0000-0000-0000-000000000000"
M, N = "MIG-bbbbbbbb-0000-0000-0000-000000000000", "MIG-cccccccc-0000-0000-0000-000000000000"
CLOCK = 5000.0


def gpu(*percents: list[float], **changes: Any) -> dict[str, Any]:
    return {"uuid": A, "since": 100.0, "percents": list(percents), **changes}


def document(*gpus: dict[str, Any], uptime: float = CLOCK - 2, **changes: Any) -> str:
    return json.dumps({"begin": 7, "pid": 50, "uptime": uptime, "gpus": list(gpus), "end": 7, **changes})


def parse(
    *lines: str,
    percent: int = 0,
    clock: float = CLOCK,
    previous: ProcessTable | None = None,
    opens: tuple[int, ...] = (50,),
    asleep: bool = False,
    leased: tuple[str, ...] = (A,),
    **result: Any,
) -> tuple[Sample, ProcessTable]:
    memory, mode = ("0", "Disabled") if asleep else ("2048", "Enabled")
    text = [
        "gpuspawner-probe 1 begin",
        f"clock {clock:.2f} 100",
        *(f"process {pid} 1 1000 5 0" for pid in (50, 60)),
        "device /dev/nvidia0",
        f"driver GPU UUID: \t {A}",
        "driver Device Minor: \t 0",
        *(f"open {pid} /dev/nvidia0" for pid in opens),
        *lines,
        f"from {clock + 1:.2f}",
        "reading 0",
        f"smi 0, {A}, NVIDIA H100, Disabled, {percent}, {memory}, 81559, {mode}",
        f"until {clock + 4:.2f}",
        "gpuspawner-probe 1 end",
    ]
    printed = ProbeResult("\n".join(text), **result)
    sample, table = parse_probe(printed, leased, previous, interval_seconds=60.0, age_seconds=600.0)
    assert table is not None
    return sample, table


def told(text: str, proc: int = 50, own: int = 50) -> str:
    return f"monitor {proc} {own} {text}"


def reading(*args: Any, **more: Any) -> SourceReading | None:
    return next(iter(parse(*args, **more)[0].sources), None)


def seen(*args: Any, **more: Any) -> float:
    found = reading(*args, **more)
    assert found is not None
    return found.percent


def test_golden() -> None:
    seen_of_it = [0, 4000.0, 4997.5], [40, 0.2, 4990.0], [90, 3.0, 4000.0]
    text = document(gpu(*seen_of_it, since=4960.0, unseen=12.0, joules=5.5, source="samples"))
    found = reading(told(text))
    assert found is not None
    assert (found.gpu, found.source, found.percent, found.end_seconds) == (A, Source.MONITOR, 40.0, 2.0)
    assert found.coverage == pytest.approx(38 / 66), "it saw 38 of the 66 seconds since the sample before"


def test_work_counts_once_from_one_probe_to_the_next_and_none_falls_between() -> None:
    first = document(gpu([80, 1.0, 4990.0]))
    _, table = parse(told(first))
    same = document(gpu([80, 1.0, 4990.0]), uptime=CLOCK + 58)
    assert seen(told(same), clock=CLOCK + 60, previous=table) == 0.0
    for last in (CLOCK - 2.1, CLOCK + 30):  # taken before the first was read, and told only afterwards
        later = document(gpu([80, 1.2, last]), uptime=CLOCK + 58)
        assert seen(told(later), clock=CLOCK + 60, previous=table) == 80.0
    _, table = parse()  # told nothing
    assert seen(told(document(gpu([80, 1.2, CLOCK - 7]))), clock=CLOCK + 5, previous=table) == 80.0


def test_work_possibly_caused_by_the_probe_is_ignored() -> None:
    _, table = parse(asleep=True, opens=())
    own, other = ([100, 1.0, at] for at in (CLOCK + 3, CLOCK + 20))

    def later(*percents: list[float], **more: Any) -> float:
        line = told(document(gpu(*percents), uptime=CLOCK + 58))
        return seen(line, clock=CLOCK + 60, previous=table, **{"asleep": True, **more})

    assert later(own) == 0.0
    assert later(other) == 100.0
    assert later(own, opens=(50, 60)) == 100.0, "another process holds it"
    assert later(own, asleep=False) == 100.0, "nothing wakes it"


def test_a_process_that_keeps_a_monitor_holds_no_gpu_unless_it_computes() -> None:
    line = told(document(gpu()))
    assert parse(line)[0].gpus[0].holders == 0
    assert parse(line, opens=(50, 60))[0].gpus[0].holders == 1
    assert parse(line, "computes 50")[0].gpus[0].holders == 1
    assert parse("computes 60", opens=(60,))[0].gpus[0].holders == 1
    assert parse()[0].gpus[0].holders == 1


BAD = {
    "torn": document(gpu([80, 1.0, 4990.0]), end=8),
    "cut": document(gpu([80, 1.0, 4990.0]))[:-5],
    "old": document(gpu([80, 1.0, 4900.0]), uptime=CLOCK - 61),
    "of another boot": document(gpu([80, 1.0, 90.0]), uptime=100.0),
    "of the future": document(gpu([80, 1.0, 4990.0]), uptime=CLOCK + 3),
    "a parent's": document(gpu([80, 1.0, 4990.0]), pid=51),
    "work of the future": document(gpu([80, 1.0, CLOCK + 1])),
    "more than all": document(gpu([101, 1.0, 4990.0])),
    "not a number": document(gpu([float("nan"), 1.0, 4990.0])),
    "no number": document(gpu([80, 1.0, None])),
    "a truth": document(gpu([True, 1.0, 4990.0])),
    "endless": document(gpu([80, 1.0, 4990.0], since=float("inf"))),
    "no GPU": document({"uuid": A}),
    "no list": document(gpu([80, 1.0, 4990.0]), gpus="x"),
    "deep": "[" * 100_000,
    "a number of many digits": document(gpu([80, 1.0, 4990.0])).replace("4990.0", "9" * 10_000),
    "nothing": "",
}


@pytest.mark.parametrize("text", BAD.values(), ids=BAD)
def test_implausible_values_are_ignored(text: str) -> None:
    sample, _ = parse(told(text), percent=70, opens=(50, 60))
    without, _ = parse(percent=70, opens=(60,))
    assert sample == without


@given(
    st.text(st.characters(exclude_characters="\r\n", exclude_categories=("Cs",)), max_size=60)
    | st.recursive(
        st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(list(gpu())), inner, max_size=5),
        max_leaves=12,
    ).map(lambda found: document(uptime=CLOCK - 1, gpus=[found]))
)
def test_odd_reports_of_a_monitor_do_not_change_the_sample(text: str) -> None:
    sample, _ = parse(told(text), percent=70)
    without, _ = parse(percent=70, opens=())
    assert replace(sample, sources=()) == without


def sources(*lines: str, **more: Any) -> tuple[SourceReading, ...]:
    return parse(*lines, **more)[0].sources


def test_a_monitor_is_a_source_of_the_timeline_with_its_observed_time() -> None:
    _, table = parse(told(document(gpu([0, 4000.0, CLOCK - 3]))))
    quiet = document(gpu([0, 4060.0, CLOCK + 57]), uptime=CLOCK + 58)
    (one,) = sources(told(quiet), clock=CLOCK + 60, previous=table)
    assert (one.gpu, one.source, one.measure, one.percent) == (A, Source.MONITOR, Measure.UTILIZATION, 0.0)
    assert (one.begin_seconds, one.end_seconds, one.coverage, one.is_own) == (64.0, 2.0, 1.0, True)
    gap = document(gpu([0, 4060.0, CLOCK + 57], since=CLOCK + 27.0), uptime=CLOCK + 58)
    (one,) = sources(told(gap), clock=CLOCK + 60, previous=table)
    assert one.coverage == 0.5, "half of the time since the probe before"
    rates = document(gpu([7, 0.3, CLOCK + 30], source="rates"), uptime=CLOCK + 58)
    (one,) = sources(told(rates), clock=CLOCK + 60, previous=table)
    assert (one.percent, one.coverage) == (7.0, 2 / 3), "a rate does not cover the time to the next"
    assert sources(clock=CLOCK + 60, previous=table) == ()


def test_gpm_is_the_activity_of_engines_of_which_any_fraction_is_work() -> None:
    (one,) = sources(told(document(gpu([0, 4000.0, CLOCK - 3], [0.1, 5.0, CLOCK - 8], source="gpm"))))
    assert (one.measure, one.percent) == (Measure.ENGINE, 0.1)
    (lost,) = sources(told(document(gpu([0, 4000.0, CLOCK - 3], [0.1, 5.0, CLOCK - 8], source="samples"))))
    assert (lost.measure, lost.percent) == (Measure.ENGINE, 0.1), "what GPM saw before it was lost"
    (old,) = sources(told(document(gpu([0, 4000.0, CLOCK - 3], [0.1, 5.0, 900.0], source="samples"))))
    assert (old.measure, old.percent) == (Measure.UTILIZATION, 0.0)


def test_a_gpu_that_a_probe_may_have_woken_is_judged_by_all_values_of_gpm() -> None:
    _, table = parse(asleep=True, opens=())
    own = document(gpu([20, 1.0, CLOCK + 3], source="gpm"), uptime=CLOCK + 58)
    assert seen(told(own), clock=CLOCK + 60, previous=table, asleep=True) == 20.0


POD: dict[str, Any] = {"leased": ("pod-mig-0",), "counted": True, "shared": True}
LEASE: dict[str, Any] = {"leased": (M,), "devices": {M: A}}


def mig(uuid: str, *percents: list[float], **changes: Any) -> dict[str, Any]:
    return gpu(*percents, **{"uuid": uuid, "gpu": A, "source": "gpm", **changes})


@pytest.mark.parametrize("lease", [POD, LEASE], ids=["a pod's", "a machine's"])
def test_the_activity_of_a_mig_device_is_the_workspaces_own(lease: dict[str, Any]) -> None:
    whole = gpu(source=None, since=CLOCK - 2)
    line = told(document(whole, mig(M, [0, 4000.0, CLOCK - 3], [0.2, 5.0, CLOCK - 8])))
    (one,) = sources(line, **lease)
    assert (one.gpu, one.measure, one.percent) == (lease["leased"][0], Measure.ENGINE, 0.2)
    assert (one.coverage, one.is_own) == (1.0, True)


def test_a_mig_device_that_others_use_too_is_not_the_workspaces_own() -> None:
    (one,) = sources(told(document(mig(M, [0.2, 5.0, CLOCK - 8]))), **POD, divided=True)
    assert not one.is_own
    (one,) = sources(told(document(gpu([30, 5.0, CLOCK - 8], source="gpm"))), **POD)
    assert not one.is_own, "the values of its GPU are not its own either"


def test_a_lease_of_several_mig_devices_has_each_of_them() -> None:
    both = told(document(mig(M, [9, 5.0, CLOCK - 8]), mig(N, [0, 5.0, CLOCK - 8], since=CLOCK - 35)))
    lease: dict[str, Any] = {"leased": (M, N), "devices": {M: A, N: A}}
    assert [(one.percent, round(one.coverage, 1)) for one in sources(both, **lease)] == [(9.0, 1.0), (0.0, 0.5)]
    pod = POD | {"leased": ("pod-mig-0", "pod-mig-1")}
    assert [(one.percent, round(one.coverage, 1)) for one in sources(both, **pod)] == [(9.0, 0.5)] * 2
    only = told(document(mig(M, [0, 5.0, CLOCK - 8])))
    assert [one.coverage for one in sources(only, **pod)] == [0.0, 0.0], "the other one is not seen"
