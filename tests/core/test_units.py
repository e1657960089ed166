import math
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuspawner.core import units
from gpuspawner.core.units import BadValue

READERS = [units.parse_bytes, units.parse_duration, units.parse_percent, units.parse_cpu, units.parse_count]

ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=4,
)


@pytest.mark.parametrize(
    ("parse", "written", "read"),
    [
        (units.parse_bytes, "64GiB", 64 * 2**30),
        (units.parse_bytes, " 512 MiB", 512 * 2**20),
        (units.parse_bytes, "1.5GiB", 3 * 2**29),
        (units.parse_bytes, "2048KiB", 2**21),
        (units.parse_bytes, "1TiB", 2**40),
        (units.parse_bytes, 2**36, 2**36),
        (units.parse_bytes, str(2**36), 2**36),
        (units.parse_duration, "30m", 1800),
        (units.parse_duration, "1h30m", 5400),
        (units.parse_duration, "90s", 90),
        (units.parse_duration, "48 min", 2880),
        (units.parse_duration, units.show_duration(5400), 5400),
        (units.parse_duration, "2d", 172800),
        (units.parse_duration, "0.5s", 0.5),
        (units.parse_duration, "0s", 0),
        (units.parse_percent, "5%", 5),
        (units.parse_percent, "5 %", 5),
        (units.parse_percent, 5, 5),
        (units.parse_percent, 2.5, 2.5),
        (units.parse_percent, "100", 100),
        (units.parse_cpu, 8, 8),
        (units.parse_cpu, "0.5", 0.5),
        (units.parse_cpu, 0.1, 0.1),
        (units.parse_cpu, 2.0, 2),
        (units.parse_count, 0, 0),
        (units.parse_count, "16", 16),
    ],
)
def test_reads(parse, written, read):
    assert parse(written) == read


@pytest.mark.parametrize("parse", READERS)
@pytest.mark.parametrize(
    "value",
    [
        *[True, False, None, [2, 3], {}, math.nan, math.inf, -math.inf, 1e309, -1, -0.5, 10**400, -(10**400)],
        *[
            "",
            " ",
            "x",
            "-1",
            "+1",
            "1e3",
            "nan",
            "inf",
            "٣",
            "\uff13",
            "1_000",
            "0x10",
            "1\n",
            "1,5",
            ".5",
            "5.",
            "1" * 41,
        ],
        *["1" * 2_000_000, b"5", "1 000", "5%%", "1h30", "30m1h", "1h1h", "1 hr", "16G", "16GB", "16Gi", "1\u00a0GiB"],
    ],
    ids=lambda value: units.quoted(value)[:20],
)
def test_refuses_with_what_would_be_right(parse, value):
    with pytest.raises(BadValue) as caught:
        parse(value)
    assert caught.value.wrong
    assert "for example" in caught.value.right
    assert len(str(caught.value)) < 250


@pytest.mark.parametrize(
    ("parse", "value", "wrong"),
    [
        pytest.param(units.parse_bytes, 64, "64 is less than 1 MiB", id="a size whose unit was forgotten"),
        pytest.param(units.parse_bytes, "5000TiB", "'5000TiB' is more than 1024 TiB", id="a size beyond any machine"),
        pytest.param(units.parse_duration, 30, "30 is not a time", id="a time without unit"),
        pytest.param(units.parse_duration, "400d", "'400d' is more than 366 days", id="a time beyond a year"),
        pytest.param(units.parse_percent, 101, "101 is more than 100 %", id="more than all"),
        pytest.param(units.parse_percent, "1.0001%", "'1.0001%' is not a percentage", id="too fine"),
        pytest.param(units.parse_cpu, 0, "0 is not from 0.001 to 4096 cores", id="no core"),
        pytest.param(units.parse_cpu, 0.0001, "0.0001 is not a number of cores", id="a sliver of a core"),
        pytest.param(units.parse_cpu, 5000, "5000 is not from 0.001 to 4096 cores", id="too many cores"),
        pytest.param(units.parse_count, 2.0, "2.0 is not a whole number", id="a float count"),
        pytest.param(units.parse_count, 1025, "1025 is not from 0 to 1024", id="too many"),
        pytest.param(units.parse_count, 10**400, "a very large number is not from 0 to 1024", id="far too many"),
    ],
)
def test_says_what_is_wrong(parse, value, wrong):
    with pytest.raises(BadValue) as caught:
        parse(value)
    assert caught.value.wrong == wrong


