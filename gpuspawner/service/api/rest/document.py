"""The declarations of routes, and the OpenAPI document that is made of their patterns, signatures and docstrings."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from gpuspawner import __version__
from gpuspawner.core.errors import RequestRefused, quoted
from gpuspawner.service.api.rest.keys import KEY, LONGEST_KEY
from gpuspawner.service.api.rest.models import DescribedSchema, Error

BELOW = "/api/"
METHODS = ("get", "post", "delete")
ABOUT = """\
Times are seconds since 1970. Names of amounts carry their unit. null means unknown, or that there is no value. Unknown
fields and arguments are refused. An error is `{"error": {"message": ...}}` with a sentence for people. The error of a
refused request also has `field`, `asked`, `limit` and `remedy`. A body is JSON of at most 64 KiB, with its
`Content-Length`. A request that changes something takes an `Idempotency-Key`: the service does it once for each key,
and repeats the answer for a day. A long list comes in parts: `next` is the `cursor` of the next part."""
REASONS = {
    400: "The request is malformed, or asks for something impossible.",
    403: "You are not signed in, or your roles do not allow it.",
    404: "It does not exist, or you may not see it.",
    409: "It is not possible in the present state. The message says why.",
    410: "It has ended meanwhile.",
    411: "The body has no Content-Length.",
    413: "The body is too long.",
    422: "The Idempotency-Key was used for another request.",
    429: "Too many requests. The message says when to try again.",
    503: "The hub or the store does not answer. Try again later.",
}
Method = Callable[..., Any]
"""A method of a handler, ``async`` or not."""


@dataclass(frozen=True)
class Route:
    """The declaration of a handler method.

    ``answer`` is a model, or a media type for answers without a model. ``also`` is another status of the same answer.
    ``keyed`` is whether an Idempotency-Key prevents a repeat. ``refuses`` are error statuses in addition to those of
    every route of this type. With ``everybody``, the route needs no authentication.
    """

    method: Method
    answer: type[BaseModel] | str
    status: int = 200
    also: int | None = None
    body: type[BaseModel] | None = None
    query: type[BaseModel] | None = None
    keyed: bool = False
    everybody: bool = False
    refuses: tuple[int, ...] = ()


def route(answer: type[BaseModel] | str, **options: Any) -> Callable[[Method], Method]:
    """Declare what a handler method takes and answers. ``options`` are further fields of Route."""

    def declare(method: Method) -> Method:
        method.route = Route(method, answer, **options)  # type: ignore[attr-defined]  # where `route_of` finds it
        return method

    return declare


def route_of(handler: type, method: str) -> Route | None:
    """Return the declaration of a handler's method, for example of ``get``. Return None without a declaration."""
    return getattr(inspect.getattr_static(handler, method, None), "route", None)


def read_arguments(handler: Any, query: type[BaseModel] | None) -> dict[str, str]:
    """Return the arguments of the address. Raises RequestRefused for one that the model does not have."""
    values = {name: handler.get_query_argument(name) for name in handler.request.query_arguments}
    known = () if query is None else tuple(query.model_fields)
    if unknown := [name for name in values if name not in known]:
        allowed, remedy = ", ".join(known) or "none", "Leave it out of the address."
        raise RequestRefused(quoted(unknown[0]), "an argument that does not exist", allowed, remedy)
    return values


Routes = Iterable[tuple[str, type]]


def document(routes: Routes, server: str = "") -> dict[str, Any]:
    """Return the document of the routes below ``/api/``. ``server`` is the address of the service."""
    found = [(pattern, handler, path_of(pattern, handler)) for pattern, handler in routes if pattern.startswith(BELOW)]
    models, paths = dict[str, type[BaseModel]](Error=Error), dict[str, Any]()
    for pattern, handler, path in found:
        declared = {name: one for name in METHODS if (one := route_of(handler, name)) is not None}
        for one in declared.values():
            for model in (one.answer, one.body):
                if isinstance(model, type) and models.setdefault(model.__name__, model) is not model:
                    raise ValueError(f"two models are called {model.__name__}: {model.__module__} has one")
        about = (inspect.getdoc(handler) or "").partition("\n")[0]
        paths[path] = {
            "summary": about,
            **{name: _operation(pattern, path, name, one) for name, one in declared.items()},
        }
    _, schemas = models_json_schema(
        [(model, "validation") for model in models.values()],
        ref_template="#/components/schemas/{model}",
        schema_generator=DescribedSchema,
    )
    return {
        "openapi": "3.1.0",
        "info": {"title": "gpuspawner", "version": __version__, "description": ABOUT},
        "servers": [{"url": server or "/"}],
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "schemas": schemas["$defs"],
            "securitySchemes": {
                "token": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "A token of the hub with the scope custom:gpu:use, for administrators "
                    "with custom:gpu:admin. Or a token of `gpuspawner login`.",
                }
            },
        },
    }


