"""`make bench`: every file of bench/, and every folder that can be run, prints its figures. Nothing fails by time."""

from __future__ import annotations

import os
import subprocess
import sys

from tools.install import ROOT, ensure
from tools.progress import Steps, bold, reports_failures, say

ON_A_CLUSTER = frozenset({"fleet", "sampling", "start_cold", "start_pods"})
"""Benchmarks that start a real Kubernetes. Its first build takes 15 minutes, so they need an existing build."""


@reports_failures
def main() -> int:
    """Run each bench; 1 if one could not run."""
    python = ensure(Steps(), ["run", "test"])
    failed = False
    found = {**os.environ, "PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}"}  # the hub's proxy lies there
    benches = [*(ROOT / "bench").glob("*.py"), *(main.parent for main in (ROOT / "bench").glob("*/__main__.py"))]
    for path in sorted(benches):
        say(f"\n{bold(path.stem)}")
        if path.stem in ON_A_CLUSTER and not (ROOT / ".run" / "cluster").exists():
            say("not run: it needs a cluster. Start one with make cluster, then run make bench again.")
            continue
        failed |= subprocess.run([python, path], check=False, cwd=ROOT, env=found).returncode != 0
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
