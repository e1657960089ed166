"""Refuses a hub whose spawner class is ours and whose configuration never called ``configure()``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from traitlets.config import Application

from gpuspawner.spawner.hub.one_hub import hub_starts

SETTING, SECTION = "gpu_read_catalog", "GPUSpawnerMixin"
"""What ``configure()`` always sets, and where."""
REFUSAL = """\
gpuspawner: c.JupyterHub.spawner_class is {name}, and configure() was not called. Add these lines at the end of \
jupyterhub_config.py, and set no spawner class behind them:

    from gpuspawner.spawner import configure

    configure(c, catalog="catalog.yaml")

The command `gpuspawner server init catalog.yaml` writes the catalog."""


def watch_hub(is_ours: Callable[[type], bool]) -> None:
    """Have the hub that starts refuse a spawner class of ours that was not configured, as soon as it is set.

    JupyterHub creates a spawner for each start. Without this the hub runs, and each spawn page answers 500.

    Args:
        is_ours: whether a spawner class needs ``configure()``.
    """
    if not hub_starts():
        return

    def refuse(change: Any) -> None:
        written = change.owner.config.get(SECTION, {})
        if isinstance(change.new, type) and is_ours(change.new) and SETTING not in written:
            raise SystemExit(REFUSAL.format(name=change.new.__name__))

    Application.instance().observe(refuse, "spawner_class")
