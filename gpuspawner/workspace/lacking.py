"""What this workspace's image lacks: the service then offers it on no page, or says what it is missing for.

An image without nvidia-ml-py lacks the GPU monitor.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import shutil
from collections.abc import Mapping
from typing import TYPE_CHECKING

from gpuspawner.workspace.sshd import SBIN

if TYPE_CHECKING:
    from gpuspawner.workspace.service import ServiceClient

TRIES, AGAIN_SECONDS = 5, 30.0
"""How often it is told while the service is away. Arbitrary: it is back within minutes, as a rule."""


def lacking(environ: Mapping[str, str]) -> list[str]:
    """Return what does not work here: ``monitor``, and what can't be opened, as a template's ``opens`` calls it."""
    path = os.pathsep.join((environ.get("PATH", os.defpath), *SBIN))
    proxy = importlib.util.find_spec("jupyter_vscode_proxy")
    has = {
        "vscode": proxy is not None and shutil.which("code-server", path=path) is not None,
        "ssh": all(shutil.which(name, path=path) for name in ("sshd", "ssh-keygen")),
        "monitor": importlib.util.find_spec("pynvml") is not None,
    }
    return [name for name, there in has.items() if not there]


async def tell_lacking(client: ServiceClient, environ: Mapping[str, str]) -> None:
    """Tell the service, where there is anything to tell."""
    found = lacking(environ)
    for _ in range(TRIES if found else 0):
        if "away" not in (await client.tell_lacking(found)).body:
            return
        await asyncio.sleep(AGAIN_SECONDS)
