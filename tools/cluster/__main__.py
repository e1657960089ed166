"""`make cluster` and `make cluster-stop`."""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from tools.cluster.build import cache, ensure_component, forget_sources, is_built, one_at_a_time
from tools.cluster.cluster import Cluster, Programs
from tools.cluster.hub import ensure_hub_layers
from tools.cluster.recipes import CLUSTER, DEBIAN, HELM, KUBE_ROUTER, KUBERNETES, KUEUE, KWOK, VOLCANO, Component
from tools.cluster.workspace import ensure_image, ensure_layers
from tools.install import LOG, ROOT
from tools.progress import StepError, Steps, bold, report_failure, run_logged, say

FOLDER = ROOT / ".run" / "cluster"


def main() -> int:
    """Start or stop; 0 when done."""
    parser = argparse.ArgumentParser(prog="python -m tools.cluster", description=__doc__)
    actions = {"build": build, "build-all": build_all, "start": start, "stop": stop, "image": image}
    parser.add_argument("action", choices=actions)
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where the cluster's state lies")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        actions[arguments.action](arguments.folder.resolve())
    except StepError as error:
        report_failure(error)
        return 1
    except subprocess.CalledProcessError as error:
        said = error.stderr.decode() if isinstance(error.stderr, bytes) else error.stderr
        report_failure(StepError(f"`{' '.join(map(str, error.cmd))}` failed: {said or 'what it said stands above'}"))
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def start(folder: Path) -> None:
    """Start a cluster in ``folder``, building what is missing, and say how to use it."""
    cluster = Cluster.load(folder)
    if cluster and cluster.runs:
        raise StepError(f"A cluster runs already, as {cluster.kubeconfig} tells. `make cluster-stop` ends it.")
    cluster = launch(folder, Steps())
    say(f"\nKubernetes {KUBERNETES.version} runs, with one node. The machine is {cluster.host_address} to its pods.\n")
    say(f"    {bold(f'{folder}/kubectl get pods --all-namespaces')}")
    say(f"    {bold(f'{folder}/ctr --namespace k8s.io images import --local FILE.tar')}   for pods that pull Never")
    say(f"    kubeconfig: {cluster.kubeconfig}")
    say("    make cluster-stop ends it, and leaves nothing")


def launch(folder: Path, steps: Steps) -> Cluster:
    """Start a cluster in ``folder``, where none runs, building what is missing.

    Raises:
        StepError: it did not start.
    """
    if os.geteuid() != 0:
        raise StepError("A cluster needs root, for namespaces and containers: run it by sudo.")
    if left := Cluster.load(folder):  # the machine was switched off under it
        left.stop()
    shutil.rmtree(folder, ignore_errors=True)
    programs = _programs(steps)
    forget_sources()
    cluster = Cluster(folder)
    with steps.step("Cluster"):
        cluster.start(programs)
    return cluster


def stop(folder: Path) -> None:
    """End the cluster in ``folder``."""
    cluster = Cluster.load(folder)
    if not cluster:
        say(f"No cluster runs in {folder}.")
        return
    cluster.stop()
    say("The cluster has ended.")


def build(_folder: Path) -> None:
    """Build what `make test` needs of a cluster, and start none."""
    _build((KUEUE, HELM))


def build_all(_folder: Path) -> None:
    """Build also what only `make test-all` needs: Volcano, fake nodes and network policies."""
    _build((KUEUE, HELM, KWOK, KUBE_ROUTER, VOLCANO))


def _build(components: Iterable[Component]) -> None:
    steps = Steps()
    _programs(steps)
    for component in components:
        _component(steps, component)
    forget_sources()
    with steps.step("Images of hub and workspaces", streams=True):
        ensure_layers()
        ensure_hub_layers()


def image(folder: Path) -> None:
    """Give the cluster in ``folder`` the image of its workspaces, with this checkout's package, and say its name."""
    cluster = Cluster.load(folder)
    if not (cluster and cluster.runs):
        raise StepError("No cluster runs: `make cluster` starts one.")
    say(cluster.give_image(ensure_image(folder)))


def _programs(steps: Steps) -> Programs:
    with steps.step("Programs from Debian"):
        _ensure_debian()
    built = {component.name: _component(steps, component) for component in CLUSTER}
    return Programs(pause=_ensure_pause(), **built)


def _component(steps: Steps, component: Component) -> Path:
    first = not is_built(component)
    with steps.step(f"{component.name} {component.version}", streams=first):
        return ensure_component(component)


def _ensure_debian() -> None:
    missing = {name: package for name, package in DEBIAN.items() if not shutil.which(name)}
    if not missing:
        return
    remedy = f"The cluster needs {' '.join(missing)}: install Debian's packages {' '.join(missing.values())}."
    if not shutil.which("apt-get"):
        raise StepError(remedy)
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    packages = [word for package in missing.values() for word in package.split()]
    for arguments in (["update"], ["install", "--yes", "--no-install-recommends", *packages]):
        run_logged(["apt-get", *arguments], LOG, remedy, env=env)


def _ensure_pause() -> Path:
    source = Path(__file__).with_name("pause.c")
    done = cache() / "pause"
    if not done.exists() or done.stat().st_mtime < source.stat().st_mtime:
        with one_at_a_time("pause"):
            partial = cache() / "pause.partial"
            subprocess.run(["gcc", "-static", "-Os", "-s", "-o", partial, source], check=True)
            partial.rename(done)
    return done


if __name__ == "__main__":
    sys.exit(main())
