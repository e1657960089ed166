"""The parser over what real machines printed."""

from __future__ import annotations

import pytest

from gpuspawner.backends.base import ProbeResult
from gpuspawner.backends.probe import parse_probe
from gpuspawner.backends.probe_rows import MIB

COLUMNS = (
    "index",
    "uuid",
    "name",
    "mig.mode.current",
    "utilization.gpu [%]",
    "memory.used [MiB]",
    "memory.total [MiB]",
    "persistence_mode",
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
    assert gpu.memory_used_bytes == int(bare[5]) * MIB
    assert gpu.memory_total_bytes == int(bare[6]) * MIB
    if real["mig.mode.current"] == "Enabled":
        assert gpu.utilization_percent is None
        assert "[N/A]" in gpu.problem
    else:
        assert gpu.utilization_percent == int(bare[4])


def test_values_with_units_are_not_believed(h200: dict[str, list[str]]) -> None:
    header, row = h200["load :: query-gpu (csv, what the exporter parses)"][:2]
    real = dict(zip(header.split(", "), row.split(", "), strict=True))
    line = "smi " + ", ".join(real[name] for name in COLUMNS)
    text = f"gpuspawner-probe 1 begin\nclock 9.00 100\nreading 0\n{line}\ngpuspawner-probe 1 end\n"
    sample, _ = parse_probe(ProbeResult(text), (real["uuid"],), None, interval_seconds=60, age_seconds=600)
    assert sample.gpus[0].utilization_percent is None
    assert "100 %" in sample.gpus[0].problem
