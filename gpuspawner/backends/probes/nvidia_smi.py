"""What a vendor's tool printed of each GPU in each run, and how the rows of ``nvidia-smi`` are read.

Pure: text in, values out. Never raises, whatever the text: a value that is not understood is unknown, with the reason.
What ``nvidia-smi -q -d UTILIZATION`` prints: encoder, decoder, and the driver's sample buffers.

``utilization.gpu`` covers the last second at most. A buffer covers the time between two readings and some time before
them, so several samples may see one burst in it. It can only add work: a driver without buffers, or one that prints
nonsense (a duration of 18446744073709.22 s has been seen), is unsupported, never unknown. All drivers since 390 print
these sections. No real capture has a buffer yet (``data/nvidia-smi``: none ran with ``-d``); ``tests/gpu`` takes one.
``nvidia-smi`` prints no energy counter, so none is read.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple, TypeVar

from gpuspawner.core.errors import quoted

Number = TypeVar("Number", int, float)

MIB = 1024 * 1024
_COMMON = ("utilization", "used", "total", "persistence")
COLUMNS = {
    len(columns): columns
    for columns in (
        ("index", "uuid", "name", *_COMMON),
        ("index", "uuid", "name", "mig", *_COMMON),
        ("index", "uuid", "name", "mig", *_COMMON, "encoder", "decoder"),
    )
}
"""The columns of a row, by their number: older drivers know fewer fields."""
PERSISTENCE = {"Enabled": True, "Disabled": False}
MIG_ENABLED = "Enabled"
NOT_FOUND = 127
"""With this exit code a shell says that there is no such program."""
READING = re.compile(r"reading ([0-9]{1,3})(?: ([a-z]+-smi))?")
"""The line that begins what one run of a tool printed: its exit code, and its name unless it is nvidia-smi."""

_UUID = re.compile(r"GPU-[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_WHOLE = re.compile(r"[0-9]{1,15}")
_DECIMAL = re.compile(r"[0-9]{1,15}(\.[0-9]{1,3})?")


@dataclass(frozen=True)
class Values:
    """What one reading told of one GPU. ``problem`` says which values are unknown, and why."""

    utilization_percent: float | None = None
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    problem: str = ""
    persistence: bool | None = None
    buffer_percent: float | None = None
    encoder_percent: float | None = None
    decoder_percent: float | None = None


class Pass(NamedTuple):
    """One run of a tool: its exit code, and the first line that is no row."""

    code: int
    said: str


@dataclass(frozen=True)
class Told:
    """What the runs of one tool printed. ``rows`` has each GPU's rows, each with the number of its run, from 1."""

    tool: str
    passes: tuple[Pass, ...]
    rows: dict[str, tuple[tuple[int, Values], ...]]


def read_rows(lines: Iterable[str]) -> Told:
    """Return what ``nvidia-smi`` told: its rows by UUID."""
    passes: list[Pass] = []
    rows: dict[str, list[tuple[int, Values]]] = {}
    for line in lines:
        if match := READING.fullmatch(line):
            passes.append(Pass(int(match[1]), ""))
        elif not line.startswith("smi "):
            continue
        elif (row := _row(line[4:])) is not None:
            rows.setdefault(row[0], []).append((len(passes), row[1]))
        elif passes and line[4:].strip() and not passes[-1].said:
            passes[-1] = passes[-1]._replace(said=line[4:].strip())
    return Told("nvidia-smi", tuple(passes), {uuid: tuple(found) for uuid, found in rows.items()})


