"""What ``nvidia-smi -q -d UTILIZATION`` prints: encoder, decoder, and the driver's sample buffers.

``utilization.gpu`` covers the last second at most. A buffer covers the time between two readings and some time before
them, so several samples may see one burst in it. It can only add work: a driver without buffers, or one that prints
nonsense (a duration of 18446744073709.22 s has been seen), is unsupported, never unknown. All drivers since 390 print
these sections. No real capture has a buffer yet (``data/nvidia-smi``: none ran with ``-d``); ``tests/gpu`` takes one.
``nvidia-smi`` prints no energy counter, so none is read.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

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
