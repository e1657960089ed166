"""``gpuspawner simulate FILE``: whom a draft policy would have warned and stopped, when, and whether rightly."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

from gpuspawner.catalog import Catalog, load_catalog
from gpuspawner.cli.arguments import DAYS
from gpuspawner.cli.simulation import simulate_cases, simulate_page, simulate_report
from gpuspawner.cli.simulation.simulate_cases import Case, NothingRecorded
from gpuspawner.core.errors import CatalogError, Conflict, Unavailable
from gpuspawner.service.store.backup import check_not_elsewhere
from gpuspawner.service.store.databases import engine_to_read

INVALID, REFUSED, AWAY = 1, 2, 3
MOST_HOURS = 1_000_000


class _WrongError(Exception):
    pass


def simulate(arguments: argparse.Namespace) -> int:
    """Replay and report. Returns 0, or 1 for what was asked wrongly, 2 where nothing is recorded, 3 unreadable."""
    now = time.time()
    try:
        catalog = load_catalog(arguments.file)
        cases, source = _cases(arguments, catalog, now)
    except (CatalogError, _WrongError) as error:
        print(error, file=sys.stderr)
        return INVALID
    except NothingRecorded as error:
        print(error, file=sys.stderr)
        return REFUSED
    except Unavailable as error:
        print(error, file=sys.stderr)
        return AWAY
    report = simulate_report.report(cases, source, arguments.file)
    code = _write(Path(arguments.html), simulate_page.page(report, cases)) if arguments.html else 0
    print(json.dumps(report, indent=1) if arguments.json else simulate_report.text(report))
    return code


def _write(file: Path, page: str) -> int:
    """Write the charts, before anything is printed: who reads that may have read enough (`| head`)."""
    try:
        file.write_text(page, encoding="utf-8")
    except OSError as error:
        print(f"{file} cannot be written: {error.strerror}.", file=sys.stderr)
        return INVALID
    print(f"Charts: {file}", file=sys.stderr)
    return 0


def _cases(arguments: argparse.Namespace, catalog: Catalog, now: float) -> tuple[list[Case], str]:
    if arguments.policy is not None and arguments.policy not in catalog.policies:
        known = ", ".join(catalog.policies)
        raise _WrongError(f"{arguments.file} has no policy {arguments.policy!r}; it has {known}.")
    draft = simulate_cases.Draft(catalog, arguments.policy)
    told = _Progress()
    try:
        if arguments.sessions is not None:
            if not 0 < arguments.sessions <= MOST_HOURS:
                raise _WrongError(f"--sessions: {arguments.sessions:g} is not from 1 to {MOST_HOURS} hours.")
            cases = simulate_cases.generated(draft, arguments.seed, arguments.sessions, told)
            return cases, f"generated sessions (seed {arguments.seed})"
        if not 0 < arguments.days <= DAYS:
            raise _WrongError(f"--days: {arguments.days:g} is not from 1 to {DAYS}: readings are kept that long.")
        url, source = _store(arguments)
        password = Path(arguments.store_password_file) if arguments.store_password_file else None
        return simulate_cases.history(draft, url, now - arguments.days * 86400.0, now, told, password), source
    finally:
        told.clear()


def _store(arguments: argparse.Namespace) -> tuple[str, str]:
    if arguments.store is not None:
        try:
            engine_to_read(arguments.store)
        except ValueError as error:
            raise _WrongError(f"--store: {error} --data takes a folder.") from error
        return arguments.store, "the recorded history"
    folder = Path(arguments.data)
    try:
        check_not_elsewhere(folder)
    except Conflict as error:
        raise _WrongError(f"{error} Name the store by --store, without --data.") from error
    path = folder / "gpuspawner.sqlite"
    if not path.is_file():
        is_file = folder.is_file()
        missing = f"{folder} is a file, not a folder" if is_file else f"{path} is not there: no history"
        raise _WrongError(
            f"{missing}. --data names the folder that configure() made, by default beside the hub's database."
        )
    return f"sqlite:///{path.absolute()}", f"the history in {arguments.data}"


class _Progress:
    """Says how far it is, once a second, where it takes longer than that."""

    def __init__(self) -> None:
        self._told_at = time.monotonic()
        self._line = sys.stderr.isatty()
        self._told = False

    def __call__(self, done: float, of: float) -> None:
        if time.monotonic() - self._told_at >= 1.0:
            end = "\r" if self._line else "\n"
            print(f"simulating: {100 * min(done / of, 1.0) if of else 100:.0f} %", end=end, file=sys.stderr, flush=True)
            self._told_at, self._told = time.monotonic(), True

    def clear(self) -> None:
        if self._told and self._line:
            print(" " * 20, end="\r", file=sys.stderr, flush=True)
