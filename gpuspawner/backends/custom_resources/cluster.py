"""Custom resources of a Kubernetes cluster: requests, entries of the catalog, and Events about requests."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import itertools
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import partial
from http import HTTPStatus
from typing import Any

from gpuspawner.backends.custom_resources.base import LIFETIME, REFUSED, EntryRefused, Resource
from gpuspawner.backends.custom_resources.managers import tool_of
from gpuspawner.backends.kubernetes.api import APPLY, MERGE, Api, ApiRefused
from gpuspawner.backends.kubernetes.pods import LEASE_LABEL
from gpuspawner.backends.kubernetes.settings import ClusterSettings
from gpuspawner.backends.kubernetes.watches import Watch
from gpuspawner.catalog.resources.definitions import (
    API_GROUP,
    API_VERSION,
    BY_SECTION,
    FINGERPRINT,
    KINDS,
    POLICY,
    Kind,
    admission,
    definition,
)
from gpuspawner.core.errors import Conflict, Unavailable

log = logging.getLogger("gpuspawner.events")

MAX_NAME_LENGTH = 200
"""Length of a request's name in the name of its Event, which may have 253 letters."""


@dataclass(frozen=True)
class StatusChange:
    """The content of an Event: ``reason`` in one word, ``message`` as a sentence."""

    reason: str
    message: str
    is_warning: bool = False


def status_changes(before: Resource, status: Mapping[str, Any]) -> Iterator[StatusChange]:
    """Yield the changes of a new status: a phase, a refusal, an edited lifetime."""
    phase, message = str(status.get("phase", "")), str(status.get("message", ""))
    is_new_refusal = phase == REFUSED and message != before.status.get("message")
    if phase != before.phase or is_new_refusal:
        yield StatusChange(phase, message, is_warning=phase == REFUSED)
    edited = next((one for one in status.get("conditions") or () if one["type"] == LIFETIME), None)
    if edited is not None and edited != before.condition(LIFETIME):
        is_refused = edited["status"] != "True"
        yield StatusChange("LifetimeRefused" if is_refused else LIFETIME, edited["message"], is_warning=is_refused)


class Events:
    """Writes the Events of requests in one namespace.

    Each request has one Event for each reason, with a count. The API server deletes Events after an hour by default. An
    Event that cannot be written is logged and delays nothing else.
    """

    def __init__(self, api: Api, namespace: str, api_version: str, kind: str) -> None:
        self._api, self._namespace, self._of = api, namespace, {"apiVersion": api_version, "kind": kind}
        self._path = f"/api/v1/namespaces/{namespace}/events"
        self._is_failing = False

    async def write(self, resource: Resource, status: Mapping[str, Any]) -> None:
        """Write the Events of a request's new status."""
        for change in status_changes(resource, status):
            try:
                await self._write(resource, change)
            except (ApiRefused, Unavailable) as error:
                if not self._is_failing:
                    log.warning("Events about requests cannot be written: %s", error)
                self._is_failing = True
            else:
                self._is_failing = False

    async def _write(self, resource: Resource, change: StatusChange) -> None:
        digest = hashlib.sha256(f"{resource.uid} {change.reason}".encode()).hexdigest()[:16]
        name = f"{resource.name[:MAX_NAME_LENGTH].rstrip('.-')}.{digest}"
        now = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
        fields = {"message": change.message, "lastTimestamp": now}
        about = {"namespace": self._namespace, "name": resource.name, "uid": resource.uid}
        event = {
            "metadata": {"name": name, "namespace": self._namespace},
            "involvedObject": {**self._of, **about, "resourceVersion": resource.version},
            "type": "Warning" if change.is_warning else "Normal",
            "reason": change.reason,
            "source": {"component": "gpuspawner"},
            "firstTimestamp": now,
            "count": 1,
            **fields,
        }
        try:
            await self._api.write("POST", self._path, event)
        except ApiRefused as error:
            if error.status != HTTPStatus.CONFLICT:
                raise
            there = await self._api.get(f"{self._path}/{name}")
            again = {**fields, "count": int(there.get("count") or 1) + 1}
            await self._api.write("PATCH", f"{self._path}/{name}", again, content_type=MERGE)


