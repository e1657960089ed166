"""The decorator that declares what a handler method takes and answers. Checks and documentation use the declaration."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import cached_property, wraps
from typing import Any, get_type_hints

from gpuspawner.core.errors import RequestRefused, quoted
from gpuspawner.service.api.rest.keys import KEY, once
from gpuspawner.service.api.rest.models import Answer, Body, Query, understood

Method = Callable[..., Any]
"""A method of a handler, ``async`` or not."""


@dataclass(frozen=True)
class Route:
    """The declaration of a handler method.

    ``answer`` is a model, or a media type for answers without a model. ``also`` is another status of the same answer.
    ``keyed`` is whether an Idempotency-Key prevents a repeat. ``refuses`` are error statuses in addition to those of
    every route of this type.
    """

    method: Method
    answer: type[Answer] | str
    status: int
    also: int | None
    body_of: type[Body] | None
    query_of: type[Query] | None
    keyed: bool
    everybody: bool
    refuses: tuple[int, ...]

    @cached_property
    def takes(self) -> dict[str, Any]:
        """Return the types of the method's parameters called ``body`` and ``query``."""
        hints = get_type_hints(self.method)
        return {name: hints[name] for name in ("body", "query") if name in hints}

    @property
    def body(self) -> type[Body] | None:
        """The model of the request body, None if the route takes no body."""
        return self.body_of or self.takes.get("body")

    @property
    def query(self) -> type[Query] | None:
        """The model of the query arguments, None if the route takes no arguments."""
        return self.query_of or self.takes.get("query")


def route(
    *,
    answer: type[Answer] | str,
    status: int = 200,
    also: int | None = None,
    body: type[Body] | None = None,
    query: type[Query] | None = None,
    keyed: bool = True,
    repeatable: bool = False,
    everybody: bool = False,
    refuses: tuple[int, ...] = (),
) -> Callable[[Method], Method]:
    """Declare what a handler method takes and answers.

    The parameters ``body`` and ``query`` of the method are models. The input is parsed as these models, and refused
    with 400 if it does not fit. A method that parses its input by itself names the models here instead. With
    ``everybody``, the route needs no authentication. With ``repeatable``, a repeat has no further effect.
    """

    def declare(method: Method) -> Method:
        declared = Route(method, answer, status, also, body, query, keyed, everybody, refuses)

        @wraps(method)
        async def run(handler: Any, *path: str) -> None:
            taken = _taken(declared, handler)

            async def act() -> None:
                done = method(handler, *path, **taken)
                if isinstance(done, Awaitable):
                    await done

            key = handler.request.headers.get(KEY) if keyed and handler.request.method in {"POST", "DELETE"} else None
            await (act() if key is None else once(handler, key, status, act, path, repeatable=repeatable))

        run.route = declared  # type: ignore[attr-defined]  # where `route_of` finds it
        return run

    return declare


def route_of(handler: type, method: str) -> Route | None:
    """Return the declaration of a handler's method, for example of ``get``. Return None without a declaration."""
    return getattr(inspect.getattr_static(handler, method, None), "route", None)


def _taken(declared: Route, handler: Any) -> dict[str, Any]:
    """Parse the method's ``body`` and ``query``. Raises RequestRefused if the input does not fit."""
    taken: dict[str, Any] = {}
    values = read_arguments(handler, declared.query)
    if "query" in declared.takes:
        taken["query"] = understood(declared.takes["query"], values)
    if "body" in declared.takes:
        taken["body"] = understood(declared.takes["body"], handler.body())
    return taken


def read_arguments(handler: Any, query: type[Query] | None) -> dict[str, str]:
    """Return the arguments of the address. Raises RequestRefused for one that the model does not have."""
    values = {name: handler.get_query_argument(name) for name in handler.request.query_arguments}
    if unknown := [name for name in values if query is None or name not in query.model_fields]:
        known = ", ".join(query.model_fields) if query is not None else "none"
        raise RequestRefused(
            quoted(unknown[0]), "an argument that does not exist", known, "Leave it out of the address."
        )
    return values
