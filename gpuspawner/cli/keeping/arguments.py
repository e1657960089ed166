"""What ``gpuspawner store`` takes."""

from __future__ import annotations

import os
from typing import Any

from gpuspawner.cli.serving.serve_arguments import VARIABLE, Adder, add_store_address


def add_store(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser("store", help="back up, restore or look at what the service keeps")
    actions = parser.add_subparsers(required=True, metavar="ACTION")
    backing = actions.add_parser("backup", help="write a backup, also while the service works")
    backing.add_argument("file", metavar="FILE", help="where to write it; - prints it")
    backing.add_argument("--force", action="store_true", help="replace FILE where it is there")
    backing.set_defaults(run="gpuspawner.cli.keeping.store:backup")
    restoring = actions.add_parser("restore", help="put a backup back, while hub and service have ended")
    restoring.add_argument("file", metavar="FILE", help="the backup; - reads it")
    restoring.set_defaults(run="gpuspawner.cli.keeping.store:put_back")
    checking = actions.add_parser("check", help="say what this version would change in it")
    checking.add_argument("--json", action="store_true", help="print JSON")
    checking.set_defaults(run="gpuspawner.cli.keeping.store:check")
    copying = actions.add_parser("copy", help="copy it to an empty PostgreSQL; hub and service have ended")
    copying.set_defaults(run="gpuspawner.cli.keeping.copy:copy")
    for one in (checking, copying):
        add_store_address(Adder(one))
    given = os.environ.get(f"{VARIABLE}DATA", "gpuspawner-data")
    for one in (backing, restoring, checking, copying):
        one.add_argument("--data", metavar="DIR", default=given, help="the service's folder (default: %(default)s)")
