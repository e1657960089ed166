"""The REST API, from its own OpenAPI document."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from gpuspawner.service.api.routes import document_of_all
from tools.docs.reference.written import table

HEAD = """\
# API

Below `/services/gpu`. A running service answers the same as OpenAPI 3.1 at `/services/gpu/api/openapi.json`, and shows
it as a page at `/services/gpu/reference`.

"""
METHODS = ("get", "post", "delete")


def api() -> str:
    """Return the page."""
    told = document_of_all()
    models = "".join(_model(name, schema) for name, schema in told["components"]["schemas"].items())
    return "".join([HEAD, told["info"]["description"], "\n", *_routes(told["paths"]), "\n## Models\n", models])


def _routes(paths: Mapping[str, Any]) -> Iterator[str]:
    for path, operations in paths.items():
        for method in METHODS:
            if method in operations:
                yield _route(f"{method.upper()} {path}", operations["summary"], operations[method])


def _route(name: str, about: str, one: Mapping[str, Any]) -> str:
    text = " ".join(filter(None, [about, one["summary"], one.get("description", "")]))
    taken = [(f"`{each['name']}`", each["in"], each.get("description", "")) for each in one["parameters"]]
    body = (
        f"\nBody: {_type(one['requestBody']['content']['application/json']['schema'])}\n"
        if "requestBody" in one
        else ""
    )
    answers = [
        (status, _answered(answer["content"]) if status.startswith("2") else "Error", answer["description"])
        for status, answer in one["responses"].items()
    ]
    arguments = "\n" + table(("argument", "in", "what it is"), taken) if taken else ""
    return f"\n## `{name}`\n\n{text}\n{arguments}{body}\n{table(('status', 'answer', 'when'), answers)}"


def _answered(content: Mapping[str, Any]) -> str:
    ((kind, one),) = content.items()
    return _type(one["schema"]) if "$ref" in one["schema"] else f"`{kind}`"


def _model(name: str, schema: Mapping[str, Any]) -> str:
    needed = schema.get("required", ())
    rows = [
        (f"`{field}`", _type(one), "" if field in needed else "may be left out", one.get("description", ""))
        for field, one in schema.get("properties", {}).items()
    ]
    fields = "\n" + table(("field", "type", "", "what it is"), rows) if rows else ""
    return f"\n### {name}\n\n{schema.get('description', '')}\n{fields}"


def _type(schema: Mapping[str, Any]) -> str:
    """Return the type in words; a model as a link to its section."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "anyOf" in schema:
        return " or ".join(map(_type, schema["anyOf"]))
    if "enum" in schema:
        return ", ".join(f"`{one}`" for one in schema["enum"])
    if schema.get("type") == "array":
        return f"list of {_type(schema['items'])}"
    if isinstance(schema.get("additionalProperties"), dict):
        return f"{_type(schema['additionalProperties'])} by name"
    return str(schema.get("type", "anything"))
