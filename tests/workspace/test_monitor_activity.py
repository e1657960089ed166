"""A GPU's record from the driver's samples: none twice, no earlier ones, and missed time is reported."""

import pytest

from gpuspawner.workspace.nvml import join_engines
from gpuspawner.workspace.probe_reports import RATES_SECONDS, GpuActivity

BOOT = 1_700_000_000.0
"""The wall clock when the machine started."""
PERIOD, SAMPLES = 1 / 6, 100


class Driver:
    """Keeps the last 100 samples, in microseconds of the wall clock, each the average of its period."""

    def __init__(self, *bursts):
        self.bursts, self.buffer, self.taken, self.step = bursts, [], 0, 0.0

    def until(self, uptime):
        while (self.taken + 1) * PERIOD <= uptime:
            self.taken += 1
            end = self.taken * PERIOD
            work = sum(max(0.0, min(end, until) - max(end - PERIOD, begin)) for begin, until in self.bursts)
            self.buffer.append((int((BOOT + self.step + end) * 1e6), round(100 * work / PERIOD)))
        self.buffer = self.buffer[-SAMPLES:]
        return self.buffer


def followed(driver, looks):
    gpu = GpuActivity("GPU-a", since=looks[0], seen_until=looks[0])
    for uptime in looks:
        gpu.add_samples(driver.until(uptime), uptime, BOOT + driver.step + uptime)
    return gpu


def every(seconds, begin, end):
    return [begin + seconds * n for n in range(int((end - begin) / seconds) + 1)]


def test_every_burst_of_a_fifth_of_a_second_is_seen_once_however_often_one_looks():
    bursts = [(1000.0 + 37.3 * n, 1000.2 + 37.3 * n) for n in range(1, 40)]
    for seconds in (0.3, 5.0, 16.0):
        gpu = followed(Driver(*bursts), every(seconds, 1000.0, 2600.0))
        told = gpu.to_document(2600.0)
        at_work = sum(percent * of / 100 for percent, of, _ in told["percents"])
        assert at_work == pytest.approx(39 * 0.2, abs=0.1), seconds
        assert (told["unseen"], told["since"]) == (0.0, 1000.0)
        assert max(last for percent, _, last in told["percents"] if percent >= 5) == pytest.approx(
            bursts[-1][1], abs=PERIOD
        )


def test_earlier_buffer_entries_belong_to_the_gpus_former_holder():
    gpu = followed(Driver((990.0, 999.5)), every(5.0, 1000.0, 1100.0))
    assert [percent for percent, _, _ in gpu.to_document(1100.0)["percents"]] == [0]


def test_a_buffer_that_wrapped_between_two_checks_is_reported_as_a_gap():
    gpu = followed(Driver((1003.0, 1004.0), (1050.0, 1051.0)), [1000.0, 1005.0, 1060.0, 1065.0])
    told = gpu.to_document(1065.0)
    assert told["unseen"] == pytest.approx(1060 - SAMPLES * PERIOD - 1005, abs=2 * PERIOD)
    assert told["since"] == pytest.approx(1060 - SAMPLES * PERIOD, abs=2 * PERIOD)
    assert max(last for percent, _, last in told["percents"] if percent == 100) == pytest.approx(1051.0, abs=PERIOD)


def test_a_driver_that_takes_no_samples_any_more_is_not_seen():
    driver = Driver()
    gpu = followed(driver, every(5.0, 1000.0, 1010.0))
    for uptime in every(5.0, 1015.0, 1100.0):
        gpu.add_samples(driver.buffer, uptime, BOOT + uptime)
    told = gpu.to_document(1100.0)
    assert (told["since"], told["unseen"]) == (1100.0, pytest.approx(90.0, abs=1))


@pytest.mark.parametrize("step", [-3600.0, -1.5, 1.5, 3600.0, 1e9])
def test_a_changed_wall_clock_loses_the_samples_of_one_check_at_most(step):
    driver = Driver((1021.0, 1021.2), (1031.0, 1031.2))
    gpu = followed(driver, every(5.0, 1000.0, 1020.0))
    driver.step = step
    for uptime in every(5.0, 1025.0, 1100.0):
        gpu.add_samples(driver.until(uptime), uptime, BOOT + step + uptime)
    told = gpu.to_document(1100.0)
    seen = [last for percent, _, last in told["percents"] if percent >= 5]
    assert max(seen) == pytest.approx(1031.2, abs=PERIOD + 1.5), "the second burst, after it"
    assert max(last for _, _, last in told["percents"]) <= 1100.0
    assert told["unseen"] <= 10


def test_samples_that_are_no_percentage_are_not_seen():
    gpu = GpuActivity("GPU-a", since=1000.0, seen_until=1000.0)
    gpu.add_samples([(int((BOOT + 1001) * 1e6), 4294967295), (2**63, 50), (0, 50)], 1005.0, BOOT + 1005)
    assert gpu.to_document(1005.0)["percents"] == []