FINALIZER = f"{API_GROUP}/workspace"
MANAGER = "gpuspawner"
"""The field manager of all writes of the service."""
CONSOLE = f"{MANAGER}-console"
"""The field manager of entries that administrators write in the console."""
CHANGED = "The custom resource was changed in the cluster meanwhile. Nothing was saved. Load the catalog again."
RIGHTS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
FIRST_LIST_SECONDS = 10.0
CHART = "install the chart gpuspawner-crds, or gpuspawner kube crd | kubectl apply --server-side --filename -"
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
ADMISSION = "/apis/admissionregistration.k8s.io/v1/validatingadmission"
KIND = KINDS[0]
ENTRIES = tuple(kind for kind in KINDS if kind.section)


class ResourceWatch:
    """Watches all objects of one kind in one namespace or the cluster, from the first call of :meth:`current` on."""

    def __init__(self, kind: Kind, api: Api, settings: ClusterSettings) -> None:
        self._kind, self._settings = kind, settings
        where = "" if kind.cluster_wide else f"namespaces/{settings.custom_resources}/"
        self.path = f"/apis/{API_GROUP}/{API_VERSION}/{where}{kind.plural}"
        trim = partial(to_resource, kind=kind, hub=settings.custom_resources)
        self._watch = Watch(api, self.path, {}, trim, lambda _before, _after: None, settings)
        self._task: asyncio.Task[None] | None = None

    async def current(self) -> tuple[Resource, ...]:
        """Return all objects. Raises Unavailable while the watch is not current."""
        if self._task is None:
            self._task = asyncio.create_task(self._watch.run())
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._watch.answered.wait(), FIRST_LIST_SECONDS)
        if not self._watch.complete or self._watch.lost_seconds > self._settings.stale_seconds:
            where = "of the cluster" if self._kind.cluster_wide else f"in namespace {self._settings.custom_resources}"
            why = f" ({self._watch.refused})" if self._watch.refused else ""
            raise Unavailable(f"{self._kind.name}s {where} cannot be observed{why}. If they never could: {CHART}.")
        return tuple(self._watch.objects.values())

    async def close(self) -> None:
        """Stop watching."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)


class CustomResources:
    """Requests and entries in the namespace ``settings.custom_resources``. Each kind is watched once it is needed."""

    def __init__(self, settings: ClusterSettings) -> None:
        self._settings, self._api = settings, Api(settings)
        self._watches = {kind.plural: ResourceWatch(kind, self._api, settings) for kind in KINDS}
        self._path = self._watches[KIND.plural].path
        self._events = Events(self._api, settings.custom_resources, f"{API_GROUP}/{API_VERSION}", KIND.name)

    async def requests(self) -> tuple[Resource, ...]:
        """Return all requests as last observed."""
        return await self._watches[KIND.plural].current()

    async def read_requests(self) -> tuple[Resource, ...]:
        """Return all requests as they are now, without a watch. () if the kind does not exist."""
        found: list[dict[str, Any]] = []
        with _ignore_conflicts():
            found = await self._api.list_all(self._path)
        return tuple(map(to_resource, found))

    async def entries(self) -> tuple[Resource, ...]:
        """Return all entries of all kinds as last observed."""
        found = await asyncio.gather(*(self._watches[kind.plural].current() for kind in ENTRIES))
        return tuple(itertools.chain.from_iterable(found))

    async def refuses(self) -> str:
        """Return why no new request may be accepted: the definition, policy or binding is not as required."""
        try:
            found = await self._api.get(f"{DEFINITIONS}/{KIND.plural}.{API_GROUP}")
        except ApiRefused as error:
            return f"The definition of {KIND.name} cannot be read ({error}): {CHART}."
        if _fingerprint(found) != _fingerprint(definition(KIND)):
            return f"The definition of {KIND.name} has another version: {CHART}."
        for what, expected in zip(("policies", "policybindings"), admission(), strict=True):
            try:
                there = await self._api.get(f"{ADMISSION}{what}/{POLICY}")
            except ApiRefused as error:
                return f"Users could request workspaces for others, so no request is accepted ({error}): {CHART}."
            if not _is_as_strict(there["spec"], expected["spec"]):
                return f"The {expected['kind']} {POLICY} was changed, so no request is accepted: {CHART}."
        return ""

    async def going(self, *, entries: bool = False) -> bool:
        """Return whether the definition or the namespace is being deleted, or is gone."""
        definitions = [f"{DEFINITIONS}/{kind.plural}.{API_GROUP}" for kind in (ENTRIES if entries else (KIND,))]
        for path in (*definitions, f"/api/v1/namespaces/{self._settings.custom_resources}"):
            try:
                found = await self._api.get(path)
            except ApiRefused as error:
                if error.status == HTTPStatus.NOT_FOUND:
                    return True
                why = f"It is unknown whether {path} is being deleted, so nothing stops: {error}."
                raise Unavailable(why) from error
            if found["metadata"].get("deletionTimestamp"):
                return True
        return False

    async def make(self, name: str, lease_id: str, spec: Mapping[str, Any]) -> None:
        """Create the request of an existing workspace."""
        metadata = {"name": name, "labels": {LEASE_LABEL: lease_id}, "finalizers": [FINALIZER]}
        await self._write("POST", self._path, _body({"metadata": metadata, "spec": dict(spec)}))

    async def tell(self, resource: Resource, status: Mapping[str, Any]) -> None:
        """Write the whole status by server-side apply, which overrules other writers, and the Events of a request.

        Each hub writes its own part of a resource of the cluster, as a field manager of its own.
        """
        kind, hub = BY_SECTION[resource.section, resource.cluster_wide], self._settings.custom_resources
        metadata, path = {"name": resource.name, "uid": resource.uid}, self._watches[kind.plural].path
        whole = {"hubs": {hub: dict(status)}} if kind.cluster_wide else dict(status)
        manager = f"{MANAGER}-{hub}" if kind.cluster_wide else MANAGER
        body = _body({"metadata": metadata, "status": whole}, kind)
        await self._write("PATCH", f"{path}/{resource.name}/status", body, APPLY, manager)
        if not resource.section:
            await self._events.write(resource, status)

    async def hold(self, resource: Resource) -> None:
        """Add our finalizer."""
        await self._set_finalizers(resource, [*resource.finalizers, FINALIZER])

    async def release(self, resource: Resource) -> None:
        """Remove our finalizer."""
        if resource.held:
            await self._set_finalizers(resource, [one for one in resource.finalizers if one != FINALIZER])

    async def delete(self, resource: Resource) -> None:
        """Delete this resource, but not a newer one with its name."""
        with _ignore_conflicts():
            await self._api.delete(f"{self._path}/{resource.name}", {"preconditions": {"uid": resource.uid}})

    async def may_write_entries(self) -> bool:
        """Return whether the service has the right to write entries. The chart gives all or none of them."""
        about = {"group": API_GROUP, "resource": ENTRIES[0].plural, "namespace": self._settings.custom_resources}
        review = {"spec": {"resourceAttributes": {**about, "verb": "patch"}}}
        try:
            answer = await self._api.write("POST", RIGHTS, review)
        except ApiRefused:
            return False
        return bool((answer.get("status") or {}).get("allowed"))

    async def write_entry(
        self, section: str, name: str, spec: Mapping[str, Any] | None, before: Resource | None, *, dry_run: bool
    ) -> Resource | None:
        """Create, change or delete an entry. Its version guards it against other writers."""
        kind = BY_SECTION[section, False]
        path = self._watches[kind.plural].path
        query = {"fieldManager": CONSOLE, "fieldValidation": "Strict"} | ({"dryRun": "All"} if dry_run else {})
        try:
            if before is None:
                body = _body({"metadata": {"name": name}, "spec": dict(spec or {})}, kind)
                return to_resource(await self._api.write("POST", path, body, query), kind)
            guard = {"uid": before.uid, "resourceVersion": before.version}
            if spec is None:
                options: dict[str, Any] = {"preconditions": guard} | ({"dryRun": ["All"]} if dry_run else {})
                await self._api.delete(f"{path}/{name}", options)
                return None
            patch = {"metadata": guard, "spec": merge_patch(before.spec, spec)}
            return to_resource(await self._api.write("PATCH", f"{path}/{name}", patch, query, MERGE), kind)
        except ApiRefused as error:
            if error.status in {HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT}:
                raise Conflict(CHANGED) from error
            raise EntryRefused(f"The cluster refused it: {error}") from error

    async def close(self) -> None:
        """Stop watching and close the connections."""
        for watch in self._watches.values():
            await watch.close()
        await self._api.close()

    async def _set_finalizers(self, resource: Resource, finalizers: list[str]) -> None:
        metadata = {"finalizers": finalizers, "resourceVersion": resource.version}
        await self._write("PATCH", f"{self._path}/{resource.name}", {"metadata": metadata}, MERGE)

    async def _write(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any],
        form: str = "application/json",
        manager: str = MANAGER,
    ) -> None:
        query = {"fieldManager": manager} | ({"force": "true"} if form == APPLY else {})
        with _ignore_conflicts():
            await self._api.write(method, path, body, query, form)


@contextlib.contextmanager
def _ignore_conflicts() -> Any:
    """Ignore objects that are gone or have changed, which are read again. Other refusals become Unavailable."""
    try:
        yield
    except ApiRefused as error:
        if error.status not in {HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT}:
            raise Unavailable(f"The cluster refused it: {error}") from error


def to_resource(data: Mapping[str, Any], kind: Kind = KIND, hub: str = "") -> Resource:
    """Return an object reduced to the needed fields. ``hub`` is the namespace of this hub's service."""
    metadata, status = data["metadata"], data.get("status") or {}
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
        section=kind.section,
        cluster_wide=kind.cluster_wide,
        managed_by=tool_of(metadata) if kind.section else "",
        finalizers=finalizers,
        spec=data.get("spec") or {},
        status=(status.get("hubs") or {}).get(hub) or {} if kind.cluster_wide else status,
    )


