"""GPUs of the node that pods claim (DRA). NVIDIA's own driver or our stand-in serves them."""

from __future__ import annotations

import json
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from tools.cluster.cluster import ASKED_SECONDS, Cluster
from tools.progress import StepError

PROCESS = "dra-driver"
DRIVER = "gpu.nvidia.com"
API = "resource.k8s.io/v1"
PUBLISHED_SECONDS = 90
"""The longest that a kubelet on a busy machine takes to know a driver, and the driver to publish its devices."""
Json = dict[str, Any]


class NodeClaims(ABC):
    """The node's GPUs that are claimed. ``uuids`` are those of the whole GPUs, in the order of their devices."""

    def __init__(self, cluster: Cluster, uuids: Sequence[str]) -> None:
        self.cluster, self.uuids, self.extended = cluster, tuple(uuids), ""
        self.log = cluster.log(PROCESS)

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
        self.cluster.start_process(PROCESS, self._command())
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
        if known and PROCESS in known.processes:
            self.cluster.stop_process(PROCESS)
        for socket in (f"plugins_registry/{DRIVER}-reg.sock", f"plugins/{DRIVER}/dra.sock"):
            (self.cluster.folder / "lib" / "kubelet" / socket).unlink(missing_ok=True)  # the kubelet forgets it
        self.log.unlink(missing_ok=True)
