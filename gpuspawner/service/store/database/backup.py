"""Backups of a store in SQLite, also while a service uses it, and how they are restored.

A backup is a tar archive of the database and, if the folder has them, the hub's id and secret. These three restore a
lost folder.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import sqlite3
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from gpuspawner.core.errors import Conflict, Unavailable, quoted
from gpuspawner.service.store.database.schema import Condition, condition_of_file, newer_words

DATABASE, HUB_ID, SECRET = "gpuspawner.sqlite", "hub-id", "secret"
IDENTITY = (HUB_ID, SECRET)
MAX_FILE_BYTES = 64 * 2**30
"""The largest file in a backup. Arbitrary: far more than any store."""
ADDRESS_NOTE = "store-address"
"""A file in the folder of a service that keeps its store in a database elsewhere."""
MAX_NUMBER = 2**31 - 1
"""The largest number of openings and writes that the column holds."""


def note_address(folder: Path, url: str) -> None:
    """Note the address of a service's store. A file in the folder needs no note. Raises OSError."""
    note = folder / ADDRESS_NOTE
    if url.startswith("sqlite:"):
        note.unlink(missing_ok=True)
    else:
        note.write_text(f"{url}\n", encoding="utf-8")


def check_not_elsewhere(folder: Path) -> None:
    """Raise Conflict if a folder's service keeps its store elsewhere: a file in the folder is then out of date."""
    try:
        url = (folder / ADDRESS_NOTE).read_text(encoding="utf-8").strip()
    except (OSError, ValueError):
        return
    raise Conflict(f"The service of {folder} keeps its store at {url}. A file in the folder is out of date.")


def condition_of_folder(data: Path) -> Condition:
    """Return the condition of a folder's store, without changing it.

    Raises:
        Unavailable: the folder has no store, or it is damaged.
    """
    path = data / DATABASE
    with _opened(path) as database:
        _check_whole(database, path)
    return condition_of_file(path)


def back_up(data: Path, out: IO[bytes]) -> tuple[str, ...]:
    """Write a backup of a folder, also while its service works. Return the names of the files in it.

    Raises:
        Unavailable: the folder has no store, or it is damaged.
        OSError: it can't be written.
    """
    check_there(data / DATABASE)
    with tempfile.TemporaryDirectory(dir=data, prefix=".backup-") as scratch:
        copy = Path(scratch) / DATABASE
        copy_database(data / DATABASE, copy)
        condition_of_file(copy)
        found = {DATABASE: copy, **{name: data / name for name in IDENTITY if (data / name).exists()}}
        with tarfile.open(fileobj=out, mode="w|") as archive:
            for name, path in found.items():
                with path.open("rb") as file:
                    member = archive.gettarinfo(arcname=name, fileobj=file)  # follows links
                    member.type, member.linkname = tarfile.REGTYPE, ""
                    member.mode, member.uid, member.gid, member.uname, member.gname = 0o600, 0, 0, "", ""
                    archive.addfile(member, file)
    return tuple(found)


