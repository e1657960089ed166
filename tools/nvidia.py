"""NVIDIA's simulated driver: NVIDIA's own programs on a machine without a GPU, or on a node of the test cluster.

NVIDIA publishes an NVML library that answers from a file (NVIDIA/k8s-test-infra). The real ``nvidia-smi``, device
plugin, GPU Feature Discovery and DRA driver load it and believe it. Library and programs are in a folder outside of the
repository, which ``GPUSPAWNER_NVIDIA`` names. ``make run NVIDIA=a100`` and the tests use this module. It needs the
standard library only.

Two ways to get a driver, both with the same files below one folder and the same control of its state:

- ``SimulatedDriver.on_machine``: for processes of this machine, with either version of ``nvidia-smi``.
- ``SimulatedDriver.on_node``: the driver root that NVIDIA's components on Kubernetes take.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from tools.cluster.build import cache, one_at_a_time
from tools.install import ROOT
from tools.progress import StepError

VARIABLE = "GPUSPAWNER_NVIDIA"
DEFAULT = ROOT.parent / "shared" / "nvidia"
PROGRAMS = ("nvml-mock-ctl",)
LIBRARY = "lib-health/libnvidia-ml.so.550.163.01"
"""NVIDIA's simulated NVML with two repairs: a waiting health check sees failures, and events name no GPU instance."""
CUDA = "lib/libcuda.so.550.163.01"
_DEVICE = re.compile(r'- index: (\d+)\s+uuid: "([^"]+)".*?bus_id: "([^"]+)".*?minor_number: (\d+)', re.DOTALL)
_NAMESPACE = """
devices=$1; shift
new=$devices/device-files
mkdir -p "$new"
mount -t tmpfs -o mode=755 dev "$new"
for name in null zero full random urandom tty; do
    touch "$new/$name"; mount --bind "/dev/$name" "$new/$name"
done
for name in pts shm; do mkdir "$new/$name"; mount --rbind "/dev/$name" "$new/$name"; done
cp -P /dev/fd /dev/stdin /dev/stdout /dev/stderr "$new"
ln -s pts/ptmx "$new/ptmx"
for device in "$devices"/dev/nvidia*; do
    touch "$new/${device##*/}"; mount --bind /dev/null "$new/${device##*/}"
done
mount --rbind "$new" /dev
mount --bind "$devices/proc-driver" /proc/driver
exec "$@"
"""
"""Run a command where the driver's device files are in /dev, and in /proc which file is which GPU."""


class Release(NamedTuple):
    """A version of the driver: Debian's suite that has its ``nvidia-smi``, and what the driver says of itself."""

    suite: str
    driver: str
    cuda: str


RELEASES = {
    "535": Release("bookworm", "535.261.03", "12.2"),
    "550": Release("trixie", "550.163.01", "12.4"),
}


def find_files(environment: Mapping[str, str] = os.environ, programs: Sequence[str] = PROGRAMS) -> Path:
    """Return the folder with NVIDIA's simulated library and these programs.

    Raises:
        StepError: it is not there; says in one sentence how to get it.
    """
    folder = Path(environment.get(VARIABLE) or DEFAULT)
    if any(not (folder / name).exists() for name in (LIBRARY, "get-nvidia-smi", *(f"bin/{one}" for one in programs))):
        raise StepError(
            f"NVIDIA's simulated driver is not in {folder}: build it as CONTRIBUTING.md says, and name its folder by "
            f"{VARIABLE}."
        )
    return folder.resolve()


def profiles(files: Path) -> list[str]:
    """Return the names of the machines that can be simulated, for example ``a100``."""
    return sorted(file.stem for file in (files / "profiles").glob("*.yaml"))


def most_gpus(files: Path, profile: str) -> int:
    """Return how many GPUs a machine of ``profiles`` has.

    Raises:
        StepError: there is no such profile.
    """
    return len(_devices_of(_profile(files, profile), None))


def ensure_nvidia_smi(files: Path, suite: str) -> Path:
    """Return NVIDIA's own ``nvidia-smi`` of a Debian suite. The first call downloads it into the cache.

    Raises:
        StepError: it can't be fetched; says why.
    """
    done = cache() / f"nvidia-smi-{suite}"
    if not done.exists():
        with one_at_a_time(done.name):
            partial = done.with_name(f"{done.name}.partial")
            _run(
                [files / "get-nvidia-smi", partial, suite], f"NVIDIA's nvidia-smi can't be fetched from Debian {suite}"
            )
            if not done.exists():
                partial.rename(done)
    return done / suite / "nvidia-smi"


