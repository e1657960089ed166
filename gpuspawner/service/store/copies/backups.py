"""A copy of the store while it is used, one put back, and its schema looked at and taken back. SQLite's alone.

A backup is a tar archive of the database and, where the folder has them, the hub's id and secret: with these three a
lost folder is whole again.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

import sqlalchemy as sa

from gpuspawner.core.errors import Conflict, Unavailable
from gpuspawner.service.store import schema
from gpuspawner.service.store.copies.condition import Condition, condition_of, steps_back
from gpuspawner.service.store.schema import newer_words

DATABASE, HUB_ID, SECRET = "gpuspawner.sqlite", "hub-id", "secret"
IDENTITY = (HUB_ID, SECRET)
LARGEST_BYTES = 64 * 2**30
"""Of a file in a backup. Arbitrary: far more than any store."""
_EPOCH = "SELECT number FROM meta WHERE name = 'epoch'"


def condition(data: Path) -> Condition:
    """Return what a folder's store is. Nothing of it is changed.

    Raises:
        Unavailable: there is none, or it is damaged.
    """
    path = data / DATABASE
    with _opened(path) as database:
        _check_whole(database, path)
    return _condition(path)


def back_up(data: Path, out: IO[bytes]) -> tuple[str, ...]:
    """Write a backup of a folder, also while its service works; return the names of what is in it.

    Raises:
        Unavailable: there is no store, or it is damaged.
        OSError: it can't be written.
    """
    check_there(data / DATABASE)
    with tempfile.TemporaryDirectory(dir=data, prefix=".backup-") as scratch:
        copy = Path(scratch) / DATABASE
        copied(data / DATABASE, copy)
        _condition(copy)
        found = {DATABASE: copy, **{name: data / name for name in IDENTITY if (data / name).exists()}}
        with tarfile.open(fileobj=out, mode="w|") as archive:
            for name, path in found.items():
                with path.open("rb") as file:
                    member = archive.gettarinfo(arcname=name, fileobj=file)  # of a link, what it names
                    member.type, member.linkname = tarfile.REGTYPE, ""
                    member.mode, member.uid, member.gid, member.uname, member.gname = 0o600, 0, 0, "", ""
                    archive.addfile(member, file)
    return tuple(found)


def restore(source: IO[bytes], data: Path, is_used: Callable[[], str]) -> str:
    """Put a backup into a folder whose service has ended; return where the database of before lies, "" without one.

    The folder's own secret stays. What was written last is known to be older: whoever still works on it ends.

    Args:
        source: the archive.
        data: the folder; it is made where it is not there.
        is_used: says who uses the folder, "" where nobody does.

    Raises:
        Unavailable: the backup is none, or damaged.
        Conflict: the folder is in use, is another hub's, or the backup is of a newer version.
        OSError: it can't be written.
    """
    data.mkdir(mode=0o700, parents=True, exist_ok=True)
    if used := is_used():
        raise Conflict(used)
    with tempfile.TemporaryDirectory(dir=data, prefix=".restore-") as scratch:
        found = _unpacked(source, Path(scratch))
        _check_hub(data, found)
        epoch = _epoch_of(data / DATABASE)
        with _opened(found[DATABASE]) as database:
            _check_whole(database, found[DATABASE])
            told = _condition(found[DATABASE])
            if told.is_newer:
                raise Conflict(
                    f"The backup is of a later version. {newer_words(told.revision, told.newest, told.opened_by)}"
                )
            _take_over(database, epoch)
        kept = _put_aside(data)
        for name, path in found.items():
            if name == DATABASE or not (data / name).exists():
                _own(path, data)
                path.replace(data / name)
    return kept


def go_back(data: Path, revision: str, is_used: Callable[[], str]) -> str:
    """Take a folder's store back to an earlier schema, whole or not at all; return where it lies as it was.

    Raises:
        Unavailable: there is no store, or it is damaged.
        Conflict: as :func:`steps_back`, or the folder is in use.
        OSError: it can't be written.
    """
    steps_back(condition(data), revision)
    if used := is_used():
        raise Conflict(used)
    with tempfile.TemporaryDirectory(dir=data, prefix=".downgrade-") as scratch:
        copy = Path(scratch) / DATABASE
        copied(data / DATABASE, copy)
        engine = sa.create_engine(f"sqlite:///{copy}")
        with engine.begin() as connection:
            schema.downgrade(connection, revision)
        engine.dispose()
        kept = _put_aside(data)
        _own(copy, data)
        copy.replace(data / DATABASE)
    return kept


def _condition(path: Path) -> Condition:
    engine = sa.create_engine(f"sqlite:///{path}")
    try:
        with engine.connect() as connection:
            return condition_of(connection, path.stat().st_size)
    except sa.exc.DBAPIError as error:
        raise Unavailable(f"{path} cannot be used ({error.orig}).") from error
    finally:
        engine.dispose()


def check_there(path: Path) -> None:
    """Refuse a folder without a store, before anything is made in it. Raises Unavailable."""
    if not path.is_file():
        raise Unavailable(
            f"{path.parent} has no {path.name}. Name the service's folder by --data: configure()'s data_dir, or --data "
            "of gpuspawner server serve."
        )


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[sqlite3.Connection]:
    check_there(path)
    try:
        with contextlib.closing(sqlite3.connect(path, timeout=10)) as database:
            yield database
    except sqlite3.Error as error:
        raise Unavailable(f"{path} cannot be used ({error}).") from error


def _scalar(database: sqlite3.Connection, query: str, *values: object) -> object:
    """Return the first value that a query finds, None for none and where its table is not there."""
    try:
        row = database.execute(query, values).fetchone()
    except sqlite3.OperationalError as error:
        if "no such table" in str(error):
            return None
        raise
    return row[0] if row else None


def _number(database: sqlite3.Connection, query: str, *values: object) -> int:
    return int(str(_scalar(database, query, *values) or 0))


def _check_whole(database: sqlite3.Connection, path: Path) -> None:
    found = database.execute("PRAGMA quick_check(1)").fetchone()[0]
    if found != "ok":
        raise Unavailable(f"{path} is damaged ({found}). Restore a backup: gpuspawner server store restore FILE.")


def copied(source: Path, target: Path) -> None:
    """Copy a database that may be written meanwhile: SQLite gives it as it is at one instant, and nobody waits.

    Raises:
        Unavailable: there is none, or it is damaged.
    """
    with _opened(source) as database, contextlib.closing(sqlite3.connect(target)) as copy:
        database.backup(copy)
        copy.execute("PRAGMA journal_mode=DELETE")  # one file
        _check_whole(copy, source)
    target.chmod(0o600)


def _unpacked(source: IO[bytes], folder: Path) -> dict[str, Path]:
    """Return the files of a backup, by name; of an archive nothing else is taken."""
    found: dict[str, Path] = {}
    try:
        with tarfile.open(fileobj=source, mode="r|*") as archive:
            for member in archive:
                file = archive.extractfile(member) if member.isfile() else None
                if file is None or member.name not in {DATABASE, *IDENTITY} or member.size > LARGEST_BYTES:
                    raise Unavailable(f"This is no backup of gpuspawner: it has {member.name[:60]!r} in it.")
                if member.name in found:
                    raise Unavailable(f"This is no backup of gpuspawner: it has {member.name} twice.")
                path = found[member.name] = folder / member.name
                descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
                with os.fdopen(descriptor, "wb") as out:
                    while part := file.read(2**20):
                        out.write(part)
    except (tarfile.TarError, EOFError) as error:
        raise Unavailable(f"This is no backup of gpuspawner ({error}).") from error
    if DATABASE not in found:
        raise Unavailable(f"This is no backup of gpuspawner: it has no {DATABASE}.")
    return found


def _check_hub(data: Path, found: dict[str, Path]) -> None:
    own, told = data / HUB_ID, found.get(HUB_ID)
    if told is None or not own.exists():
        return
    ids = [path.read_text(encoding="ascii", errors="replace").strip() for path in (own, told)]
    if ids[0] != ids[1]:
        raise Conflict(
            f"{data} belongs to the hub {ids[0]}, and the backup is of {ids[1]}. If that folder was made anew after "
            "the old one was lost, name a new, empty one, and give it to configure() as data_dir."
        )


def _epoch_of(path: Path) -> int:
    """Return the epoch of the store that is replaced, 0 where there is none or where it is damaged."""
    if not path.exists():
        return 0
    try:
        with _opened(path) as database:
            return _number(database, _EPOCH)
    except Unavailable:
        return 0


def _take_over(database: sqlite3.Connection, epoch: int) -> None:
    """Have no older service take the restored store for its own, and no newer one wait for a beat."""
    with database:
        own = _number(database, _EPOCH)
        database.execute("DELETE FROM meta WHERE name IN ('epoch', 'beat')")
        database.execute("INSERT INTO meta (name, number) VALUES ('epoch', ?)", (max(own, epoch),))


def _put_aside(data: Path) -> str:
    """Keep the database that is there, all of it beside, in one file where it is whole; return its name."""
    path = data / DATABASE
    if not path.exists():
        return ""
    aside = data / f"{DATABASE}.until-{time.strftime('%Y%m%d-%H%M%S')}"
    parts = {end: path.with_name(path.name + end) for end in ("", "-wal", "-shm")}
    try:
        copied(path, aside)
    except Unavailable:  # damaged: all that there is of it, also what was not yet written into it
        for end, part in parts.items():
            if part.exists():
                part.replace(aside.with_name(aside.name + end))
                _own(aside.with_name(aside.name + end), data)
        return str(aside)
    for part in parts.values():
        part.unlink(missing_ok=True)
    _own(aside, data)
    return str(aside)


def _own(path: Path, data: Path) -> None:
    """Give a file to the folder's user, where root restores."""
    if os.geteuid() == 0:
        owner = data.stat()
        os.chown(path, owner.st_uid, owner.st_gid)
