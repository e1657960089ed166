"""Reports the kernels of this Jupyter server, loads of its pages, and the use of its GPUs to the probe.

It uses a file in memory, found by its name in ``/proc``.

The probe has no credential and sends no HTTP request: it reads ``/proc/PID/fd`` as the workspace's own user. The file
has a line of JSON for :mod:`gpuspawner.backends.probes.activity`, and a second line of the GPU monitor for
:mod:`gpuspawner.backends.probes.monitor`.
"""

from __future__ import annotations

import json
import os
from datetime import datetime, timezone
from http import HTTPStatus
from pathlib import Path
from typing import Any

from tornado.ioloop import PeriodicCallback
from tornado.web import RequestHandler

from gpuspawner.workspace.monitor import Monitor

NAME = "gpuspawner-kernels"
"""Name of the file: ``/memfd:gpuspawner-kernels (deleted)`` among the server's open files."""
EVERY_SECONDS = 5.0
"""Interval between checks. Shorter cells are found too: they change their kernel's last activity."""
MOST_KERNELS, LONGEST_NAME = 20, 100
"""Limits of the report, which keep the probe small. Of more kernels only the busy or most recent ones are reported."""


class KernelFile:
    """The file. It exists from the start, so that a server without kernels reports this."""

    def __init__(self) -> None:
        """Make the file. Child processes do not inherit its descriptor."""
        self._descriptor = os.memfd_create(NAME)
        self._count = 0

    def write(self, kernels: list[dict[str, Any]], *, opened: bool, monitor: dict[str, Any] | None = None) -> None:
        """Replace the content. ``begin`` and ``end`` are equal unless it is read while it is written.

        The report of the GPU monitor is a second line: older services read only the first.
        """
        self._count += 1
        with open("/proc/uptime", encoding="ascii") as file:  # noqa: PTH123 - the probe's own clock, whatever it shows
            uptime = float(file.read().split()[0])
        told = sorted(kernels, key=lambda kernel: (kernel["busy"] is False, kernel["idle_seconds"]))[:MOST_KERNELS]
        document = {"begin": self._count, "pid": os.getpid(), "uptime": uptime, "kernels": told, "opened": opened}
        document["end"] = self._count
        documents = [document]
        if monitor is not None:
            documents.append({"begin": self._count, "pid": os.getpid(), **monitor, "end": self._count})
        lines = b"".join(json.dumps(one, separators=(",", ":")).encode() + b"\n" for one in documents)
        os.pwrite(self._descriptor, lines, 0)
        os.ftruncate(self._descriptor, len(lines))


class Watch:
    """Updates the file of one Jupyter server."""

    def __init__(self, server_app: Any) -> None:
        """Write the file for the first time."""
        self._server = server_app
        self._file = KernelFile()
        self._opened = False
        self._file.write([], opened=False)
        self._failed = False
        self._monitor = Monitor(os.environ, server_app.log)
        self._callback = PeriodicCallback(self._look, EVERY_SECONDS * 1000)

    def start(self) -> None:
        """Start the updates in the running loop."""
        settings = self._server.web_app.settings
        inner = settings.get("log_function")

        def logged(handler: RequestHandler) -> None:
            if inner is not None:
                inner(handler)
            self._opened = self._opened or is_page_load(handler)

        settings["log_function"] = logged
        self._callback.start()
        self._monitor.start()

    async def _look(self) -> None:
        monitor = self._monitor.document
        try:
            names, manager = await self._names(), self._server.kernel_manager
            kernels = [self._kernel(kernel_id, names) for kernel_id in manager.list_kernel_ids()]
            self._file.write(kernels, opened=self._opened, monitor=monitor)
            self._failed = False
        except Exception:
            # The probe notices the old file and reports it. The server must not fail because of it.
            if not self._failed:
                self._server.log.exception("The state of the kernels is not told to the GPU service")
            self._failed = True

    def _kernel(self, kernel_id: str, names: dict[str, str]) -> dict[str, Any]:
        kernel = self._server.kernel_manager.get_kernel(kernel_id)
        state, last = getattr(kernel, "execution_state", None), getattr(kernel, "last_activity", None)
        idle_seconds = 0.0
        if isinstance(last, datetime):
            idle_seconds = max(0.0, (datetime.now(timezone.utc) - last).total_seconds())
        name = names.get(kernel_id) or kernel_id[:8]
        return {
            "name": name[:LONGEST_NAME],
            "busy": state == "busy" if isinstance(state, str) and isinstance(last, datetime) else None,
            "idle_seconds": round(idle_seconds, 1),
        }

    async def _names(self) -> dict[str, str]:
        """Return the notebook of each kernel that has one, without its folders."""
        sessions = await self._server.session_manager.list_sessions()
        return {session["kernel"]["id"]: Path(session["path"]).name for session in sessions}


def is_page_load(handler: RequestHandler) -> bool:
    """Return whether a user opened a page of this server. Periodic requests of pages, hub and proxies do not count.

    A user who is not signed in is sent to the hub first. Browsers mark a navigation by a header. Without that header,
    for example over http beyond localhost, the accepted content types decide.
    """
    request, kind = handler.request, str(handler._headers.get("Content-Type", ""))  # noqa: SLF001 - what it answered
    mode = request.headers.get("Sec-Fetch-Mode")
    navigates = mode == "navigate" if mode else "text/html" in request.headers.get("Accept", "")
    status = handler.get_status()
    # An answer from the browser's cache has no content type.
    answered = status == HTTPStatus.NOT_MODIFIED or (status == HTTPStatus.OK and kind.startswith("text/html"))
    return request.method == "GET" and answered and navigates and handler.current_user is not None


def watch(server_app: Any) -> None:
    """Start to report this server's kernels. Do nothing on a system without such files."""
    if hasattr(os, "memfd_create"):
        server_app.io_loop.add_callback(Watch(server_app).start)
