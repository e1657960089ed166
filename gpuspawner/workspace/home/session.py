"""The last session of a home: it is restored, the parts that could not be restored are reported, and this one is saved.

Notebooks, terminals and packages are in ``~/.gpuspawner/session.json``, mode 0600. A named server has its own file:
``session-NAME.json``. It contains names, versions and folders, never commands or code.
"""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from tornado.ioloop import PeriodicCallback

from gpuspawner.workspace.home.own_files import FOLDER, Notes, NotUsedError, folder_of, read_own
from gpuspawner.workspace.home.packages import Image, Package, UserPackages, find_conda, install_packages

MOST_NOTEBOOKS, MOST_TERMINALS, MOST_PACKAGES = 50, 20, 300
"""Arbitrary: more than any user works with at once."""
LONGEST = 1000
"""Maximum length of a name, version or path."""
ASK, ALWAYS, NEVER = "ask", "always", "never"
"""The user's setting for packages of the last session that the image does not have."""


class Terminal(NamedTuple):
    """A terminal with its title in JupyterLab and the folder of its shell."""

    name: str
    folder: str


@dataclass(frozen=True)
class Session:
    """The session at its last check. Notebooks are paths below the server's root."""

    notebooks: tuple[str, ...] = ()
    terminals: tuple[Terminal, ...] = ()
    packages: tuple[Package, ...] = ()
    install: str = ASK


def file_of(own: Path, server: str) -> Path:
    """Return the file of a server's session. ``own`` is ``~/.gpuspawner``."""
    return own / (f"session-{server.replace('/', '_')}.json" if server else "session.json")


def read_session(file: Path) -> Session:
    """Return the saved session. Invalid parts are left out.

    Raises:
        NotUsedError: The file exists and cannot be used.
    """
    text = read_own(file)
    if text is None:
        return Session()
    try:
        kept = json.loads(text)
    except (ValueError, RecursionError):
        kept = None
    if not isinstance(kept, dict):
        raise NotUsedError(f"~/{FOLDER}/{file.name} is not used: it is no JSON object. Delete it.")
    return Session(
        tuple(_texts(kept, "notebooks", MOST_NOTEBOOKS)),
        tuple(Terminal(*row) for row in _rows(kept, "terminals", 2, MOST_TERMINALS)),
        tuple(Package(*row) for row in _rows(kept, "packages", 3, MOST_PACKAGES) if row[0] in {"pip", "conda"}),
        kept["install"] if kept.get("install") in (ALWAYS, NEVER) else ASK,
    )


def write_session(file: Path, session: Session) -> None:
    """Replace the saved session whole or not at all. Raises OSError if the home is not writable."""
    file.parent.mkdir(mode=0o700, exist_ok=True)
    bounded = {
        "notebooks": session.notebooks[:MOST_NOTEBOOKS],
        "terminals": session.terminals[:MOST_TERMINALS],
        "packages": session.packages[:MOST_PACKAGES],
    }
    descriptor, part = tempfile.mkstemp(prefix="session-", dir=file.parent)  # mkstemp makes it of mode 0600
    try:
        with os.fdopen(descriptor, "w") as opened:
            json.dump({**asdict(session), **bounded}, opened)
        os.replace(part, file)  # noqa: PTH105 - a blink
    except OSError:
        Path(part).unlink(missing_ok=True)
        raise


def _texts(kept: Mapping[str, Any], key: str, most: int) -> list[str]:
    rows = kept.get(key)
    return [row for row in rows[:most] if _is_text(row)] if isinstance(rows, list) else []


def _rows(kept: Mapping[str, Any], key: str, width: int, most: int) -> list[list[str]]:
    rows = kept.get(key)
    if not isinstance(rows, list):
        return []
    return [row for row in rows[:most] if isinstance(row, list) and len(row) == width and all(map(_is_text, row))]


def _is_text(value: object) -> bool:
    return isinstance(value, str) and 0 < len(value) <= LONGEST and value.isprintable()


EVERY_SECONDS = 10.0
"""Interval between checks of the session. Changes of the last seconds before a crash are lost."""
ONCE = "once"
ANSWERS = (ONCE, ALWAYS, NEVER)
"""The user's choices for missing packages."""
SHOWN = 12
"""Maximum number of packages in a sentence."""


