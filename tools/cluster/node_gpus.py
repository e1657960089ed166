"""GPUs of the real node, as tests and the demo use them. NVIDIA's own programs or our stand-in serve them."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tools.cluster.cluster import ASKED_SECONDS, Cluster
from tools.cluster.settings import NODE
from tools.progress import StepError, say

PROCESS = "device-plugin"
OFFERED_SECONDS = 90
"""The longest that a kubelet on a busy machine takes to count its devices again."""
STANDIN = Path(__file__).with_name("device_plugin.py")


class NodeGpus(ABC):
    """The node's GPUs, all of one model.

    ``uuids`` are those of the whole GPUs, and ``resource`` is what pods ask for: ``number`` of it are offered. ``tool``
    is the node's ``nvidia-smi``, which is mounted into pods.

    Args:
        cluster: one that `make cluster` started.
        uuids: of the GPUs.
        resource: the resource name, for example "nvidia.com/gpu".
        number: how many devices of the resource the node offers.
        tool: the node's ``nvidia-smi``.
        python: the one with grpcio and protobuf, which the kubelet's device interface is spoken in.
    """

    def __init__(
        self,
        cluster: Cluster,
        uuids: Sequence[str],
        resource: str,
        number: int,
        tool: Path,
        python: str | Path = sys.executable,
    ) -> None:
        self.cluster = cluster
        self.uuids = tuple(uuids)
        self.resource = resource
        self.resources = {resource}
        self.number = number
        self.tool = tool
        self.python = str(python)
        self.labels: dict[str, str] = {}

    @property
    @abstractmethod
    def words(self) -> str:
        """Description of the GPUs for people."""

    @abstractmethod
    def set_health(self, uuid: str, *, healthy: bool) -> None:
        """Let a GPU fail, or mend it."""

    @abstractmethod
    def set_utilization(self, uuid: str, percent: int) -> None:
        """Make a GPU busy to the given percentage; 0 makes it idle."""

    @abstractmethod
    def _command(self) -> list[str]:
        """Return the device plugin's command, with all written that it reads."""

    @abstractmethod
    def _read_labels(self) -> dict[str, str]:
        """Return the labels that the node gets."""

    def start(self) -> None:
        """Give the node its GPUs in place of those that it may have had, and wait until the kubelet offers them.

        If another run gave it some, their end is waited for.

        Raises:
            StepError: the kubelet does not offer them in time, with its log.
        """
        self.lock = (self.cluster.folder / "gpus.lock").open("w")
        try:
            fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("the node's GPUs are in use by another run: waiting for its end ... ", end="")
            fcntl.flock(self.lock, fcntl.LOCK_EX)
        self.start_plugin()
        self.label()
        self.wait_for_number(self.number)

    def stop(self) -> None:
        """Take the GPUs away. The kubelet keeps those of an ended plugin for five minutes, so an empty one serves."""
        settings = self.cluster.folder / "no-gpus.json"
        settings.write_text(json.dumps({"resources": dict.fromkeys(sorted(self.resources), ())}))
        self.end_plugin()
        self.cluster.start_process(PROCESS, [self.python, str(STANDIN), str(settings)])
        for resource in self.resources:
            self.wait_for_number(0, "capacity", resource)
        self.end_plugin()
        self.remove_labels()
        self.lock.close()

    def start_plugin(self) -> None:
        """Start the device plugin; one that runs is ended before."""
        self.end_plugin()
        self.cluster.start_process(PROCESS, self._command())

    def end_plugin(self) -> None:
        """End the device plugin as a crash would."""
        known = Cluster.load(self.cluster.folder)
        if known and PROCESS in known.processes:
            self.cluster.stop_process(PROCESS)

    def hang_plugin(self) -> None:
        """Let the device plugin answer nothing. Once it is ended, the node throws out the pods that waited for it."""
        known = Cluster.load(self.cluster.folder)
        if known:
            os.kill(known.processes[PROCESS], signal.SIGSTOP)

    def label(self) -> None:
        """Label the node."""
        self.labels = self._read_labels()
        self._patch_labels(self.labels)

    def remove_labels(self) -> None:
        """Take the labels away."""
        self._patch_labels(dict.fromkeys(self.labels))

    def wait_for_number(self, number: int, of: str = "allocatable", resource: str = "") -> None:
        """Wait until the node offers ``number`` GPUs; with "capacity", until it has that number, healthy or not.

        ``resource`` is another one than their own.

        Raises:
            StepError: it does not in time, with the kubelet's log.
        """
        resource = resource or self.resource
        deadline = time.monotonic() + OFFERED_SECONDS
        while (found := int(self._node()["status"][of].get(resource, 0))) != number:
            if time.monotonic() > deadline:
                message = f"After {OFFERED_SECONDS} s the node offers {found} {resource}, not {number}."
                raise StepError(message, self.cluster.log("kubelet"))
            time.sleep(ASKED_SECONDS)

    def _node(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.cluster.kubectl("get", "node", NODE, "--output=json"))
        return found

    def _patch_labels(self, labels: Mapping[str, str | None]) -> None:
        patch = json.dumps({"metadata": {"labels": labels}})
        self.cluster.kubectl("patch", "node", NODE, "--type=merge", f"--patch={patch}")
