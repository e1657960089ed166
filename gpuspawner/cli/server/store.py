"""``gpuspawner server store``: backup, restore, check, copy and reencrypt, where the folder of the service is."""

from __future__ import annotations

import functools
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, cast

import click

from gpuspawner import __version__
from gpuspawner.cli import base
from gpuspawner.cli.errors import INVALID, InvalidError, RefusedError
from gpuspawner.cli.output import print_json, say, say_lines, say_progress
from gpuspawner.core.errors import Conflict, Unavailable
from gpuspawner.core.units import show_bytes, show_count
from gpuspawner.service.process.serve_options import StartError, secret_in
from gpuspawner.service.process.standby import LOOK_SECONDS, SILENT_SECONDS
from gpuspawner.service.store import Store
from gpuspawner.service.store.database.backup import (
    DATABASE,
    SECRET,
    back_up,
    check_not_elsewhere,
    check_there,
    condition_of_folder,
    restore,
)
from gpuspawner.service.store.database.copying import copy_store
from gpuspawner.service.store.database.dialects import database_of
from gpuspawner.service.store.database.schema import Condition, condition_of_server, newer_words
from gpuspawner.service.store.sealing import reencrypt
from gpuspawner.spawner.hub.settings import describe_lock_holder

F = TypeVar("F", bound=Callable[..., Any])
STDOUT = "-"
PROGRESS_SECONDS = 1.0


@dataclass(frozen=True)
class StoreAddress:
    """The store that a command is for: a file in ``data``, or a database elsewhere."""

    data: Path
    url: str | None = None
    password_file: Path | None = None

    def condition(self) -> Condition:
        """Return the schema and contents of the store. Raises Unavailable and ValueError."""
        if self.url:
            return condition_of_server(self.url, self.password_file)
        return condition_of_folder(self.data)


data_option = click.option(
    "--data",
    metavar="DIR",
    type=base.PATH,
    envvar="GPUSPAWNER_SERVE_DATA",
    default="gpuspawner-data",
    show_default=True,
    help="The service's folder.",
)


_ADDRESS_OPTIONS = base.join_options(
    click.option(
        "--store",
        metavar="URL",
        envvar="GPUSPAWNER_SERVE_STORE",
        help="The database elsewhere: postgresql://USER@HOST/DATABASE.",
    ),
    click.option(
        "--store-password-file",
        metavar="FILE",
        type=base.PATH,
        envvar="GPUSPAWNER_SERVE_STORE_PASSWORD_FILE",
        help="A file with the password for --store.",
    ),
    data_option,
)


def address_options(function: F) -> F:
    """Add --data, --store and --store-password-file. The function gets ``address`` in their place."""

    @functools.wraps(function)
    def run(*, data: Path, store: str | None, store_password_file: Path | None, **options: Any) -> Any:
        return function(address=StoreAddress(data, store, store_password_file), **options)

    return cast("F", _ADDRESS_OPTIONS(run))


@contextmanager
def _errors() -> Iterator[None]:
    """Turn errors of the store into errors of the command."""
    try:
        yield
    except Conflict as error:
        raise RefusedError(str(error)) from error
    except (Unavailable, ValueError) as error:
        raise InvalidError(str(error)) from error


@click.group("store")
def store() -> None:
    """Back up, restore, check, copy or re-encrypt the service's store."""


@store.command("backup", cls=base.Command, examples="gpuspawner server store backup gpu.tar --data gpuspawner-data")
@click.argument("file")
@click.option("--force", is_flag=True, help="Replace FILE if it exists.")
@data_option
def backup(file: str, data: Path, *, force: bool) -> None:
    """Write a backup, also while the service runs.

    FILE is where to write it; - prints it.
    """
    with _errors():
        check_not_elsewhere(data)
        names = back_up(data, sys.stdout.buffer) if file == STDOUT else _back_up_to(Path(file), data, force=force)
    words = f"Backed up {', '.join(names)} of {data}."
    if SECRET in names:
        words += " The backup holds the secret of hub and service. Protect it like a password."
    say_lines(words, to_stderr=file == STDOUT)


