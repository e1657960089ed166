"""The bar of a waiting workspace: it has no mark without a number, and a short range is still seen."""

from types import SimpleNamespace

import pytest

from gpuspawner.service.workspaces.cards import Card


@pytest.mark.parametrize(
    ("earliest", "likely", "latest", "places"),
    [
        pytest.param(1100.0, 1200.0, 1400.0, (25.0, 50.0), id="likely"),
        pytest.param(1100.0, None, 1400.0, (25.0, None), id="no time is sure enough"),
        pytest.param(1899.0, None, 1900.0, (97.0, None), id="a short range"),
    ],
)
def test_marks_of_the_bar(earliest, likely, latest, places):
    queue = SimpleNamespace(earliest_start_at=earliest, likely_start_at=likely, range_end_at=latest)
    window = Card(SimpleNamespace(now=1000.0, queue=queue), "", ()).window
    assert (window.earliest_left, window.likely_left) == places
    assert (window.likely == "") is (likely is None)
