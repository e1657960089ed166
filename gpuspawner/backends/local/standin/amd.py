"""The stand-in ``amd-smi``: a workspace's simulated AMD GPUs as a table, or in the CSV format of probes."""

from __future__ import annotations

import os
import sys

from gpuspawner.backends.local.standin.board import boards

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpuspawner.backends.local.standin.board import Board

HELP = """\
AMD System Management Interface, stand-in for simulated GPUs

It shows the simulated GPUs of this workspace, and changes nothing.

    amd-smi list                                  Names of the GPUs.
    amd-smi monitor                               Utilization and memory.
    amd-smi metric --usage --mem-usage --csv      The same as CSV, in the real tool's columns.
"""
COLUMNS = (
    "gpu,gfx_activity,umc_activity,mm_activity,total_vram,used_vram,free_vram,"
    "total_visible_vram,used_visible_vram,free_visible_vram,total_gtt,used_gtt,free_gtt"
)
METRIC = {"--usage", "--mem-usage", "--csv"}
INVALID, NO_DEVICE = 2, 1
"""Arbitrary exit codes other than 0."""


def main(arguments: list[str]) -> int:
    """Print the requested output and return the exit code."""
    if not arguments or arguments[0] in {"-h", "--help", "help"}:
        sys.stdout.write(HELP)
        return 0
    own = boards(os.environ, "AMD")
    if not own:
        sys.stdout.write("ERROR: no AMD GPU was found\n")
        return NO_DEVICE
    if arguments == ["list"]:
        return _print(f"GPU: {board.number}\n    NAME: {board.gpu.name}\n    UUID: {board.gpu.uuid}" for board in own)
    if arguments == ["monitor"]:
        rows = (f"{b.number:>3}  {b.percent:>4} %  {b.used_mib:>8} / {b.total_mib} MB  {b.gpu.name}" for b in own)
        return _print(["GPU  GFX     VRAM", *rows])
    if arguments[0] == "metric" and set(arguments[1:]) == METRIC:
        return _print([COLUMNS, *map(_row, own)])
    sys.stdout.write(f"ERROR: {' '.join(arguments)} is not known to this stand-in. Please run 'amd-smi --help'.\n")
    return INVALID


def _row(board: Board) -> str:
    vram = f"{board.total_mib},{board.used_mib},{board.free_mib}"
    return f"{board.number},{board.percent},{board.memory_percent},N/A,{vram},{vram},0,0,0"


def _print(lines: Iterable[str]) -> int:
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    sys.stdout.flush()
    return 0
