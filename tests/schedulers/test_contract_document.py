"""The document of the contract for external schedulers is complete, and all errors have the same shape."""

from pathlib import Path

import pytest
import yaml
from schemathesis import openapi

DOCUMENT = yaml.safe_load((Path(__file__).parents[2] / "docs" / "scheduler.openapi.yaml").read_text())
ERROR = {"$ref": "#/components/schemas/Error"}


def objects(part, path=""):
    """Yield all schemas with properties, and their paths."""
    if isinstance(part, dict):
        if isinstance(part.get("properties"), dict):
            yield path, part
        for name, value in part.items():
            yield from objects(value, f"{path}/{name}")
    elif isinstance(part, list):
        for index, value in enumerate(part):
            yield from objects(value, f"{path}/{index}")


def resolved(part):
    """Resolve a reference."""
    while "$ref" in part and len(part) == 1:
        found = DOCUMENT
        for name in part["$ref"].removeprefix("#/").split("/"):
            found = found[name]
        part = found
    return part


def described(field):
    field = resolved(field)
    parts = [field, *field.get("oneOf", []), field.get("items", {}), field.get("additionalProperties") or {}]
    return any("description" in resolved(one) for one in parts)


def operations():
    for path, methods in DOCUMENT["paths"].items():
        for method, operation in methods.items():
            if method != "parameters":
                yield f"{method} {path}", operation


def test_every_operation_can_be_asked_by_it():
    found = [one.ok() for one in openapi.from_dict(DOCUMENT).get_all_operations()]
    assert {f"{one.method} {one.path}" for one in found} == {name for name, _ in operations()}


def test_each_field_says_what_it_means():
    fields = [(f"{where}/{name}", one) for where, part in objects(DOCUMENT) for name, one in part["properties"].items()]
    assert len(fields) > 80
    assert [where for where, field in fields if not described(field)] == []


@pytest.mark.parametrize(("name", "operation"), [pytest.param(*one, id=one[0]) for one in operations()])
def test_each_error_has_one_shape_and_a_request_takes_no_field_that_is_not_described(name, operation):
    answers = {code: resolved(one) for code, one in operation["responses"].items()}
    errors = [one["content"]["application/json"]["schema"] for code, one in answers.items() if code >= "400"]
    assert errors == [ERROR] * len(errors)
    assert {"401", "503"} <= set(answers)
    if "requestBody" in operation:
        body = resolved(operation["requestBody"]["content"]["application/json"]["schema"])
        assert body["additionalProperties"] is False
        assert "400" in answers
