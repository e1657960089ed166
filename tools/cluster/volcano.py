"""Volcano on one cluster, as two processes of the machine: its scheduler, and the controller that makes PodGroups."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any

import yaml

from tools.cluster.build import ensure_component
from tools.cluster.cluster import START_SECONDS, Cluster
from tools.cluster.recipes import VOLCANO
from tools.progress import StepError

SCHEDULER, CONTROLLER = "volcano-scheduler", "volcano-controller"
KINDS = ("config/crd/volcano/bases", "config/crd/jobflow/bases")
DEFAULT_QUEUE = "default"
FIRST = {
    "plugins": [{"name": "priority"}, {"name": "gang", "enablePreemptable": False}, {"name": "conformance"}],
}
"""By default, gang forbids preemption of a pod that is a group of its own, as all workspaces are."""
CONFIGURATION = {
    "actions": "enqueue, allocate, preempt, reclaim, backfill",
    "tiers": [
        FIRST,
        {
            "plugins": [
                {"name": "overcommit"},
                {"name": "drf"},
                {"name": "predicates"},
                {"name": "capacity"},
                {"name": "nodeorder"},
            ]
        },
    ],
}
"""As its chart has it, with preemption within a queue and between queues, by what each deserves."""
TAKES_ALL = {
    "actions": "enqueue, allocate, preempt, backfill",
    "tiers": [FIRST, {"plugins": [{"name": "predicates"}, {"name": "nodeorder"}]}],
}
"""Without the action that keeps requests out of the queue while no GPU is free: such requests preempt nothing."""


class Volcano:
    """Volcano of one cluster: installed and started by ``start``."""

    def __init__(self, cluster: Cluster) -> None:
        """Start nothing yet."""
        self.cluster = cluster
        self._file = cluster.folder / "volcano" / "scheduler.conf"

    def start(self) -> None:
        """Build it where that is not done yet, install it, start it, and wait until it has made its default queue.

        Raises:
            StepError: it was not built, or made none.
        """
        programs = ensure_component(VOLCANO)
        kinds = [
            one
            for folder in KINDS
            for file in sorted((programs.parent / folder).glob("*.yaml"))
            for one in yaml.safe_load_all(file.read_text())
            if one
        ]
        text = json.dumps({"apiVersion": "v1", "kind": "List", "items": kinds})
        self.cluster.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", given=text)
        for one in kinds:
            self.cluster.kubectl("wait", "--for=condition=Established", f"crd/{one['metadata']['name']}")
        folder = self._file.parent
        folder.mkdir(parents=True, exist_ok=True)
        self.configure(CONFIGURATION)
        common = [f"--kubeconfig={self.cluster.kubeconfig}", "--leader-elect=false"]
        scheduler = [str(programs / "scheduler"), *common, f"--scheduler-conf={self._file}", "--cache-dumper=false"]
        self.cluster.start_process(SCHEDULER, [*scheduler, f"--plugins-dir={folder}", "--schedule-period=500ms"])
        controllers = "pg-controller,queue-controller"
        program = str(programs / "controller-manager")
        self.cluster.start_process(CONTROLLER, [program, *common, f"--controllers={controllers}"])
        self._wait_until_ready()

    def configure(self, configuration: Mapping[str, Any]) -> None:
        """Have its scheduler decide so: it reads its file again when that is another."""
        partial = self._file.with_suffix(".partial")
        partial.write_text(yaml.safe_dump(dict(configuration)))
        partial.rename(self._file)

    def stop(self) -> None:
        """End both."""
        self.cluster.stop_process(CONTROLLER)
        self.cluster.stop_process(SCHEDULER)

    def _wait_until_ready(self) -> None:
        until = time.monotonic() + START_SECONDS
        while True:
            try:
                state = self.cluster.kubectl(
                    "get", "queues.scheduling.volcano.sh", DEFAULT_QUEUE, "--output=jsonpath={.status.state}"
                )
            except StepError as error:
                state, why = "", str(error)
            else:
                why = f"its queue is {state or 'not looked at yet'}"
            if state == "Open":
                return
            if time.monotonic() > until:
                raise StepError(f"Volcano is not ready after {START_SECONDS} s: {why}", self.cluster.log(SCHEDULER))
            time.sleep(0.2)
