"""``gpuspawner server init``: a first catalog of the GPUs that this machine, or a cluster, has."""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path

from gpuspawner.cli.adopting.draft import render
from gpuspawner.cli.adopting.found import Finding, to_draft
from gpuspawner.cli.adopting.running_hub import REMEDY, running_hubs, warning_of
from gpuspawner.cli.adopting.write import Refused, write_catalog
from gpuspawner.cli.errors import AWAY, INVALID, REFUSED
from gpuspawner.core.errors import GpuspawnerError, Unavailable


def init(arguments: argparse.Namespace) -> int:
    """Write a catalog; say what was found, what a person must decide, and what comes next."""
    try:
        finding = _of_cluster(arguments) if arguments.kubernetes else _of_machine()
        write_catalog(arguments.file, render(to_draft(finding)), force=arguments.force)
    except Refused as error:
        print(error, file=sys.stderr)
        return REFUSED
    except ImportError as error:
        print(f"{error.name} is not installed: pip install '.[kubernetes]' in a checkout.", file=sys.stderr)
        return INVALID
    except GpuspawnerError as error:
        way = " Or name another way there: --kubeconfig FILE, --context NAME." if arguments.kubernetes else ""
        print(f"{error}{way}", file=sys.stderr)
        return AWAY if isinstance(error, Unavailable) else REFUSED
    for line in _report(finding, arguments.file):
        print(line, file=sys.stderr if arguments.file == "-" else sys.stdout)
    for hub in running_hubs():
        if hub.ends_servers is not False:
            print(f"{warning_of(hub)} {REMEDY}", file=sys.stderr)
    return 0


def _report(finding: Finding, file: str) -> list[str]:
    found = ", ".join(one.words for one in finding.gpus) or "no GPU"
    lines = [f"Found on {finding.where}: {found}.", *finding.told]
    if file == "-":
        return lines
    after = f'configure(c, catalog="{Path(file).absolute()}")'
    return [
        *lines,
        f"{file} is written: it records what it would stop, and stops nothing that is idle (mode: observe).",
        (
            f"Next: decide what its comments ask, gpuspawner server check {file}, and put {after} last into the hub's "
            "configuration. The profiles that you have become templates by gpuspawner server import."
        ),
    ]


def _of_machine() -> Finding:
    from gpuspawner.cli.adopting import of_machine  # noqa: PLC0415 - where it is asked

    return of_machine.find()


def _of_cluster(arguments: argparse.Namespace) -> Finding:
    from gpuspawner.backends.kubernetes.api import Api  # noqa: PLC0415 - an extra of the package
    from gpuspawner.cli.adopting.cluster import settings_of  # noqa: PLC0415
    from gpuspawner.cli.adopting.of_cluster import of_nodes  # noqa: PLC0415

    async def asked() -> Finding:
        api = Api(settings_of(arguments.kubeconfig, arguments.context))
        try:
            return of_nodes(await api.listed("/api/v1/nodes"))
        finally:
            await api.close()

    return asyncio.run(asked())