def test_a_restarted_energy_counter_is_continued():
    gpu = GpuActivity("GPU-a", since=0.0, seen_until=0.0)
    assert gpu.to_document(0.0)["joules"] is None
    for millijoules in (5_000_000, 5_060_000, None, 30_000, 90_000):
        gpu.add_energy(millijoules)
    assert gpu.to_document(0.0)["joules"] == 60 + 30 + 60


@pytest.mark.parametrize("counter", [0, 5_000_000])
def test_an_energy_counter_that_never_changes_is_unknown(counter):
    gpu = GpuActivity("GPU-a", since=0.0, seen_until=0.0)
    for _ in range(3):
        gpu.add_energy(counter)
    assert gpu.to_document(0.0)["joules"] is None
    gpu.add_energy(counter + 60_000)
    assert gpu.to_document(0.0)["joules"] == 60.0


def test_every_burst_of_half_a_second_is_seen_by_rates_however_the_readings_fall():
    """A rate is the average of at least the sixth of a second before it is read."""
    for late in (0.0, 0.06, 0.12, 0.18, 0.24):
        bursts = [(1000.0 + 7.3 * n, 1000.5 + 7.3 * n) for n in range(1, 40)]
        gpu = GpuActivity("GPU-a", since=1000.0, seen_until=1000.0)
        seen = set()
        for at in every(RATES_SECONDS, 1000.25 + late, 1300.0):
            work = sum(max(0.0, min(at, end) - max(at - PERIOD, begin)) for begin, end in bursts)
            gpu.add_rate(round(100 * work / PERIOD), at)
            seen |= {begin for begin, end in bursts if work > 0.05 and begin <= at <= end + PERIOD}
        document = gpu.to_document(1300.0)
        assert len(seen) == 39
        assert (document["unseen"], document["since"]) == (0.0, 1000.0)
        at_work = sum(percent * of / 100 for percent, of, _ in document["percents"])
        assert at_work == pytest.approx(39 * 0.5, rel=0.2)


def test_time_between_two_readings_of_rates_that_is_too_long_is_missed():
    gpu = GpuActivity("GPU-a", since=1000.0, seen_until=1000.0)
    for at in (1000.25, 1000.5, 1010.0, 1010.25):
        gpu.add_rate(0, at)
    document = gpu.to_document(1010.25)
    assert (document["unseen"], document["since"]) == (9.5, 1010.0)
    gpu.problem = "GPU is lost"
    document = gpu.to_document(1011.0)
    assert (document["since"], document["problem"]) == (1011.0, "GPU is lost"), "nothing is known of it now"


def test_work_of_the_encoder_or_the_decoder_is_work_of_the_gpu():
    gpu = [(1_000_000 * n, 7) for n in range(1, 6)]
    encoder = [(1_000_000 * n - 300_000, 72 if n == 3 else 0) for n in range(1, 6)]
    decoder = [(1_000_000 * n - 100_000, 4_000_000_000 if n == 1 else 40 if n == 5 else 0) for n in range(1, 6)]
    assert [percent for _, percent in join_engines(gpu, [encoder, decoder])] == [7, 7, 72, 7, 40]
    assert join_engines(gpu, []) == gpu
    assert join_engines([], [encoder]) == []


def test_values_of_gpm_are_rounded_up_to_a_tenth_below_1_percent_and_leave_no_gap():
    gpu = GpuActivity("GPU-a", since=1000.0, seen_until=1000.0)
    for number, percent in enumerate([None, 0.0, 1e-9, 0.31, 0.99, 99.6, None, 12.0]):
        gpu.add_activity(percent, [], 1000.0 + 5 * number, BOOT)
    document = gpu.to_document(1035.0)
    assert {percent: seconds for percent, seconds, _ in document["percents"]} == {
        0.0: 5.0,
        0.1: 5.0,
        0.4: 5.0,
        1.0: 5.0,
        12: 5.0,
        100: 5.0,
    }
    assert (document["unseen"], document["since"]) == (5.0, 1030.0), "of one time the activity is unknown"


def test_with_gpm_only_samples_since_the_last_look_count():
    gpu = GpuActivity("GPU-a", since=1000.0, seen_until=1000.0)
    driver = Driver((990.0, 999.0), (1006.0, 1007.0))
    for uptime in (1005.0, 1010.0, 1015.0):
        gpu.add_activity(0.0, driver.until(uptime), uptime, BOOT + uptime)
    assert [(percent, last) for percent, _, last in gpu.to_document(1015.0)["percents"]] == [
        (0.0, 1015.0),
        (100, 1010.0),
    ]
