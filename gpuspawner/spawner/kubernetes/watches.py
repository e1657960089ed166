"""KubeSpawner's watches, made to continue through each failure of the API server and to remember deleted pods.

KubeSpawner's own watches give up after 51 s without an API server, and then show the last state forever. A watch whose
first list fails shows no pod at all: a hub that started at that time would believe that every workspace has ended.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any
from weakref import WeakValueDictionary

from kubespawner.reflector import ResourceReflector
from kubespawner.spawner import EventReflector, PodReflector
from traitlets import validate

from gpuspawner.spawner.kubernetes.pod_states import short

MAX_REMEMBERED = 1000
"""Maximum number of remembered deleted pods. Arbitrary: the hub asks for each within a minute."""
RETRY_SECONDS = (0.2, 0.5, 1.0, 2.0, 5.0)
"""Intervals between attempts of the first list. Until it succeeds the hub does not know which workspaces run."""


class LastingWatch(ResourceReflector):
    """A watch of KubeSpawner that never gives up. ``trouble`` is why nothing has been listed yet, or ""."""

    def __init__(self, **kwargs: Any) -> None:
        """Watch as KubeSpawner does, but do not end the hub after a failure."""
        super().__init__(**{**kwargs, "on_failure": None})
        if getattr(self.parent, "gpu_in_cluster", None) is not None:
            self.api = self.parent.api  # KubeSpawner uses the client of the hub's own cluster
        self.trouble = ""

    async def start(self) -> None:
        """List until it succeeds, then watch. A refused list is repeated too: rights may be granted later."""
        tries = 0
        while True:
            try:
                await self._list_and_update()
                break
            except Exception as error:  # noqa: BLE001 - any error of the client for an unreachable server
                self.trouble = short(str(error) or type(error).__name__).rstrip(".")
                wait_seconds = RETRY_SECONDS[min(tries, len(RETRY_SECONDS) - 1)]
                self.log.warning(
                    "%s cannot be listed (%s); next attempt in %s s", self.kind, self.trouble, wait_seconds
                )
                await asyncio.sleep(wait_seconds)
                tries += 1
        self.trouble = ""
        self.watch_task = asyncio.create_task(self._watch_and_update())

    async def _list_and_update(self, resource_version: str | None = None) -> str:  # noqa: ARG002 - its own is too old
        """List the current state and return its version.

        KubeSpawner accepts any list that is not older than its last list. One of several API servers may be behind the
        watch: a pod that it does not know yet would count as deleted, and would be ended.
        """
        version: str = await super()._list_and_update(None)
        return version

    async def _watch_and_update(self) -> None:
        """Watch as KubeSpawner does, and start again whenever it gives up."""
        try:
            while not self._stopping:
                try:
                    await super()._watch_and_update()
                except Exception:
                    self.log.exception("watching %s failed", self.kind)
                if not self._stopping:
                    self.log.warning("%s are not watched now; next attempt in %s s", self.kind, RETRY_SECONDS[-1])
                    await asyncio.sleep(RETRY_SECONDS[-1])
        except asyncio.CancelledError:
            if not self._stopping:  # `stop` awaits this task and expects no exception
                raise


class EventWatch(LastingWatch, EventReflector):
    """KubeSpawner's watch of events."""


class PodMemory(LastingWatch, PodReflector):
    """KubeSpawner's watch of pods. It tells changes at once and remembers how deleted pods were observed last."""

    def __init__(self, **kwargs: Any) -> None:
        """Watch as KubeSpawner does."""
        self.gone: OrderedDict[str, Mapping[str, Any]] = OrderedDict()
        # An event without waiters is dropped.
        self._changes: WeakValueDictionary[str, asyncio.Event] = WeakValueDictionary()
        super().__init__(**kwargs)

    def next_change(self, key: str) -> asyncio.Event:
        """Return an event that is set once the pod ``namespace/name`` is made, changed or gone."""
        return self._changes.setdefault(key, asyncio.Event())

    def note_change(self, key: str) -> None:
        """Wake those who wait for a change of this pod."""
        if change := self._changes.pop(key, None):
            change.set()

    def note_gone(self, key: str, pod: Mapping[str, Any]) -> None:
        """Remember the last state of the pod ``namespace/name``."""
        self.gone[key] = pod
        self.gone.move_to_end(key)
        while len(self.gone) > MAX_REMEMBERED:
            self.gone.popitem(last=False)

    @validate("resources")
    def _remember(self, proposal: Mapping[str, Any]) -> dict[str, Any]:
        """Take a new list: pods that are missing in it were deleted while the watch was broken."""
        listed = _Pods(proposal["value"])
        listed.memory = self
        for key, pod in self._trait_values.get("resources", {}).items():
            if key not in listed:
                self.note_gone(key, pod)
        for key in tuple(self._changes):
            self.note_change(key)
        return listed


class _Pods(dict[str, Any]):
    """The existing pods by ``namespace/name``, which tell their memory each change."""

    memory: PodMemory

    def __setitem__(self, key: str, pod: Any) -> None:
        super().__setitem__(key, pod)
        self.memory.note_change(key)

    def pop(self, key: str, default: Any = None) -> Any:
        if key in self:
            self.memory.note_gone(key, self[key])
        pod = super().pop(key, default)
        self.memory.note_change(key)
        return pod


WATCHES: Mapping[str, type[LastingWatch]] = {"pods": PodMemory, "events": EventWatch}
"""Replacements of KubeSpawner's own watches, by kind."""
