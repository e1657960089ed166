"""The base classes of the REST API's models: answers, bodies and query arguments. Invalid ones are refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gpuspawner.core.errors import RequestRefused, quoted
from gpuspawner.service.api.rest.descriptions import field_descriptions

LONGEST_LIST = 200
"""The largest number of list entries in one answer. Arbitrary: 0.6 MB of workspaces."""


class Answer(BaseModel):
    """What is answered: exactly these fields. Times are seconds since 1970; null is unknown, or not so."""

    model_config = ConfigDict(extra="forbid", strict=True, defer_build=True, populate_by_name=True)

    def as_json(self) -> dict[str, Any]:
        """Return the answer as a JSON object."""
        return self.model_dump(mode="json", by_alias=True)


class Body(BaseModel):
    """What a request may send: these fields and no other."""

    model_config = ConfigDict(extra="forbid", strict=True, defer_build=True)


class Query(BaseModel):
    """What may stand behind ``?`` in an address: these arguments and no other."""

    model_config = ConfigDict(extra="forbid", defer_build=True)


class PageQuery(Query):
    """Which part of a long list."""

    limit: int = Field(default=LONGEST_LIST, ge=1, le=LONGEST_LIST)
    """How many are answered at once."""
    cursor: str = Field(default="", max_length=500)
    """Where to go on: ``next`` of the part before."""


class Refused(Answer):
    """One part of a request that was refused, and why."""

    field: str
    words: str


class Problem(Answer):
    """What is told of an error, in a sentence for people."""

    message: str
    field: str | None = None
    """Which part of the request was refused; with it ``asked``, ``limit`` and ``remedy``."""
    asked: str | None = None
    limit: str | None = None
    remedy: str | None = None
    sentence: str | None = None
    """Of options: all that is wrong with them, at once."""
    fields: list[Refused] | None = None
    """Of options: each part that was refused."""
    understood: dict[str, str] | None = None
    """Of options: what the rest was understood to mean, by option."""


class Error(Answer):
    """An answer of 4xx or 5xx."""

    error: Problem


ModelT = TypeVar("ModelT", bound=BaseModel)


def understood(model: type[ModelT], values: Mapping[str, Any]) -> ModelT:
    """Return the values as a model.

    Raises:
        RequestRefused: a value that it does not take, or a field that it does not have; the first that is wrong.
    """
    try:
        return model.model_validate(values)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
    name = ".".join(map(str, first["loc"]))
    if first["type"] == "extra_forbidden":
        known, remedy = ", ".join(model.model_fields), "Leave it out."
        raise RequestRefused(quoted(name), "a field that does not exist", known or "none", remedy)
    description = field_descriptions(model).get(str(first["loc"][0])) if first["loc"] else None
    means = f"It means: {description}" if description else "Write another."
    if first["type"] == "missing":
        raise RequestRefused(name, "nothing", "a value", means)
    raise RequestRefused(name, quoted(first["input"]), first["msg"].removeprefix("Input should be "), means)
