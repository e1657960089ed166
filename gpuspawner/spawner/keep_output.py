"""A separate program, run as ``python -I -S keep_output.py FILE``: passes its input on and keeps its end in FILE.

It reads the output of a local workspace and writes it to its standard error, which is the hub's, and to the file, which
keeps only the last lines. It runs on after the hub, like its workspace: writing into a closed pipe would kill a
program.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys

KEPT_BYTES = 65536


def main(path: str) -> None:
    """Read until the last process of the workspace has closed its end."""
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # it ends with its input
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    size, tail, hub = 0, b"", 2
    while chunk := os.read(0, KEPT_BYTES):
        tail = (tail + chunk)[-KEPT_BYTES:]
        with contextlib.suppress(OSError):  # a full disk
            if size + len(chunk) <= 2 * KEPT_BYTES:
                size += os.pwrite(file, chunk, size)
            else:
                size = os.pwrite(file, b"\n" + tail.partition(b"\n")[2], 0)  # no half of a line: see mask_output
                os.ftruncate(file, size)
        try:
            while hub and chunk:
                chunk = chunk[os.write(hub, chunk) :]  # the rest
        except OSError:
            hub = 0  # the hub and its log are gone


if __name__ == "__main__":
    main(sys.argv[1])
