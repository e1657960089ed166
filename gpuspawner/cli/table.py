"""Tables for a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from wcwidth import wcswidth

from gpuspawner.cli.output import shown


def print_table(rows: Sequence[tuple[str, ...]]) -> None:
    """Print rows in columns, the first row being their names. Letters of two cells' width shift nothing."""
    printed = [tuple(map(shown, row)) for row in rows]
    widths = [max(_width(row[column]) for row in printed) for column in range(len(printed[0]))]
    for row in printed:
        padded = (cell + " " * (width - _width(cell)) for cell, width in zip(row, widths, strict=True))
        print("  ".join(padded).rstrip())


def _width(text: str) -> int:
    return max(0, wcswidth(text))
