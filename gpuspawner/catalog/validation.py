"""Check every key and value by itself, and report all errors at once."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

from pydantic import TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from gpuspawner.catalog.document import Document, Issue, Loc, WrongPaths
from gpuspawner.catalog.entries import CheckedFile
from gpuspawner.catalog.keys import Key, keys_of
from gpuspawner.catalog.models import WrittenCatalog
from gpuspawner.catalog.quota_models import QuotaLimits
from gpuspawner.core.errors import quoted
from gpuspawner.core.fields import UnknownKey
from gpuspawner.core.text_fields import closest_name, did_you_mean
from gpuspawner.core.units import BadValue

UNKNOWN = ("unexpected_keyword_argument", "extra_forbidden")
"""The types of pydantic's error for an unknown key: of a dataclass, and of a model."""
NOT_BUILT: dict[type, tuple[str, ...]] = {QuotaLimits: ("namespace",)}
"""Keys that the design has and this version does not."""


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
        if key in NOT_BUILT.get(model, ()):
            return "not built yet in this version", "remove it"
        return f"unknown key {quoted(key)}", did_you_mean(key, keys_of(model))
    if isinstance(error, BadValue):
        return error.wrong, error.right
    if details["type"] == "tuple_type":
        return f"{quoted(details['input'])} is not a list", f"write for example {loc[-1]}: [{{key: value}}]"
    example = "version: 1"
    if loc:
        example = "{key: value}" if isinstance(loc[-1], int) else f"{loc[-1]}: {{key: value}}"
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
