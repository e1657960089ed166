"""The figures as one picture, drawn as SVG by hand: it has to be readable in both colour schemes and without a font."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from figures import OURS, Row

WIDTH, LINE, TOP, NAMES, GAP = 920, 26, 78, 200, 70
LABEL = "Stops of workspaces in use, and GPU hours recovered, by rule"
PLOT = (WIDTH - NAMES - 2 * GAP) / 2
STYLE = """
text { font: 13px system-ui, sans-serif; fill: #1c2024; } .dim { fill: #565d64; font-size: 12px; }
.title { font-size: 16px; font-weight: 600; } .page { fill: #fff; } .axis { stroke: #d5d9dd; }
.wrong { fill: #b3261e; } .won { fill: #1d7a46; } .us { font-weight: 600; }
@media (prefers-color-scheme: dark) { text { fill: #e8eaec; } .dim { fill: #a4abb2; } .page { fill: #15181b; }
.axis { stroke: #3a4046; } .wrong { fill: #ff8a80; } .won { fill: #4fbf80; } }
"""


def picture(rows: Sequence[Row], said: str) -> str:
    """Return an SVG: to the left stops in use on a logarithmic scale, to the right GPU hours recovered."""
    height = TOP + LINE * len(rows) + 40
    most = max(row.totals.wrong_per_100k_hours for row in rows)
    decades = max(1, math.ceil(math.log10(most + 1)))
    left, right = NAMES, NAMES + PLOT + GAP
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{LABEL}">',
        f"<style>{STYLE}</style>",
        f'<rect class="page" width="{WIDTH}" height="{height}"/>',
        '<text class="title" x="8" y="24">Stopped while in use, and GPU hours recovered</text>',
        f'<text class="dim" x="8" y="44">{escape(said)}, the same for every rule; idle time 30 min</text>',
        f'<text class="dim" x="{left}" y="{TOP - 10}">stopped in use per 100,000 session hours (logarithmic)</text>',
        f'<text class="dim" x="{right}" y="{TOP - 10}">of the GPU hours that its idle time and grace leave</text>',
    ]
    for decade in range(decades + 1):
        x = left + PLOT * decade / decades
        parts += _tick(x, height, f"{10**decade:,}" if decade else "1")
    for share in (0, 25, 50, 75, 100):
        parts += _tick(right + PLOT * share / 100, height, f"{share} %")
    for number, row in enumerate(rows):
        parts += _row(row, TOP + LINE * number, (left, right), decades, us=number < len(OURS))
    return "\n".join([*parts, "</svg>", ""])


def _tick(x: float, height: float, words: str) -> list[str]:
    return [
        f'<line class="axis" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP - 4}" y2="{height - 34}"/>',
        f'<text class="dim" x="{x:.1f}" y="{height - 16}" text-anchor="middle">{words}</text>',
    ]


def _row(row: Row, y: float, columns: tuple[float, float], decades: int, *, us: bool) -> list[str]:
    wrong, share = row.totals.wrong_per_100k_hours, row.totals.recovered_share
    length = PLOT * math.log10(max(wrong, 1.0)) / decades
    left, right = columns
    words = f"{wrong:,.0f}" if wrong else f"none (under {row.at_most:.0f})"
    bold = ' class="us"' if us else ""
    return [
        f'<text{bold} x="8" y="{y + 16}">{escape(row.name)}</text>',
        f'<rect class="wrong" x="{left}" y="{y + 4}" width="{length:.1f}" height="{LINE - 10}"/>',
        f'<text{bold} x="{left + length + 5:.1f}" y="{y + 16}">{words}</text>',
        f'<rect class="won" x="{right}" y="{y + 4}" width="{PLOT * share:.1f}" height="{LINE - 10}"/>',
        f'<text{bold} x="{right + PLOT * share + 5:.1f}" y="{y + 16}">{100 * share:.0f} %</text>',
    ]
