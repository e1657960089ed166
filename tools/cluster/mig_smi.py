"""Output of ``nvidia-smi`` in a container with MIG devices, from the stand-in and as seen on real machines.

The board is listed with the devices below it; its utilization is ``[N/A]``, and its memory is not for a container to
read. Only the standard library: it runs in the container.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence

STAND_IN = "/opt/nvidia-simulated/gpuspawner/backends/local/standin/run.py"
DEVICES = "GPUSPAWNER_SIMULATED_MIG"
"""The variable that holds a container's MIG devices: "profile=UUID" with commas between."""
SAID = {"mig.mode.current": "Enabled", "mig.mode.pending": "Enabled"}


def main(arguments: Sequence[str]) -> int:
    """Print what the stand-in prints, as a MIG board would; return its exit code."""
    done = subprocess.run(
        [sys.executable, "-I", "-S", STAND_IN, *arguments], capture_output=True, text=True, check=False
    )
    sys.stderr.write(done.stderr)
    lines = done.stdout.splitlines()
    query = next((word.partition("=")[2].split(",") for word in arguments if word.startswith("--query-gpu=")), None)
    if query and done.returncode == 0:
        header = [] if any("noheader" in word for word in arguments) else lines[:1]
        lines = header + [mend(query, line.split(", ")) for line in lines[len(header) :]]
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    if "-L" in arguments or "--list-gpus" in arguments:
        for number, device in enumerate(os.environ[DEVICES].split(",")):
            profile, _, uuid = device.partition("=")
            sys.stdout.write(f"  MIG {profile:<15} Device {number:>2}: (UUID: {uuid})\n")
    return done.returncode


def mend(query: Sequence[str], cells: Sequence[str]) -> str:
    """Return a line of values as a container with MIG devices sees it."""
    hidden = {"memory": "[Insufficient Permissions]", "utilization": "[N/A]"}
    return ", ".join(
        SAID.get(field, hidden.get(field.partition(".")[0], cell)) for field, cell in zip(query, cells, strict=True)
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
