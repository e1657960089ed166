"""What the hub's configuration holds so far."""

from __future__ import annotations

from typing import Any

from traitlets.config.loader import LazyConfigValue


def written_in(section: Any, name: str, default: Any) -> Any:
    """Return what the configuration holds, also where it was only added to, as by ``c.JupyterHub.services.append``."""
    value = section.get(name, default)
    return value.get_value(default) if isinstance(value, LazyConfigValue) else value
