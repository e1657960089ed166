"""The output of GPU tools: ``nvidia-smi`` with ``--query-gpu`` and ``-q -d UTILIZATION``, AMD's and Intel's tables.

The functions are pure and never raise. An invalid value is unknown, with a reason.

``utilization.gpu`` covers the last second at most. A sample buffer covers the time between two readings and some time
before them, so several samples may see one burst. A buffer can only add work: a driver without buffers, or with an
impossible one (a duration of 18446744073709.22 s has been seen), is unsupported and never unknown. All drivers since
390 print these sections. No real capture has a buffer yet (``data/nvidia-smi``: none ran with ``-d``). ``tests/gpu``
takes one. ``nvidia-smi`` prints no energy counter, so it is not read.

The tables of AMD's and Intel's tools are not tested on hardware.

- ``amd-smi metric --usage --mem-usage --csv``: one row for each GPU, memory in MiB (called MB), ``N/A`` is unknown.
- ``rocm-smi --showuse --showmeminfo vram --csv``: one row for each GPU, memory in bytes, warnings before the header.
- ``xpu-smi dump -d -1 -m 0,18 -i 1 -n 2``: one row for each second and GPU. Utilization is of the second before, so the
  first row may not have it.

Source: the documentation of ROCm's AMD SMI and ROCm SMI, and of Intel's XPU Manager.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple, TypeVar

from gpuspawner.core.errors import quoted
from gpuspawner.core.units import MEBIBYTE

Number = TypeVar("Number", int, float)

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

UUID = re.compile(r"GPU-[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
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


class ToolRun(NamedTuple):
    """One run of a tool: its exit code, and the first line that is not a row."""

    code: int
    said: str


@dataclass(frozen=True)
class ToolOutput:
    """The output of all runs of one tool. ``rows`` has the rows of each GPU, with the number of the run from 1."""

    tool: str
    passes: tuple[ToolRun, ...]
    rows: dict[str, tuple[tuple[int, Values], ...]]


def read_rows(lines: Iterable[str]) -> ToolOutput:
    """Return the rows of ``nvidia-smi`` by UUID."""
    passes: list[ToolRun] = []
    rows: dict[str, list[tuple[int, Values]]] = {}
    for line in lines:
        if match := READING.fullmatch(line):
            passes.append(ToolRun(int(match[1]), ""))
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
    """Return whether a cell holds a whole number."""
    return _WHOLE.fullmatch(text) is not None


def _row(text: str) -> tuple[str, Values] | None:
    """Return UUID and values of one CSV row, None for another line. ``problem`` names the invalid parts of a row."""
    cells = [cell.strip() for cell in text.split(",")]
    if len(cells) < 2 or not UUID.fullmatch(cells[1]):  # noqa: PLR2004 (index and UUID begin a row)
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


IN_MIB = Unit("MiB", MEBIBYTE)


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


class Table(NamedTuple):
    """The columns of one tool's table, and its unit of memory.

    ``total`` is "" without that column. One run prints ``moments`` rows of each GPU.
    """

    gpu: str
    utilization: str
    used: str
    total: str
    unit: Unit
    moments: int = 1


TOOLS: Mapping[str, Table] = {
    "amd-smi": Table("gpu", "gfx_activity", "used_vram", "total_vram", IN_MIB),
    "rocm-smi": Table("device", "GPU use (%)", "VRAM Total Used Memory (B)", "VRAM Total Memory (B)", Unit("bytes", 1)),
    "xpu-smi": Table(
        "DeviceId", "GPU Utilization (%)", "GPU Memory Used (MiB)", "", Unit("MiB", MEBIBYTE, decimals=True), moments=2
    ),
}


def read_tables(lines: Iterable[str]) -> ToolOutput | None:
    """Return the output of one of :data:`TOOLS` by the GPU's number, None if no such tool ran.

    GPUs have no UUID here. A workspace only sees its own GPUs, always in the same order.
    """
    runs: list[tuple[int, list[str]]] = []
    tool = ""
    for line in lines:
        if match := READING.fullmatch(line):
            runs.append((int(match[1]), []))
            tool = tool or (match[2] or "")
        elif runs and line.startswith("smi "):
            runs[-1][1].append(line[4:])
    if tool not in TOOLS:
        return None
    passes: list[ToolRun] = []
    rows: dict[str, list[tuple[int, Values]]] = {}
    for number, (code, printed) in enumerate(runs, start=1):
        found, said = _of_one_run(tool, printed)
        passes.append(ToolRun(code, said))
        for gpu, values in found.items():
            rows.setdefault(gpu, []).append((number, values))
    return ToolOutput(tool, tuple(passes), {gpu: tuple(of_gpu) for gpu, of_gpu in rows.items()})


def _of_one_run(tool: str, printed: list[str]) -> tuple[dict[str, Values], str]:
    """Return the values by GPU, and the first line that was not understood."""
    table = TOOLS[tool]
    header: list[str] = []
    found: dict[str, list[Values]] = {}
    said = ""
    for line in printed:
        cells = _cells(line)
        if not header:
            if table.gpu in cells and table.utilization in cells:
                header = cells
            else:
                said = said or line.strip()
            continue
        gpu = dict(zip(header, cells, strict=False)).get(table.gpu, "").removeprefix("card")
        if not is_whole(gpu):
            said = said or line.strip()
            continue
        found.setdefault(str(int(gpu)), []).append(_values(tool, table, header, cells, line))
    return {gpu: _of_run(tool, table, rows) for gpu, rows in found.items()}, said


def _cells(line: str) -> list[str]:
    """Return the cells of a line, [] if it is not CSV. A cell may hold a quoted list."""
    try:
        return [cell.strip() for row in csv.reader([line], strict=True) for cell in row]
    except csv.Error:
        return []


def _values(tool: str, table: Table, header: list[str], cells: list[str], line: str) -> Values:
    if len(cells) != len(header):
        return Values(problem=f"{tool} printed a row that is not understood: {quoted(line)}")
    row = dict(zip(header, cells, strict=True))
    total = row.get(table.total, "") if table.total else None
    # These tools are not known to wake a GPU, so a high value of an unused GPU is trusted.
    return values_of(row[table.utilization], row.get(table.used, ""), total, table.unit, persistence=True)


def _of_run(tool: str, table: Table, rows: list[Values]) -> Values:
    """Join the rows of a GPU in one run. The first of several may lack the utilization."""
    if len(rows) != table.moments:
        return Values(problem=f"{tool} listed it {len(rows)} times in one reading, not {table.moments}")
    last = rows[-1]
    odd = next((row for row in rows if row.memory_used_bytes is None), None)
    if odd is not None or last.utilization_percent is None:
        return replace(odd or last, utilization_percent=None)
    known = [row.utilization_percent for row in rows if row.utilization_percent is not None]
    return replace(last, utilization_percent=max(known))
