"""Annotations for fields that hold times, days and numbers.

A name in capitals is a reader, for a field with another type: ``Annotated[int | None, BYTES]``.
"""

from __future__ import annotations

import datetime as dt
import re
from dataclasses import replace
from fractions import Fraction
from typing import Annotated

from gpuspawner.core.errors import quoted
from gpuspawner.core.fields import (
    Reader,
    amount_reader,
    choice_reader,
    number_or_text,
    number_reader,
    range_reader,
    whole_number_reader,
    write_nothing,
)
from gpuspawner.core.units import BadValue, parse_bytes, parse_cpu, parse_duration, parse_percent

LONGEST_ON_STOP_SECONDS = 600.0
"""Others wait for the GPUs meanwhile. Arbitrary: a large checkpoint takes minutes."""
SHORTEST_SAMPLE_SECONDS = 0.1
"""Arbitrary: one run of the probe takes about as long."""
MOST_WARNINGS = 5
"""Arbitrary: a sixth mail is not read."""
MOST_DAYS = 366
"""Days in a list. Arbitrary: the days of a year."""
MOST_GPU_HOURS = 100_000
_GPU_HOURS = re.compile(r"([0-9]{1,6}(?:\.[0-9]{1,3})?)(?: ?(?:GPU )?h)?")
MOST_PRICE = 1_000_000.0
MOST_PRICE_FACTOR = 1000.0
MOST_COMPUTE = 100
YEARS = range(2000, 2200)
"""Years of a date. Arbitrary: other years are typing errors."""

# --- times and days


def write_duration(seconds: float) -> str:
    """Return a time as an administrator would write it: ``30m``, ``60s``."""
    for unit, size in (("h", 3600), ("m", 60)):
        if seconds % size == 0 and seconds > 60:  # noqa: PLR2004 - 60s is the usual way to write it
            return f"{seconds / size:g}{unit}"
    return f"{seconds:g}s"


def _read_positive_duration(value: object) -> float:
    seconds = parse_duration(value)
    if seconds <= 0:
        raise BadValue(f"{quoted(value)} is not a time above 0", "write a time above 0, for example 30m")
    return seconds


def _read_whole_seconds(value: object) -> int:
    return max(1, round(_read_positive_duration(value)))


def _read_sample_period(value: object) -> float:
    seconds = parse_duration(value)
    if seconds < SHORTEST_SAMPLE_SECONDS:
        raise BadValue(f"{quoted(value)} would sample without pause", "write at least 0.1s; 60s is usual")
    return seconds


def _read_on_stop_timeout(value: object) -> float:
    seconds = _read_positive_duration(value)
    if seconds > LONGEST_ON_STOP_SECONDS:
        raise BadValue(f"{quoted(value)} is longer than 10m", "write at most 10m, because others wait for these GPUs")
    return seconds


def _read_warnings(value: object) -> tuple[float, ...]:
    if not isinstance(value, list) or len(value) > MOST_WARNINGS:
        raise BadValue(f"{quoted(value)} is not a list of at most {MOST_WARNINGS} times", "write for example [1h, 10m]")
    return tuple(sorted({_read_positive_duration(item) for item in value}, reverse=True))


