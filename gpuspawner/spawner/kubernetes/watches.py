"""KubeSpawner's watches, which go on whatever the API server does, and remember the pods that go.

KubeSpawner's own give up after 51 s without an API server, and then show for ever what they saw last; one whose first
list fails shows no pod at all, and a hub that started meanwhile would take every workspace for ended.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from kubespawner.reflector import ResourceReflector
from kubespawner.spawner import EventReflector, PodReflector
from traitlets import validate

from gpuspawner.spawner.kubernetes.pod_states import short

MOST = 1000
"""Deleted pods remembered. Arbitrary: the hub asks for each within a minute."""
AGAIN_SECONDS = (0.2, 0.5, 1.0, 2.0, 5.0)
"""Between tries of the first list. As long as it fails no workspace is known to run or not: soon is better."""


class LastingWatch(ResourceReflector):
    """A watch of KubeSpawner's that never gives up. ``trouble`` says why nothing was listed yet, "" otherwise."""

    def __init__(self, **kwargs: Any) -> None:
        """Watch as KubeSpawner says, but for what it does on failure: it ends the hub."""
        super().__init__(**{**kwargs, "on_failure": None})
        if getattr(self.parent, "gpu_in_cluster", None) is not None:
            self.api = self.parent.api  # KubeSpawner takes the client of the hub's own cluster
        self.trouble = ""

    async def start(self) -> None:
        """List, however long that takes, then follow. A refusal is waited out too: rights come, and come back."""
        tries = 0
        while True:
            try:
                await self._list_and_update()
                break
            except Exception as error:  # noqa: BLE001 - whatever the client makes of a server that is away
                self.trouble = short(str(error) or type(error).__name__).rstrip(".")
                wait_seconds = AGAIN_SECONDS[min(tries, len(AGAIN_SECONDS) - 1)]
                self.log.warning("%s are not listed (%s): again in %s s", self.kind, self.trouble, wait_seconds)
                await asyncio.sleep(wait_seconds)
                tries += 1
        self.trouble = ""
        self.watch_task = asyncio.create_task(self._watch_and_update())

    async def _list_and_update(self, resource_version: str | None = None) -> str:  # noqa: ARG002 - its own is too old
        """List what there is now, and return its version.

        KubeSpawner takes any list that is no older than its last one. Of several API servers one may lag behind what
        the watch has shown since: a pod that it does not know yet would be taken for gone, and ended.
        """
        version: str = await super()._list_and_update(None)
        return version

    async def _watch_and_update(self) -> None:
        """Follow as KubeSpawner does, again each time that it gives up."""
        try:
            while not self._stopping:
                try:
                    await super()._watch_and_update()
                except Exception:
                    self.log.exception("watching %s failed", self.kind)
                if not self._stopping:
                    self.log.warning("%s are not watched now: again in %s s", self.kind, AGAIN_SECONDS[-1])
                    await asyncio.sleep(AGAIN_SECONDS[-1])
        except asyncio.CancelledError:
            if not self._stopping:  # `stop` awaits this task, and wants it to end well
                raise


class EventWatch(LastingWatch, EventReflector):
    """KubeSpawner's watch over events."""


class PodMemory(LastingWatch, PodReflector):
    """KubeSpawner's watch over the pods, which keeps the last look of those that go."""

    def __init__(self, **kwargs: Any) -> None:
        """Watch as KubeSpawner says."""
        self.gone: OrderedDict[str, Mapping[str, Any]] = OrderedDict()
        super().__init__(**kwargs)

    def note_gone(self, key: str, pod: Mapping[str, Any]) -> None:
        """Keep how the pod ``namespace/name`` looked last."""
        self.gone[key] = pod
        self.gone.move_to_end(key)
        while len(self.gone) > MOST:
            self.gone.popitem(last=False)

    @validate("resources")
    def _remember(self, proposal: Mapping[str, Any]) -> dict[str, Any]:
        """A new list: what it lacks went while nobody watched."""
        known = _Pods(proposal["value"])
        known.memory = self
        for key, pod in self._trait_values.get("resources", {}).items():
            if key not in known:
                self.note_gone(key, pod)
        return known


class _Pods(dict[str, Any]):
    """The pods there are, by ``namespace/name``; one that the watch takes out is noted."""

    memory: PodMemory

    def pop(self, key: str, default: Any = None) -> Any:
        if key in self:
            self.memory.note_gone(key, self[key])
        return super().pop(key, default)


WATCHES: Mapping[str, type[LastingWatch]] = {"pods": PodMemory, "events": EventWatch}
"""What stands for KubeSpawner's own, by what is watched."""
