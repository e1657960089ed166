"""The parser over what real machines printed."""

from __future__ import annotations

import pytest

from gpuspawner.backends.base import ProbeResult
from gpuspawner.backends.probes.gpu_tools import read_reports
from gpuspawner.backends.probes.script import parse_probe
from gpuspawner.core.units import MEBIBYTE

COLUMNS = (
    "index",
    "uuid",
    "name",
    "mig.mode.current",
    "utilization.gpu [%]",
    "memory.used [MiB]",
    "memory.total [MiB]",
    "persistence_mode",
    "utilization.encoder [%]",
    "utilization.decoder [%]",
)


@pytest.mark.parametrize("state", ["idle", "load"])
def test_real_values(capture: dict[str, list[str]], state: str) -> None:
    header, row = capture[f"{state} :: query-gpu (csv, what the exporter parses)"][:2]
    real = dict(zip(header.split(", "), row.split(", "), strict=True))
    bare = [real[name].removesuffix(" %").removesuffix(" MiB").removesuffix(" W") for name in COLUMNS]
    text = "\n".join(
        ["gpuspawner-probe 1 begin", "clock 9.00 100", "reading 0", "smi " + ", ".join(bare), "gpuspawner-probe 1 end"]
    )
    sample, _ = parse_probe(ProbeResult(text), (real["uuid"],), None, interval_seconds=60, age_seconds=600)
    (gpu,) = sample.gpus
    assert gpu.memory_used_bytes == int(bare[5]) * MEBIBYTE
    assert gpu.memory_total_bytes == int(bare[6]) * MEBIBYTE
    if real["mig.mode.current"] == "Enabled":
        assert (gpu.utilization_percent, gpu.encoder_percent, gpu.decoder_percent) == (None, None, None)
        assert gpu.problem.startswith("a GPU in MIG mode has no utilization; ")
    else:
        assert gpu.utilization_percent == int(bare[4])
        assert (gpu.encoder_percent, gpu.decoder_percent) == (int(bare[8]), int(bare[9]))
    (report,) = read_reports(capture[f"{state} :: query (-q)"])
    if gpu.encoder_percent is None:
        assert (report.encoder_percent, report.decoder_percent) == (None, None)
    else:  # the two were read one after the other
        assert (report.encoder_percent, report.decoder_percent) == pytest.approx((gpu.encoder_percent, 0), abs=1)


def test_a_video_stream_is_work_though_the_gpu_itself_reads_little(rtx4080: dict[str, list[str]]) -> None:
    """A real RTX 4080 with two streams of ffmpeg: its encoder at 72 %, itself at 7 %."""
    header, row = rtx4080["load :: query-gpu (csv, what the exporter parses)"][:2]
    real = dict(zip(header.split(", "), row.split(", "), strict=True))
    values = ", ".join(real[name].removesuffix(" %").removesuffix(" MiB") for name in COLUMNS)
    text = f"gpuspawner-probe 1 begin\nclock 9.00 100\nreading 0\nsmi {values}\ngpuspawner-probe 1 end\n"
    sample, _ = parse_probe(ProbeResult(text), (real["uuid"],), None, interval_seconds=60, age_seconds=600)
    assert (sample.gpus[0].utilization_percent, sample.gpus[0].highest_percent) == (7.0, 72.0)


def test_values_with_units_are_not_believed(h200: dict[str, list[str]]) -> None:
    header, row = h200["load :: query-gpu (csv, what the exporter parses)"][:2]
    real = dict(zip(header.split(", "), row.split(", "), strict=True))
    line = "smi " + ", ".join(real[name] for name in COLUMNS)
    text = f"gpuspawner-probe 1 begin\nclock 9.00 100\nreading 0\n{line}\ngpuspawner-probe 1 end\n"
    sample, _ = parse_probe(ProbeResult(text), (real["uuid"],), None, interval_seconds=60, age_seconds=600)
    assert sample.gpus[0].utilization_percent is None
    assert "100 %" in sample.gpus[0].problem