def path_of(pattern: str, handler: type) -> str:
    """Return a route's pattern as a path. Its parts have the names of the parameters of the handler's methods."""
    declared = next((one for name in METHODS if (one := route_of(handler, name)) is not None), None)
    names = iter(_path_parameters(declared.method) if declared is not None else ())
    return re.sub(r"\([^)]*\)", lambda _: "{%s}" % next(names, "name"), pattern.removesuffix("?"))  # noqa: UP031


def _path_parameters(method: Any) -> list[str]:
    _, *parameters = inspect.signature(method).parameters.values()  # the first is ``self`` or the actor
    return [one.name for one in parameters if one.kind is one.POSITIONAL_OR_KEYWORD]


def _operation(pattern: str, path: str, name: str, route: Route) -> dict[str, Any]:
    summary, _, more = (inspect.getdoc(route.method) or "").partition("\n")
    acts = name != "get"
    parameters = [
        {"name": one, "in": "path", "required": True, "schema": _part(group)}
        for one, group in zip(re.findall(r"\{(\w+)\}", path), re.findall(r"\(([^)]*)\)", pattern), strict=True)
    ]
    parameters += list(_arguments(route))
    if acts and route.keyed:
        schema = {"type": "string", "minLength": 1, "maxLength": LONGEST_KEY}
        parameters.append({"name": KEY, "in": "header", "required": False, "schema": schema})
    operation: dict[str, Any] = {
        "operationId": f"{name}{re.sub(r'[^a-zA-Z0-9]+', '_', path.removeprefix('/api/v1')).rstrip('_')}",
        "summary": summary,
        **({"description": " ".join(more.split())} if more.strip() else {}),
        "parameters": parameters,
        "responses": dict(_responses(path, route, acts=acts)),
    }
    if route.body is not None:
        needed = any(field.is_required() for field in route.body.model_fields.values())
        operation["requestBody"] = {"required": needed, "content": _content(route.body)}
    if route.everybody:
        operation["security"] = []
    return operation


def _part(group: str) -> dict[str, Any]:
    """Return the JSON schema of a path parameter from its group in the pattern: any text, or one of several words."""
    words = re.fullmatch(r"[a-z-]+(?:\|[a-z-]+)*", group)
    return {"type": "string", **({"enum": group.split("|")} if words else {"minLength": 1})}


def _arguments(route: Route) -> Iterator[dict[str, Any]]:
    if route.query is None:
        return
    schema = route.query.model_json_schema(schema_generator=DescribedSchema)
    for name, one in schema["properties"].items():
        needed = name in schema.get("required", ())
        described = {key: value for key, value in one.items() if key == "description"}
        about = {key: value for key, value in one.items() if key not in {"title", "description"}}
        yield {"name": name, "in": "query", "required": needed, "schema": about, **described}


def _responses(path: str, route: Route, *, acts: bool) -> Iterator[tuple[str, Any]]:
    for status in filter(None, (route.status, route.also)):
        about = (inspect.getdoc(route.answer) or "") if isinstance(route.answer, type) else "As it happens."
        yield str(status), {"description": about.partition("\n")[0], "content": _content(route.answer)}
    refused = {400, 403, 503, *route.refuses}
    refused |= {404} if "{" in path else set()
    refused |= {409, 410, 411, 413} if acts else set()
    refused |= {422} if acts and route.keyed else set()
    for status in sorted(refused):
        yield str(status), {"description": REASONS[status], "content": _content(Error)}


def _content(answer: type[BaseModel] | str) -> dict[str, Any]:
    if isinstance(answer, str):
        return {answer: {"schema": {} if answer == "application/json" else {"type": "string"}}}
    return {"application/json": {"schema": {"$ref": f"#/components/schemas/{answer.__name__}"}}}
