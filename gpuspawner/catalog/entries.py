"""Entries of a file that is being checked: what they write, what is known to be wrong, and what they inherit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, TypeVar

from pydantic import TypeAdapter

from gpuspawner.catalog.document import Issue, Loc, WrongPaths
from gpuspawner.catalog.keys import keys_of
from gpuspawner.catalog.models import Template, WrittenCatalog
from gpuspawner.core.idle.policies import LifecyclePolicy
from gpuspawner.core.text_fields import did_you_mean

E = TypeVar("E", LifecyclePolicy, Template)

LONGEST_CHAIN = 10
"""Entries that one entry extends, directly or not. Arbitrary: a longer chain is hard to follow."""
NOT_INHERITED = frozenset({"title"})
REPLACED = frozenset({"also_counts"})
"""Sections that an entry replaces as a whole. Other sections are joined key by key."""


@dataclass(frozen=True)
class CheckedFile:
    """The values that are right by themselves, what was written, and the paths that are known to be wrong.

    A check says nothing about a value that follows from something wrong, because that error is reported already.
    """

    file: WrittenCatalog
    data: Mapping[str, Any]
    wrong: WrongPaths

    def is_right(self, *path: str | int) -> bool:
        """Return whether nothing at this path, around it or in it is known to be wrong."""
        return not self.wrong.touch(path)

    def has_name(self, section: str, name: str) -> bool:
        """Return whether an entry of a section has this name, right or wrong."""
        return name in getattr(self.file, section) or not self.is_right(section, name)

    def written_at(self, *path: str | int) -> Any:
        """Return the value that is written at a path of mappings, or None."""
        found: Any = self.data
        for part in path:
            found = found.get(part) if isinstance(found, Mapping) else None
        return found

    def check_name(
        self, loc: Loc, noun: str, name: str, section: str, known: Iterable[str] | None = None
    ) -> Iterator[Issue]:
        """Yield an issue if no entry of a section has this name."""
        if not self.has_name(section, name):
            names = getattr(self.file, section) if known is None else known
            yield Issue(loc, f"no {noun} is called `{name}`", did_you_mean(name, names))


@dataclass(frozen=True)
class Entry:
    """A template or policy in the file. ``chain`` has its name and those of all entries that it extends.

    ``ends`` is False if the chain leads to a name that does not exist, in a circle, or too far.
    """

    checked: CheckedFile
    section: str
    chain: tuple[str, ...]
    ends: bool

    @property
    def loc(self) -> Loc:
        """The path of the entry."""
        return (self.section, self.chain[0])

    def writes(self, *path: str | int) -> bool:
        """Return whether the entry itself has a value at this path."""
        return self.checked.written_at(*self.loc, *path) is not None

    def chain_writes(self, *path: str | int) -> bool:
        """Return whether the entry, or one that it extends, has a value at this path."""
        return any(self.checked.written_at(self.section, link, *path) is not None for link in self.chain)

    def is_right(self, *paths: Loc) -> bool:
        """Return whether nothing at these paths of its chain is known to be wrong."""
        places = ((self.section, link, *path) for link in self.chain for path in (("extends",), *paths))
        return self.ends and all(self.checked.is_right(*place) for place in places)

    def report(self, issue: Issue, *paths: Loc, written: Iterable[Loc] = ()) -> Iterator[Issue]:
        """Yield an issue that follows from the values at ``paths``, unless one of them is known to be wrong.

        An inherited value is reported only at the entry that writes it. So this entry must write one of the paths, or
        one of ``written`` if those differ.
        """
        if self.is_right(*paths) and any(self.writes(*path) for path in written or paths):
            yield issue


@cache
def _adapters() -> Mapping[type, TypeAdapter[Any]]:
    return {model: TypeAdapter(model) for model in (LifecyclePolicy, Template)}


def flatten(
    section: str, entries: Mapping[str, E], checked: CheckedFile, issues: list[Issue]
) -> dict[str, tuple[E, Entry]]:
    """Return each entry of a section with everything that it inherits, adding an issue for each wrong ``extends``."""
    flat = {}
    for name, own in entries.items():
        chain, ends = _chain(section, name, entries, checked, issues)
        value = own
        if len(chain) > 1:
            data: dict[str, Any] = {}
            for link in reversed(chain):
                data = _inherit(data, checked.written_at(section, link) or {}, type(own))
            value = _adapters()[type(own)].validate_python(data)  # cannot fail: each part was validated before
        flat[name] = replace(value, name=name), Entry(checked, section, tuple(chain), ends)
    return flat


def _chain(
    section: str, name: str, entries: Mapping[str, E], checked: CheckedFile, issues: list[Issue]
) -> tuple[list[str], bool]:
    """Return the names of an entry's chain, each once, and whether the chain ends."""
    chain, loc = [name], (section, name, "extends")
    while parent := entries[chain[-1]].extends:
        if parent not in entries:
            if len(chain) == 1 and not checked.has_name(section, parent):
                known = [other for other in entries if other != name]
                issues.append(Issue(loc, f"nothing in {section} is called `{parent}`", did_you_mean(parent, known)))
            return chain, False
        if parent in chain:
            circle: list[str] = chain[chain.index(parent) :]
            if name == next(entry for entry in entries if entry in circle):  # once, at the first of the circle
                wrong = f"goes in a circle: {' > '.join([*circle[:10], parent])}"
                issues.append(Issue(loc, wrong, "remove one of these extends"))
            return chain, False
        if len(chain) > LONGEST_CHAIN:
            issues.append(
                Issue(
                    loc, f"the chain has more than {LONGEST_CHAIN} entries", "extend an entry that is nearer to the end"
                )
            )
            return chain, False
        chain.append(parent)
    return chain, True


def _inherit(parent: Mapping[str, Any], heir: Mapping[str, Any], model: type) -> dict[str, Any]:
    """Return the keys of an heir over those of its parent. Sections are joined key by key, mappings are replaced."""
    merged = {name: value for name, value in parent.items() if name not in NOT_INHERITED}
    keys = keys_of(model)
    for name, value in heir.items():
        section = None if keys[name].container or name in REPLACED else keys[name].section
        merged[name] = value if section is None else _inherit(merged.get(name, {}), value, section)
    return merged
