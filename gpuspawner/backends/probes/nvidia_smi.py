"""The output of ``nvidia-smi``: rows of ``--query-gpu``, and the report of ``-q -d UTILIZATION``.

Pure, and never raises. An invalid value is unknown, with a reason.

``utilization.gpu`` covers the last second at most. A sample buffer covers the time between two readings and some time
before them, so several samples may see one burst. A buffer can only add work: a driver without buffers, or with an
impossible one (a duration of 18446744073709.22 s has been seen), is unsupported and never unknown. All drivers since
390 print these sections. No real capture has a buffer yet (``data/nvidia-smi``: none ran with ``-d``). ``tests/gpu``
takes one. ``nvidia-smi`` prints no energy counter, so it is not read.
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
"""The columns of a row by their number. Older drivers have fewer fields."""
PERSISTENCE = {"Enabled": True, "Disabled": False}
MIG_ENABLED = "Enabled"
NOT_FOUND = 127
"""A shell's exit code for a missing program."""
READING = re.compile(r"reading ([0-9]{1,3})(?: ([a-z]+-smi))?")
"""The line before the output of one run of a tool: its exit code, and its name unless it is nvidia-smi."""

_UUID = re.compile(r"GPU-[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_WHOLE = re.compile(r"[0-9]{1,15}")
_DECIMAL = re.compile(r"[0-9]{1,15}(\.[0-9]{1,3})?")


@dataclass(frozen=True)
class Values:
    """The values of one GPU in one reading. ``problem`` names the unknown values."""

    utilization_percent: float | None = None
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    problem: str = ""
    persistence: bool | None = None
    buffer_percent: float | None = None
    encoder_percent: float | None = None
    decoder_percent: float | None = None


class Pass(NamedTuple):
    """One run of a tool: its exit code, and the first line that is not a row."""

    code: int
    said: str


@dataclass(frozen=True)
class ToolOutput:
    """The output of all runs of one tool. ``rows`` has the rows of each GPU, with the number of the run from 1."""

    tool: str
    passes: tuple[Pass, ...]
    rows: dict[str, tuple[tuple[int, Values], ...]]


def read_rows(lines: Iterable[str]) -> ToolOutput:
    """Return the rows of ``nvidia-smi`` by UUID."""
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
    return ToolOutput("nvidia-smi", tuple(passes), {uuid: tuple(found) for uuid, found in rows.items()})


def join_readings(output: ToolOutput, name: str) -> Values:
    """Return the highest of each value of a GPU's readings. A value is unknown if one reading of it is."""
    passes, rows = output.passes, output.rows.get(name, ())
    if not passes:
        return Values(problem=f"{output.tool} was not run")
    for code, text in passes:
        if code != 0:
            failed = f"{output.tool} failed with exit code {code}"
            missing = f"{output.tool} does not exist" if code == NOT_FOUND else failed
            return Values(problem=f"{missing}: {quoted(text)}" if text else missing)
    if [number for number, _ in rows] != list(range(1, len(passes) + 1)):
        said = next((text for _, text in passes if text), "")
        listed = f"{output.tool} listed it {len(rows)} times in {len(passes)} readings"
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
    """Return the highest known value, None if all are unknown."""
    return max((value for value in values if value is not None), default=None)


@dataclass(frozen=True)
class Unit:
    """A tool's unit of memory in ``bytes``, with or without decimals."""

    name: str
    bytes: int
    decimals: bool = False

    def number(self, text: str, highest: float) -> float | None:
        """Return the number in a cell, None if it is invalid or above ``highest``."""
        pattern = _DECIMAL if self.decimals else _WHOLE
        return float(text) if pattern.fullmatch(text) and float(text) <= highest else None


def values_of(utilization: str, used: str, total: str | None, unit: Unit, persistence: bool | None) -> Values:
    """Return the values of cells: utilization in percent, and memory. ``total`` is None if the tool does not print it.

    An invalid or impossible value is unknown, and ``problem`` names it.
    """
    most = 2**60 // unit.bytes
    percent, used_units = unit.number(utilization, 100), unit.number(used, most)
    total_units = None if total is None else unit.number(total, most)
    cells = (
        ("utilization", utilization, percent),
        ("memory used", used, used_units),
        ("memory total", total, total_units),
    )
    problems = [f"{name}: {quoted(text)}" for name, text, number in cells if number is None and text is not None]
    if len(problems) == len(cells) and utilization == used == total:
        problems = [f"the driver answers {quoted(utilization)}"]
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
    """Return whether a cell holds a whole number, like a GPU's."""
    return _WHOLE.fullmatch(text) is not None


def _row(text: str) -> tuple[str, Values] | None:
    """Return UUID and values of one CSV row, None for another line. ``problem`` names the invalid parts of a row."""
    cells = [cell.strip() for cell in text.split(",")]
    if len(cells) < 2 or not _UUID.fullmatch(cells[1]):  # noqa: PLR2004 (index and UUID begin a row)
        return None
    row = dict(zip(COLUMNS.get(len(cells), ()), cells, strict=False))
    if not row or not _WHOLE.fullmatch(row["index"]):
        return cells[1], Values(problem=f"nvidia-smi printed a row that is not understood: {quoted(text)}")
    values = values_of(row["utilization"], row["used"], row["total"], IN_MIB, PERSISTENCE.get(row["persistence"]))
    if values.utilization_percent is None and row.get("mig") == MIG_ENABLED:
        values = replace(values, problem="a GPU in MIG mode has no utilization")
    # Missing values are no problem: some GPUs have no encoder or decoder, and MIG devices report neither.
    encoder, decoder = (IN_MIB.number(row.get(name, ""), 100) for name in ("encoder", "decoder"))
    return cells[1], replace(values, encoder_percent=encoder, decoder_percent=decoder)


IN_MIB = Unit("MiB", MIB)


def _highest(values: list[Number | None]) -> Number | None:
    known = [value for value in values if value is not None]
    return max(known) if len(known) == len(values) else None


MAX_BUFFER_SECONDS = 600.0
"""A longer buffer is invalid. The driver keeps about 100 samples of 1/6 s to 1 s. A longer buffer would keep a
workspace busy for minutes longer."""
MAX_SAMPLES = 10_000
"""More samples are invalid. Arbitrary: a hundred times the usual number."""
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
"""Indentation of a value's name."""
_FORMS = {
    "Duration": re.compile(r"([0-9]{1,6}(?:\.[0-9]{1,6})?) sec"),
    "Number of Samples": re.compile(r"([0-9]{1,6})"),
    "Max": _PERCENT,
    "Min": _PERCENT,
    "Avg": _PERCENT,
}


@dataclass(frozen=True)
class Buffer:
    """A sample buffer: the highest utilization of the last ``seconds``, from 0 to 100."""

    seconds: float
    max_percent: float


@dataclass(frozen=True)
class UtilizationReport:
    """The report of one GPU.

    Attributes:
        encoder_percent: current utilization of the encoder, None if unknown.
        decoder_percent: the same for the decoder.
        buffers: the supported sample buffers by engine.
    """

    encoder_percent: float | None = None
    decoder_percent: float | None = None
    buffers: Mapping[str, Buffer] = field(default_factory=dict)


def read_reports(lines: Iterable[str]) -> tuple[UtilizationReport, ...]:
    """Return the report of each GPU, in nvidia-smi's order."""
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
    sensible = 0 < seconds <= MAX_BUFFER_SECONDS and 1 <= samples <= MAX_SAMPLES
    return Buffer(seconds, highest) if sensible and lowest <= average <= highest else None
