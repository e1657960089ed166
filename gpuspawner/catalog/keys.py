"""The keys of a section, read from its model. Loading, schemas and the reference page use them."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass, replace
from functools import cache
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from gpuspawner.core.fields import MOST_ITEMS, Internal, Reader, Required, Schema, SchemaDefault, SortedPairs


@dataclass(frozen=True)
class Key:
    """One key of a section. It has a reader for its value, or the model of a section below it."""

    name: str
    field: str
    reader: Reader | None = None
    section: type | None = None
    container: Literal["", "map", "list"] = ""
    """How many values or sections the key holds: one, one for each name, or a list."""
    required: Required | None = None
    default: Any = None
    """The default of its field, or None if that is a section."""
    has_default: bool = True
    default_in_schema: bool = False

    @property
    def written_default(self) -> str:
        """The default as an administrator would write it, or "" if it cannot be written."""
        if self.reader is None or self.container or self.required is not None or self.default is None:
            return ""
        return self.reader.write(self.default)


@cache
def keys_of(model: type) -> Mapping[str, Key]:
    """Return the keys of a model by name, in the order of its fields."""
    hints = get_type_hints(model, include_extras=True)
    name_of = model.__pydantic_config__["alias_generator"]  # type: ignore[attr-defined]
    found = {}
    for one in fields(model):
        default = None if one.default is MISSING else one.default
        has_default = one.default is not MISSING or one.default_factory is not MISSING
        key = _typed(Key(name_of(one.name), one.name, default=default, has_default=has_default), hints[one.name])
        if key.reader is not Internal:
            found[key.name] = key
    return found


def _typed(key: Key, hint: Any) -> Key:
    """Return a key with what its annotation says: reader or section, container and marks."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        inner, *marks = arguments
        for mark in marks:
            if isinstance(mark, Required):
                key = replace(key, required=mark)
            elif mark is SchemaDefault:
                key = replace(key, default_in_schema=True)
            elif isinstance(mark, Reader):
                key = replace(key, reader=mark)
            elif isinstance(mark, SortedPairs):
                key = replace(key, reader=mark.value, container="map")
        return key if key.reader is not None else _typed(key, inner)
    if origin in (UnionType, Union):
        return _typed(key, arguments[0])
    if origin is tuple:
        return replace(_typed(key, arguments[0]), container="list")
    if origin is not None and issubclass(origin, Mapping):
        return replace(_typed(key, arguments[1]), container="map")
    return replace(key, section=hint)


@cache
def descriptions_of(model: type) -> Mapping[str, str]:
    """Return the documentation of each key: the first paragraph below its field, with the default."""
    texts: dict[str, str] = {}
    for base in filter(is_dataclass, model.__mro__):
        (body,) = ast.parse(textwrap.dedent(inspect.getsource(base))).body
        assert isinstance(body, ast.ClassDef)
        for one, below in zip(body.body, body.body[1:], strict=False):
            if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name) and isinstance(below, ast.Expr):
                paragraph = inspect.cleandoc(ast.literal_eval(below.value)).partition("\n\n")[0]
                texts[one.target.id] = " ".join(paragraph.split())
    return {name: _with_default(texts[key.field], key) for name, key in keys_of(model).items()}


def _with_default(text: str, key: Key) -> str:
    if "Default: " in text or not key.written_default:
        return text
    return f"{text} Default: {key.written_default}."


def schema_of(model: type) -> Schema:
    """Return the structural schema of a model, which the API server checks and ``kubectl explain`` shows.

    A schema can only say what shape a value has. Readers check the meaning of a text like ``1h-8h``.
    """
    found: Schema = {"type": "object", "description": inspect.getdoc(model), "properties": {}}
    keys, descriptions = keys_of(model), descriptions_of(model)
    for name, key in keys.items():
        found["properties"][name] = {"description": descriptions[name], **_schema_of_key(key)}
        if key.default_in_schema:
            found["properties"][name]["default"] = key.default
    if required := [name for name, key in keys.items() if not key.has_default]:
        found["required"] = required
    return found


def _schema_of_key(key: Key) -> Schema:
    if key.container:
        inner = _schema_of_key(replace(key, container=""))
        if key.container == "list":
            return {"type": "array", "maxItems": MOST_ITEMS, "items": inner}
        return {"type": "object", "maxProperties": MOST_ITEMS, "additionalProperties": inner}
    if key.reader is not None:
        return dict(key.reader.schema)
    assert key.section is not None, "a key has a reader or a section"
    found = schema_of(key.section)
    del found["description"]
    return found