def _back_up_to(file: Path, data: Path, *, force: bool) -> tuple[str, ...]:
    """Write the whole file, or nothing."""
    if file.exists() and not force:
        raise Conflict(f"{file} exists and was not changed. Name another file, - to print, or --force to replace it.")
    half = file.with_name(f"{file.name}.half")
    try:
        with os.fdopen(os.open(half, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as out:
            names = back_up(data, out)
            out.flush()
            os.fsync(out.fileno())
        half.replace(file)
    finally:
        half.unlink(missing_ok=True)
    return names


@store.command("restore", cls=base.Command, examples="gpuspawner server store restore gpu.tar --data gpuspawner-data")
@click.argument("file")
@data_option
def put_back(file: str, data: Path) -> None:
    """Restore a backup while hub and service are stopped.

    FILE is the backup; - reads it from standard input.
    """
    with _errors(), sys.stdin.buffer if file == STDOUT else Path(file).open("rb") as source:
        previous = restore(source, data, partial(describe_user, data))
    say(f"{data} has the store of the backup.{f' The previous store is {previous}.' if previous else ''}")
    say(
        "Start hub and service. Workspaces that run are adopted. Workspaces that ended since the backup end in the "
        "store, too. Users who began to wait since the backup request again."
    )


def describe_user(data: Path) -> str:
    """Return which hub or service uses the folder, or "": by the hub's lock, and by the heartbeats of a service."""
    if hub := describe_lock_holder(data):
        return f"A hub uses {data}: {hub}. Stop it first. Otherwise it keeps writing to the previous store."
    if not (data / DATABASE).exists():
        return ""
    opened = Store(f"sqlite:///{data / DATABASE}")
    try:
        seen = opened.seen_owner()
        until = time.monotonic() + SILENT_SECONDS
        while seen[1] and time.monotonic() < until:
            time.sleep(LOOK_SECONDS)
            if opened.seen_owner() != seen:
                return f"A service uses {data}. Stop it first. Otherwise it keeps writing to the previous store."
    except Unavailable:  # the store is damaged, which a restore repairs
        return ""
    finally:
        opened.close()
    return ""


@store.command("check", cls=base.Command, examples="gpuspawner server store check --data gpuspawner-data")
@base.json_option
@address_options
def check(address: StoreAddress, *, as_json: bool) -> int:
    """Print the changes that this version would make in the store."""
    with _errors():
        found = address.condition()
    if as_json:
        where = {"store": address.url} if address.url else {"file": str(address.data / DATABASE)}
        print_json({**where, **asdict(found)})
    else:
        say_lines("\n".join(_describe(found, address)))
    return INVALID if found.is_newer else 0


def _describe(found: Condition, address: StoreAddress) -> list[str]:
    where = address.url or address.data / DATABASE
    contents = f"{found.live} live workspaces, {found.ended} that ended, {show_bytes(found.size_bytes)}"
    is_whole = "" if address.url else "whole, "  # PostgreSQL's own programs check its files
    lines = [f"{where}: {is_whole}schema {found.revision or 'none yet'} ({contents})."]
    if found.is_newer:
        return [*lines, newer_words(found.revision, found.newest, found.opened_by)]
    if not found.migrations:
        return [*lines, f"gpuspawner {__version__} changes nothing in it. Versions of the same schema share it."]
    lines += [
        f"gpuspawner {__version__} brings it to schema {found.newest} when its service first starts:",
        *(f"  {one.revision}  {one.what}" for one in found.migrations),
    ]
    if found.revision:
        command = f"pg_dump --format=custom --dbname={where}"
        if not address.url:
            command = f"gpuspawner server store backup FILE --data {address.data}"
        lines += [
            "Everything in it is kept. An older version does not serve the new schema. Back it up first:",
            f"  {command}",
        ]
    return lines


@store.command(
    "copy",
    cls=base.Command,
    examples="gpuspawner server store copy --data gpuspawner-data --store postgresql://gpu@db.example.org/gpu",
)
@address_options
def copy(address: StoreAddress) -> None:
    """Copy the folder's store to an empty PostgreSQL while hub and service are stopped."""
    if not address.url:
        raise InvalidError("--store is missing. Name the database, for example postgresql://USER@HOST/DATABASE.")
    with _errors():
        in_use = partial(describe_user, address.data)
        counts = copy_store(address.data, address.url, address.password_file, in_use, _Progress())
    copied = ", ".join(f"{count} {name}" for name, count in counts.items() if count and name != "meta")
    say(
        f"Copied and compared: {copied or 'the store was empty'}. Start the service with --store {address.url}, or "
        f"configure(store=...). {address.data / DATABASE} is unchanged. Keep the folder, which has hub id and secret."
    )


@store.command(
    "reencrypt",
    cls=base.Command,
    examples="gpuspawner server store reencrypt --old-secret-file secret.old --data gpuspawner-data",
)
@click.option("--old-secret-file", metavar="FILE", type=base.PATH, required=True, help="The secret until now.")
@click.option("--secret-file", metavar="FILE", type=base.PATH, help="The secret from now on. Default: that of --data.")
@address_options
def reencrypt_secrets(address: StoreAddress, old_secret_file: Path, secret_file: Path | None) -> None:
    """Encrypt the secrets of users with the key of a new secret, also while the service runs."""
    old = _read_secret("--old-secret-file", old_secret_file)
    new = _read_secret("--secret-file", secret_file or address.data / SECRET)
    with _errors():
        if not address.url:
            check_there(address.data / DATABASE)
        url = address.url or f"sqlite:///{address.data / DATABASE}"
        done = reencrypt(database_of(url, address.password_file), old, new)
    say(f"Encrypted {show_count(done.changed, 'secret')} with the new key. {done.unchanged} had it already.")
    if done.unreadable:
        say(
            f"{show_count(done.unreadable, 'secret')} can be decrypted by neither key. Their users must save them "
            "again. The page Secrets says so."
        )


def _read_secret(option: str, path: Path) -> bytes:
    try:
        return secret_in(path)
    except StartError as error:
        raise InvalidError(str(error).replace("--secret-file", option, 1)) from error


class _Progress:
    """Prints once a second how far the copy is."""

    def __init__(self) -> None:
        self._printed_at = time.monotonic()

    def __call__(self, table: str, done: int, of: int) -> None:
        if time.monotonic() - self._printed_at >= PROGRESS_SECONDS:
            self._printed_at = time.monotonic()
            say_progress(f"{table}: {done} of {of}")
