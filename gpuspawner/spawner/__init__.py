"""What JupyterHub loads: the mixin over any spawner class, the form, and the client of the service.

Belongs here: turning a form into a request, waiting for a lease with progress, applying its patch, reporting the end.
Never here: policy. Which GPU, how long, who waits and who is stopped is the service's to say.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from gpuspawner.spawner.configure import configure
from gpuspawner.spawner.hub.unconfigured import watch_hub

if TYPE_CHECKING:
    from gpuspawner.spawner.kubernetes.spawner import GPUSpawner
    from gpuspawner.spawner.mixin import GPUSpawnerMixin, LocalGPUSpawner

__all__ = ["GPUSpawner", "GPUSpawnerMixin", "LocalGPUSpawner", "configure"]

_MODULES = {
    "GPUSpawner": "gpuspawner.spawner.kubernetes.spawner",  # it needs an extra of the package
    "GPUSpawnerMixin": "gpuspawner.spawner.mixin",
    "LocalGPUSpawner": "gpuspawner.spawner.mixin",
}


def __getattr__(name: str) -> Any:
    """Return a spawner class. A hub that takes one without ``configure()`` refuses to start."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    mixin = import_module("gpuspawner.spawner.mixin").GPUSpawnerMixin
    watch_hub(lambda spawner: issubclass(spawner, mixin))
    return getattr(import_module(_MODULES[name]), name)
