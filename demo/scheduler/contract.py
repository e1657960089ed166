"""Requests, checked by docs/scheduler.openapi.yaml itself: the contract is described once."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any

import yaml
from jsonschema import Draft202012Validator

from demo.scheduler.records import Refused
from tools.install import ROOT

CONTRACT: dict[str, Any] = yaml.safe_load((ROOT / "docs" / "scheduler.openapi.yaml").read_text())
MOST_BYTES = 65_536


def parse(raw: bytes, operation: str) -> dict[str, Any]:
    """Return the body of a request of an operation.

    Raises:
        Refused: it is no JSON, or not as the contract says; the words name the field.
    """
    try:
        body = json.loads(raw, parse_constant=_no_number)
    except (ValueError, RecursionError):
        raise Refused(400, "bad_request", "The body is no JSON in UTF-8. Send one object.") from None
    error = next(iter(_validator(operation).iter_errors(body)), None)
    if error is not None:
        where = ".".join(map(str, error.absolute_path)) or "body"
        raise Refused(400, "bad_request", f"{where}: {error.message[:300]}")
    found: dict[str, Any] = body
    return found


def matches(name: str, value: str) -> bool:
    """Whether a text is as a schema of the contract says."""
    return "\n" not in value and Draft202012Validator(CONTRACT["components"]["schemas"][name]).is_valid(value)


@lru_cache
def _validator(operation: str) -> Draft202012Validator:
    operations = (one for path in CONTRACT["paths"].values() for one in path.values() if isinstance(one, dict))
    found = next(one for one in operations if one.get("operationId") == operation)
    schema = found["requestBody"]["content"]["application/json"]["schema"]
    return Draft202012Validator({"allOf": [schema], "components": CONTRACT["components"]})


def _no_number(text: str) -> None:
    raise ValueError(text)
