"""Code shared by `make run` and `make run-cluster`: one demo at a time, a free port, a ready hub, an orderly end."""

from __future__ import annotations

import fcntl
import os
import signal
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from demo import ports
from demo.data import Settings
from tools.progress import StepError

READY_WITHIN_SECONDS = 90


class Asked(BaseException):  # like KeyboardInterrupt: no error, and not caught as one
    """Someone asked for the end: Ctrl-C, SIGTERM, or the terminal was closed."""


@dataclass
class Ending:
    """The first signal is raised as ``Asked``; once the end has begun, a further one only hurries it."""

    begun: bool = False
    hurried: bool = False

    def listen(self) -> None:
        """Take over the signals that ask for the end."""
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._take)

    def in_a_hurry(self) -> bool:
        """Tell whether the end was asked for again."""
        return self.hurried

    def _take(self, _number: int, _frame: object) -> None:
        if self.begun:
            self.hurried = True
        else:
            self.begun = True
            raise Asked


def take_lock(settings: Settings, command: str) -> IO[str]:
    """Make this process the only one of ``command`` on its data directory.

    Raises:
        StepError: another one runs there; says which, and where its page is. Or nothing can be written there.
    """
    try:
        settings.data.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = (settings.data / "lock").open("a+")
    except OSError as error:
        raise StepError(
            f"DATA={settings.data} is no folder to write to ({error.strerror}).\n"
            f"Name one that is yours, or none: {command} DATA=.run"
        ) from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        lock.seek(0)
        raise StepError(
            f"`{command}` already runs here: {lock.read().strip()}.\n"
            f"Use that one, or end it with Ctrl-C. For a second demo beside it: {command} PORT=8001 DATA=.run/second"
        ) from None
    lock.truncate(0)
    lock.write(f"process {os.getpid()}, {settings.url}\n")
    lock.flush()
    return lock


def refuse_taken_port(port: int, command: str) -> None:
    """Check the port before anything is installed or started.

    Raises:
        StepError: the port is in use. The message names the program and an alternative command.
    """
    if not ports.is_free(port):
        raise StepError(
            f"Port {port} is taken by {ports.find_listener(port).words}.\n"
            f"End that, or take another port: PORT={ports.first_free_after(port)} {command}"
        )


def wait_until_answers(url: str, raise_if_ended: Callable[[], None], log: Path) -> None:
    """Wait until ``url`` gives any answer but a 5xx or "no such page".

    Raises:
        StepError: no answer came in time, or what ``raise_if_ended`` raises.
    """
    deadline = time.monotonic() + READY_WITHIN_SECONDS
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    while time.monotonic() < deadline:
        raise_if_ended()
        try:
            opener.open(url, timeout=2).close()
        except urllib.error.HTTPError as error:
            error.close()
            if error.code in (401, 403):  # up, and asks who we are
                return
        except OSError:
            pass
        else:
            return
        time.sleep(0.2)
    raise StepError(
        f"No answer from {url} within {READY_WITHIN_SECONDS} s. Where the log has no error, the machine is slow or "
        "busy: try again.",
        log,
    )
