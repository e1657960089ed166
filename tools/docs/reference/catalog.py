"""The catalog's keys, from its models: what each takes is its parser's docstring, what it means stands below it."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple, get_args, get_origin

from pydantic import BeforeValidator

from gpuspawner.catalog.entry import Entry, Section, Sections
from gpuspawner.catalog.models import CatalogEntry
from gpuspawner.catalog.parsers import TextOf, WholeNumber
from tools.docs.reference.written import attribute_docstrings, docstring, paragraph, table

HEAD = """\
# Catalog

What people may ask for, and what becomes of it: one file of YAML. `gpuspawner server check FILE` names
all that is wrong with one, by line. A key may be left out unless `check` asks for it; `key:` with nothing behind it is
refused. Sizes are written `64GiB` or `512MiB`, times `90s`, `30m`, `8h`, `1h30m` or `2d`, ranges `1-4`,
`8GiB-256GiB` or `30m-24h`.
[How-to: quotas](../how-to/quotas.md) and [The rules](../rules.md) have examples.
"""


class _Value(NamedTuple):
    words: str
    section: type[Entry] | None = None
    below: str = ""


def catalog() -> str:
    """Return the page."""
    return HEAD + "".join(_section("", "Top level", CatalogEntry))


def keys(path: str, kind: type[Entry]) -> Iterator[tuple[str, str, str, _Value]]:
    """Yield of each key of a section its path, name, sentence and value.

    Raises:
        KeyError: a key has no sentence below it.
    """
    told = attribute_docstrings(kind)
    for attribute, field in kind.model_fields.items():
        name = field.alias or attribute
        value = _value(field.annotation, field.metadata)
        yield f"{path}{name}{value.below}", name, told[attribute], value


def _section(path: str, title: str, kind: type[Entry]) -> Iterator[str]:
    found = list(keys(path, kind))
    rows = [(f"`{name}`", *_parted(told, value)) for _, name, told, value in found]
    level = min(3, 2 + path.count("."))
    yield f"\n{'#' * level} {title}\n\n{docstring(kind)}\n\n{table(('key', 'value', 'what it means', 'default'), rows)}"
    for below, _, _, value in found:
        if value.section is not None:
            yield from _section(f"{below}.", f"`{below}`", value.section)


def _parted(told: str, value: _Value) -> tuple[str, str, str]:
    sentence, _, default = told.partition(" Default: ")
    return value.words, sentence, default.removesuffix(".")


def _value(annotation: Any, metadata: list[Any]) -> _Value:
    """Return what a key takes, and the model of what is below it."""
    if get_origin(annotation) is dict:
        _, value = get_args(annotation)
        below = _of(value)
        words = "a section for each, by its name" if below.section else f"for each, by its name: {below.words}"
        return _Value(words, below.section, ".NAME")
    if get_origin(annotation) is list and not any(_is_reader(one) for one in metadata):
        (value,) = get_args(annotation)
        below = _of(value)
        return _Value("a list of sections", below.section, "[]") if below.section else below
    if isinstance(annotation, type) and issubclass(annotation, Entry):
        return _Value("a section", annotation)
    read = next((one for one in metadata if _is_reader(one)), None)
    return _Value("text" if read is None else _words(read.func))


def _of(annotation: Any) -> _Value:
    marked = getattr(annotation, "__metadata__", ())
    return _value(get_args(annotation)[0] if marked else annotation, list(marked))


def _is_reader(one: Any) -> bool:
    return isinstance(one, BeforeValidator) and one.func not in {Section.func, Sections.func}


def _words(read: Any) -> str:
    """Return what a reader takes, by its docstring, or by that of the function that made it."""
    made_by, held = type(read).__name__, dict(vars(read))
    if not isinstance(read, (TextOf, WholeNumber)):
        made_by, held = read.__qualname__.split(".")[0], dict(inspect.getclosurevars(read).nonlocals)
    if made_by == "range_of":
        return f"a range or one value, each {_words(held['parse_end'])}"
    if made_by == "amount_of":
        return str(held["what"])
    text = docstring(getattr(sys.modules[read.__module__], made_by))
    for name, value in held.items():
        text = text.replace(f"`{name}`", str(value))
    return paragraph(
        text.removeprefix("Read ").removeprefix("Return a reader of ").removeprefix("A reader of ").removesuffix(".")
    )
