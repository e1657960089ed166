"""What a method of a handler takes and answers, said in a line above it: checked here, and documented from the same."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import cached_property, wraps
from typing import Any, get_type_hints

from tornado.web import HTTPError

from gpuspawner.core.errors import RequestRefused, quoted
from gpuspawner.service.api.rest.keys import KEY, once
from gpuspawner.service.api.rest.models import Answer, Body, Query, understood

Method = Callable[..., Any]
"""A method of a handler, ``async`` or not."""


@dataclass(frozen=True)
class Route:
    """What is declared of a method.

    ``answer`` is a model, or the media type of what has none; ``also``: another status of the same answer. ``admins``
    says what only administrators do here, such as ``grant``; empty where others may too. ``keyed``: whether an
    Idempotency-Key has it done once. ``refuses``: statuses of errors besides those that every such route may have.
    """

    method: Method
    answer: type[Answer] | str
    status: int
    also: int | None
    body_of: type[Body] | None
    query_of: type[Query] | None
    admins: str
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
        """What may be sent; None for nothing."""
        return self.body_of or self.takes.get("body")

    @property
    def query(self) -> type[Query] | None:
        """What may stand in the address; None for nothing."""
        return self.query_of or self.takes.get("query")


def route(
    *,
    answer: type[Answer] | str,
    status: int = 200,
    also: int | None = None,
    body: type[Body] | None = None,
    query: type[Query] | None = None,
    admins: str = "",
    keyed: bool = True,
    repeatable: bool = False,
    everybody: bool = False,
    refuses: tuple[int, ...] = (),
) -> Callable[[Method], Method]:
    """Declare what a method of a handler takes and answers.

    Its parameters ``body`` and ``query`` are models: what was sent is read as them, and refused with 400 where it is
    none. A method that reads what is sent by itself names the models here instead. ``everybody``: it asks nobody who
    they are. ``repeatable``: doing it twice is as doing it once.
    """

    def declare(method: Method) -> Method:
        declared = Route(method, answer, status, also, body, query, admins, keyed, everybody, refuses)

        @wraps(method)
        async def run(handler: Any, *path: str) -> None:
            if admins and not handler.must().admin:
                raise HTTPError(403, reason=f"Only administrators (scope custom:gpu:admin) {admins}.")
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
    """Return what is declared of a method of a handler, such as ``get``; None where it has none, or says nothing."""
    return getattr(inspect.getattr_static(handler, method, None), "route", None)


def _taken(declared: Route, handler: Any) -> dict[str, Any]:
    """Return the method's ``body`` and ``query``. Raises RequestRefused where what was sent is none of them."""
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
