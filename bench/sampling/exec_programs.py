"""The two Go programs of this benchmark. They are rebuilt after a change of their source, in the cluster's cache."""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path

from tools.cluster.build import cache, ensure_go, one_at_a_time, run_with_progress

HERE = Path(__file__).parent
PROGRAMS = ("standin", "client")


def ensure_programs() -> Path:
    """Build them where that is not done yet; return their folder.

    Raises:
        StepError: there is no Go, or they could not be built.
    """
    sources = [HERE / "go.mod", *sorted(HERE.glob("*/*.go"))]
    digest = hashlib.sha256(b"\0".join(path.read_bytes() for path in sources)).hexdigest()[:12]
    done = cache() / f"sampling-{digest}"
    if not done.exists():
        with one_at_a_time(done.name):
            if not done.exists():
                _build(done)
    return done / "bin"


def _build(done: Path) -> None:
    work = done.with_name(f"{done.name}.partial")
    for name in PROGRAMS:
        shutil.copytree(HERE / name, work / name)
    shutil.copy(HERE / "go.mod", work)
    env = {
        **os.environ,
        "CGO_ENABLED": "0",
        "GOFLAGS": "-modcacherw",
        "GOMODCACHE": os.environ.get("GOMODCACHE") or str(work / "mod"),
        "GOCACHE": os.environ.get("GOCACHE") or str(work / "build"),
        "GOWORK": "off",
        "GOTOOLCHAIN": "local",
    }
    command = [ensure_go(), "build", "-v", "-mod=mod", "-trimpath", "-o", f"{work}/bin/"]
    command += [f"./{name}" for name in PROGRAMS]
    run_with_progress("exec programs", command, work / "build.log", env, work)
    for leftover in ("mod", "build"):
        shutil.rmtree(work / leftover, ignore_errors=True)
    work.rename(done)
