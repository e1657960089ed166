"""The package tried on the Python of Debian's next release, for those that this machine has not yet.

    python -m tools.next_debian     as root, with mmdebstrap: builds the wheel, and runs the main job with it there

The release is a folder, `.run/debian-next`, made once (one minute, 0.4 GB). Its programs see this checkout
read-only in its place.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from tools.install import LOG, ROOT, VENV
from tools.package import DIST, build
from tools.progress import StepError, Steps, reports_failures, run_logged, say

RELEASE = "forky"
FOLDER = ROOT / ".run" / "debian-next"
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
TRY = """
import os, sys
sys.path.insert(0, {root!r})
from tools import install, package
package.LOG = install.LOG = package.Path("/tmp/log/try.log")
print(package.try_on(sys.executable, package.Path({wheel!r})))
"""


@reports_failures
def main() -> int:
    """Try it; 0 where the main job was done."""
    steps = Steps()
    with steps.step("Wheel and source archive"):
        wheel, _ = build(DIST)
    with steps.step(f"Debian's next release, {RELEASE} (a minute the first time)"):
        made(FOLDER)
    with steps.step("The main job on its Python", streams=True):
        say(f"     {tried(FOLDER, wheel)}")
    return 0


def made(folder: Path) -> None:
    """Make the release's root folder, where it is not there. Raises StepError."""
    if (folder / "made").exists():
        return
    shutil.rmtree(folder, ignore_errors=True)
    command: list[str | Path] = ["mmdebstrap", "--quiet", "--variant=minbase"]
    # A mirror may keep weeks-old files of a release that is not out yet.
    command += ["--aptopt=Acquire::Check-Valid-Until false", "--include=python3,python3-venv,ca-certificates,nodejs"]
    run_logged([*command, RELEASE, folder], LOG, "mmdebstrap made no folder: it must be installed, and run by root.")
    if CERTIFICATES.exists():  # this machine's: its package index may be known by them alone
        shutil.copy(CERTIFICATES, folder / CERTIFICATES.relative_to("/"))
    node = Path(shutil.which("node") or "/usr/bin/node")  # where the proxy of .venv looks for it
    inside = folder / node.relative_to("/")
    if not inside.exists():
        inside.parent.mkdir(parents=True, exist_ok=True)
        inside.symlink_to("/usr/bin/node")
    (folder / ROOT.relative_to("/")).mkdir(parents=True)
    (folder / "made").touch()


def tried(folder: Path, wheel: Path) -> str:
    """Return the result of the main job, with its Python version. Raises StepError."""
    of_checkout = shlex.quote(str(folder / ROOT.relative_to("/")))
    mounts = [
        f"mount --bind {shlex.quote(str(ROOT))} {of_checkout}",
        f"mount -o remount,bind,ro {of_checkout}",
        *(f"mount --rbind /{name} {shlex.quote(str(folder))}/{name}" for name in ("proc", "dev", "sys")),
        f"mount -t tmpfs none {shlex.quote(str(folder))}/tmp",
    ]
    program = TRY.format(root=str(ROOT), wheel=str(wheel))
    inside = ["chroot", str(folder), "/usr/bin/python3", "-c", program]
    script = " && ".join(
        [*mounts, f"cp -L /etc/resolv.conf {shlex.quote(str(folder))}/etc/", f"exec {shlex.join(inside)}"]
    )
    environment = {
        **os.environ,
        "PATH": f"{VENV / 'bin'}:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
        "HOME": "/root",
    }
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", script], check=False, capture_output=True, text=True, env=environment
    )
    version = subprocess.run(
        ["chroot", folder, "/usr/bin/python3", "--version"], check=False, capture_output=True, text=True
    ).stdout.strip()
    if done.returncode:
        raise StepError(f"It failed on {version}:\n{(done.stdout + done.stderr)[-4000:]}")
    return f"{version}: {done.stdout.strip().splitlines()[-1]}"


if __name__ == "__main__":
    sys.exit(main())
