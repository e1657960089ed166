"""The tables of AMD's and Intel's tools, read like the rows of ``nvidia-smi``. Not tested on hardware.

- ``amd-smi metric --usage --mem-usage --csv``: one row for each GPU, memory in MiB (called MB), ``N/A`` is unknown.
- ``rocm-smi --showuse --showmeminfo vram --csv``: one row for each GPU, memory in bytes, warnings before the header.
- ``xpu-smi dump -d -1 -m 0,18 -i 1 -n 2``: one row for each second and GPU. Utilization is of the second before, so the
  first row may not have it.

Source: the documentation of ROCm's AMD SMI and ROCm SMI, and of Intel's XPU Manager.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import NamedTuple

from gpuspawner.backends.probes.nvidia_smi import (
    IN_MIB,
    MIB,
    READING,
    Pass,
    ToolOutput,
    Unit,
    Values,
    is_whole,
    values_of,
)
from gpuspawner.core.errors import quoted


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
        "DeviceId", "GPU Utilization (%)", "GPU Memory Used (MiB)", "", Unit("MiB", MIB, decimals=True), moments=2
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
    passes: list[Pass] = []
    rows: dict[str, list[tuple[int, Values]]] = {}
    for number, (code, printed) in enumerate(runs, start=1):
        found, said = _of_one_run(tool, printed)
        passes.append(Pass(code, said))
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
