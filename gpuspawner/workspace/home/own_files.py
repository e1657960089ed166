"""The user's own files in ``~/.gpuspawner/``: variables, programs with a time limit, and notes about a start.

A file is used only if other users have no access to it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import shlex
import signal
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

FOLDER = ".gpuspawner"
LARGEST_BYTES = 2**20
"""Arbitrary: far more than variables or a script need."""


class NotUsedError(Exception):
    """A file is not used. The message contains the reason and the remedy."""


def folder_of(environ: Mapping[str, str]) -> Path:
    """Return the folder in the home. It may not exist."""
    return Path(environ.get("HOME") or Path.home()) / FOLDER


def read_own(file: Path) -> str | None:
    """Return the text of a file, or None if it does not exist.

    Raises:
        NotUsedError: Other users have access to it (not mode 0600), or it is too large, no text or unreadable.
    """
    shown = f"~/{FOLDER}/{file.name}"
    try:
        with open(os.open(file, os.O_RDONLY | os.O_NONBLOCK), "rb") as opened:  # noqa: PTH123 - a pipe would block
            seen = os.fstat(opened.fileno())
            if not stat.S_ISREG(seen.st_mode) or seen.st_uid != os.getuid() or stat.S_IMODE(seen.st_mode) & 0o077:
                raise NotUsedError(f"{shown} is not used: others may read or change it. Do: chmod 600 {shown}")
            if seen.st_size > LARGEST_BYTES:
                raise NotUsedError(f"{shown} is not used: it has more than {LARGEST_BYTES:,} bytes. Shorten it.")
            return opened.read().decode()
    except FileNotFoundError:
        return None
    except UnicodeDecodeError:
        raise NotUsedError(f"{shown} is not used: it is no text in UTF-8.") from None
    except OSError as error:
        raise NotUsedError(f"{shown} is not used: it can't be read ({error.strerror}).") from None


class Notes:
    """Sentences for the user, the oldest first. ``busy`` is the current step, or ""."""

    def __init__(self, log: logging.Logger) -> None:
        """Also write the sentences to the server's output."""
        self._log = log
        self._told: list[str] = []
        self.busy = ""
        self.ask: dict[str, Any] | None = None
        """A question to its user: ``{"text": str, "packages": [str]}``."""

    def add(self, sentence: str) -> None:
        """Add a sentence about a success."""
        self._log.info("%s", sentence)
        self._told.append(sentence)

    def warn(self, sentence: str, printed: str = "") -> None:
        """Add a sentence about a failure. ``printed`` is the last line of a program's output, only for its user."""
        self._log.warning("%s", sentence)
        self._told.append(f"{sentence} Its last line: {printed}" if printed else sentence)

    def view(self) -> dict[str, Any]:
        """Return the notes as JSON."""
        return {"busy": self.busy, "notes": list(self._told), "ask": self.ask}


REFUSED = ("NVIDIA_", "CUDA_VISIBLE", "JUPYTERHUB_", "GPUSPAWNER_", "KUBERNETES_", "LD_")
"""Prefixes of names for the workspace's GPUs, hub and libraries. A user cannot change them."""
MOST = 200
"""Arbitrary: more than any user writes."""
LONGEST_BYTES = 65536
"""Maximum size of a value. Arbitrary: with a value of 128 KiB or more Linux starts no program."""

_LINE = re.compile(r"(?:export\s+)?([A-Za-z_][A-Za-z0-9_]*)=(.*)")


def read_variables(text: str, shown: str) -> tuple[dict[str, str], list[str]]:
    """Return the variables of a file, and a sentence for each ignored line. No sentence contains a value.

    ``shown`` is the file's name for the user. Empty lines and lines that begin with ``#`` are skipped. Quotes around a
    value are removed, and nothing in a value is expanded.
    """
    found: dict[str, str] = {}
    wrong: list[str] = []
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.strip()
        if not line or line.startswith("#"):
            continue
        where = f"{shown}, line {number}"
        match = _LINE.fullmatch(line)
        if match is None:
            wrong.append(f"{where} is ignored: write NAME=value.")
        elif match[1].upper().startswith(REFUSED):
            refused = f"{match[1][:60]} is refused: names that begin {_begins(match[1])} are the workspace's."
            wrong.append(f"{where}: {refused}")
        elif "\0" in match[2] or len(match[2].encode()) > LONGEST_BYTES:
            wrong.append(f"{where} is ignored: a value has at most {LONGEST_BYTES:,} bytes and no byte 0.")
        elif len(found) >= MOST:
            wrong.append(f"{where} and all after it are ignored: at most {MOST} variables.")
            break
        else:
            found[match[1]] = _unquoted(match[2])
    return found, wrong


def _begins(name: str) -> str:
    return next(prefix for prefix in REFUSED if name.upper().startswith(prefix))


def _unquoted(value: str) -> str:
    if value[:1] not in {"'", '"'}:
        return value
    try:
        parts = shlex.split(value, comments=True)
    except ValueError:
        return value
    return parts[0] if len(parts) == 1 else value


LONGEST_SECONDS = 600.0
"""Time limit of a clone or a script. Arbitrary: longer work belongs into an image."""
LONGEST_LINE = 200


class Outcome(NamedTuple):
    """Why a program failed, or "", and the last line of its output."""

    failure: str
    last_line: str


async def run(
    program: Sequence[str],
    folder: Path,
    output: Path,
    environ: Mapping[str, str],
    longest_seconds: float = LONGEST_SECONDS,
) -> Outcome:
    """Run a program in a folder. After ``longest_seconds`` end it and all its children."""
    try:
        descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        return Outcome(f"{output.name} can't be written ({error.strerror})", "")
    try:
        started = await asyncio.create_subprocess_exec(
            *program,
            cwd=folder,
            env=dict(environ),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=descriptor,
            stderr=descriptor,
            start_new_session=True,
        )
    except OSError as error:
        return Outcome(f"{program[0]} can't be started ({error.strerror})", "")
    finally:
        os.close(descriptor)
    try:
        code = await asyncio.wait_for(started.wait(), longest_seconds)
    except (TimeoutError, asyncio.TimeoutError):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(started.pid, signal.SIGKILL)
        await started.wait()
        return Outcome(f"it took longer than {longest_seconds:g} s and was ended", _last_line(output))
    return Outcome(f"exit code {code}" if code else "", _last_line(output))


def _last_line(output: Path) -> str:
    try:
        with output.open("rb") as opened:
            opened.seek(max(0, output.stat().st_size - 4096))
            lines = opened.read().decode(errors="replace").splitlines()
    except OSError:
        return ""
    last = next((line.strip() for line in reversed(lines) if line.strip()), "")
    return "".join(c if c.isprintable() else "?" for c in last)[:LONGEST_LINE]