def joined(told: Told, name: str) -> Values:
    """Join a GPU's readings: the highest of each value, or unknown if one reading of it was unknown."""
    passes, rows = told.passes, told.rows.get(name, ())
    if not passes:
        return Values(problem=f"{told.tool} was not run")
    for code, text in passes:
        if code != 0:
            failed = f"{told.tool} failed with exit code {code}"
            missing = f"{told.tool} is not there" if code == NOT_FOUND else failed
            return Values(problem=f"{missing}: {quoted(text)}" if text else missing)
    if [number for number, _ in rows] != list(range(1, len(passes) + 1)):
        said = next((text for _, text in passes if text), "")
        listed = f"{told.tool} listed it {len(rows)} times in {len(passes)} readings"
        return Values(problem=f"{listed}: {quoted(said)}" if said else listed)
    values = [value for _, value in rows]
    return Values(
        _highest([value.utilization_percent for value in values]),
        _highest([value.memory_used_bytes for value in values]),
        _highest([value.memory_total_bytes for value in values]),
        next((value.problem for value in values if value.problem), ""),
        values[0].persistence if len({value.persistence for value in values}) == 1 else None,
        encoder_percent=highest_known(value.encoder_percent for value in values),
        decoder_percent=highest_known(value.decoder_percent for value in values),
    )


def highest_known(values: Iterable[float | None]) -> float | None:
    """Return the highest of these that is known, None where none of them is."""
    return max((value for value in values if value is not None), default=None)


@dataclass(frozen=True)
class Unit:
    """How a tool writes numbers: its memory in units of so many ``bytes``, all with decimals or without."""

    name: str
    bytes: int
    decimals: bool = False

    def number(self, text: str, highest: float) -> float | None:
        """Return the number in a cell, None where it is no number, or above ``highest``."""
        pattern = _DECIMAL if self.decimals else _WHOLE
        return float(text) if pattern.fullmatch(text) and float(text) <= highest else None


def values_of(utilization: str, used: str, total: str | None, unit: Unit, persistence: bool | None) -> Values:
    """Return the values of cells: utilization in percent, and memory; ``total`` is None where the tool tells none.

    A value that is no number, or impossible, is unknown, and ``problem`` names it.
    """
    most = 2**60 // unit.bytes
    percent, used_units = unit.number(utilization, 100), unit.number(used, most)
    total_units = None if total is None else unit.number(total, most)
    problems = [
        f"{name}: {quoted(value)}"
        for name, value, number in (
            ("utilization", utilization, percent),
            ("memory used", used, used_units),
            ("memory total", total, total_units),
        )
        if number is None and value is not None
    ]
    if used_units is not None and total_units is not None and used_units > total_units:
        problems.append(f"memory used: {used_units:.0f} of {total_units:.0f} {unit.name}")
        used_units = total_units = None
    return Values(
        percent,
        None if used_units is None else int(used_units * unit.bytes),
        None if total_units is None else int(total_units * unit.bytes),
        ", ".join(problems),
        persistence,
    )


def is_whole(text: str) -> bool:
    """Whether a cell holds a whole number, such as a GPU's."""
    return _WHOLE.fullmatch(text) is not None


def _row(text: str) -> tuple[str, Values] | None:
    """Return UUID and values of one CSV row, or None for another line. ``problem`` names the odd parts of a row."""
    cells = [cell.strip() for cell in text.split(",")]
    if len(cells) < 2 or not _UUID.fullmatch(cells[1]):  # noqa: PLR2004 (index and UUID begin a row)
        return None
    row = dict(zip(COLUMNS.get(len(cells), ()), cells, strict=False))
    if not row or not _WHOLE.fullmatch(row["index"]):
        return cells[1], Values(problem=f"nvidia-smi printed a row that is not understood: {quoted(text)}")
    values = values_of(row["utilization"], row["used"], row["total"], IN_MIB, PERSISTENCE.get(row["persistence"]))
    if values.utilization_percent is None and row.get("mig") == MIG_ENABLED:
        values = replace(values, problem="a GPU in MIG mode has no utilization")
    # Their absence is no problem: some GPUs have no encoder or decoder, and MIG devices tell neither.
    encoder, decoder = (IN_MIB.number(row.get(name, ""), 100) for name in ("encoder", "decoder"))
    return cells[1], replace(values, encoder_percent=encoder, decoder_percent=decoder)


IN_MIB = Unit("MiB", MIB)


