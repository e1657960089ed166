"""The reference page of the custom resources, from their models."""

from __future__ import annotations

from collections.abc import Iterator

from gpuspawner.catalog.keys import Key, descriptions_of, keys_of
from gpuspawner.catalog.resources.definitions import API_GROUP, API_VERSION, KINDS, Kind
from tools.docs.reference.written import paragraph, table

HEAD = f"""\
# Custom resources

Custom resources of `{API_GROUP}/{API_VERSION}` on Kubernetes.
[Request workspaces with kubectl](../how-to/administrators/custom-resources.md) says how to use them.
"""


def custom_resources() -> str:
    """Return the page."""
    return HEAD + "".join(part for kind in KINDS for part in _parts(kind))


def _parts(kind: Kind) -> Iterator[str]:
    yield f"\n## {kind.name}\n\n{kind.about} Short name: `{kind.short}`.\n\n"
    if kind.section:
        yield f"The keys of `spec` are those of [`{kind.section}.NAME`](catalog.md) in the catalog.\n"
        return
    yield from _keys(kind.model, "spec")


def _keys(model: type, path: str) -> Iterator[str]:
    keys, descriptions = keys_of(model), descriptions_of(model)
    rows = []
    for name, key in keys.items():
        meaning, _, default = paragraph(descriptions[name]).partition(" Default: ")
        rows.append((f"`{path}.{name}`", _value(key), meaning, default.removesuffix(".")))
    yield table(("key", "value", "what it means", "default"), rows)
    for name, key in keys.items():
        if key.section is not None:
            yield "\n"
            yield from _keys(key.section, f"{path}.{name}")


def _value(key: Key) -> str:
    return key.reader.accepts if key.reader is not None else "a section"