@dataclass(frozen=True)
class SimulatedDriver:
    """A simulated driver below ``folder``. Programs see a change of its state within a second."""

    files: Path
    folder: Path

    @classmethod
    def on_machine(
        cls,
        files: Path,
        folder: Path,
        profile: str = "a100",
        gpus: int | None = None,
        release: str = "550",
        **system: str,
    ) -> SimulatedDriver:
        """Make a driver for processes of this machine.

        Args:
            files: of ``find_files``.
            folder: what is made goes there.
            profile: of ``profiles``.
            gpus: how many of the profile's GPUs. None: all, 8 or 4.
            release: of ``RELEASES``: which ``nvidia-smi``, and what the driver says of itself.
            system: other values than the release's for ``driver_version`` and ``cuda_version``.

        Raises:
            StepError: there is no such profile, or ``nvidia-smi`` can't be fetched.
        """
        version = RELEASES[release]
        system = {"driver_version": version.driver, "cuda_version": version.cuda, **system}
        driver = cls(files, folder)
        driver._write_configuration(profile, gpus, system)
        program = ensure_nvidia_smi(files, version.suite)
        libraries, programs, devices = driver.libraries, driver.programs, folder / "dev"
        for path in (libraries, programs, devices):
            path.mkdir(parents=True, exist_ok=True)
        for name, file in (("libnvidia-ml.so.1", LIBRARY), ("libcuda.so.1", CUDA)):
            _link(libraries / name, files / file)
        write_wrapper(programs / "nvidia-smi", program, driver.variables)
        write_wrapper(programs / "nvml-mock-ctl", files / "bin" / "nvml-mock-ctl", driver.variables)
        for name in ("nvidiactl", "nvidia-uvm", *(f"nvidia{minor}" for *_, minor in driver._devices())):
            (devices / name).touch()
        return driver

    @classmethod
    def on_node(cls, files: Path, folder: Path, profile: str = "a100", gpus: int | None = None) -> SimulatedDriver:
        """Make the driver root that NVIDIA's device plugin and DRA driver take. Root alone can: it has device files.

        Raises:
            StepError: it can't be made; says why.
        """
        smi = ensure_nvidia_smi(files, "bookworm")
        (folder / "smi").mkdir(parents=True, exist_ok=True)
        shutil.copytree(smi.parent, folder / "smi" / "bookworm", dirs_exist_ok=True)
        count = len(_devices_of(_profile(files, profile), gpus))
        _run([files / "driver-root", folder, profile, str(count)], "The driver root can't be made")
        return cls(files, folder)

    @property
    def configuration(self) -> Path:
        """The file from which the library answers."""
        return self.folder / "config" / "config.yaml"

    @property
    def overrides(self) -> Path:
        """The file of what was changed since."""
        return self.folder / "config" / "overrides.yaml"

    @property
    def libraries(self) -> Path:
        """The folder of the libraries."""
        return self.folder / "usr" / "lib64"

    @property
    def programs(self) -> Path:
        """The folder of ``nvidia-smi``, to be put on a PATH."""
        return self.folder / "usr" / "bin"

    @property
    def variables(self) -> dict[str, str]:
        """Environment variables for a program that loads the library, for example Python with nvidia-ml-py."""
        return {
            "LD_LIBRARY_PATH": str(self.libraries),
            "MOCK_NVML_CONFIG": str(self.configuration),
            "MOCK_NVML_OVERRIDES": str(self.overrides),
        }

    def environment(self, base: Mapping[str, str] = os.environ) -> dict[str, str]:
        """Return an environment in which programs find ``nvidia-smi`` and the library."""
        path = f"{self.programs}{os.pathsep}{base.get('PATH', os.defpath)}"
        return {**base, **self.variables, "PATH": path}

    @property
    def uuids(self) -> tuple[str, ...]:
        """The GPUs' UUIDs, by index."""
        return tuple(uuid for _, uuid, _, _ in self._devices())

    def control(self, *arguments: str) -> None:
        """Change the state by ``nvml-mock-ctl``.

        Raises:
            StepError: it refused; says why.
        """
        command: list[str | Path] = [self.files / "bin" / "nvml-mock-ctl", *arguments]
        _run(command, f"nvml-mock-ctl {' '.join(arguments)}", {**os.environ, **self.variables})

    def set_utilization(self, percent: int, gpu: int | str = "all") -> None:
        """Make a GPU, by its index, busy to the given percentage."""
        self.control("util", "--gpu", str(gpu), str(percent))

    def set_values(self, gpu: int | str = "all", **values: object) -> None:
        """Set values of the profile, with ``__`` for a point: ``memory__used_bytes=2**30``."""
        self.control("set", "--gpu", str(gpu), *(f"{key.replace('__', '.')}={value}" for key, value in values.items()))

    def fail(self, mode: str, gpu: int | str = "all", xid: int | None = None) -> None:
        """Let a GPU fail: ``lost``, ``fallen_off_bus`` or ``ecc_uncorrectable``, with an Xid event or without."""
        event = () if xid is None else ("--xid", str(xid))
        self.control("fail", "--gpu", str(gpu), "--mode", mode, *event)

    def reset(self, gpu: int | str = "all") -> None:
        """Undo every change."""
        self.control("reset", "--gpu", str(gpu))

    def remove_library(self) -> None:
        """Take the driver away: no program can load the library any more."""
        for path in self.libraries.glob("libnvidia-ml.so*"):
            path.unlink()

    def with_devices(self, command: Sequence[str | Path]) -> list[str]:
        """Return the command so that it and its children have the device files in /dev, and can hold them open.

        The machine's own /dev stays as it is. Another such command has its own files: a process that holds one is a
        holder only for probes that the same command started.
        """
        user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
        own = ["unshare", *user, "--mount", "--propagation", "private", "sh", "-ec", _NAMESPACE, "sh"]
        return [*own, str(self.folder), *map(str, command)]

    def can_show_devices(self) -> bool:
        """Whether this user may run commands ``with_devices``."""
        try:
            return subprocess.run(self.with_devices(["true"]), check=False, capture_output=True).returncode == 0
        except OSError:  # no unshare
            return False

    def _devices(self) -> list[tuple[str, str, str, str]]:
        text = self.configuration.read_text()
        count = re.search(r"^  num_devices: (\d+)", text, re.MULTILINE)
        assert count is not None
        return _devices_of(text, int(count[1]))

    def _write_configuration(self, profile: str, gpus: int | None, system: Mapping[str, str]) -> None:
        text = _profile(self.files, profile)
        devices = _devices_of(text, gpus)
        for key, value in {**system, **_cuda_parts(system["cuda_version"])}.items():
            text = re.sub(rf"^  {key}:.*$", f"  {key}: {value}", text, count=1, flags=re.MULTILINE)
        text = text.replace("\nsystem:\n", f"\nsystem:\n  num_devices: {len(devices)}\n", 1)
        self.configuration.parent.mkdir(parents=True, exist_ok=True)
        self.configuration.write_text(text)
        self.overrides.unlink(missing_ok=True)
        for _, uuid, bus, minor in devices:
            told = self.folder / "proc-driver" / "nvidia" / "gpus" / bus.lower() / "information"
            told.parent.mkdir(parents=True, exist_ok=True)
            told.write_text(f"GPU UUID: \t {uuid}\nBus Location: \t {bus.lower()}\nDevice Minor: \t {minor}\n")


