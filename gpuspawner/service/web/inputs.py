"""Input models: the types of their fields, and the errors for wrong values.

A type holds its bound in words and the next step, so that API, forms and OpenAPI document say the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar
from zoneinfo import ZoneInfo

from pydantic import BaseModel, Field, ValidationError, ValidationInfo
from pydantic_core import CoreSchema, PydanticCustomError
from pydantic_core.core_schema import no_info_plain_validator_function, with_info_plain_validator_function

from gpuspawner.core.calendar import parse_from, parse_until
from gpuspawner.core.errors import RequestRefused, quoted
from gpuspawner.core.units import BadValue
from gpuspawner.service.api.rest.models import Body, field_descriptions

REFUSED = "refused"
TYPE_WORDS = {"bool_type": "true or false"}
MAX_REASON_LETTERS, MAX_NAME_LETTERS = 500, 255

ModelT = TypeVar("ModelT", bound=BaseModel)


@dataclass(frozen=True)
class InputContext:
    """The state that the meaning of an input depends on.

    Args:
        now: the time, in seconds since the epoch.
        zone: the time zone of the catalog.
        kinds: the names of the kinds of GPU.
        teams: the names of the catalog's teams.
    """

    now: float
    zone: ZoneInfo
    kinds: tuple[str, ...] = ()
    teams: tuple[str, ...] = ()


def refused(allowed: str, remedy: str, field: str = "", value: str = "") -> PydanticCustomError:
    """Return the error of a value, with the allowed values and the next step.

    ``field`` and ``value`` are given where the error is about another field than the one that is validated.
    """
    context = {"allowed": allowed, "remedy": remedy, "field": field, "value": value}
    return PydanticCustomError(REFUSED, "not allowed", context)


@dataclass(frozen=True)
class ParsedText:
    """Metadata of a type whose values are parsed from text.

    ``parse`` is called with the text and the parts of the InputContext that ``needs`` names. It raises BadValue.
    """

    parse: Callable[..., Any]
    needs: tuple[str, ...] = ()

    def __get_pydantic_core_schema__(self, _source: Any, _handler: Any) -> CoreSchema:
        return with_info_plain_validator_function(self.read)

    def __get_pydantic_json_schema__(self, _schema: CoreSchema, _handler: Any) -> dict[str, str]:
        return {"type": "string"}

    def read(self, value: object, info: ValidationInfo[Any]) -> Any:
        """Return the parsed value. Raises the error of :func:`refused`."""
        try:
            return self.parse(value, *(getattr(info.context, name) for name in self.needs))
        except BadValue as error:
            remedy = f"{error.wrong[:1].upper()}{error.wrong[1:]}."
            raise refused(error.right.removeprefix("write "), remedy) from error


def allows(allowed: str, remedy: str, **constraints: Any) -> Any:
    """Return a pydantic field with the allowed values in words and the next step."""
    return Field(json_schema_extra={"x-allowed": allowed, "x-remedy": remedy}, **constraints)


@dataclass(frozen=True)
class ReasonText:
    """Metadata of a type for a reason. ``remedy`` is the next step if it is missing."""

    remedy: str

    def __get_pydantic_core_schema__(self, _source: Any, _handler: Any) -> CoreSchema:
        return no_info_plain_validator_function(self.read)

    def __get_pydantic_json_schema__(self, _schema: CoreSchema, _handler: Any) -> dict[str, object]:
        return {"type": "string", "minLength": 1, "maxLength": MAX_REASON_LETTERS}

    def read(self, value: object) -> str:
        """Return the reason without spaces around it. Raises the error of :func:`refused`."""
        if isinstance(value, str) and value.strip() and len(value) <= MAX_REASON_LETTERS and value.isprintable():
            return value.strip()
        raise refused(f"a reason of at most {MAX_REASON_LETTERS} letters", self.remedy)


Reason = Annotated[str, ReasonText("Say why.")]
Until = Annotated[float, ParsedText(parse_until, ("now", "zone"))]
"""A time as people write it, for example ``Friday``, ``2026-12-24 18:00``, ``this month`` or ``3d``."""
From = Annotated[float, ParsedText(parse_from, ("now", "zone"))]
"""A beginning, as :data:`Until`. A day means its beginning."""
NAME = ("a name", "Write it as the hub does.")
"""The allowed values of a field with a user's name, and the next step."""


def parse_input(model: type[ModelT], values: Mapping[str, Any], context: InputContext | None = None) -> ModelT:
    """Return the values as a model.

    Raises:
        RequestRefused: for the first wrong field, with the allowed values and the next step.
    """
    for name in values if model.model_config.get("extra") == "forbid" else ():
        if name not in model.model_fields:
            known, remedy = ", ".join(model.model_fields), "Leave it out." if model.model_fields else NO_BODY
            raise RequestRefused(quoted(name), "a field that does not exist", known or "none", remedy)
    required = (name for name, field in model.model_fields.items() if field.is_required())
    try:
        return model.model_validate(dict.fromkeys(required) | dict(values), context=context)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
    name = str(first["loc"][0])
    if first["type"] == REFUSED:
        details = first["ctx"]
        value = details["value"] or quoted(first["input"])
        raise RequestRefused(details["field"] or name, value, details["allowed"], details["remedy"])
    field = model.model_fields[name]
    extra = field.json_schema_extra if isinstance(field.json_schema_extra, dict) else {}
    description = field_descriptions(model).get(name)
    meaning = f"It means: {description}" if description else "Write another."
    allowed = extra.get("x-allowed") or TYPE_WORDS.get(first["type"]) or first["msg"].removeprefix("Input should be ")
    raise RequestRefused(name, quoted(first["input"]), str(allowed), str(extra.get("x-remedy", meaning)))


NO_BODY = "Send the request without a body."


class NoInput(Body):
    """The body of a request that takes no fields."""


def refused_as(field: str, parse: Any, value: object, *arguments: Any) -> Any:
    """Return the parsed value. Raises RequestRefused with the name of the field for a wrong one."""
    try:
        return parse(value, *arguments)
    except BadValue as error:
        right = error.right.removeprefix("write ")
        raise RequestRefused(field, quoted(value), right, f"{error.wrong[:1].upper()}{error.wrong[1:]}.") from error
