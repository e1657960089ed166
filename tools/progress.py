"""Numbered steps with their seconds: what commands print goes to a log, and a failure shows that log's end."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import ParamSpec

TAIL_LINES = 20
P = ParamSpec("P")


class StepError(Exception):
    """A step that cannot be finished. The message says what to do; ``log`` holds what was printed, if anything."""

    def __init__(self, message: str, log: Path | None = None) -> None:
        super().__init__(message)
        self.log = log


def say(text: str = "", end: str = "\n") -> None:
    """Print without a buffer, and continue if nothing reads the output: the terminal may have been closed."""
    with suppress(OSError):
        print(text, end=end, flush=True)


def bold(text: str) -> str:
    """``text`` in bold on a terminal, unless ``NO_COLOR`` is set."""
    return f"\033[1m{text}\033[0m" if sys.stdout.isatty() and not os.environ.get("NO_COLOR") else text


def tail(log: Path, lines: int = TAIL_LINES) -> str:
    """Return the last ``lines`` lines of a log, indented."""
    with suppress(OSError), log.open(errors="replace") as stream:
        return "".join(f"    {line.rstrip()}\n" for line in deque(stream, maxlen=lines))
    return ""


class Steps:
    """Prints one numbered line for each step, with the seconds that it took."""

    def __init__(self) -> None:
        self.number = 0

    @contextmanager
    def step(self, title: str, *, streams: bool = False) -> Iterator[None]:
        """Time what happens inside. ``streams`` is true where it prints lines of its own."""
        self.number += 1
        say(f"{self.number:>3}  {title} ... ", end="\n" if streams else "")
        started = time.monotonic()
        try:
            yield
        except BaseException as error:
            outcome = "failed" if isinstance(error, Exception) else "stopped"
            say(f"     {title}: {outcome}" if streams else outcome)
            raise
        seconds = f"{time.monotonic() - started:.1f} s"
        say(f"     {title}: {seconds}" if streams else seconds)


def run_logged(command: Sequence[str | Path], log: Path, remedy: str, env: Mapping[str, str] | None = None) -> None:
    """Run ``command`` with its output appended to ``log``.

    Raises:
        StepError: it could not be started or did not exit with 0; the message is ``remedy``.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a") as stream:
        stream.write(f"$ {' '.join(map(str, command))}\n")
        stream.flush()
        try:
            code = subprocess.run(
                command, check=False, env=env, stdin=subprocess.DEVNULL, stdout=stream, stderr=stream
            ).returncode
        except OSError as error:
            stream.write(f"{error}\n")
            code = 127
    if code:
        raise StepError(remedy, log)


def report_failure(error: StepError) -> None:
    """Report a failure on standard error: the end of its log, then the next steps."""
    with suppress(OSError):
        if error.log:
            print(f"\nThe last lines of {error.log}:\n{tail(error.log)}", file=sys.stderr)
        print(error, file=sys.stderr, flush=True)


def reports_failures(main: Callable[P, int]) -> Callable[P, int]:
    """Make the main function of a command report a StepError and return 1."""

    @functools.wraps(main)
    def run(*arguments: P.args, **options: P.kwargs) -> int:
        try:
            return main(*arguments, **options)
        except StepError as error:
            report_failure(error)
            return 1

    return run
