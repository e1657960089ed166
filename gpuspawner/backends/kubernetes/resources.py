"""Custom resources of a Kubernetes cluster: requests, and entries of the catalog."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Mapping
from functools import partial
from typing import Any

from gpuspawner.backends.kubernetes.api import APPLY, MERGE, Api, ApiRefused
from gpuspawner.backends.kubernetes.events import Events
from gpuspawner.backends.kubernetes.names import LEASE_LABEL
from gpuspawner.backends.kubernetes.settings import ClusterSettings
from gpuspawner.backends.kubernetes.watches import Watch
from gpuspawner.backends.resources import Resource
from gpuspawner.catalog.resources.definitions import (
    API_GROUP,
    API_VERSION,
    FINGERPRINT,
    KINDS,
    POLICY,
    Kind,
    admission,
    definition,
)
from gpuspawner.core.errors import Unavailable

FINALIZER = f"{API_GROUP}/workspace"
MANAGER = "gpuspawner"
"""The one field manager of all that the service writes."""
FORBIDDEN, NOT_FOUND, CONFLICT = 403, 404, 409
FIRST_LOOK_SECONDS = 10.0
CHART = "install the chart gpuspawner-crds, or gpuspawner kube crd | kubectl apply --server-side --filename -"
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
ADMISSION = "/apis/admissionregistration.k8s.io/v1/validatingadmission"
KIND = KINDS[0]
BY_SECTION = {kind.section: kind for kind in KINDS}
ENTRIES = tuple(kind for kind in KINDS if kind.section)


class Followed:
    """All objects of one kind in one namespace, followed from the first :meth:`seen` on."""

    def __init__(self, kind: Kind, api: Api, settings: ClusterSettings) -> None:
        """Follow nothing yet."""
        self._kind, self._settings = kind, settings
        self.path = f"/apis/{API_GROUP}/{API_VERSION}/namespaces/{settings.custom_resources}/{kind.plural}"
        trim = partial(to_resource, section=kind.section)
        self._watch = Watch(api, self.path, {}, trim, lambda _before, _after: None, settings)
        self._task: asyncio.Task[None] | None = None

    async def seen(self) -> tuple[Resource, ...]:
        """Return all of them, as they are seen now. Raises Unavailable."""
        if self._task is None:
            self._task = asyncio.create_task(self._watch.run())
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._watch.answered.wait(), FIRST_LOOK_SECONDS)
        if not self._watch.complete or self._watch.lost_seconds > self._settings.stale_seconds:
            where = f"in namespace {self._settings.custom_resources}"
            why = f" ({self._watch.refused})" if self._watch.refused else ""
            raise Unavailable(f"{self._kind.name}s {where} are not seen{why}. If they never were: {CHART}.")
        return tuple(self._watch.objects.values())

    async def close(self) -> None:
        """Follow them no longer."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)


