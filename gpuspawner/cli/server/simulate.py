"""``gpuspawner server simulate``: which workspaces a draft policy would have warned and stopped, and when."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from pathlib import Path

import click

from gpuspawner.catalog import Catalog, load_catalog
from gpuspawner.cli import base
from gpuspawner.cli.errors import AwayError, InvalidError, RefusedError
from gpuspawner.cli.output import print_json, say_lines, say_progress
from gpuspawner.cli.server import simulate_page, simulate_report
from gpuspawner.cli.server.simulate_report import Case, NothingRecorded
from gpuspawner.core.errors import CatalogError, Conflict, Unavailable
from gpuspawner.service.store.database.backup import check_not_elsewhere
from gpuspawner.service.store.database.dialects import engine_to_read

MOST_DAYS = 30
"""Ten-minute maxima are kept this long."""
MOST_HOURS = 1_000_000


@dataclass(frozen=True)
class Source:
    """Where the sessions come from: a folder, a database elsewhere, or a generator."""

    data: str | None
    store: str | None
    store_password_file: Path | None
    sessions: float | None
    seed: int
    days: float


@base.command(
    "simulate",
    examples="""\
gpuspawner server simulate draft.yaml --data gpuspawner-data      recorded history, each workspace by its own policy
gpuspawner server simulate draft.yaml --data DIR --policy night --days 7 --html report.html
gpuspawner server simulate draft.yaml --sessions 10000            generated sessions, whose use is known""",
)
@click.argument("file")
@click.option("--policy", metavar="NAME", help="Judge all by this policy. Default: each workspace by its own.")
@click.option("--data", metavar="DIR", help="The service's folder: replay what it recorded.")
@click.option("--store", metavar="URL", help="The service's database, if it is not in a folder.")
@click.option("--store-password-file", type=base.PATH, metavar="FILE", help="A file with the password for --store.")
@click.option("--sessions", type=float, metavar="HOURS", help="Generate sessions of this many hours together.")
@click.option("--seed", type=int, default=1, show_default=True, metavar="N", help="Seed of generated sessions.")
@click.option("--days", type=float, default=MOST_DAYS, show_default=True, metavar="N", help="Replay the last N days.")
@click.option("--html", type=base.PATH, metavar="FILE", help="Also write a page with charts.")
@base.json_option
def simulate(file: str, policy: str | None, html: Path | None, *, as_json: bool, **source: object) -> None:
    """Replay recorded or generated sessions against a draft policy.

    FILE is the catalog with the draft policy. The command says which workspaces it would have warned and stopped,
    when, whether rightly, and the GPU hours that it would have won.

    It judges with the function of the running service, as if the policy enforced, or only warned if its mode is warn.
    It only reads the history, also while the service runs. Readings older than a day are ten-minute maxima, so gaps
    within them are lost. A stop is right if the readings show no GPU work in the idle minutes before it and in the
    grace. A warning is right if they show none in the idle minutes before it. The command cannot know who would have
    pressed Keep.
    """
    now = time.time()
    try:
        catalog = load_catalog(file)
        cases, words = _cases(Source(**source), file, policy, catalog, now)  # type: ignore[arg-type] # click checks them
    except CatalogError as error:
        raise InvalidError(str(error)) from error
    except NothingRecorded as error:
        raise RefusedError(str(error)) from error
    except Unavailable as error:
        raise AwayError(str(error)) from error
    report = simulate_report.report(cases, words, file)
    if html:
        _write(html, simulate_page.page(report, cases))
    if as_json:
        print_json(report)
    else:
        say_lines(simulate_report.text(report))


def _write(file: Path, page: str) -> None:
    """Write the charts before anything is printed, because the reader of a pipe may end first (`| head`)."""
    try:
        file.write_text(page, encoding="utf-8")
    except OSError as error:
        raise InvalidError(f"{file} cannot be written: {error.strerror}.") from error
    say_progress(f"Charts: {file}")


def _cases(source: Source, file: str, policy: str | None, catalog: Catalog, now: float) -> tuple[list[Case], str]:
    """Return the simulated workspaces, and where they come from in words."""
    given = [name for name in ("data", "store", "sessions") if getattr(source, name) is not None]
    if len(given) != 1:
        raise click.UsageError("Write one of --data, --store and --sessions.")
    if policy is not None and policy not in catalog.policies:
        raise InvalidError(f"{file} has no policy {policy!r}; it has {', '.join(catalog.policies)}.")
    draft = simulate_report.Draft(catalog, policy)
    progress = _Progress()
    try:
        if source.sessions is not None:
            if not 0 < source.sessions <= MOST_HOURS:
                raise InvalidError(f"--sessions: {source.sessions:g} is not from 1 to {MOST_HOURS} hours.")
            cases = simulate_report.generated(draft, source.seed, source.sessions, progress)
            return cases, f"generated sessions (seed {source.seed})"
        if not 0 < source.days <= MOST_DAYS:
            raise InvalidError(f"--days: {source.days:g} is not from 1 to {MOST_DAYS}: readings are kept that long.")
        url, words = _store_of(source)
        since = now - source.days * 86400.0
        return simulate_report.history(draft, url, since, now, progress, source.store_password_file), words
    finally:
        progress.clear()


def _store_of(source: Source) -> tuple[str, str]:
    """Return the address of the store, and its name in words."""
    if source.store is not None:
        try:
            engine_to_read(source.store)
        except ValueError as error:
            raise InvalidError(f"--store: {error} --data takes a folder.") from error
        return source.store, "the recorded history"
    assert source.data is not None
    folder = Path(source.data)
    try:
        check_not_elsewhere(folder)
    except Conflict as error:
        raise InvalidError(f"{error} Name the store with --store, without --data.") from error
    path = folder / "gpuspawner.sqlite"
    if not path.is_file():
        is_file = folder.is_file()
        missing = f"{folder} is a file, not a folder" if is_file else f"{path} does not exist: there is no history"
        raise InvalidError(
            f"{missing}. --data names the folder that configure() made, by default next to the hub's database."
        )
    return f"sqlite:///{path.absolute()}", f"the history in {source.data}"


class _Progress:
    """Prints once a second how far the simulation is."""

    def __init__(self) -> None:
        self._printed_at = time.monotonic()
        self._line = sys.stderr.isatty()
        self._printed = False

    def __call__(self, done: float, of: float) -> None:
        if time.monotonic() - self._printed_at >= 1.0:
            end = "\r" if self._line else "\n"
            percent = 100 * min(done / of, 1.0) if of else 100
            print(f"simulating: {percent:.0f} %", end=end, file=sys.stderr, flush=True)  # noqa: T201 - one line again
            self._printed_at, self._printed = time.monotonic(), True

    def clear(self) -> None:
        """Remove the line from a terminal."""
        if self._printed and self._line:
            print(" " * 20, end="\r", file=sys.stderr, flush=True)  # noqa: T201 - likewise
