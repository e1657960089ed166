"""The REST API, from its own OpenAPI document."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from gpuspawner.service.api.rest.document import REASONS
from gpuspawner.service.api.routes import document_of_all
from tools.docs.reference.written import paragraph, table

HEAD = """\
# API

All paths are below `/services/gpu`. A running service shows this page at `/services/gpu/reference`, and answers it as
OpenAPI 3.1 at `/services/gpu/api/openapi.json`.

"""
METHODS = ("get", "post", "delete")


def api() -> str:
    """Return the page."""
    told = document_of_all()
    models = "".join(_model(name, schema) for name, schema in told["components"]["schemas"].items())
    errors = "\n## Errors\n\n" + table(("status", "when"), [(str(code), reason) for code, reason in REASONS.items()])
    routes = _routes(told["paths"])
    return "".join([HEAD, told["info"]["description"], "\n", errors, *routes, "\n## Models\n", models])


def _routes(paths: Mapping[str, Any]) -> Iterator[str]:
    for path, operations in paths.items():
        for method in METHODS:
            if method in operations:
                yield _route(f"{method.upper()} {path}", operations[method])


def _route(name: str, one: Mapping[str, Any]) -> str:
    text = paragraph(f"{one['summary']} {one.get('description', '')}")
    query = [each for each in one["parameters"] if each["in"] == "query"]
    rows = [(f"`{each['name']}`", paragraph(each.get("description", ""))) for each in query]
    arguments = "\n" + table(("argument", "what it is"), rows) if rows else ""
    answers = {code: answer for code, answer in one["responses"].items() if code.startswith("2")}
    sentences = [f"{code}: {_answered(answer['content'])}." for code, answer in answers.items()]
    if "requestBody" in one:
        sentences.insert(0, f"Body: {_type(one['requestBody']['content']['application/json']['schema'])}.")
    sentences.append(f"Errors: {', '.join(code for code in one['responses'] if code not in answers)}.")
    return f"\n## `{name}`\n\n{text}\n{arguments}\n{' '.join(sentences)}\n"


def _answered(content: Mapping[str, Any]) -> str:
    ((kind, one),) = content.items()
    return _type(one["schema"]) if "$ref" in one["schema"] else f"`{kind}`"


def _model(name: str, schema: Mapping[str, Any]) -> str:
    needed = schema.get("required", ())
    rows = [
        (f"`{field}`", _type(one), "" if field in needed else "may be left out", paragraph(one.get("description", "")))
        for field, one in schema.get("properties", {}).items()
    ]
    fields = "\n" + table(("field", "type", "", "what it is"), rows) if rows else ""
    return f"\n### {name}\n\n{paragraph(schema.get('description', ''))}\n{fields}"


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
