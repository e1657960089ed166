"""Clones the repository that the workspace was asked with into the home, where it is not there."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from gpuspawner.workspace.home.own_files import FOLDER
from gpuspawner.workspace.home.programs import run

VARIABLE = "GPUSPAWNER_REPOSITORY"
"""Set by the spawner; the service has checked it."""
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")
_ONLY = ("-c", "protocol.allow=never", "-c", "protocol.https.allow=always", "-c", "protocol.ssh.allow=always")


def folder_name(url: str) -> str:
    """Return what the clone is called in the home; "" for an address that names nothing."""
    name = url.rstrip("/").rpartition("/")[2].removesuffix(".git")
    return name if _NAME.fullmatch(name) else ""


async def clone(url: str, home: Path, environ: Mapping[str, str]) -> tuple[str, str]:
    """Clone a repository into ``home``; return why that failed, "" where it did not or it is there, and the last line.

    It asks for no password: who may read it is said by the user's SSH keys and Git's credential helpers. It appears in
    the home once it is whole.
    """
    name = folder_name(url)
    if not name or not url.startswith(("https://", "ssh://")):
        return "its address is none that is cloned", ""
    if (home / name).exists():
        return "", ""
    own = home / FOLDER
    own.mkdir(mode=0o700, exist_ok=True)
    part = tempfile.mkdtemp(prefix="clone-", dir=own)
    quiet = {"GIT_TERMINAL_PROMPT": "0", "GIT_ASKPASS": "true", "GIT_SSH_COMMAND": "ssh -o BatchMode=yes"}
    try:
        program = ("git", *_ONLY, "clone", "--", url, f"{part}/{name}")
        failure, line = await run(program, home, own / "clone.log", {**quiet, **environ})
        if not failure:
            os.rename(f"{part}/{name}", home / name)  # noqa: PTH104 - a blink, and nobody else is served
    except OSError as error:
        return f"it can't be put there ({error.strerror})", ""
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return failure, line if failure else ""
