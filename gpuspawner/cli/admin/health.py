"""``gpuspawner admin health``: temperature, power and errors of each GPU."""

from __future__ import annotations

from typing import Any

import click

from gpuspawner.cli import base
from gpuspawner.cli.admin.actions import ask_admin
from gpuspawner.cli.client import Session
from gpuspawner.cli.output import Column, or_dash, print_json, print_table, say


def _amount(unit: str) -> Any:
    return lambda value: "-" if value is None else f"{value:g}{unit}"


COLUMNS = (
    Column("GPU", ("node", "index"), lambda node, index: f"{node}/{index}"),
    Column("STATE", ("state",)),
    Column("TEMPERATURE", ("celsius",), _amount(" °C")),
    Column("POWER", ("watts",), _amount(" W")),
    Column("CLOCK", ("clock_mhz",), _amount(" MHz")),
    Column("CORRECTED", ("corrected_errors",), _amount("")),
    Column("UNCORRECTED", ("uncorrected_errors",), _amount("")),
    Column("XID", ("xid",), _amount("")),
    Column("FAULT", ("fault",), or_dash),
)


@base.command(
    "health",
    examples="""\
gpuspawner admin health
gpuspawner admin health --faulty""",
)
@click.option("--faulty", is_flag=True, help="Show only GPUs that are faulty or in quarantine.")
@base.session_options
def health(session: Session, *, faulty: bool) -> None:
    """Show the temperature, power and errors of each GPU.

    CORRECTED and UNCORRECTED count memory errors since the driver was loaded. To end a quarantine, use
    gpuspawner admin quarantine GPU --lift.
    """
    found = ask_admin(session, "/gpu-health")
    gpus = [one for one in found["gpus"] if not faulty or one["state"] in {"faulty", "quarantined"}]
    if session.as_json:
        print_json({**found, "gpus": gpus})
    elif gpus:
        print_table(COLUMNS, gpus)
    else:
        say("No GPU is faulty." if faulty else "No GPU has been seen yet.")
