"""The base classes of the REST API's models, the descriptions of their fields, and long lists in parts.

A field is described by the docstring below it. Pydantic can read them too, as ``use_attribute_docstrings``. It would
read them all at the start of the service.
"""

from __future__ import annotations

import ast
import base64
import inspect
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core.core_schema import ModelSchema

from gpuspawner.core.errors import RequestRefused, quoted

LONGEST_LIST = 200
"""The largest number of list entries in one answer. Arbitrary: 0.6 MB of workspaces."""


class Answer(BaseModel):
    """The base of answers, which have exactly their fields. Times are seconds since 1970. null means unknown."""

    model_config = ConfigDict(extra="forbid", strict=True, defer_build=True, populate_by_name=True)

    def as_json(self) -> dict[str, Any]:
        """Return the answer as a JSON object."""
        return self.model_dump(mode="json", by_alias=True)


class Body(BaseModel):
    """The base of request bodies, which have exactly their fields."""

    model_config = ConfigDict(extra="forbid", strict=True, defer_build=True)


class Query(BaseModel):
    """The base of query arguments. No others are allowed."""

    model_config = ConfigDict(extra="forbid", defer_build=True)


class PageQuery(Query):
    """The part of a long list."""

    limit: int = Field(default=LONGEST_LIST, ge=1, le=LONGEST_LIST)
    """The number of entries in one answer."""
    cursor: str = Field(default="", max_length=500)
    """The beginning of the part: ``next`` of the part before."""


class Refused(Answer):
    """A refused part of a request, and the reason."""

    field: str
    words: str


class Problem(Answer):
    """An error, in a sentence for people."""

    message: str
    field: str | None = None
    """The refused part of the request. ``asked``, ``limit`` and ``remedy`` are about it."""
    asked: str | None = None
    limit: str | None = None
    remedy: str | None = None
    sentence: str | None = None
    """All errors of the options in one sentence."""
    fields: list[Refused] | None = None
    """Each refused option."""
    understood: dict[str, str] | None = None
    """The meaning of each accepted option."""


class Error(Answer):
    """An answer of 4xx or 5xx."""

    error: Problem


class DescribedSchema(GenerateJsonSchema):
    """Makes JSON schemas of models, with the docstrings of their fields as descriptions."""

    def model_schema(self, schema: ModelSchema) -> JsonSchemaValue:
        """Return the schema of a model, with descriptions."""
        made = super().model_schema(schema)
        for name, text in field_descriptions(schema["cls"]).items():
            alias = schema["cls"].model_fields[name].alias
            made["properties"][alias or name].setdefault("description", text)
        return made


def field_descriptions(model: type[BaseModel]) -> dict[str, str]:
    """Return the docstring of each field of a model that has one, inherited fields included."""
    found: dict[str, str | None] = {}
    for base in reversed(model.__mro__):
        if base is not BaseModel and issubclass(base, BaseModel):
            found |= _docstrings_of(base.__module__)[base.__name__]
    return {name: text for name, text in found.items() if text is not None and name in model.model_fields}


@cache
def _docstrings_of(module: str) -> dict[str, dict[str, str | None]]:
    """Return the docstring of each annotated attribute, None for none, of each class of a module."""
    tree = ast.parse(inspect.getsource(sys.modules[module]))
    classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    return {one.name: dict(_attributes_of(one)) for one in classes}


def _attributes_of(definition: ast.ClassDef) -> Iterator[tuple[str, str | None]]:
    for statement, after in zip(definition.body, [*definition.body[1:], None], strict=True):
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            text = None
            if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
                text = inspect.cleandoc(str(after.value.value))
            yield statement.target.id, text


T = TypeVar("T")
Order = tuple[int, float, str]
"""The sort key of a list, ascending: its part, a number, and an id for equal numbers."""


def page(rows: Sequence[T], query: PageQuery, order: Callable[[T], Order]) -> tuple[list[T], str | None]:
    """Return the requested part of a list, and the cursor of the next part, None after the last one.

    ``rows`` are in ascending ``order``.
    """
    after = after_of(query)
    rest = [row for row in rows if after is None or order(row) > after]
    shown = rest[: query.limit]
    return shown, cursor_of(order(shown[-1])) if len(rest) > len(shown) else None


def cursor_of(order: Order) -> str:
    """Return the cursor of the part that begins after a row."""
    return base64.urlsafe_b64encode(json.dumps(order).encode()).decode().rstrip("=")


def after_of(query: PageQuery) -> Order | None:
    """Return the sort key after which the part begins, None for the first. Raises RequestRefused for a wrong cursor."""
    if not query.cursor:
        return None
    try:
        found: Any = json.loads(base64.urlsafe_b64decode(query.cursor + "=" * (-len(query.cursor) % 4)))
        part, number, name = found
        after = int(part), float(number), str(name)
    except (ValueError, TypeError, OverflowError, RecursionError):
        after = 0, 0.0, "\0"
    if not after[2].isprintable():  # no id that a store could hold
        right = "`next` of the part before"
        raise RequestRefused("cursor", quoted(query.cursor), right, "Begin without a cursor.")
    return after
