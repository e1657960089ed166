"""The benchmarks are not a package. This file puts their folder on the import path."""

import sys
from pathlib import Path

BENCH = Path(__file__).parents[2] / "bench"
BACKENDS = Path(__file__).parents[1] / "backends"  # the tests' own API server
sys.path[:0] = [
    str(BENCH),
    *(str(BENCH / name) for name in ("idleness", "sampling", "placement", "queue")),
    str(BACKENDS),
]