def read_date(value: object) -> dt.date:
    """Read a day: ``2027-02-01``."""
    if isinstance(value, dt.date) and not isinstance(value, dt.datetime):  # from a dict that YAML made
        value = value.isoformat()
    right = "write year, month and day, for example 2027-02-01"
    try:
        if not isinstance(value, str) or not re.fullmatch(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", value):
            raise ValueError  # noqa: TRY301 - one message for everything that is not a date
        day = dt.date.fromisoformat(value)
    except ValueError:
        raise BadValue(f"{quoted(value)} is not a date", right) from None
    if day.year not in YEARS:
        raise BadValue(f"{quoted(value)} is not from {YEARS[0]} to {YEARS[-1]}", right)
    return day


def read_days(value: object) -> frozenset[dt.date]:
    """Read a list of days."""
    if not isinstance(value, list) or len(value) > MOST_DAYS:
        right = "write for example [2026-12-25, 2026-12-26]"
        raise BadValue(f"{quoted(value)} is not a list of at most {MOST_DAYS} days", right)
    return frozenset(map(read_date, value))


def _read_gpu_hours(value: object) -> Fraction:
    """Read an amount of GPU hours above 0: ``8 GPU h`` or ``8``."""
    found = _GPU_HOURS.fullmatch(str(value)) if isinstance(value, str | int | float) else None
    hours = Fraction(found[1]) if found else Fraction(0)
    if not 0 < hours <= MOST_GPU_HOURS:
        right = f"write up to {MOST_GPU_HOURS} GPU hours, for example 8 GPU h"
        raise BadValue(f"{quoted(value)} is not an amount of GPU hours", right)
    return hours


DURATION = Reader(parse_duration, "a time", write=write_duration, is_time=True)
_POSITIVE_DURATION = replace(DURATION, read=_read_positive_duration, accepts="a time above 0")
_WHOLE_SECONDS = replace(_POSITIVE_DURATION, read=_read_whole_seconds)

Duration = Annotated[float, DURATION]
PositiveDuration = Annotated[float, _POSITIVE_DURATION]
UnscaledDuration = Annotated[float, replace(_POSITIVE_DURATION, is_time=False)]
"""A time that a real program needs, for example to answer. ``--fast`` does not shorten it."""
OnStopTimeout = Annotated[
    float, replace(DURATION, read=_read_on_stop_timeout, accepts="a time above 0, at most 10m", is_time=False)
]
SamplePeriod = Annotated[float, replace(DURATION, read=_read_sample_period, accepts="a time of at least 0.1s")]
Seconds = Annotated[int, _WHOLE_SECONDS]
LifetimeRange = Annotated[tuple[int, int], range_reader(_WHOLE_SECONDS)]
WarningTimes = Annotated[
    tuple[float, ...],
    Reader(
        _read_warnings,
        f"a list of at most {MOST_WARNINGS} times",
        {"type": "array", "items": number_or_text(), "maxItems": MOST_WARNINGS},
        lambda times: f"[{', '.join(map(write_duration, times))}]",
        is_time=True,
    ),
]
GpuHours = Annotated[Fraction, Reader(_read_gpu_hours, "GPU hours like 8 GPU h", write=lambda hours: f"{hours} GPU h")]
DATE = Reader(read_date, "a day like 2027-02-01")
Days = Annotated[
    frozenset[dt.date],
    Reader(
        read_days,
        "a list of days like 2027-02-01",
        {"type": "array", "items": {"type": "string"}, "maxItems": MOST_DAYS},
        write_nothing,
    ),
]

# --- numbers


def _read_threshold(value: object) -> float:
    percent, right = parse_percent(value), "write a percentage from 1%, for example 5%"
    if percent <= 0:
        raise BadValue(f"{quoted(value)} would make every GPU busy", right)
    if percent < 1:  # this was meant as a fraction: with 0.05 for 5 % no workspace would ever be idle
        raise BadValue(f"{quoted(value)} is less than the 1 % that nvidia-smi counts by", right)
    return percent


def _read_guarantee(value: object) -> float:
    percent, right = parse_percent(value), "write a percentage from 1% to 100%, for example 25%"
    if percent < 1:
        raise BadValue(f"{quoted(value)} would guarantee nothing", right)
    return percent


def _read_weight(value: object) -> Fraction:
    weight: Fraction = _AMOUNT_OF_WEIGHT.read(value)
    if weight <= 0:
        raise BadValue(f"{quoted(value)} would give its members nothing", "write a weight above 0; 1 is usual")
    return weight


def _read_counts(value: object) -> Fraction:
    if isinstance(value, str) and (found := re.fullmatch(r"([0-9]{1,4}) ?/ ?([1-9][0-9]{0,3})", value)):
        return Fraction(int(found[1]), int(found[2]))
    counts: Fraction = _AMOUNT_OF_COUNTS.read(value)
    return counts


def _read_compute(value: object) -> str:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < MOST_COMPUTE
    written = f"{value:.1f}" if is_number else value
    if not isinstance(written, str) or not re.fullmatch(r"[0-9]{1,2}\.[0-9]{1,2}", written):
        raise BadValue(f"{quoted(value)} is not a compute capability", "write it as NVIDIA does, for example 8.0")
    return written


def _read_cuda(value: object) -> str:
    try:
        return _read_compute(value)
    except BadValue:
        right = "write it as nvidia-smi does, for example 12.8"
        raise BadValue(f"{quoted(value)} is not a CUDA version", right) from None


def _read_driver(value: object) -> str:
    written = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
    if not isinstance(written, str) or not re.fullmatch(r"[0-9]{3}(\.[0-9]{1,3}){0,2}", written):
        right = "write it as nvidia-smi does, in quotes, for example '570.86.15', or only 570"
        raise BadValue(f"{quoted(value)} is not a driver version", right)
    return written


def _read_version(value: object) -> int:
    if value != 1 or isinstance(value, (bool, float)):
        raise BadValue(f"version {quoted(value)} is not known", "write version: 1")
    return 1


_AMOUNT_OF_WEIGHT = amount_reader("a weight", "2")
_AMOUNT_OF_COUNTS = amount_reader("how much one GPU counts", "2, 0.5 or 1/7")
_PERCENT = Reader(parse_percent, "a percentage", write="{:g}%".format)
BYTES = Reader(parse_bytes, "a size", write=lambda size: f"{size / 2**30:g}GiB" if size else "")
CORES = Reader(parse_cpu, "a number of cores like 4 or 0.5", write="{:g}".format)
GPU_COUNT = whole_number_reader(1, 1024)
PRICE = number_reader(
    "not a price", "write a plain number, the price of an hour, for example 2.10", MOST_PRICE, zero=True
)


def _read_price_changes(value: object) -> tuple[tuple[dt.date, float], ...]:
    right = "write a price for each day, for example {2027-02-01: 2.40}"
    if not isinstance(value, dict) or len(value) > MOST_DAYS:
        raise BadValue(f"{quoted(value)} is not a mapping of at most {MOST_DAYS} days to prices", right)
    return tuple(sorted((read_date(day), PRICE.read(price)) for day, price in value.items()))


PRICE_CHANGES = Reader(
    _read_price_changes,
    "prices by day, like `{2027-02-01: 2.40}`",
    {
        "type": "object",
        "maxProperties": MOST_DAYS,
        "additionalProperties": {"type": "number", "minimum": 0, "maximum": MOST_PRICE},
    },
    write_nothing,
)
COUNTS = Reader(_read_counts, "a number, or a part like 1/7")

Version = Annotated[int, Reader(_read_version, "1")]
Flag = Annotated[bool, choice_reader("neither true nor false", "write true or false", {True: True, False: False})]
Bytes = Annotated[int, BYTES]
BytesRange = Annotated[tuple[int, int], range_reader(BYTES)]
Cores = Annotated[float, CORES]
CoresRange = Annotated[tuple[float, float], range_reader(CORES)]
GpuCount = Annotated[int, replace(GPU_COUNT, write=lambda count: str(count) if count else "")]
GpuCountRange = Annotated[tuple[int, int], range_reader(GPU_COUNT)]
Priority = Annotated[int, whole_number_reader(-100, 100)]
IDLE_THRESHOLD = replace(_PERCENT, read=_read_threshold, accepts="a percentage of at least 1%")
IdleThreshold = Annotated[float, IDLE_THRESHOLD]
GuaranteedPercent = Annotated[float, replace(_PERCENT, read=_read_guarantee, accepts="a percentage of at least 1%")]
ComputeCapability = Annotated[str, Reader(_read_compute, "a compute capability like 8.0")]
CudaVersion = Annotated[str, Reader(_read_cuda, "a CUDA version like 12.8")]
DriverVersion = Annotated[str, Reader(_read_driver, "a driver version like `570` or `570.86.15`")]
Weight = Annotated[Fraction, Reader(_read_weight, "a number above 0")]
PriceFactor = Annotated[
    float,
    number_reader(
        "not a factor",
        "write a number above 0, for example 0.8 for a cluster that costs 20 % less",
        MOST_PRICE_FACTOR,
        zero=False,
    ),
]
