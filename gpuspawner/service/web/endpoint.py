"""Endpoints of the API: functions with a permission, an input model and an answer model.

Checks, audit of refusals, idempotency and the entry in the OpenAPI document follow from the function's signature and
from the line above it.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Any, get_type_hints

from pydantic import BaseModel

from gpuspawner.core.leases.reports import storable
from gpuspawner.service.api.base import ApiHandler
from gpuspawner.service.api.rest.document import Route, read_arguments
from gpuspawner.service.api.rest.keys import KEY, once
from gpuspawner.service.api.rest.models import Answer
from gpuspawner.service.web.actor import Actor
from gpuspawner.service.web.inputs import NoInput, parse_input
from gpuspawner.service.web.permissions import ACTS, Permission

MAX_ACT_LETTERS = 40
NOTHING: Mapping[str, Any] = MappingProxyType({})
Function = Callable[..., Awaitable[Any]]
"""``async def act(actor, *parts_of_the_path, body=…, query=…) -> answer``, or a tuple of the answer and its status."""


@dataclass(frozen=True)
class Endpoint:
    """One method of one path.

    Args:
        method: ``get``, ``post`` or ``delete``.
        path: the path, with the names of its variable parts in braces.
        function: the function that acts and returns the answer.
        permission: the permission that the actor needs.
        status: the HTTP status of a success.
        other_status: another status that the same answer may have.
        idempotent: whether an Idempotency-Key makes a repeated request act only once.
        repeatable: whether acting twice has the effect of acting once, so that a lost answer is made again.
        audit: the name of the act in the audit entry of a refusal, "" for a request that changes nothing.
        audit_field: the field of the input that names the act, where one endpoint does several. Its values are names of
            ACTS, and each needs the permission of its act.
        serves_forms: whether the ticket of a form is enough, which others than its user may hold too.
        replay: returns the answer of a repeated key whose answer was not stored, from what is there now. It is called
            with the actor, the id that the act noted, and the parts of the path.
    """

    method: str
    path: str
    function: Function
    permission: Permission
    status: int = 200
    other_status: int | None = None
    idempotent: bool = True
    repeatable: bool = False
    audit: str = ""
    audit_field: str = ""
    serves_forms: bool = False
    replay: Callable[..., Awaitable[Answer]] | None = None

    @cached_property
    def types(self) -> dict[str, Any]:
        """The types of the function's parameters by name, and of its answer as ``return``."""
        return get_type_hints(self.function, include_extras=True)

    @property
    def answer(self) -> Any:
        """The model of the answer."""
        answer = self.types["return"]
        return getattr(answer, "__args__", (answer,))[0]

    @property
    def body(self) -> type[BaseModel]:
        """The model of the input."""
        model: type[BaseModel] = self.types.get("body", NoInput)
        return model

    @property
    def route(self) -> Route:
        """The entry for the OpenAPI document."""
        return Route(
            self.function,
            self.answer,
            self.status,
            self.other_status,
            self.types.get("body"),
            self.types.get("query"),
            self.idempotent,
        )

    async def act(
        self, actor: Actor, *path: str, values: Mapping[str, Any] = NOTHING, arguments: Mapping[str, str] = NOTHING
    ) -> Any:
        """Check the permission and the input, act, and return the answer. API and pages come this way.

        Args:
            actor: the person who acts.
            path: the variable parts of the path.
            values: the posted fields by name.
            arguments: the arguments of the address by name.

        Raises:
            HTTPError: 403 without the permission, 404 if the object does not exist.
            RequestRefused: a field or an argument is wrong. Stored in the audit.
            Conflict: the act is not possible now. Stored in the audit.
        """
        inputs: dict[str, Any] = {}
        name = storable(str(values.get(self.audit_field)))[:MAX_ACT_LETTERS] if self.audit_field else self.audit
        permission = ACTS.get(name, self.permission) if self.audit_field else self.permission
        actor.require(permission)
        actor = actor.acting_as(permission)
        # A dry run changes nothing, so its refusal is not stored.
        async with actor.auditing_refusals("" if values.get("dry_run") is True else name):
            if self.method != "get":
                inputs["body"] = parse_input(self.body, values, actor.input_context())
            if "query" in self.types:
                inputs["query"] = parse_input(self.types["query"], arguments)
            return await self.function(actor, *path, **{name: inputs[name] for name in inputs if name in self.types})

    async def serve(self, handler: ApiHandler, path: tuple[str, ...]) -> None:
        """Answer a request. A repeated idempotency key acts once."""
        key = handler.request.headers.get(KEY)
        actor = Actor(handler.parts, handler.must(), handler.where, key or "")
        if not self.audit_field:  # else the posted act says which permission it needs
            actor.require(self.permission)

        async def act() -> None:
            arguments = read_arguments(handler, self.types.get("query"))
            values = handler.body() if self.method != "get" else NOTHING
            answer = await self.act(actor, *path, values=values, arguments=arguments)
            model, status = answer if isinstance(answer, tuple) else (answer, self.status)
            handler.answer(model.as_json(), status)

        if key is None or not self.idempotent or self.method == "get":
            await act()
        else:
            await once(handler, key, self.status, act, path, repeatable=self.repeatable)


