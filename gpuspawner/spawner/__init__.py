"""The part that JupyterHub loads: the mixin over any spawner class, the form, and the client of the service.

Belongs here: turning a form into a request, waiting for a lease with progress, applying its patch, reporting the end.
Never here: policy. The service decides which GPU, how long, who waits and who is stopped.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from gpuspawner.spawner.configure import configure
from gpuspawner.spawner.hub.settings import refuse_without_package

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
    """Return a spawner class. Each is imported only when it is needed."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        module = import_module(_MODULES[name])
    except ModuleNotFoundError as error:
        refuse_without_package(name, error)
        raise
    return getattr(module, name)
