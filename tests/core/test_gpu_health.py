"""When a GPU belongs in quarantine."""

import pytest

from gpuspawner.core.outages import FATAL_XIDS, GpuHealth, find_fault


@pytest.mark.parametrize("xid", [48, 63, 64, 74, 79, 94, 95])
def test_a_fatal_xid_is_a_fault(xid):
    assert find_fault(GpuHealth(xid=xid), []) == f"Xid {xid}: {FATAL_XIDS[xid]}"


@pytest.mark.parametrize("xid", [None, 0, 13, 31, 43, 45])
def test_an_error_of_a_program_is_none(xid):
    assert find_fault(GpuHealth(xid=xid, uncorrected_errors=0), [GpuHealth()]) == ""


@pytest.mark.parametrize(
    ("before", "now", "fault"),
    [
        pytest.param([], 5, "", id="errors of earlier days are not new"),
        pytest.param([5, 5], 5, "", id="the same number"),
        pytest.param([None], 5, "", id="not known before"),
        pytest.param([2, 4], 5, "3 new uncorrected memory errors, 5 in all", id="more than in the last hour"),
        pytest.param([2], None, "", id="not known now"),
        pytest.param([7], 1, "", id="the driver was loaded again"),
    ],
)
def test_growing_uncorrected_errors_are_a_fault(before, now, fault):
    earlier = [GpuHealth(uncorrected_errors=one) for one in before]
    assert find_fault(GpuHealth(uncorrected_errors=now), earlier) == fault