class CustomResources:
    """Requests and entries in the namespace ``settings.custom_resources``, each kind followed once it is asked for."""

    def __init__(self, settings: ClusterSettings) -> None:
        """Take the settings."""
        self._settings, self._api = settings, Api(settings)
        self._followed = {kind.section: Followed(kind, self._api, settings) for kind in KINDS}
        self._path = self._followed[""].path
        self._events = Events(self._api, settings.custom_resources, f"{API_GROUP}/{API_VERSION}", KIND.name)

    async def requests(self) -> tuple[Resource, ...]:
        """Return all of them, as they are seen now."""
        return await self._followed[""].seen()

    async def as_now(self) -> tuple[Resource, ...]:
        """Return all requests as they are now, without following them: none where there is no such kind."""
        found: list[dict[str, Any]] = []
        with _as_unavailable():
            found = await self._api.listed(self._path)
        return tuple(map(to_resource, found))

    async def entries(self) -> tuple[Resource, ...]:
        """Return all of all three kinds, as they are seen now."""
        found = await asyncio.gather(*(self._followed[kind.section].seen() for kind in ENTRIES))
        return tuple(itertools.chain.from_iterable(found))

    async def refuses(self) -> str:
        """Return why no new request may be accepted: definition, policy or binding are not as they must be."""
        try:
            found = await self._api.get(f"{DEFINITIONS}/{KIND.plural}.{API_GROUP}")
        except ApiRefused as error:
            return f"The definition of {KIND.name} is not seen ({error}): {CHART}."
        if _fingerprint(found) != _fingerprint(definition(KIND)):
            return f"The definition of {KIND.name} is of another version: {CHART}."
        for what, expected in zip(("policies", "policybindings"), admission(), strict=True):
            try:
                there = await self._api.get(f"{ADMISSION}{what}/{POLICY}")
            except ApiRefused as error:
                return f"Nobody is kept from asking for others, so no request is accepted ({error}): {CHART}."
            if not _is_as_strict(there["spec"], expected["spec"]):
                return f"The {expected['kind']} {POLICY} was changed, so no request is accepted: {CHART}."
        return ""

    async def going(self, *, entries: bool = False) -> bool:
        """Return whether definition or namespace is being deleted, or is gone."""
        definitions = [f"{DEFINITIONS}/{kind.plural}.{API_GROUP}" for kind in (ENTRIES if entries else (KIND,))]
        for path in (*definitions, f"/api/v1/namespaces/{self._settings.custom_resources}"):
            try:
                found = await self._api.get(path)
            except ApiRefused as error:
                if error.status == NOT_FOUND:
                    return True
                why = f"Whether {path} is being deleted is not known, so nothing stops: {error}."
                raise Unavailable(why) from error
            if found["metadata"].get("deletionTimestamp"):
                return True
        return False

    async def make(self, name: str, lease_id: str, spec: Mapping[str, Any]) -> None:
        """Make the request of a workspace that is there."""
        metadata = {"name": name, "labels": {LEASE_LABEL: lease_id}, "finalizers": [FINALIZER]}
        await self._write("POST", self._path, _body({"metadata": metadata, "spec": dict(spec)}))

    async def tell(self, resource: Resource, status: Mapping[str, Any]) -> None:
        """Write the whole status, by server-side apply: what others wrote there is overruled.

        What changes with the status of a request is told by Events, too.
        """
        metadata, path = {"name": resource.name, "uid": resource.uid}, self._followed[resource.section].path
        body = _body({"metadata": metadata, "status": dict(status)}, BY_SECTION[resource.section])
        await self._write("PATCH", f"{path}/{resource.name}/status", body, APPLY)
        if not resource.section:
            await self._events.write(resource, status)

    async def hold(self, resource: Resource) -> None:
        """Add the finalizer."""
        await self._set_finalizers(resource, [*resource.finalizers, FINALIZER])

    async def release(self, resource: Resource) -> None:
        """Take the finalizer away."""
        if resource.held:
            await self._set_finalizers(resource, [one for one in resource.finalizers if one != FINALIZER])

    async def delete(self, resource: Resource) -> None:
        """Delete this one, and no newer one of its name."""
        with _as_unavailable():
            await self._api.delete(f"{self._path}/{resource.name}", {"preconditions": {"uid": resource.uid}})

    async def close(self) -> None:
        """Follow the cluster no longer, and close the connections."""
        for followed in self._followed.values():
            await followed.close()
        await self._api.close()

    async def _set_finalizers(self, resource: Resource, finalizers: list[str]) -> None:
        metadata = {"finalizers": finalizers, "resourceVersion": resource.version}
        await self._write("PATCH", f"{self._path}/{resource.name}", {"metadata": metadata}, MERGE)

    async def _write(self, method: str, path: str, body: Mapping[str, Any], form: str = "application/json") -> None:
        query = {"fieldManager": MANAGER} | ({"force": "true"} if form == APPLY else {})
        with _as_unavailable():
            await self._api.write(method, path, body, query, form)


@contextlib.contextmanager
def _as_unavailable() -> Any:
    """What is gone or has changed meanwhile is looked at again; whatever else is refused is told."""
    try:
        yield
    except ApiRefused as error:
        if error.status not in {NOT_FOUND, CONFLICT}:
            raise Unavailable(f"The cluster refused it: {error}") from error


def to_resource(data: Mapping[str, Any], section: str = "") -> Resource:
    """Trim an object to what is needed of it."""
    metadata = data["metadata"]
    finalizers = tuple(metadata.get("finalizers") or ())
    return Resource(
        name=metadata["name"],
        uid=metadata["uid"],
        version=metadata["resourceVersion"],
        created=metadata["creationTimestamp"],
        generation=metadata.get("generation", 1),
        deleting="deletionTimestamp" in metadata,
        held=FINALIZER in finalizers,
        of_lease=(metadata.get("labels") or {}).get(LEASE_LABEL, ""),
        section=section,
        finalizers=finalizers,
        spec=data.get("spec") or {},
        status=data.get("status") or {},
    )


def _body(data: Mapping[str, Any], kind: Kind = KIND) -> dict[str, Any]:
    return {"apiVersion": f"{API_GROUP}/{API_VERSION}", "kind": kind.name, **data}


def _fingerprint(found: Mapping[str, Any]) -> str:
    return str((found["metadata"].get("annotations") or {}).get(FINGERPRINT, ""))


def _is_as_strict(there: Mapping[str, Any], expected: Mapping[str, Any]) -> bool:
    """Whether a policy or binding says what ours says, and leaves nothing out of it."""
    narrower = any(there.get(key) for key in ("matchConditions", "paramKind", "paramRef", "matchResources"))
    matches = there.get("matchConstraints") or {}
    narrower = narrower or any(
        matches.get(key) for key in ("excludeResourceRules", "namespaceSelector", "objectSelector")
    )
    rules = matches.get("resourceRules") or ()
    narrower = narrower or any(one.get("resourceNames") or one.get("scope", "*") != "*" for one in rules)
    return not narrower and _holds(there, expected)


def _holds(there: Any, expected: Any) -> bool:
    """Whether all that is expected is there: the API server fills in defaults beside it."""
    if isinstance(expected, Mapping):
        return isinstance(there, Mapping) and all(_holds(there.get(key), value) for key, value in expected.items())
    if isinstance(expected, list):
        return len(there or ()) == len(expected) and all(map(_holds, there, expected))
    return bool(there == expected)
