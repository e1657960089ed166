"""How pods looked when they were deleted: why one ended is read after it is gone."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from kubespawner.spawner import PodReflector
from traitlets import validate

MOST = 1000
"""Deleted pods remembered. Arbitrary: the hub asks for each within a minute."""


class PodMemory(PodReflector):
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
