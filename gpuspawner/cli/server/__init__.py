"""``gpuspawner server``: set up, check and run the hub's GPU service."""

from __future__ import annotations

import click

from gpuspawner.cli.base import LazyGroup

COMMANDS = {
    "init": ("adoption.init:init", "Write a first catalog of the GPUs of this machine or a cluster."),
    "import": ("adoption.profiles.command:import_profiles", "Make a catalog of KubeSpawner's profiles."),
    "check": ("cli.server.check:check", "Check a catalog: every error at once, with file, line and remedy."),
    "serve": ("cli.server.serve:serve", "Run the service. Usually the hub starts it."),
    "store": ("cli.server.store:store", "Back up, restore, check, copy or re-encrypt the service's store."),
    "simulate": ("cli.server.simulate:simulate", "Replay recorded or generated sessions against a draft policy."),
    "doctor": ("adoption.doctor.command:doctor", "Examine hub, service and cluster, and say what to repair."),
}


@click.group("server", cls=LazyGroup, lazy=COMMANDS)
def server() -> None:
    """Set up, check and run the hub's GPU service."""