def _profile(files: Path, name: str) -> str:
    """Return the text of a profile. Raise StepError if no profile has this name."""
    source = files / "profiles" / f"{name}.yaml"
    if not source.exists():
        raise StepError(f"{name} is no simulated machine: choose {', '.join(profiles(files))}.")
    return source.read_text()


def _devices_of(text: str, gpus: int | None) -> list[tuple[str, str, str, str]]:
    """Return index, UUID, bus address and minor number of the first GPUs of a configuration, of all for None."""
    found = _DEVICE.findall(text)
    if gpus is not None and not 0 < gpus <= len(found):
        raise StepError(f"{gpus} GPUs were asked for: this simulated machine has 1 to {len(found)}.")
    return found[:gpus]


def _run(command: Sequence[str | Path], what: str, environment: Mapping[str, str] | None = None) -> None:
    """Run a command. Raise StepError with ``what`` and what it said where it fails."""
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=environment)
    if done.returncode:
        raise StepError(f"{what}: {done.stderr.strip() or done.stdout.strip()}")


def _cuda_parts(version: str) -> dict[str, str]:
    major, minor = version.split(".")
    quoted = {"cuda_version": f'"{version}"'}
    return {**quoted, "cuda_version_major": major, "cuda_version_minor": minor}


def _link(path: Path, target: Path) -> None:
    path.unlink(missing_ok=True)
    path.symlink_to(target)


def write_wrapper(path: Path, program: Path, variables: Mapping[str, str]) -> None:
    """Write a script that runs a program with these variables: a hub passes on PATH alone."""
    values = " ".join(f"{name}={shlex.quote(value)}" for name, value in variables.items())
    path.write_text(f'#!/bin/sh\n{values} exec {shlex.quote(str(program))} "$@"\n')
    path.chmod(0o755)
