"""Real environments in which the probe runs: shells, users, limits, mounts and drivers that images have.

Each is made here, in namespaces of its own, with NVIDIA's real ``nvidia-smi`` on NVIDIA's simulated driver. The folder
``probe_outputs`` keeps what the probe printed in each. To record them again, as root:

    PYTHONPATH=. python tests/backends/probe_environments.py
    PYTHONPATH=. python tests/backends/probe_environments.py driver-418 PROGRAM

The first records all environments that have a suite. The ``nvidia-smi`` of driver 418 is in Debian's package
nvidia-tesla-418-smi of bullseye.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from gpuspawner.backends.probes.script import script
from tools.nvidia import SimulatedDriver, ensure_nvidia_smi, find_files

OUTPUTS = Path(__file__).parent / "probe_outputs"
USER, OTHER = 1000, 1001
"""The workspace's user, and another one."""
AS_USER = f"setpriv --reuid {USER} --regid {USER} --clear-groups"
PARAMETERS = {
    "GPUSPAWNER_PROBE_PIDS": "all",
    "GPUSPAWNER_PROBE_READINGS": "2",
    "GPUSPAWNER_PROBE_PAUSE": "0",
    "GPUSPAWNER_PROBE_DEVICES": "/dev/nvidia[0-9]*",
}
HOLDS = 'setpriv --reuid {0} --regid {0} --clear-groups sh -c "exec {1} 600 </dev/nvidia{2}" &'
"""Start a process of this user (0) and program (1) that holds a GPU (2)."""
NAMESPACE = 'mount -t proc -o "$0" proc /proc; exec "$@"'
PROGRAMS = ("cat", "ls", "sleep", "stat", "date")


@dataclass(frozen=True)
class Environment:
    """One environment.

    Attributes:
        name: of its file in ``probe_outputs``.
        holders: (user, program, GPU) of each process that holds a GPU.
        shell: the command of the shell that runs the probe.
        run: a command before it: as which user, with which capabilities and limits.
        hides: the ``hidepid`` of /proc.
        suite: Debian's suite whose ``nvidia-smi`` is used; "" if no suite has it in a package of that name.
        busybox: whether the image has the tools of busybox alone.
    """

    name: str
    holders: tuple[tuple[int, str, int], ...] = ((USER, "sleep", 0),)
    shell: str = "dash"
    run: str = AS_USER
    hides: int = 0
    suite: str = "trixie"
    busybox: bool = False


NO_CAPABILITIES = f"{AS_USER} --no-new-privs --bounding-set -all"
ENVIRONMENTS = (
    Environment("dash"),
    Environment("busybox", shell="busybox sh", busybox=True),
    Environment("bash", shell="bash --posix"),
    Environment("soft-limit-of-8-files", run=f"prlimit --nofile=8:1024 {AS_USER}"),
    Environment("hard-limit-of-8-files", run=f"prlimit --nofile=8:8 {AS_USER}"),
    Environment("hidepid", holders=((USER, "sleep", 0), (OTHER, "sleep", 1)), hides=2),
    Environment("hidepid-as-root", holders=((USER, "sleep", 0), (OTHER, "sleep", 1)), hides=2, run=""),
    Environment("no-capabilities", holders=((USER, "sleep", 0), (USER, "undumpable", 0)), run=NO_CAPABILITIES),
    Environment("root-start", run="setpriv --bounding-set -sys_ptrace --inh-caps -sys_ptrace"),
    Environment("own-nvidia-smi", holders=((USER, "nvidia-smi", 0),)),
    Environment("driver-470", suite="bullseye"),
    Environment("driver-418", suite=""),
)


def run_probe(environment: Environment, folder: Path, program: Path | None = None) -> str:
    """Return the output of the probe in an environment.

    Args:
        environment: one of ``ENVIRONMENTS``.
        folder: an empty one that every user can read.
        program: another ``nvidia-smi`` than that of the environment's suite.
    """
    files = find_files()
    driver = SimulatedDriver.on_machine(files, folder, gpus=2)
    driver.set_values(0, memory__used_bytes=2**30)
    tools, programs = folder / "tools", folder / "programs"
    tools.mkdir()
    programs.mkdir()
    shutil.copy(program or ensure_nvidia_smi(files, environment.suite), tools / "real-nvidia-smi")
    variables = " ".join(f"{name}='{value}'" for name, value in driver.variables.items())
    (tools / "nvidia-smi").write_text(f'#!/bin/sh\n{variables} exec {tools}/real-nvidia-smi "$@"\n')
    (tools / "nvidia-smi").chmod(0o755)
    path = f"{tools}:{os.environ['PATH']}"
    if environment.busybox:
        for name in ("busybox", *PROGRAMS):
            (tools / name).symlink_to("/usr/bin/busybox")
        path = str(tools)
    for name, mode in (("sleep", 0o755), ("nvidia-smi", 0o755), ("undumpable", 0o711)):
        shutil.copy("/bin/sleep", programs / name)
        (programs / name).chmod(mode)  # the kernel protects a process whose program its user may not read
    started = [HOLDS.format(user, programs / name, gpu) for user, name, gpu in environment.holders]
    up = f'until [ "$(ls -l /proc/[0-9]*/fd | grep -c "> /dev/nvidia")" = {len(started)} ]; do sleep 0.01; done'
    parameters = " ".join(f"{name}='{value}'" for name, value in {**PARAMETERS, "PATH": path}.items())
    probe = f"{environment.run} env -i {parameters} {environment.shell} -s"
    inside = driver.with_devices(["sh", "-c", "\n".join((*started, f"({up}) </dev/null 2>/dev/null", probe, ""))])
    outside = ["unshare", "--pid", "--mount", "--fork", "--kill-child", "--propagation", "private", "sh", "-ec"]
    command = [*outside, NAMESPACE, f"hidepid={environment.hides}", *inside]
    done = subprocess.run(command, input=script(), capture_output=True, check=True, timeout=60)
    return done.stdout.decode()


def main(name: str = "", program: str = "") -> None:
    """Record the output of the probe, in all environments or in one."""
    for environment in ENVIRONMENTS:
        if environment.name == name or (not name and environment.suite):
            with tempfile.TemporaryDirectory() as folder:
                Path(folder).chmod(0o755)
                text = run_probe(environment, Path(folder), Path(program) if program else None)
            (OUTPUTS / f"{environment.name}.txt").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
