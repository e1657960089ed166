"""The console's chart of days: each day is labelled once at most, and no label is cut or covers another."""

from datetime import date, timedelta
from itertools import pairwise

import pytest

from gpuspawner.service.store.usage_sums import UsageAmounts
from gpuspawner.service.usage.chart import columns_of

PHONE_PIXELS, LABEL_PIXELS = 300, 38
"""How wide the chart is on a phone, and a label such as 26 Nov."""


@pytest.mark.parametrize("days", [1, 2, 7, 10, 26, 31, 62])
def test_no_label_is_cut_at_the_edge_of_a_phone_or_covers_another(days):
    first = date(2026, 11, 1)
    series = [
        ((first + timedelta(days=number)).isoformat(), UsageAmounts(active=1.0 + number)) for number in range(days)
    ]
    labelled = [one for one in columns_of(series, weekly=False).columns if one.label]
    begins = [PHONE_PIXELS * one.left / 100 for one in labelled]
    assert begins
    assert all(begin + LABEL_PIXELS <= PHONE_PIXELS for begin in begins), begins
    assert all(later - begin >= LABEL_PIXELS for begin, later in pairwise(begins)), begins
    assert len({one.label for one in labelled}) == len(labelled)
