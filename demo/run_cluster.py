"""`make run-cluster`: the demo on a real Kubernetes. Hub, proxy and service run in one pod, workspaces in their own.

It starts a cluster where none runs, and ends on Ctrl-C all that it started. Run by any Python from 3.10 on with its
standard library.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from demo import data, processes
from demo.data import Settings
from demo.hub_pod import Hub
from demo.launcher import Asked, Ending, refuse_taken_port, take_lock
from demo.place import Place, a_place
from tools.install import ensure
from tools.progress import StepError, Steps, report_failure, say

COMMAND = "make run-cluster"
LOOK_SECONDS = 0.5


def main() -> int:
    """Run the demo until its end is asked for; 0 then, 1 where it cannot start or the hub ends by itself."""
    ending = Ending()
    ending.listen()
    processes.adopt_orphans()
    try:
        asked = Settings.from_environment(os.environ)
        settings = replace(asked, data=asked.data / "on-cluster")
        with take_lock(settings, COMMAND):
            refuse_taken_port(settings.port, COMMAND)
            try:
                run(settings, asked.data / "cluster", ending)
            except Asked:
                shutil.rmtree(settings.data)
                say("All ended, and nothing is left.")
                return 0
    except Asked:
        return 0
    except StepError as error:
        if isinstance(error.__context__, StepError):  # what was started could not be cleared away after it either
            report_failure(error.__context__)
        report_failure(error)
    return 1


def run(settings: Settings, folder: Path, ending: Ending) -> None:
    """Start everything, say that it runs, watch it until its end is asked for, and clear away what was started.

    Raises:
        StepError: a part did not start, or the hub ended by itself, or something is not gone.
    """
    steps = Steps()
    settings.logs.mkdir(parents=True, exist_ok=True)
    with ExitStack() as started:
        try:
            python = ensure(steps, ["run", "devices"])
            place = started.enter_context(a_place(steps, folder, python, os.environ, settings.nvidia))
            log = started.enter_context((settings.logs / "hub.log").open("w"))
            hub = Hub(place, settings, log)
            if not place.ends:
                started.callback(place.remove, ending.in_a_hurry)
            started.callback(hub.close)
            hub.start(steps)
            say(welcome(settings, data.ensure_passwords(settings), place))
            while True:
                hub.raise_if_ended()
                time.sleep(LOOK_SECONDS)
        finally:
            ending.begun = True
            say("\nEnding what was started. Ctrl-C again to hurry.")


def welcome(settings: Settings, passwords: Mapping[str, str], place: Place) -> str:
    """Return the message that is printed after everything has started."""
    kubectl = data.shown(place.own.folder / "kubectl") if place.own else "kubectl"
    return data.block(
        settings,
        passwords,
        title="gpuspawner runs on Kubernetes, hub and workspaces in pods",
        rows={
            "GPUs": place.gpus,
            "Times": data.pace(settings, COMMAND),
        },
        tries=(
            "As alice, press Start. JupyterLab opens on demo.ipynb: run its cells, and watch the GPU work."
            if place.control is None
            else f"As alice, press Start. Let her GPU work by: {data.shown(place.control)} util --gpu all 64",
            "On the workspace's page, open VS Code instead, or copy the line that opens it by SSH.",
            data.let_it_rest(settings),
            data.QUEUE_BEHIND_ALICE,
            data.AS_ADMIN,
        ),
        more={
            "Pods": f"{kubectl} get pods --namespace {place.namespace}",
            "Log": data.shown(settings.logs / "hub.log"),
        },
    )


if __name__ == "__main__":
    sys.exit(main())
