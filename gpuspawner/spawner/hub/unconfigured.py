"""Refuses a hub whose spawner class is ours and whose configuration never called ``configure()``."""

from __future__ import annotations

import sys
from typing import Any

from gpuspawner.spawner.hub.checks import hub_starts

REFUSAL = """\
gpuspawner: c.JupyterHub.spawner_class is {name}, and configure() was not called. Add these lines at the end of \
jupyterhub_config.py, and set no spawner class behind them:

    from gpuspawner.spawner import configure

    configure(c, catalog="catalog.yaml")

The command `gpuspawner server init catalog.yaml` writes the catalog."""


_configured: list[type] = []
"""The spawner classes that ``configure()`` wrapped in this process: the hub merges its configuration only later."""


def note_configured(spawner: type) -> None:
    """Record that ``configure()`` was called, and which class it made of the one that was set."""
    _configured.append(spawner)


def watch_hub(ours: type) -> None:
    """Have the hub that starts refuse a spawner class of ours that was not configured, whatever name names it.

    JupyterHub creates a spawner for each start. Without this the hub runs, and each spawn page answers 500. The hub
    loads our entry point before it has an application to observe, so the check is in its setting itself.

    Args:
        ours: the class of which every spawner that needs ``configure()`` is made.
    """
    if "jupyterhub.app" not in sys.modules:
        return  # no hub, or one that imports this module to configure it
    setting = sys.modules["jupyterhub.app"].JupyterHub.class_traits()["spawner_class"]
    validate = setting.validate

    def refuse(hub: Any, value: Any) -> Any:
        found = validate(hub, value)
        if not _configured and issubclass(found, ours) and hub_starts():
            raise SystemExit(REFUSAL.format(name=found.__name__))
        return found

    setting.validate = refuse