def merge_patch(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """Return the merge patch (RFC 7386) that makes one object of another."""
    patch: dict[str, Any] = {key: None for key in before if key not in after}
    for key, value in after.items():
        old = before.get(key)
        if isinstance(value, Mapping) and isinstance(old, Mapping):
            if inner := merge_patch(old, value):
                patch[key] = inner
        elif key not in before or value != old:
            patch[key] = value
    return patch


def _body(data: Mapping[str, Any], kind: Kind = KIND) -> dict[str, Any]:
    return {"apiVersion": f"{API_GROUP}/{API_VERSION}", "kind": kind.name, **data}


def _fingerprint(found: Mapping[str, Any]) -> str:
    return str((found["metadata"].get("annotations") or {}).get(FINGERPRINT, ""))


def _is_as_strict(there: Mapping[str, Any], expected: Mapping[str, Any]) -> bool:
    """Return whether a policy or binding is as strict as ours."""
    narrower = any(there.get(key) for key in ("matchConditions", "paramKind", "paramRef", "matchResources"))
    matches = there.get("matchConstraints") or {}
    narrower = narrower or any(
        matches.get(key) for key in ("excludeResourceRules", "namespaceSelector", "objectSelector")
    )
    rules = matches.get("resourceRules") or ()
    narrower = narrower or any(one.get("resourceNames") or one.get("scope", "*") != "*" for one in rules)
    return not narrower and _contains(there, expected)


def _contains(there: Any, expected: Any) -> bool:
    """Return whether everything expected is present. The API server adds defaults."""
    if isinstance(expected, Mapping):
        return isinstance(there, Mapping) and all(_contains(there.get(key), value) for key, value in expected.items())
    if isinstance(expected, list):
        return len(there or ()) == len(expected) and all(map(_contains, there, expected))
    return bool(there == expected)
