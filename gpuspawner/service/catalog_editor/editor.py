"""Read, check, compare and write the catalog's file."""

from __future__ import annotations

import asyncio
import difflib
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from difflib import Match

from gpuspawner.backends.custom_resources.base import Resource
from gpuspawner.catalog import Catalog
from gpuspawner.catalog.document import LARGEST_BYTES, read_raw
from gpuspawner.catalog.edits import with_value
from gpuspawner.catalog.requests.visibility import with_prices_of
from gpuspawner.catalog.watched_file import CatalogFile, fingerprint_of
from gpuspawner.core.calendar import date_of, milliseconds
from gpuspawner.core.errors import CatalogError, Conflict, Problem, RequestRefused, quoted
from gpuspawner.core.units import BadValue
from gpuspawner.service.catalog_editor.models import CatalogChange, CatalogProblem, DiffLine
from gpuspawner.service.parts import Parts
from gpuspawner.service.store.administration import CatalogVersion

CONTEXT_LINES = 3
MAX_PAIRS = 12_000_000
"""The pairs of equal lines that a comparison looks at. Arbitrary: a second, and more than real catalogs have."""
OUTSIDE = "The catalog's file was just changed outside of the console. Wait some seconds, and load the catalog again."
NOT_A_FILE = "The catalog is written in the hub's configuration: configure(c, catalog={...}). Change it there."
STARTING = "The service has just started. Try again in some seconds."


@dataclass(frozen=True)
class Draft:
    """A changed catalog. ``before`` is that of the base. ``catalog`` is None if it has problems.

    ``number`` is that of the next version. ``text`` is the whole file, or the spec of a custom resource.
    """

    base: CatalogVersion
    number: int
    before: Catalog
    text: str
    catalog: Catalog | None
    waits: tuple[str, ...] = ()
    """Sentences about changes that need a restart."""
    problems: tuple[CatalogProblem, ...] = ()
    resource: Resource | None = None
    """The custom resource that it changes. None for a new one, and for the file."""

    @property
    def entry(self) -> str:
        """The entry that is a custom resource, "" for the file."""
        return self.base.entry


def why_not_editable(state: Parts) -> str:
    """Return why the console may not change the catalog and where to change it, "" if it may."""
    file = state.in_force
    if why := why_switched_off(state):
        return why
    if not isinstance(file, CatalogFile) or file.source is None:
        return NOT_A_FILE
    path = file.source.resolve()
    if not os.access(path, os.W_OK):
        return (
            f"The service can't write {path}. Change the catalog where this file comes from, for example a ConfigMap."
        )
    if not os.access(path.parent, os.W_OK):
        return f"The service can't write to the folder {path.parent}. Give it to the service's user."
    if file.problem:
        return (
            f"The catalog's file has an error that was made outside of the console. Mend it there. {file.sentences[0]}"
        )
    return ""


def why_switched_off(state: Parts) -> str:
    """Return that the catalog itself switches changes in the console off, and where to change it, or ""."""
    console = state.catalog.console
    if console.edit:
        return ""
    where = f"at {console.kept_in}" if console.kept_in else "in its file"
    return f"Changes here are switched off by console.edit in the catalog. Change it {where}."


async def newest_version(state: Parts) -> CatalogVersion:
    """Return the newest version. Raises Conflict if none is stored yet."""
    newest = await state.store.read(state.store.catalog_versions.newest)
    if newest is None:
        raise Conflict(why_not_editable(state) or STARTING)
    return newest


async def draft_of(state: Parts, change: CatalogChange) -> Draft:
    """Return the catalog with a change, checked as the service checks its file.

    Raises:
        Conflict: the catalog can't be changed here, or has a newer version than the change was made from.
        RequestRefused: the change names an entry or a version that does not exist, or has text that is not YAML.
    """
    if why_not := why_not_editable(state):
        raise Conflict(why_not)
    base = await newest_version(state)
    check_base(base, change.base)
    text = await _changed_text(state, base, change)
    try:
        size_bytes = len(text.encode())
    except UnicodeEncodeError as error:
        raise RequestRefused("text", quoted(text[error.start]), "UTF-8 text", "Remove this character.") from error
    if size_bytes > LARGEST_BYTES:
        limit = f"up to {LARGEST_BYTES // 1024} KiB"
        raise RequestRefused("text", f"a catalog of {size_bytes:,} bytes", limit, "Shorten it.")
    return await asyncio.to_thread(_checked, state, base, await next_number(state), text)


def check_base(base: CatalogVersion, loaded: int) -> None:
    """Raise Conflict if a change was not made from the newest version."""
    if loaded != base.number:
        by = f"by {base.author}" if base.author else "outside of the console"
        raise Conflict(
            f"Version {base.number} was saved {by} after you loaded version {loaded}: "
            f"{base.reason or base.changes}. Nothing was saved. Compare it with your change, and save again."
        )


async def next_number(state: Parts) -> int:
    """Return the number of the next version."""
    newest = await state.store.read(state.store.catalog_versions.newest, None)
    return 1 if newest is None else newest.number + 1


