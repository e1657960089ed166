"""`gpuspawner kube secret` where no cluster is: what it does in one is tried in tests/cluster."""

import subprocess
import sys

from rendered import ROOT


def test_outside_a_pod_it_says_where_it_runs():
    command = [sys.executable, "-m", "gpuspawner.cli", "kube", "secret", "make", "gpuspawner-secret"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False, timeout=60)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("This runs in a pod with a service account, as the chart's Jobs do (")
