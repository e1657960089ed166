"""GPUs of the node: a base class for GPUs that pods request, and one for GPUs that pods claim."""

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


DRIVER_PROCESS = "dra-driver"
DRIVER = "gpu.nvidia.com"
API = "resource.k8s.io/v1"
PUBLISHED_SECONDS = 90
"""The longest that a kubelet on a busy machine takes to know a driver, and the driver to publish its devices."""
Json = dict[str, Any]


class NodeClaims(ABC):
    """The node's GPUs that are claimed. ``uuids`` are those of the whole GPUs, in the order of their devices."""

    def __init__(self, cluster: Cluster, uuids: Sequence[str]) -> None:
        self.cluster, self.uuids, self.extended = cluster, tuple(uuids), ""
        self.log = cluster.log(DRIVER_PROCESS)

    @abstractmethod
    def taint(self, number: int) -> None:
        """Let a GPU fail, by its number: the driver taints it."""

    @abstractmethod
    def mend(self, number: int) -> None:
        """Make a failed GPU work again."""

    @abstractmethod
    def _command(self) -> list[str]:
        """Return the driver's command, with all written that it reads."""

    def start(self) -> None:
        """Start the driver and wait until the cluster knows its devices.

        Raises:
            StepError: it does not in time, with the driver's log.
        """
        self._remove()
        self._apply(*self._classes())
        self.start_driver()

    def start_driver(self) -> None:
        """Start the driver; one that runs is ended before, with its devices."""
        self._end_driver()
        self.cluster.kubectl("delete", "resourceslice", "--all", "--ignore-not-found")
        self.cluster.start_process(DRIVER_PROCESS, self._command())
        deadline = time.monotonic() + PUBLISHED_SECONDS
        while not self._is_published():
            if time.monotonic() > deadline:
                raise StepError(f"The DRA driver published nothing for {PUBLISHED_SECONDS} s.", self.log)
            time.sleep(ASKED_SECONDS)

    def serve(self, resource: str) -> None:
        """Let pods ask for whole GPUs by an extended resource as well; "" removes it."""
        self.extended = resource
        self._apply(*self._classes())

    def stop(self) -> None:
        """Take the GPUs away."""
        self._remove()

    def _remove(self) -> None:
        self._end_driver()
        self.cluster.kubectl("delete", "resourceslice", "--all", "--ignore-not-found")
        self.cluster.kubectl("delete", "deviceclass", "--all", "--ignore-not-found")

    def _is_published(self) -> bool:
        """Return whether the cluster knows the devices."""
        return bool(self.cluster.kubectl("get", "resourceslices", "--output=name").strip())

    def _classes(self) -> list[Json]:
        classes = []
        for name, kind in ((DRIVER, "gpu"), ("mig.nvidia.com", "mig")):
            is_of = f"device.driver == '{DRIVER}' && device.attributes['{DRIVER}'].type == '{kind}'"
            spec: Json = {"selectors": [{"cel": {"expression": is_of}}]}
            if kind == "gpu" and self.extended:
                spec["extendedResourceName"] = self.extended
            classes.append({"apiVersion": API, "kind": "DeviceClass", "metadata": {"name": name}, "spec": spec})
        return classes

    def _apply(self, *objects: Json) -> None:
        file = self.cluster.folder / "claimed-objects.json"
        file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)}))
        self.cluster.kubectl("apply", f"--filename={file}")

    def _end_driver(self) -> None:
        known = Cluster.load(self.cluster.folder)
        if known and DRIVER_PROCESS in known.processes:
            self.cluster.stop_process(DRIVER_PROCESS)
        for socket in (f"plugins_registry/{DRIVER}-reg.sock", f"plugins/{DRIVER}/dra.sock"):
            (self.cluster.folder / "lib" / "kubelet" / socket).unlink(missing_ok=True)  # the kubelet forgets it
        self.log.unlink(missing_ok=True)
