"""The chart of days: columns that add up, few labels, and a line for all GPUs only where the bars stay readable."""

from datetime import date, timedelta

import pytest

from gpuspawner.service.store.usage_sums import UsageAmounts
from gpuspawner.service.usage.pages import LABELS, columns_of


def series(days, hours=1.0):
    first = date(2026, 11, 1)
    return [
        ((first + timedelta(days=number)).isoformat(), UsageAmounts(active=hours, idle=hours / 2, not_measured=0.25))
        for number in range(days)
    ]


@pytest.mark.parametrize("days", [1, 2, 7, 10, 26, 31, 62])
def test_labels_are_few_and_different(days):
    labels = [one.label for one in columns_of(series(days), weekly=False).columns if one.label]
    assert 1 <= len(labels) <= LABELS
    assert len(set(labels)) == len(labels)


def test_each_part_has_its_height_on_the_axis():
    chart = columns_of(series(3, hours=10.0), weekly=False)
    highest = {float(words): percent for words, percent in chart.ticks}
    for column in chart.columns:
        assert [part.kind for part in column.parts] == ["hole", "idle", "gpu"]
        gpu = column.parts[-1].percent
        assert gpu == pytest.approx(highest[10.0], abs=0.1)
        assert sum(part.percent for part in column.parts) <= 100


def test_days_without_usage_have_no_bar():
    chart = columns_of([("2026-11-01", UsageAmounts()), *series(1)], weekly=False)
    assert chart.columns[0].parts == ()


@pytest.mark.parametrize(("capacity", "is_shown"), [(20.0, True), (96.0, False), (None, False)])
def test_the_line_of_all_gpus_is_left_out_where_it_would_flatten_the_bars(capacity, is_shown):
    chart = columns_of(series(5, hours=3.0), weekly=False, capacity_hours=capacity)
    assert (chart.capacity_percent is not None) is is_shown
    assert max(part.percent for one in chart.columns for part in one.parts) > 10