def restore(source: IO[bytes], data: Path, is_used: Callable[[], str]) -> str:
    """Restore a backup into a folder whose service has ended. Return the file of the old database, "" without one.

    The folder's own secret stays. A service that still works on the old database ends.

    Args:
        source: the archive.
        data: the folder, which is made if it does not exist.
        is_used: returns the user of the folder in a sentence, "" if it is not used.

    Raises:
        Unavailable: it is not a backup, or is damaged.
        Conflict: the folder is in use, belongs to another hub, or the backup is of a newer version.
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
            _check_plain(database)
            condition = condition_of_file(found[DATABASE])
            if not condition.revision:
                raise Unavailable("This is no backup of gpuspawner: its database has no schema.")
            if condition.is_newer:
                words = newer_words(condition.revision, condition.newest, condition.opened_by)
                raise Conflict(f"The backup is of a later version. {words}")
            _take_over(database, epoch)
        for name, path in found.items():
            _own(path, data)
            if name != DATABASE and not (data / name).exists():
                path.replace(data / name)
        kept = _set_aside(data)
        # Last, and in one step: a restore that is killed leaves either the old database or the new one.
        found[DATABASE].replace(data / DATABASE)
    return kept


def check_there(path: Path) -> None:
    """Refuse a folder without a store. Raises Unavailable."""
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


def _epoch_in(database: sqlite3.Connection) -> int:
    """Return how often a store was opened, 0 without the table. Raises Unavailable if the number is damaged."""
    try:
        row = database.execute("SELECT number FROM meta WHERE name = 'epoch'").fetchone() or (0,)
    except sqlite3.OperationalError as error:
        if "no such table" in str(error):
            return 0
        raise
    if not isinstance(row[0], int) or not 0 <= row[0] <= MAX_NUMBER:
        raise Unavailable(f"The store holds what can't be read: {quoted(row[0])} is not a number of openings.")
    return row[0]


def _check_whole(database: sqlite3.Connection, path: Path) -> None:
    found = database.execute("PRAGMA integrity_check(1)").fetchone()[0]  # quick_check does not look at indexes
    if found != "ok":
        raise Unavailable(f"{path} is damaged ({found}). Restore a backup: gpuspawner server store restore FILE.")


def copy_database(source: Path, target: Path) -> None:
    """Copy a database as it is at one instant, also while it is written to.

    Raises:
        Unavailable: the file does not exist, or is damaged.
    """
    with _opened(source) as database, contextlib.closing(sqlite3.connect(target)) as copy:
        database.backup(copy)
        copy.execute("PRAGMA journal_mode=DELETE")  # one file
        _check_whole(copy, source)
    target.chmod(0o600)


def _unpacked(source: IO[bytes], folder: Path) -> dict[str, Path]:
    """Return the files of a backup by name. Anything else in the archive is refused."""
    found: dict[str, Path] = {}
    try:
        with tarfile.open(fileobj=source, mode="r|*") as archive:
            for member in archive:
                file = archive.extractfile(member) if member.isfile() else None
                if file is None or member.name not in {DATABASE, *IDENTITY} or member.size > MAX_FILE_BYTES:
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


def _check_plain(database: sqlite3.Connection) -> None:
    """Refuse a database with triggers or views. Raises Unavailable."""
    found = database.execute("SELECT type, name FROM sqlite_master WHERE type IN ('trigger', 'view')").fetchone()
    if found is not None:
        raise Unavailable(f"This is no backup of gpuspawner: it has the {found[0]} {quoted(found[1])}.")


def _check_hub(data: Path, found: dict[str, Path]) -> None:
    own, told = data / HUB_ID, found.get(HUB_ID)
    if told is None or not own.exists():
        return
    ids = [path.read_text(encoding="ascii", errors="replace").strip() for path in (own, told)]
    if ids[0] != ids[1]:
        raise Conflict(
            f"{data} belongs to the hub {ids[0]}, and the backup is of {ids[1]}. If that folder was made again after "
            "the old one was lost, name a new, empty one, and give it to configure() as data_dir."
        )


def _epoch_of(path: Path) -> int:
    """Return the epoch of the store that is replaced, 0 without one or if it is damaged."""
    if not path.exists():
        return 0
    try:
        with _opened(path) as database:
            return _epoch_in(database)
    except Unavailable:
        return 0


def _take_over(database: sqlite3.Connection, epoch: int) -> None:
    """Raise the epoch so that older services end, and remove the heartbeat so that no new one waits."""
    with database:
        own = _epoch_in(database)
        database.execute("DELETE FROM meta WHERE name IN ('epoch', 'beat')")
        database.execute("INSERT INTO meta (name, number) VALUES ('epoch', ?)", (max(own, epoch),))


def _set_aside(data: Path) -> str:
    """Copy the present database aside, and leave it as one file without a log. Return the name of the copy.

    SQLite applies an existing log to any database of that name, so no log may be left for the restored one.
    """
    path = data / DATABASE
    logs = {end: path.with_name(path.name + end) for end in ("-wal", "-shm")}
    if not path.exists() and not any(log.exists() for log in logs.values()):
        return ""
    aside = _unused(data / f"{DATABASE}.until-{time.strftime('%Y%m%d-%H%M%S')}")
    try:
        copy_database(path, aside)
        with _opened(path) as database:
            database.execute("PRAGMA journal_mode=DELETE")  # writes the log into the file and removes it
    except Unavailable:  # damaged or gone: keep all parts, also what was not yet written into the main file
        aside.unlink(missing_ok=True)
        for end, part in {"": path, **logs}.items():
            if part.exists():
                shutil.copyfile(part, aside.with_name(aside.name + end))
                _own(aside.with_name(aside.name + end), data)
    else:
        _own(aside, data)
    for log in logs.values():
        log.unlink(missing_ok=True)
    return str(aside)


def _unused(path: Path) -> Path:
    """Return an unused file name. Two restores may happen within a second."""
    names = (path if number == 1 else path.with_name(f"{path.name}-{number}") for number in itertools.count(1))
    return next(name for name in names if not any(path.parent.glob(f"{name.name}*")))


def _own(path: Path, data: Path) -> None:
    """Give a file to the folder's user if root restores."""
    if os.geteuid() == 0:
        owner = data.stat()
        os.chown(path, owner.st_uid, owner.st_gid)
