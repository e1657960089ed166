"""The schema's check: every key and value by itself, all errors at once, in words."""

from __future__ import annotations

from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from gpuspawner.catalog.document import Document, Issue, Loc
from gpuspawner.catalog.entry import Entry
from gpuspawner.catalog.models import CatalogEntry
from gpuspawner.catalog.names import closest, did_you_mean
from gpuspawner.core.errors import quoted
from gpuspawner.core.units import BadValue

NOT_BUILT = "not built yet in this version"


def checked(document: Document) -> CatalogEntry:
    """Return the entries that are right by themselves, adding an issue to the document for each that is not.

    What is wrong is taken out of the document's data and the rest read again, so that one error hides no other.
    """
    while True:
        try:
            return CatalogEntry.model_validate(document.data)
        except ValidationError as error:
            found = error.errors(include_url=False)
        for details in found:
            loc = _entry_of(details["loc"])
            meant = _meant(loc) if details["type"] == "extra_forbidden" else None
            document.issues.append(Issue(loc, *_explained(details, loc), meant=meant))
            _take_out(document, loc)


def _entry_of(loc: Loc) -> Loc:
    """Return the path as the file has it: pydantic marks a bad key of a map by an element of its own."""
    return loc[:-1] if loc and loc[-1] == "[key]" else loc


def _explained(details: ErrorDetails, loc: Loc) -> tuple[str, str]:
    """Return what is wrong and what would be right."""
    error = details.get("ctx", {}).get("error")
    if isinstance(error, BadValue):
        return error.wrong, error.right
    if details["type"] == "extra_forbidden":
        return _unknown_key(loc)
    if details["type"] == "list_type":
        return f"{quoted(details['input'])} is not a list", f"write for example {loc[-1]}: [{{key: value}}]"
    wrong, example = f"{quoted(details['input'])} is not a mapping", "version: 1"
    if loc:
        example = "{key: value}" if isinstance(loc[-1], int) else f"{loc[-1]}: {{key: value}}"
    return wrong, f"write keys and values, for example {example}"


def _unknown_key(loc: Loc) -> tuple[str, str]:
    key = str(loc[-1])
    if right := _model_at(loc[:-1]).later.get(key):
        return NOT_BUILT, right
    return f"unknown key {quoted(key)}", did_you_mean(key, _keys_beside(loc))


def _meant(loc: Loc) -> Loc | None:
    """Return what a misspelt key of an entry was to be; of the file itself, what is missing is told too."""
    close = closest(str(loc[-1]), _keys_beside(loc)) if len(loc) > 1 else ""
    return (*loc[:-1], close) if close else None


def _keys_beside(loc: Loc) -> list[str]:
    return [field.alias or name for name, field in _model_at(loc[:-1]).model_fields.items()]


def _model_at(loc: Loc) -> type[Entry]:
    """Return the model that describes the mapping at a path of the catalog."""
    annotation: Any = CatalogEntry
    for part in loc:
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            fields = {field.alias or name: field for name, field in annotation.model_fields.items()}
            annotation = fields[str(part)].annotation
        else:  # dict[name, model] or list[model]: the model is the last argument, perhaps annotated
            annotation = get_args(annotation)[-1]
            annotation = getattr(annotation, "__origin__", annotation)
    assert isinstance(annotation, type)
    assert issubclass(annotation, Entry)
    return annotation


def _take_out(document: Document, loc: Loc) -> None:
    if not loc:
        document.data = {}
        return
    holder: Any = document.data
    for part in loc[:-1]:  # gone where the whole entry was wrong too
        holder = holder[int(part)] if isinstance(holder, list) else holder.get(part, {})
    if isinstance(holder, list):
        holder[int(loc[-1])] = {}  # the others keep their places
    else:
        holder.pop(loc[-1], None)
