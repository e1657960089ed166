"""The driver's own sample buffer, as ``nvidia-smi -q -d UTILIZATION`` prints it: the maximum of some seconds.

``utilization.gpu`` covers the last second at most; the buffer covers those between two readings, and some before: one
burst may stand in it at several samples. It may only add use: a driver without it, or one that prints nonsense (a
duration of 18446744073709.22 s has been seen), is unsupported, never unknown. No real capture has one yet
(``data/nvidia-smi``: none ran with ``-d``): ``tests/gpu`` takes it. Nor does any capture print an energy counter, in
``-q``, ``-q -x`` or among the fields of ``--query-gpu``: NVML has one, but ``nvidia-smi``, which is all that the probe
may ask for, does not show it, so none is read.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

LONGEST_SECONDS = 600.0
"""A longer buffer is nonsense: the driver keeps about 100 samples of 1/6 s to 1 s. One that
is long all the same keeps a workspace busy for as much longer: minutes."""
MOST_SAMPLES = 10_000
"""More of them are nonsense. Arbitrary: a hundred times what is seen."""

_GPU = re.compile(r"GPU [0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-9A-Fa-f]")
_TITLE = "    GPU Utilization Samples"
_INDENT = 8 * " "
"""Before a value's name."""
_FORMS = {
    "Duration": re.compile(r"([0-9]{1,6}(?:\.[0-9]{1,6})?) sec"),
    "Number of Samples": re.compile(r"([0-9]{1,6})"),
    "Max": re.compile(r"([0-9]{1,3}) %"),
    "Min": re.compile(r"([0-9]{1,3}) %"),
    "Avg": re.compile(r"([0-9]{1,3}) %"),
}


@dataclass(frozen=True)
class Buffer:
    """What one GPU's buffer tells: the highest utilization, 0 to 100, of the last ``seconds``."""

    seconds: float
    max_percent: float


def read_buffers(lines: Iterable[str]) -> tuple[Buffer | None, ...]:
    """Return each GPU's buffer, in the order in which nvidia-smi lists them; None where it is unsupported."""
    found: list[dict[str, list[str]]] = []
    within = False
    for line in lines:
        if _GPU.fullmatch(line.rstrip()):
            found.append({})
            within = False
        elif found and line.rstrip() == _TITLE:
            within = True
        else:
            name, colon, value = line.partition(": ")
            within = within and bool(colon) and line.startswith(_INDENT) and line[len(_INDENT)] != " "
            if within:
                found[-1].setdefault(name.strip(), []).append(value.strip())
    return tuple(_buffer(values) for values in found)


def _buffer(values: dict[str, list[str]]) -> Buffer | None:
    numbers = {}
    for name, form in _FORMS.items():
        said = values.get(name, [])
        match = form.fullmatch(said[0]) if len(said) == 1 else None
        if match is None:
            return None
        numbers[name] = float(match[1])
    seconds, samples, highest = numbers["Duration"], numbers["Number of Samples"], numbers["Max"]
    sensible = 0 < seconds <= LONGEST_SECONDS and 1 <= samples <= MOST_SAMPLES
    if not sensible or not numbers["Min"] <= numbers["Avg"] <= highest <= 100:  # noqa: PLR2004 - a percentage
        return None
    return Buffer(seconds, highest)
