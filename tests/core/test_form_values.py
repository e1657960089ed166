import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuspawner.core.units import (
    BadValue,
    parse_bytes,
    parse_cpu,
    parse_duration,
    parse_form_bytes,
    parse_form_cpu,
    parse_form_duration,
    show_bytes,
    show_duration,
)

GIB = 2**30
HOUR = 3600
SIZES = {
    **dict.fromkeys(["8", "8 GB", "8GB", "8gb", "8 GiB", "8Gi", "8 G", "8g", " 8 ", "8.0", str(8 * GIB)], 8 * GIB),
    "64GB": 64 * GIB,
    "1.5": 1.5 * GIB,
    "512 MB": GIB / 2,
    "512m": GIB / 2,
    "1 TB": 1024 * GIB,
}
TIMES = {
    **dict.fromkeys(["90", "1h30", "1 h 30", "1:30", "1.5h", "1.5 hours", "1h30m", "90 min", "90 minutes"], 1.5 * HOUR),
    **dict.fromkeys(["3 days", "3d", "72h", "72 hrs", "3 D", "72:00"], 72 * HOUR),
    **dict.fromkeys(["2 days 4 h", "2d4h", "2 days, 4 hours", "2 days and 4 hours", "52h"], 52 * HOUR),
    "30 sec": 30,
    "1 day 30": None,
    "1h30h": None,
    "30 min 1 h": None,
    "8 o'clock": None,
    "1:75": None,
    "-1": None,
}


@pytest.mark.parametrize(("text", "size_bytes"), SIZES.items())
def test_sizes_as_people_write_them(text, size_bytes):
    assert parse_form_bytes(text) == size_bytes


@pytest.mark.parametrize(("text", "seconds"), TIMES.items())
def test_times_as_people_write_them(text, seconds):
    if seconds is None:
        with pytest.raises(BadValue):
            parse_form_duration(text)
    else:
        assert parse_form_duration(text) == seconds


def test_cores_may_be_called_so():
    assert parse_form_cpu("8 cores") == parse_form_cpu("8") == parse_form_cpu(8) == 8


@given(st.text(alphabet="0123456789. dhmsGiBTM:,andoury", max_size=45) | st.integers() | st.floats() | st.none())
def test_values_of_strict_readers_mean_the_same_and_raise_nothing_else(value):
    for strict, reader in (
        (parse_bytes, parse_form_bytes),
        (parse_duration, parse_form_duration),
        (parse_cpu, parse_form_cpu),
    ):
        try:
            exact = strict(value)
        except BadValue:
            exact = None
        try:
            understood = reader(value)
        except BadValue:
            understood = None
        if exact is not None:
            assert understood == exact, "a value that both read has one meaning"


@given(st.integers(1, 1024).map(lambda n: n * GIB) | st.integers(1, 4096).map(lambda n: n * 2**20))
def test_a_size_as_it_is_shown_reads_as_it_was_written(size_bytes):
    shown = show_bytes(size_bytes)
    assert show_bytes(parse_form_bytes(shown)) == shown


@given(st.integers(600, 30 * 86400).map(float))
def test_a_time_as_it_is_shown_reads_as_it_is_shown(seconds):
    assert show_duration(parse_form_duration(show_duration(seconds))) == show_duration(seconds)
