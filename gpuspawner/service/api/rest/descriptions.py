"""The descriptions of fields in the OpenAPI document: the docstring below each field of a model.

Pydantic can read them too, as ``use_attribute_docstrings``. It would read them all at the start of the service.
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Iterator
from functools import cache

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core.core_schema import ModelSchema


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