class LastSession:
    """Restores the last session of one Jupyter server and saves the current one."""

    def __init__(self, server_app: Any, environ: Mapping[str, str], notes: Notes) -> None:
        """Read the last session, and list the image's packages before anything is installed."""
        self._server, self._environ, self._notes = server_app, environ, notes
        self._own = folder_of(environ)
        self._file = file_of(self._own, environ.get("JUPYTERHUB_SERVER_NAME", ""))
        try:
            self._last = read_session(self._file)
        except NotUsedError as error:
            notes.warn(str(error))
            self._last = Session()
        self._image = Image(self._own.parent)
        self._wanted = UserPackages(self._image, self._last.packages)
        has_conda = bool(find_conda())
        self._missing = [one for one in self._wanted.missing if one.by != "conda" or has_conda]
        self._kept, self._trouble = self._last, False
        self._fewer: tuple[object, object] | None = None
        self.installing: asyncio.Task[None] | None = None
        self._callback = PeriodicCallback(self.keep, EVERY_SECONDS * 1000)

    def start(self) -> None:
        """Open the terminals again, report, install packages, and save the session from now on."""
        opened, lost = self._open_terminals()
        self._report(opened, lost)
        if self._missing and self._last.install == ALWAYS:
            self._begin_to_install()
        elif self._missing and self._last.install == ASK:
            self._notes.ask = {
                "text": "In your last session you had installed, and this image does not have: "
                f"{_list_packages(self._missing)}.",
                "packages": [one.words for one in self._missing],
            }
        self._callback.start()

    def answer(self, how: str) -> None:
        """Apply the user's choice for missing packages: ``once``, ``always`` or ``never``."""
        if self._notes.ask is None:
            return
        self._notes.ask = None
        if how in {ALWAYS, NEVER}:
            self._write(replace(self._kept, install=how))
        if how in {ONCE, ALWAYS}:
            self._begin_to_install()

    async def keep(self) -> None:
        """Save the current state. A part is removed after two checks without it: a server that ends closes it too."""
        rows = await self._server.session_manager.list_sessions()
        notebooks = tuple(sorted({str(row["path"]) for row in rows if row.get("type") == "notebook"}))
        terminals = self._terminals()
        seen = notebooks, terminals
        names = {x.name for x in terminals}
        is_fewer = not names >= {x.name for x in self._kept.terminals} or not {*notebooks} >= {*self._kept.notebooks}
        if is_fewer and seen != self._fewer:
            self._fewer = seen
            seen = self._kept.notebooks, self._kept.terminals
        self._write(Session(*seen, self._wanted.now(), self._kept.install))

    def _write(self, session: Session) -> None:
        if session == self._kept and not self._trouble:
            return
        try:
            write_session(self._file, session)
        except OSError as error:  # for example a full home: the last saved state remains
            if not self._trouble:
                self._server.log.warning("The session is not saved: %s", error.strerror)
            self._trouble = True
        else:
            self._trouble = False
        self._kept = session

    def _manager(self) -> Any:
        return self._server.web_app.settings.get("terminal_manager")

    def _terminals(self) -> tuple[Terminal, ...]:
        manager = self._manager()
        found = [] if manager is None else list(manager.terminals.items())
        return tuple(sorted(Terminal(name, _folder_of_process(one.ptyproc.pid)) for name, one in found))

    def _open_terminals(self) -> tuple[list[Terminal], list[Terminal]]:
        """Open the terminals of the last session. Return them, and those without a folder, which open in the home."""
        manager = self._manager()
        opened: list[Terminal] = []
        lost: list[Terminal] = []
        for one in self._last.terminals if manager is not None else ():
            if one.name in manager.terminals:
                continue
            there = os.path.isdir(one.folder)  # noqa: PTH112 - it never raises, whatever keeps it from looking
            try:
                manager.create(name=one.name, cwd=one.folder if there else str(self._own.parent))
            except Exception as error:  # noqa: BLE001 - a shell that does not start
                self._notes.warn(f"The terminal {one.name} was not opened again ({type(error).__name__}).")
                continue
            (opened if there else lost).append(one)
        return opened, lost

    def _report(self, opened: list[Terminal], lost: list[Terminal]) -> None:
        add = self._notes.add
        root = Path(getattr(self._server, "root_dir", "") or self._own.parent)
        there = [path for path in self._last.notebooks if os.path.exists(root / path)]  # noqa: PTH110 - it never raises
        gone = [path for path in self._last.notebooks if path not in there]
        if there:
            add(f"Open in your last session: {_list_texts(there)}. Their kernels are new: run the cells again.")
        if gone:
            add(f"Not there any more: {_list_texts(gone)}.")
        if opened:
            add(f"Terminals are open again: {_list_texts([f'{x.name} in {_show_folder(x.folder)}' for x in opened])}.")
        if lost:
            names = _list_texts([one.name for one in lost])
            add(f"Terminals are open again in your home, as their folders are gone: {names}.")
        if others := self._wanted.others:
            add(f"This image keeps its own versions of packages that you had installed: {_list_packages(others)}.")
        if without := [one for one in self._wanted.missing if one not in self._missing]:
            add(f"Not installed again, as this image has no conda: {_list_packages(without)}.")

    def _begin_to_install(self) -> None:
        self.installing = asyncio.get_event_loop().create_task(self._install(self._missing))

    async def _install(self, packages: list[Package]) -> None:
        self._notes.busy = f"Installing again what your last session had: {_list_packages(packages)}…"
        log = self._own / "packages.log"
        try:
            failed, line = await install_packages(packages, self._own.parent, log, self._environ)
        except OSError as error:
            failed, line = packages, str(error.strerror)
        finally:
            self._notes.busy = ""
        came = [one for one in packages if one not in failed]
        if came:
            self._notes.add(f"Installed again: {_list_packages(came)}. Restart kernels that were to use them.")
        if failed:
            self._notes.warn(f"Not installed again: {_list_packages(failed)}. See ~/{FOLDER}/{log.name}.", line)


def _folder_of_process(pid: int) -> str:
    try:
        return os.readlink(f"/proc/{pid}/cwd")  # noqa: PTH115 - a text, also of what is deleted
    except OSError:
        return str(Path.home())


def _show_folder(folder: str) -> str:
    home = str(Path.home())
    return f"~{folder[len(home) :]}" if folder == home or folder.startswith(f"{home}/") else folder


def _list_packages(packages: list[Package]) -> str:
    return _list_texts([one.words for one in packages])


def _list_texts(texts: list[str]) -> str:
    more = len(texts) - SHOWN
    return ", ".join(texts[:SHOWN]) + (f" and {more} more" if more > 0 else "")
