"""``gpuspawner store copy``: from the folder's file to a database elsewhere."""

from __future__ import annotations

import argparse
import sys
import time
from functools import partial
from pathlib import Path

from gpuspawner.cli.errors import INVALID, REFUSED
from gpuspawner.cli.keeping.store import used_by
from gpuspawner.core.errors import Conflict, Unavailable
from gpuspawner.service.store.backup import DATABASE
from gpuspawner.service.store.copying import copy_store

TOLD_SECONDS = 1.0


def copy(arguments: argparse.Namespace) -> int:
    """Copy it, say how far it is, and what to do next."""
    data, password = Path(arguments.data), arguments.store_password_file
    if not arguments.store:
        print("--store is missing: where to copy it, such as postgresql://USER@HOST/DATABASE.", file=sys.stderr)
        return INVALID
    try:
        where = arguments.store, Path(password) if password else None
        counts = copy_store(data, *where, partial(used_by, data), _Progress())
    except Conflict as error:
        print(error, file=sys.stderr)
        return REFUSED
    except (Unavailable, ValueError) as error:
        print(error, file=sys.stderr)
        return INVALID
    held = ", ".join(f"{count} {name}" for name, count in counts.items() if count and name != "meta")
    print(
        f"Copied and compared: {held or 'nothing was in it'}. Start the service with --store {arguments.store}, or "
        f"configure(store=...). {data / DATABASE} stays as it is; keep the folder, which has hub id and secret."
    )
    return 0


class _Progress:
    """Says each second how far it is."""

    def __init__(self) -> None:
        self._told_at = time.monotonic()

    def __call__(self, table: str, done: int, of: int) -> None:
        if time.monotonic() - self._told_at >= TOLD_SECONDS:
            self._told_at = time.monotonic()
            print(f"{table}: {done} of {of}", file=sys.stderr, flush=True)
