"""Bad days of the database: it is locked for minutes, or its disk is full. Nobody is stopped, nothing is lost."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from bad_store import locked, nothing_is_lost
from harness.programs import require_namespaces

SMALL_DISK = 'mount -t tmpfs -o size=2m none "$1" && exec "$2" "$3" "$1"'


@pytest.mark.parametrize("kept_in", ["sqlite"], indirect=True)  # its file is used
async def test_a_locked_database_costs_nothing(machine):
    await nothing_is_lost(machine, locked(machine.folder), "database is locked")


def test_a_full_disk_costs_nothing(tmp_path):
    """On a disk of 2 MB, in a name space of its own: anybody may mount there."""
    require_namespaces()
    script = Path(__file__).with_name("bad_store.py")
    own = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", SMALL_DISK, "sh"]
    played = subprocess.run(
        [*own, tmp_path, sys.executable, script],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert played.returncode == 0, played.stdout + played.stderr