@pytest.mark.parametrize(
    ("parse", "value", "out_of_range"),
    [
        pytest.param(units.parse_count, 10**9, True, id="a number"),
        pytest.param(units.parse_count, "1000000000", True, id="the text of a number"),
        pytest.param(units.parse_count, -1, False, id="a number with a sign"),
        pytest.param(units.parse_count, "-1", False, id="the text of a number with a sign"),
        pytest.param(units.parse_count, 10**400, False, id="a number of too many digits"),
        pytest.param(units.parse_count, f"1{400 * '0'}", False, id="the text of a number of too many digits"),
        pytest.param(units.parse_cpu, math.inf, False, id="no number at all"),
        pytest.param(units.parse_bytes, "64", False, id="a unit that was forgotten"),
        pytest.param(units.parse_bytes, "64KiB", True, id="a unit that is too small"),
    ],
)
def test_tells_what_is_written_right_but_beyond_all_that_is_read(parse, value, out_of_range):
    with pytest.raises(BadValue) as caught:
        parse(value)
    assert isinstance(caught.value, units.OutOfRange) is out_of_range


@given(st.sampled_from(READERS), ANYTHING)
def test_readers_return_a_number_in_bounds_or_refuse(parse, value):
    try:
        read = parse(value)
    except BadValue:
        return
    assert 0 <= read <= units.MOST_BYTES


@pytest.mark.parametrize(
    ("value", "parse", "read"),
    [
        ("1-4", units.parse_count, (1, 4)),
        ("2", units.parse_count, (2, 2)),
        (2, units.parse_count, (2, 2)),
        ("8GiB - 64GiB", units.parse_bytes, (8 * 2**30, 64 * 2**30)),
        ("30m-24h", units.parse_duration, (1800, 86400)),
        ("0.5-2", units.parse_cpu, (0.5, 2)),
    ],
)
def test_reads_ranges(value, parse, read):
    assert units.parse_range(value, parse) == read


@pytest.mark.parametrize(
    ("value", "wrong", "right"),
    [
        ("4-1", "'4-1' runs backwards", "write 1-4"),
        ("1-", "'1-' is not a range", "write it from low to high, for example 1-4, 8GiB-64GiB, 1h-8h"),
        ("-1", "'-1' is not a range", "write it from low to high, for example 1-4, 8GiB-64GiB, 1h-8h"),
        ("1-2-3", "'2-3' is not a whole number", "write a whole number, for example 2"),
        (True, "True is not a whole number", "write a whole number, for example 2"),
    ],
)
def test_refuses_ranges(value, wrong, right):
    with pytest.raises(BadValue) as caught:
        units.parse_range(value, units.parse_count)
    assert (caught.value.wrong, caught.value.right) == (wrong, right)


@pytest.mark.parametrize(
    ("shown", "text"),
    [
        (units.show_bytes(64 * 2**30), "64 GiB"),
        (units.show_bytes(1.5 * 2**30), "1.5 GiB"),
        (units.show_bytes(2**41), "2 TiB"),
        (units.show_bytes(512 * 2**20), "512 MiB"),
        (units.show_bytes(0), "0 MiB"),
        (units.show_duration(0), "0 s"),
        (units.show_duration(-3), "0 s"),
        (units.show_duration(2.5), "2.5 s"),
        (units.show_duration(45), "45 s"),
        (units.show_duration(59.7), "1 min"),
        (units.show_duration(90), "1 min 30 s"),
        (units.show_duration(599), "9 min 59 s"),
        (units.show_duration(631), "11 min"),
        (units.show_duration(3599), "1 h"),
        (units.show_duration(5400), "1 h 30 min"),
        (units.show_duration(7220), "2 h"),
        (units.show_duration(86400), "24 h"),
        (units.show_duration(266400), "3 d 2 h"),
        (units.show_cpu(8.0), "8"),
        (units.show_cpu(0.5), "0.5"),
    ],
)
def test_shows(shown, text):
    assert shown == text


def test_shows_a_time_of_day_with_its_day_where_that_is_another_and_its_seconds_where_it_is_near():
    noon = time.mktime((2026, 3, 4, 12, 0, 0, 0, 0, -1))
    assert units.show_time(noon + 7200, noon) == "14:00"
    assert units.show_time(noon + 61, noon) == "12:01:01"
    assert units.show_time(noon - 61, noon) == "11:58:59"
    assert units.show_time(noon - 7200, noon) == "10:00"
    assert units.show_time(noon + 86400, noon) == "Thu 05 Mar 12:00"
