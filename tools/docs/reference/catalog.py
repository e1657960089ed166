"""The reference page of the catalog's keys, from their models."""

from __future__ import annotations

from collections.abc import Iterator

from gpuspawner.catalog.keys import Key, descriptions_of, keys_of
from gpuspawner.catalog.models import WrittenCatalog
from tools.docs.reference.written import docstring, paragraph, table

HEAD = """\
# Catalog

The catalog is one YAML file. It says which workspaces users may start, and by which rules. `gpuspawner server check`
reports everything that is wrong with it, with the line. A key may be left out unless it is required. A key without a
value is refused. Write sizes like `64GiB` or `512MiB`, times like `90s`, `30m`, `8h`, `1h30m` or `2d`, and ranges like
`1-4`, `8GiB-256GiB` or `30m-24h`. See [quotas](../how-to/administrators/quotas.md) for examples.
"""
COLUMNS = ("key", "value", "what it means", "default")
DEEPEST_TITLE = 3


def catalog() -> str:
    """Return the page."""
    return HEAD + "".join(_section("", "Top level", WrittenCatalog))


def _section(path: str, title: str, model: type) -> Iterator[str]:
    """Yield the table of a section, then those of the sections below it."""
    keys, descriptions = keys_of(model), descriptions_of(model)
    rows = []
    for name, key in keys.items():
        meaning, _, default = paragraph(descriptions[name]).partition(" Default: ")
        rows.append((f"`{name}`", _value(key), meaning, default.removesuffix(".")))
    level = min(DEEPEST_TITLE, 2 + path.count("."))
    yield f"\n{'#' * level} {title}\n\n{docstring(model)}\n\n{table(COLUMNS, rows)}"
    for name, key in keys.items():
        if key.section is not None:
            below = f"{path}{name}{_suffix(key)}"
            yield from _section(f"{below}.", f"`{below}`", key.section)


def _suffix(key: Key) -> str:
    return {"map": ".NAME", "list": "[]", "": ""}[key.container]


def _value(key: Key) -> str:
    if key.reader is not None:
        return f"for each name: {key.reader.accepts}" if key.container else key.reader.accepts
    return {"map": "a section for each name", "list": "a list of sections", "": "a section"}[key.container]
