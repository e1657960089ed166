"""JupyterHub's sign-in for services, imported without the hub's own database.

``jupyterhub.scopes`` imports the tables and roles of a hub, and with them Alembic, which a service never needs. They
take as long to import as the rest of JupyterHub's sign-in. Here they are imported when something first uses them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import LazyLoader
from types import ModuleType

DEFERRED = ("jupyterhub.orm", "jupyterhub.roles")


class _DeferringFinder(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        spec = PathFinder.find_spec(fullname, path, target) if fullname in DEFERRED else None
        if spec is not None and spec.loader is not None:
            spec.loader = LazyLoader(spec.loader)
        return spec


@contextmanager
def _deferred_imports() -> Iterator[None]:
    finder = _DeferringFinder()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


with _deferred_imports():
    from jupyterhub.services.auth import HubOAuth, HubOAuthCallbackHandler, HubOAuthenticated

__all__ = ["HubOAuth", "HubOAuthCallbackHandler", "HubOAuthenticated"]
