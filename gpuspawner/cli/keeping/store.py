"""``gpuspawner store``: backups and checks, on the machine, or in the pod, where the folder is."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from dataclasses import asdict
from functools import partial
from pathlib import Path

from gpuspawner import __version__
from gpuspawner.cli.errors import INVALID, REFUSED
from gpuspawner.core.errors import Conflict, Unavailable
from gpuspawner.core.units import show_bytes
from gpuspawner.service.standby import LOOK_SECONDS, SILENT_SECONDS
from gpuspawner.service.store import Store
from gpuspawner.service.store.backup import (
    DATABASE,
    SECRET,
    back_up,
    check_not_elsewhere,
    condition_of_folder,
    restore,
)
from gpuspawner.service.store.condition import Condition, condition_of_server
from gpuspawner.service.store.schema import newer_words
from gpuspawner.spawner.hub.one_hub import holder

STDOUT = "-"


def backup(arguments: argparse.Namespace) -> int:
    """Write a backup: whole, or not at all."""
    data, target = Path(arguments.data), arguments.file
    try:
        check_not_elsewhere(data)
        if target == STDOUT:
            names = back_up(data, sys.stdout.buffer)
        else:
            names = _to_file(data, Path(target), force=arguments.force)
    except Conflict as error:
        print(error, file=sys.stderr)
        return REFUSED
    except Unavailable as error:
        print(error, file=sys.stderr)
        return INVALID
    words = f"Backed up {', '.join(names)} of {data}"
    if SECRET in names:
        words += ". It holds the secret of hub and service: keep it as you keep passwords"
    print(f"{words}.", file=sys.stderr if target == STDOUT else sys.stdout)
    return 0


def _to_file(data: Path, target: Path, *, force: bool) -> tuple[str, ...]:
    if target.exists() and not force:
        raise Conflict(f"{target} is there, and was not changed. Name another, - to print, or --force to replace it.")
    half = target.with_name(f"{target.name}.half")
    try:
        with os.fdopen(os.open(half, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as out:
            names = back_up(data, out)
            out.flush()
            os.fsync(out.fileno())
        half.replace(target)
    finally:
        half.unlink(missing_ok=True)
    return names


def put_back(arguments: argparse.Namespace) -> int:
    """Restore a backup, and say what follows."""
    data = Path(arguments.data)
    try:
        with sys.stdin.buffer if arguments.file == STDOUT else Path(arguments.file).open("rb") as source:
            kept = restore(source, data, partial(used_by, data))
    except Conflict as error:
        print(error, file=sys.stderr)
        return REFUSED
    except Unavailable as error:
        print(error, file=sys.stderr)
        return INVALID
    print(f"{data} has the store of the backup.{f' The one of before is {kept}.' if kept else ''}")
    print(
        "Start hub and service: workspaces that run are adopted, those that ended since the backup end in it too, and "
        "who began to wait since then asks again."
    )
    return 0


def used_by(data: Path) -> str:
    """Return who uses the folder, "" for nobody: by the hub's lock, and by the beats of a service of its own."""
    if who := holder(data):
        return f"A hub uses {data}: {who}. End it first: it would go on with the store of before."
    if not (data / DATABASE).exists():
        return ""
    store = Store(f"sqlite:///{data / DATABASE}")
    try:
        seen = store.seen_owner()
        until = time.monotonic() + SILENT_SECONDS
        while seen[1] and time.monotonic() < until:
            time.sleep(LOOK_SECONDS)
            if store.seen_owner() != seen:
                return f"A service works on {data}. End it first: it would go on with the store of before."
    except Unavailable:  # damaged: that is why a backup is restored
        return ""
    finally:
        store.close()
    return ""


def _password_file(arguments: argparse.Namespace) -> Path | None:
    return Path(arguments.store_password_file) if arguments.store_password_file else None


def _condition(arguments: argparse.Namespace) -> Condition:
    if arguments.store:
        return condition_of_server(arguments.store, _password_file(arguments))
    return condition_of_folder(Path(arguments.data))


def check(arguments: argparse.Namespace) -> int:
    """Say what the store is, what this version would change in it, and whether there is a way back."""
    try:
        found = _condition(arguments)
    except (Unavailable, ValueError) as error:
        print(error, file=sys.stderr)
        return INVALID
    if arguments.json:
        named = {"store": arguments.store} if arguments.store else {"file": str(Path(arguments.data) / DATABASE)}
        print(json.dumps({**named, **asdict(found)}, indent=1))
    else:
        print("\n".join(_told(found, arguments)))
    return INVALID if found.is_newer else 0


def _told(found: Condition, arguments: argparse.Namespace) -> list[str]:
    store = arguments.store or Path(arguments.data) / DATABASE
    backed_up = (
        f"pg_dump --format=custom --dbname={store}"
        if arguments.store
        else f"gpuspawner store backup FILE --data {arguments.data}"
    )
    held = f"{found.live} live workspaces, {found.ended} that ended, {show_bytes(found.size_bytes)}"
    is_whole = "" if arguments.store else "whole, "  # PostgreSQL's own programs tell that of its files
    lines = [f"{store}: {is_whole}schema {found.revision or 'none yet'} ({held})."]
    if found.is_newer:
        return [*lines, newer_words(found.revision, found.newest, found.opened_by)]
    if not found.migrations:
        return [*lines, f"gpuspawner {__version__} changes nothing in it. Versions of the same schema share it."]
    lines += [
        f"gpuspawner {__version__} brings it to schema {found.newest} when its service first starts:",
        *(f"  {one.revision}  {one.what}" for one in found.migrations),
    ]
    if found.revision:
        lines += [
            "All that is in it is kept. An older version does not serve the new schema. Back it up before:",
            f"  {backed_up}",
        ]
    return lines
