"""Loading a catalog: read, checked whole, and either all right or refused with everything that is wrong."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from gpuspawner.catalog.building.build import build
from gpuspawner.catalog.document import Document, Issue, read_bytes, read_file, read_mapping, read_text
from gpuspawner.catalog.explain import checked
from gpuspawner.catalog.values import Catalog
from gpuspawner.core.errors import SHOWN_CHARACTERS, CatalogError, Problem, quoted

DICT_NAME = "configure(catalog=...)"
"""Stands for the file of a catalog given as a dict."""


def load_catalog(source: object) -> Catalog:
    """Load a catalog from a YAML file (``str`` or ``Path``), or from a dict of the same form.

    Raises:
        CatalogError: it cannot be used; says everything that is wrong with it, in the order of the file.
    """
    if isinstance(source, Mapping):
        return _loaded(read_mapping(source), DICT_NAME)
    if not isinstance(source, (str, Path)):
        wrong = f"{quoted(source)} is neither a path nor a dict"
        return _loaded(Document(issues=[Issue(("catalog",), wrong, "name the catalog's YAML file")]), DICT_NAME)
    return _loaded(read_file(Path(source)), str(source))


def load_text(text: str, name: str = "catalog") -> Catalog:
    """Load a catalog from YAML text. ``name`` stands for its file in messages.

    Raises:
        CatalogError: as :func:`load_catalog`.
    """
    return _loaded(read_text(text), name)


def load_raw(raw: bytes | Document, name: str) -> Catalog:
    """Load a catalog from what ``document.read_raw`` found of its file, whose name is for messages.

    Raises:
        CatalogError: as :func:`load_catalog`.
    """
    return _loaded(read_bytes(raw) if isinstance(raw, bytes) else raw, name)


def check(source: object) -> tuple[Problem, ...]:
    """Return everything that is wrong with a catalog; nothing when it can be used."""
    try:
        load_catalog(source)
    except CatalogError as error:
        return error.problems
    return ()


def _loaded(document: Document, file: str) -> Catalog:
    if any(issue.loc == ("catalog",) for issue in document.issues):  # nothing could be read
        raise CatalogError(problems(document, file))
    empty = document.data is None
    if empty:
        document.data = {}
    catalog = build(checked(document), document.issues, empty=empty)
    if document.issues:
        raise CatalogError(problems(document, file))
    return catalog


def problems(document: Document, file: str) -> tuple[Problem, ...]:
    """Return the issues of a document with their lines, in the order of the file."""
    found = [
        Problem(
            _shown(file), issue.line or document.line_of(issue.loc), _entry(issue), issue.wrong, _sentence(issue.right)
        )
        for issue in document.issues
    ]
    return tuple(sorted(found, key=lambda problem: problem.line or 0))


def _entry(issue: Issue) -> str:
    return ".".join(_shown(str(part)) for part in issue.loc) or "catalog"


def _shown(text: str) -> str:
    return text if text.isprintable() and len(text) <= 4 * SHOWN_CHARACTERS else quoted(text)


def _sentence(text: str) -> str:
    text = text[:1].upper() + text[1:]
    return text if text.endswith("?") else f"{text}."