async def _changed_text(state: Parts, base: CatalogVersion, change: CatalogChange) -> str:
    if change.version is not None:
        found = await state.store.read(state.store.catalog_versions.get, change.version)
        if found is None:
            limit = f"1 to {base.number}, of those that are kept"
            raise RequestRefused("version", str(change.version), limit, "Choose one from the list of versions.")
        return found.text
    if not change.entry:
        if change.text is None:
            raise RequestRefused("text", "nothing", "the whole file, or an entry", "Send the text of the catalog.")
        return change.text
    section, _, name = change.entry.partition(".")
    if not section or not name:
        limit = "a section and a name, for example templates.pytorch"
        raise RequestRefused("entry", quoted(change.entry), limit, "Write both.")
    try:
        return await asyncio.to_thread(with_value, base.text, (section, name), change.text)
    except BadValue as error:
        right = f"{error.right[:1].upper()}{error.right[1:]}."
        raise RequestRefused("text", error.wrong, "YAML of one entry", right) from error


def today_of(state: Parts) -> date:
    """Return the day in the catalog's time zone."""
    return date.fromisoformat(date_of(milliseconds(state.clock.now()), state.accounting.zone))


def _checked(state: Parts, base: CatalogVersion, number: int, text: str) -> Draft:
    file = state.in_force
    assert isinstance(file, CatalogFile), "why_not_editable says so"
    today, before = today_of(state), file.catalog
    if base.fingerprint != file.version:  # it was saved some seconds ago
        before = with_prices_of(file.check(base.text.encode()).prepared[0], today)
    try:
        catalog, waits = file.check(text.encode()).prepared
    except CatalogError as error:
        problems = tuple(_present_problem(one) for one in error.problems)
        return Draft(base, number, before, text, None, problems=problems)
    return Draft(base, number, before, text, with_prices_of(catalog, today), waits)


def _present_problem(one: Problem) -> CatalogProblem:
    return CatalogProblem(line=one.line, entry=one.entry, wrong=one.wrong, right=one.right)


def write_source(state: Parts, before: str, after: bytes) -> None:
    """Write the catalog's file whole or not at all. ``before`` is the fingerprint that it must have.

    Raises:
        Conflict: the file was changed meanwhile, or can't be written.
    """
    source = state.in_force.source
    assert source is not None, "why_not_editable says so"
    path = source.resolve()  # a link stays a link
    found = read_raw(path)
    if not isinstance(found, bytes) or fingerprint_of(found) != before:
        raise Conflict(OUTSIDE)
    half = path.with_name(f".{path.name}.{os.getpid()}.half")
    try:
        with half.open("wb") as file:
            file.write(after)
            file.flush()
            os.fsync(file.fileno())
        shutil.copymode(path, half)
        half.replace(path)
    except OSError as error:
        half.unlink(missing_ok=True)
        raise Conflict(f"{path} can't be written ({error.strerror}). Nothing was saved.") from error


def compare(before: str, after: str) -> list[DiffLine]:
    """Return the lines that differ, with some lines around them and the keys that they belong to."""
    return list(_diff(before.splitlines(), after.splitlines()))


class _BoundedMatcher(difflib.SequenceMatcher[str]):
    """Finds equal lines, and stops the search in the middle of long parts when it has compared MAX_PAIRS.

    Such a part is shown as removed and added, apart from its equal beginning and end. A line that is often repeated,
    for example an empty one, is no anchor (``autojunk``).
    """

    a: list[str]
    b: list[str]
    b2j: dict[str, list[int]]
    pairs = 0
    """The pairs of equal lines that were compared so far."""

    def find_longest_match(self, alo: int = 0, ahi: int | None = None, blo: int = 0, bhi: int | None = None) -> Match:
        """Return the longest common part of some lines of both texts, as the base class does."""
        ahi, bhi = len(self.a) if ahi is None else ahi, len(self.b) if bhi is None else bhi
        pairs = self.pairs + sum(len(self.b2j.get(line, ())) for line in self.a[alo:ahi])
        if pairs <= MAX_PAIRS:
            self.pairs = pairs
            return super().find_longest_match(alo, ahi, blo, bhi)
        most = min(ahi - alo, bhi - blo)
        first = next((n for n in range(most) if self.a[alo + n] != self.b[blo + n]), most)
        last = next((n for n in range(most) if self.a[ahi - 1 - n] != self.b[bhi - 1 - n]), most)
        return Match(alo, blo, first) if first else Match(ahi - last, bhi - last, last)


def _diff(before: list[str], after: list[str]) -> Iterator[DiffLine]:
    matcher = _BoundedMatcher(None, before, after)
    shown = 0
    for group in matcher.get_grouped_opcodes(CONTEXT_LINES):
        if heads := _keys_above(before, group[0][1], shown):
            yield from (DiffLine(sign="", text=line) for line in heads)
        elif shown:
            yield DiffLine(sign="", text="…")
        for what, begin, end, new_begin, new_end in group:
            if what == "equal":
                yield from (DiffLine(sign="", text=line) for line in before[begin:end])
            else:
                yield from (DiffLine(sign="-", text=line) for line in before[begin:end])
                yield from (DiffLine(sign="+", text=line) for line in after[new_begin:new_end])
        shown = group[-1][2]


def _keys_above(lines: list[str], at: int, shown: int) -> list[str]:
    """Return the keys of the mappings around a line that are not shown yet."""
    heads: list[str] = []
    indent = _indent(lines[at]) if at < len(lines) else 0
    for line in reversed(lines[shown:at]):
        if line.strip() and not line.lstrip().startswith("#") and _indent(line) < indent:
            heads.insert(0, line)
            indent = _indent(line)
    return heads


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip(" "))