class Router:
    """The endpoints of one module."""

    def __init__(self) -> None:
        self.endpoints: list[Endpoint] = []

    def get(self, path: str, permission: Permission, **options: Any) -> Callable[[Function], Endpoint]:
        """Declare the function that answers GET. ``options`` are further fields of Endpoint."""
        return self._add("get", path, permission, **options)

    def post(self, path: str, permission: Permission, **options: Any) -> Callable[[Function], Endpoint]:
        """Declare the function that answers POST. ``options`` are further fields of Endpoint."""
        return self._add("post", path, permission, **options)

    def delete(self, path: str, permission: Permission, **options: Any) -> Callable[[Function], Endpoint]:
        """Declare the function that answers DELETE. ``options`` are further fields of Endpoint."""
        return self._add("delete", path, permission, **options)

    def _add(self, method: str, path: str, permission: Permission, **options: Any) -> Callable[[Function], Endpoint]:
        def declare(function: Function) -> Endpoint:
            self.endpoints.append(Endpoint(method, path, function, permission, **options))
            return self.endpoints[-1]

        return declare

    def routes(self) -> list[tuple[str, type[ApiHandler]]]:
        """Return a Tornado route for each path."""
        by_path: dict[str, list[Endpoint]] = defaultdict(list)
        for one in self.endpoints:
            by_path[one.path].append(one)
        return [(re.sub(r"\{\w+\}", "([^/]+)", path), _handler_of(found)) for path, found in by_path.items()]


def _handler_of(endpoints: list[Endpoint]) -> type[ApiHandler]:
    methods: dict[str, Any] = {one.method: _method_of(one) for one in endpoints}
    replaying = next((one for one in endpoints if one.replay is not None), None)
    if replaying is not None:
        methods["replay"] = _replay_of(replaying)
    serves_forms = any(one.serves_forms for one in endpoints)
    about = {"__doc__": endpoints[0].function.__doc__, "serves_forms": serves_forms}
    return type("Endpoints", (ApiHandler,), {**about, **methods})


def _replay_of(endpoint: Endpoint) -> Callable[..., Awaitable[None]]:
    async def replay(handler: ApiHandler, about: str, *path: str) -> None:
        if endpoint.replay is not None:
            answer = await endpoint.replay(Actor(handler.parts, handler.must(), handler.where), about, *path)
            handler.send(endpoint.status, json.dumps(answer.as_json()))

    return replay


def _method_of(endpoint: Endpoint) -> Callable[..., Awaitable[None]]:
    async def serve(handler: ApiHandler, *path: str) -> None:
        await endpoint.serve(handler, path)

    serve.route = endpoint.route  # type: ignore[attr-defined]  # `route_of` finds it there
    return serve
