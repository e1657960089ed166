"""What JupyterHub loads: the mixin over any spawner class, the form, and the client of the service.

Belongs here: turning a form into a request, waiting for a lease with progress, applying its patch, reporting the end.
Never here: policy. Which GPU, how long, who waits and who is stopped is the service's to say.
"""

from gpuspawner.spawner.configure import configure
from gpuspawner.spawner.mixin import GPUSpawnerMixin, LocalGPUSpawner

__all__ = ["GPUSpawnerMixin", "LocalGPUSpawner", "configure"]
