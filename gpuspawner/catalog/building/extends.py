"""``extends``: an entry takes from another what it does not write itself; and which names there are to refer to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from gpuspawner.catalog.document import Issue, Loc
from gpuspawner.catalog.entry import Entry
from gpuspawner.catalog.models import CatalogEntry, PolicyEntry, TemplateEntry
from gpuspawner.catalog.names import did_you_mean

E = TypeVar("E", PolicyEntry, TemplateEntry)

LONGEST_CHAIN = 10
"""Entries from one to the last it extends. Arbitrary: longer ones nobody can follow."""


@dataclass(frozen=True)
class Named:
    """The names written, right or wrong: nothing more is said about one that is already known to be wrong."""

    entries: CatalogEntry
    wrong: frozenset[Loc]
    around_wrong: frozenset[Loc]

    @classmethod
    def of(cls, entries: CatalogEntry, issues: list[Issue]) -> Named:
        """Take the names of what passed the schema, and those of what did not."""
        wrong = frozenset(loc for issue in issues for loc in (issue.loc, issue.meant) if loc is not None)
        return cls(entries, wrong, frozenset(loc[:end] for loc in wrong for end in range(len(loc))))

    def is_wrong(self, *loc: str | int) -> bool:
        """Whether something at this path, around it or in it did not pass the schema."""
        return loc in self.around_wrong or any(loc[:end] in self.wrong for end in range(len(loc) + 1))

    def knows(self, section: str, name: str, *keys: Loc) -> bool:
        """Whether nothing at these paths of an entry is known to be wrong, so that what follows can be judged."""
        return not any(self.is_wrong(section, name, *key) for key in keys)

    def has(self, section: str, name: str) -> bool:
        """Whether a name may be referred to."""
        return name in getattr(self.entries, section) or self.is_wrong(section, name)


@dataclass(frozen=True)
class Flat(Generic[E]):
    """An entry with all it inherits, and as written. ``chain`` is itself and what it extends, directly or not.

    ``ends`` tells whether the chain comes to an end: what it inherits is known only then.
    """

    entry: E
    own: E
    section: str
    chain: tuple[str, ...]
    ends: bool
    named: Named

    def knows(self, *keys: Loc) -> bool:
        """Whether nothing at these paths of it, or of what it extends, is known to be wrong."""
        return self.ends and all(self.named.knows(self.section, link, ("extends",), *keys) for link in self.chain)


def flattened(section: str, entries: Mapping[str, E], named: Named, issues: list[Issue]) -> dict[str, Flat[E]]:
    """Return every entry with what it inherits; one whose ``extends`` leads nowhere or in a circle has only its own."""
    flat: dict[str, Flat[E]] = {}
    for name, own in entries.items():
        chain = _chain(section, name, entries, named, issues)
        entry = entries[chain[-1]]
        for heir in reversed(chain[:-1]):
            entry = _inherited(entry, entries[heir])
        flat[name] = Flat(entry, own, section, tuple(chain), entries[chain[-1]].extends is None, named)
    return flat


def _chain(section: str, name: str, entries: Mapping[str, Any], named: Named, issues: list[Issue]) -> list[str]:
    """Return the names from an entry to the last it extends, directly or not, each once."""
    chain = [name]
    loc = (section, name, "extends")
    while (parent := entries[chain[-1]].extends) is not None:
        if parent not in entries:
            if len(chain) == 1 and not named.has(section, parent):
                known = [other for other in entries if other != name]
                wrong = f"nothing in {section} is called `{parent}`"
                issues.append(Issue(loc, wrong, did_you_mean(parent, known)))
            break
        if parent in chain:
            circle = chain[chain.index(parent) :]
            if name == next(entry for entry in entries if entry in circle):  # said once, at the first as written
                wrong = f"goes in a circle: {' > '.join([*circle[:10], parent])}"
                issues.append(Issue(loc, wrong, "take out one of these extends"))
            break
        if len(chain) > LONGEST_CHAIN:
            issues.append(Issue(loc, f"goes over more than {LONGEST_CHAIN} entries", "extend a nearer one"))
            break
        chain.append(parent)
    return chain


def _inherited(parent: E, heir: E) -> E:
    """Return the heir with all that it does not write taken from the parent, key by key.

    Mappings with fixed keys (``idle``, ``bounds``) are joined; ``gpus`` and lists such as ``also_counts`` say all that
    there is, and so are replaced. A title is its entry's own.
    """
    merged: E = _merged(parent, heir)
    return merged.model_copy(update={"title": heir.title}) if isinstance(heir, TemplateEntry) else merged


def _merged(parent: Any, heir: Any) -> Any:
    update = {}
    for key in heir.model_fields_set:
        value = getattr(heir, key)
        update[key] = _merged(getattr(parent, key), value) if isinstance(value, Entry) else value
    return parent.model_copy(update=update)
