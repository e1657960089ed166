"""Tables for a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from gpuspawner.cli.remote import shown


def print_table(rows: Sequence[tuple[str, ...]]) -> None:
    """Print rows in columns, the first row being their names."""
    printed = [tuple(map(shown, row)) for row in rows]
    widths = [max(len(row[column]) for row in printed) for column in range(len(printed[0]))]
    for row in printed:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
