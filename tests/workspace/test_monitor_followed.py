"""What is kept of a GPU from the driver's samples: none twice, none of before, and what was missed is told."""

import pytest

from gpuspawner.workspace.monitor.followed import Followed

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
    gpu = Followed("GPU-a", since=looks[0], seen_until=looks[0])
    for uptime in looks:
        gpu.take(driver.until(uptime), uptime, BOOT + driver.step + uptime)
    return gpu


def every(seconds, begin, end):
    return [begin + seconds * n for n in range(int((end - begin) / seconds) + 1)]


def test_every_burst_of_a_fifth_of_a_second_is_seen_once_however_often_one_looks():
    bursts = [(1000.0 + 37.3 * n, 1000.2 + 37.3 * n) for n in range(1, 40)]
    for seconds in (0.3, 5.0, 16.0):
        gpu = followed(Driver(*bursts), every(seconds, 1000.0, 2600.0))
        told = gpu.told(2600.0)
        at_work = sum(percent * of / 100 for percent, of, _ in told["percents"])
        assert at_work == pytest.approx(39 * 0.2, abs=0.1), seconds
        assert (told["unseen"], told["since"]) == (0.0, 1000.0)
        assert max(last for percent, _, last in told["percents"] if percent >= 5) == pytest.approx(
            bursts[-1][1], abs=PERIOD
        )


def test_what_stood_in_the_buffer_before_is_of_whoever_had_the_gpu_then():
    gpu = followed(Driver((990.0, 999.5)), every(5.0, 1000.0, 1100.0))
    assert [percent for percent, _, _ in gpu.told(1100.0)["percents"]] == [0]


def test_a_buffer_that_wrapped_around_between_two_looks_is_a_gap_that_is_told():
    gpu = followed(Driver((1003.0, 1004.0), (1050.0, 1051.0)), [1000.0, 1005.0, 1060.0, 1065.0])
    told = gpu.told(1065.0)
    assert told["unseen"] == pytest.approx(1060 - SAMPLES * PERIOD - 1005, abs=2 * PERIOD)
    assert told["since"] == pytest.approx(1060 - SAMPLES * PERIOD, abs=2 * PERIOD)
    assert max(last for percent, _, last in told["percents"] if percent == 100) == pytest.approx(1051.0, abs=PERIOD)


def test_a_driver_that_takes_no_samples_any_more_is_not_seen():
    driver = Driver()
    gpu = followed(driver, every(5.0, 1000.0, 1010.0))
    for uptime in every(5.0, 1015.0, 1100.0):
        gpu.take(driver.buffer, uptime, BOOT + uptime)
    told = gpu.told(1100.0)
    assert (told["since"], told["unseen"]) == (1100.0, pytest.approx(90.0, abs=1))


@pytest.mark.parametrize("step", [-3600.0, -1.5, 1.5, 3600.0, 1e9])
def test_a_wall_clock_that_was_set_loses_what_fell_into_one_look_at_most(step):
    driver = Driver((1021.0, 1021.2), (1031.0, 1031.2))
    gpu = followed(driver, every(5.0, 1000.0, 1020.0))
    driver.step = step
    for uptime in every(5.0, 1025.0, 1100.0):
        gpu.take(driver.until(uptime), uptime, BOOT + step + uptime)
    told = gpu.told(1100.0)
    seen = [last for percent, _, last in told["percents"] if percent >= 5]
    assert max(seen) == pytest.approx(1031.2, abs=PERIOD + 1.5), "the second burst, after it"
    assert max(last for _, _, last in told["percents"]) <= 1100.0
    assert told["unseen"] <= 10


def test_samples_that_are_no_percentage_are_not_seen():
    gpu = Followed("GPU-a", since=1000.0, seen_until=1000.0)
    gpu.take([(int((BOOT + 1001) * 1e6), 4294967295), (2**63, 50), (0, 50)], 1005.0, BOOT + 1005)
    assert gpu.told(1005.0)["percents"] == []


def test_the_energy_counter_that_begins_anew_goes_on():
    gpu = Followed("GPU-a", since=0.0, seen_until=0.0)
    assert gpu.told(0.0)["joules"] is None
    for millijoules in (5_000_000, 5_060_000, None, 30_000, 90_000):
        gpu.spend(millijoules)
    assert gpu.told(0.0)["joules"] == 60 + 30 + 60
