"""Check every key and value by itself, report all errors at once, and join each entry with those that it extends."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from gpuspawner.catalog.document import Document, Issue, Loc, WrongPaths
from gpuspawner.catalog.keys import Key, keys_of
from gpuspawner.catalog.models import WrittenCatalog
from gpuspawner.catalog.template_models import Template
from gpuspawner.core.errors import closest_name, did_you_mean, quoted
from gpuspawner.core.fields import UnknownKey
from gpuspawner.core.idle.policies import LifecyclePolicy
from gpuspawner.core.units import BadValue

E = TypeVar("E", LifecyclePolicy, Template)

LONGEST_CHAIN = 10
"""Entries that one entry extends, directly or not. Arbitrary: a longer chain is hard to follow."""
EXAMPLE_KEYS = 2
"""The number of keys in the example of a mapping. Arbitrary."""
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


UNKNOWN = ("unexpected_keyword_argument", "extra_forbidden")
"""The types of pydantic's error for an unknown key: of a dataclass, and of a model."""


def validate(document: Document) -> tuple[CheckedFile, list[Issue]]:
    """Return the values that are right by themselves, and an issue for each required key that is missing.

    Other issues are added to the document. A wrong value is removed from its data and the rest is validated again, so
    that one error hides no other. An example replaces a required value that is missing or wrong.
    """
    if document.data is None:
        document.data = {}
    missing = dict(_complete((), WrittenCatalog, document.data))
    while True:
        try:
            file = _adapter().validate_python(document.data)
            break
        except ValidationError as error:
            for details in error.errors(include_url=False):
                _report(details, document)
    paths = document.wrong_paths()
    wrong = WrongPaths.of(paths)
    missing = {path: issue for path, issue in missing.items() if not wrong.touch(path)}
    return CheckedFile(file, document.data, WrongPaths.of([*paths, *missing])), list(missing.values())


@cache
def _adapter() -> TypeAdapter[WrittenCatalog]:
    return TypeAdapter(WrittenCatalog)


def _complete(loc: Loc, model: type, data: Any) -> Iterator[tuple[Loc, Issue]]:
    """Fill in sections of which nothing is written, and an example for each required key that is missing.

    Yields the path of each such key with its issue. ``cpu:`` without a value is an empty section. Any other key without
    a value stays, and its reader refuses it.
    """
    if not isinstance(data, dict):
        return
    keys = keys_of(model)
    for name, key in keys.items():
        if name in data and (key.section is not None or key.container):
            if data[name] is None:
                data[name] = [] if key.container == "list" else {}
            if key.section is not None:
                yield from _complete_sections((*loc, name), key, key.section, data[name])
    for name, key in keys.items():
        if key.required is not None and name not in data:
            data[name] = key.required.example
            right = key.required.right.format(key=name, example=key.required.example)
            yield (*loc, name), Issue(loc or (name,), f"{name} is missing" if loc else "missing", right)


def _complete_sections(loc: Loc, key: Key, section: type, data: Any) -> Iterator[tuple[Loc, Issue]]:
    if not key.container:
        yield from _complete(loc, section, data)
    elif isinstance(data, dict):
        for name in data:
            data[name] = {} if data[name] is None else data[name]
            yield from _complete((*loc, name), section, data[name])
    elif isinstance(data, list):
        for number, one in enumerate(data):
            yield from _complete((*loc, number), section, one)


def _report(details: ErrorDetails, document: Document) -> None:
    """Add an error of pydantic to a document as an issue, and remove the wrong value."""
    loc: Loc = details["loc"]
    if loc and loc[-1] == "[key]":  # the name of an entry is wrong
        loc = loc[:-1]
    meant = _meant_key(loc) if details["type"] in UNKNOWN else None
    document.issues.append(Issue(loc, *_explain(details, loc), meant=meant))
    if loc:
        document.remove(loc, _stand_in(loc))
    else:
        document.data = {"version": 1}


def _explain(details: ErrorDetails, loc: Loc) -> tuple[str, str]:
    """Return the two halves of a message: what is wrong, and what would be right."""
    error = details.get("ctx", {}).get("error")
    if isinstance(error, UnknownKey) or details["type"] in UNKNOWN:
        key, model = str(loc[-1]), _model_at(loc[:-1])
        assert model is not None, "only a section has unknown keys"
        return f"unknown key {quoted(key)}", did_you_mean(key, keys_of(model))
    if isinstance(error, BadValue):
        return error.wrong, error.right
    if details["type"] == "tuple_type":
        return f"{quoted(details['input'])} is not a list", f"write for example {loc[-1]}: [{{key: value}}]"
    example = "version: 1"
    if loc:
        model = _model_at(loc)
        keys = ["key"] if model is None else list(keys_of(model))[:EXAMPLE_KEYS]
        example = f"{{{', '.join(f'{key}: value' for key in keys)}}}"
        example = example if isinstance(loc[-1], int) else f"{loc[-1]}: {example}"
    return f"{quoted(details['input'])} is not a mapping", f"write keys and values, for example {example}"


def _meant_key(loc: Loc) -> Loc | None:
    """Return the key that a misspelt key of an entry was meant to be, which is then not reported as missing.

    A required key of the file itself is also reported as missing.
    """
    model = _model_at(loc[:-1])
    close = closest_name(str(loc[-1]), list(keys_of(model))) if model is not None and len(loc) > 1 else ""
    return (*loc[:-1], close) if close else None


def _model_at(loc: Loc) -> type | None:
    """Return the model of the mapping at a path, or None if the names in that mapping are free."""
    model: type = WrittenCatalog
    at = 0
    while at < len(loc):
        key = keys_of(model)[str(loc[at])]
        at += 2 if key.container else 1
        if key.section is None or at > len(loc):
            return None
        model = key.section
    return model


def _stand_in(loc: Loc) -> Any:
    """Return the example for a wrong value that is required, or for a wrong item of a list of sections."""
    if isinstance(loc[-1], int):
        model = _model_at(loc)
        keys = {} if model is None else keys_of(model)
        return {key.name: key.required.example for key in keys.values() if key.required is not None}
    holder = _model_at(loc[:-1])
    wrong = None if holder is None else keys_of(holder).get(str(loc[-1]))
    return None if wrong is None or wrong.required is None else wrong.required.example