def _highest(values: list[Number | None]) -> Number | None:
    known = [value for value in values if value is not None]
    return max(known) if len(known) == len(values) else None


LONGEST_SECONDS = 600.0
"""A longer buffer is nonsense: the driver keeps about 100 samples of 1/6 s to 1 s. One that
is long all the same keeps a workspace busy for minutes longer."""
MOST_SAMPLES = 10_000
"""More of them are nonsense. Arbitrary: a hundred times what is seen."""
GPU, ENCODER, DECODER = "GPU", "encoder", "decoder"

_GPU = re.compile(r"GPU [0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-9A-Fa-f]")
_PERCENT = re.compile(r"([0-9]{1,3}) %")
_NOW = "    Utilization"
_BUFFERS = {
    "    GPU Utilization Samples": GPU,
    "    ENC Utilization Samples": ENCODER,
    "    DEC Utilization Samples": DECODER,
}
_INDENT = 8 * " "
"""Before a value's name."""
_FORMS = {
    "Duration": re.compile(r"([0-9]{1,6}(?:\.[0-9]{1,6})?) sec"),
    "Number of Samples": re.compile(r"([0-9]{1,6})"),
    "Max": _PERCENT,
    "Min": _PERCENT,
    "Avg": _PERCENT,
}


@dataclass(frozen=True)
class Buffer:
    """A sample buffer: the highest utilization, 0 to 100, of the last ``seconds``."""

    seconds: float
    max_percent: float


@dataclass(frozen=True)
class UtilizationReport:
    """What is printed of one GPU.

    Attributes:
        encoder_percent: utilization of the encoder at present, None where it is not told.
        decoder_percent: the same of the decoder.
        buffers: the sample buffers that the driver supports, by engine.
    """

    encoder_percent: float | None = None
    decoder_percent: float | None = None
    buffers: Mapping[str, Buffer] = field(default_factory=dict)


def read_reports(lines: Iterable[str]) -> tuple[UtilizationReport, ...]:
    """Return the report of each GPU, in the order in which nvidia-smi lists them."""
    found: list[dict[str, dict[str, list[str]]]] = []
    section: dict[str, list[str]] | None = None
    for line in map(str.rstrip, lines):
        if _GPU.fullmatch(line):
            found.append({})
            section = None
        elif found and (line == _NOW or line in _BUFFERS):
            section = found[-1].setdefault(line, {})
        else:
            name, colon, value = line.partition(": ")
            if not (colon and line.startswith(_INDENT) and line[len(_INDENT)] != " "):
                section = None
            if section is not None:
                section.setdefault(name.strip(), []).append(value.strip())
    return tuple(_report(sections) for sections in found)


def _report(sections: Mapping[str, Mapping[str, list[str]]]) -> UtilizationReport:
    now = sections.get(_NOW, {})
    buffers = {engine: _buffer(sections.get(title, {})) for title, engine in _BUFFERS.items()}
    return UtilizationReport(
        _number(now, "Encoder", _PERCENT),
        _number(now, "Decoder", _PERCENT),
        {engine: buffer for engine, buffer in buffers.items() if buffer is not None},
    )


def _number(values: Mapping[str, list[str]], name: str, form: re.Pattern[str]) -> float | None:
    printed = values.get(name, [])
    match = form.fullmatch(printed[0]) if len(printed) == 1 else None
    number = None if match is None else float(match[1])
    return None if form is _PERCENT and (number or 0) > 100 else number  # noqa: PLR2004 - a percentage


def _buffer(values: Mapping[str, list[str]]) -> Buffer | None:
    numbers = {name: _number(values, name, form) for name, form in _FORMS.items()}
    seconds, samples, highest, lowest, average = numbers.values()
    if seconds is None or samples is None or highest is None or lowest is None or average is None:
        return None
    sensible = 0 < seconds <= LONGEST_SECONDS and 1 <= samples <= MOST_SAMPLES
    return Buffer(seconds, highest) if sensible and lowest <= average <= highest else None
