"""Kueue's objects at the API server: our Workloads, watched and written, and queues and positions."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from typing import Any, TypeVar
from urllib.parse import quote

from gpuspawner.backends.kubernetes.api import Api, ApiRefused
from gpuspawner.backends.kubernetes.pods import HUB_LABEL
from gpuspawner.backends.kubernetes.settings import ClusterSettings
from gpuspawner.backends.kubernetes.watches import Watch
from gpuspawner.core.errors import Unavailable
from gpuspawner.schedulers.base import UnusableScheduler, run_limited, stop_task
from gpuspawner.schedulers.kueue.models import (
    DRY_RUN,
    GROUP,
    VERSION,
    Flavor,
    Json,
    Pending,
    Queue,
    Verb,
    Workload,
    Write,
    explain_gate,
    explain_unusable,
    spec_of,
    to_flavor,
    to_queue,
    trial_pod,
)

log = logging.getLogger("gpuspawner.scheduler")

API = f"/apis/{GROUP}/{VERSION}"
POSITIONS = f"/apis/visibility.{GROUP}/{VERSION}"
NOT_FOUND, CONFLICT = 404, 409
MAX_CONCURRENT = 16
"""Writes at the same time. Arbitrary: Kueue's webhooks answer each of them."""
QUEUE_SECONDS = 10.0
"""How long a read queue stays valid. Administrators change queues by the week."""
POSITION_SECONDS = 2.0
"""How long read positions stay valid. Each request lists the whole queue."""
FIRST_LIST_SECONDS = 10.0
"""How long the first list of Workloads may take."""

T = TypeVar("T")


class KueueCluster:
    """Reads and writes the objects of Kueue in one namespace, for one hub."""

    def __init__(self, api: Api, settings: ClusterSettings, namespace: str, hub: str) -> None:
        self._api, self._settings, self.namespace = api, settings, namespace
        self._path = f"{API}/namespaces/{namespace}/workloads"
        self.changed: Callable[[], None] = lambda: None
        """Called when a Workload changed."""
        self._watch: Watch[Json] = Watch(
            api, self._path, {"labelSelector": f"{HUB_LABEL}={hub}"}, lambda one: one, self._on_change, settings
        )
        self._following: asyncio.Task[None] | None = None
        self._cache: dict[str, tuple[float, Any]] = {}
        """Recent answers, with the time until which they are valid."""
        self.positions_unknown = ""
        """A sentence if Kueue does not report positions."""

    def _on_change(self, _before: Json | None, _after: Json | None) -> None:
        self.changed()

    async def connect(self) -> None:
        """Check that Kueue exists and does not manage workspaces' pods. Raises UnusableScheduler, Unavailable."""
        try:
            group = await self._get(f"/apis/{GROUP}")
        except Unavailable as error:
            raise Unavailable(f"The cluster does not tell whether it has Kueue: {error}") from error
        if why := explain_unusable(group):
            raise UnusableScheduler(why)
        if not self._settings.all_namespaces:  # Otherwise the namespace of a pod is known at its start only.
            await self._check_namespace(self._settings.namespace)

    async def _check_namespace(self, namespace: str) -> None:
        """Raise UnusableScheduler if Kueue manages pods of the namespace. The check needs the right to create pods."""
        path = f"/api/v1/namespaces/{namespace}/pods"
        try:
            made = await self._api.write("POST", path, trial_pod(), DRY_RUN)
        except ApiRefused as error:
            log.info(
                "Could not check whether Kueue manages pods of %s (`gpuspawner server doctor` does): %s",
                namespace,
                error,
            )
            return
        if why := explain_gate(made, namespace):
            raise UnusableScheduler(why)

    async def workloads(self) -> dict[str, Workload]:
        """Return the Workloads of this hub, by name. Raises Unavailable while the watch is not current."""
        if self._following is None:
            self._following = asyncio.create_task(self._watch.run())
        if not self._watch.complete:
            try:
                await asyncio.wait_for(self._watch.answered.wait(), FIRST_LIST_SECONDS)
            except asyncio.TimeoutError:
                raise Unavailable("Kueue's Workloads are unknown: the API server does not answer.") from None
        if self._watch.refused or not self._watch.complete:
            why = self._watch.refused or "the API server does not answer"
            raise Unavailable(f"Kueue's Workloads are unknown in {self.namespace}: {why}.")
        if self._watch.lost_seconds > self._settings.stale_seconds:
            raise Unavailable("Kueue's Workloads are unknown: the API server does not answer.")
        return {one["metadata"]["name"]: Workload(one) for one in self._watch.objects.values()}

    async def write(self, writes: Iterable[Write]) -> dict[str, str]:
        """Write all, new objects in their order. A write that conflicts with another change is skipped.

        Returns:
            Why writes were refused, by the name of the Workload.

        Raises:
            Unavailable: The API server does not answer.
        """
        refused = dict[str, str]()

        async def one(write: Write) -> None:
            try:
                await self._write(write)
            except ApiRefused as error:
                if error.status not in {NOT_FOUND, CONFLICT}:
                    name = write.body["metadata"]["name"]
                    log.warning("Kueue: %s of %s: %s", write.verb.value, name, error)
                    refused[name] = str(error)

        made, changed = list[Write](), list[Write]()
        for write in writes:
            (made if write.verb is Verb.CREATE else changed).append(write)
        await run_limited(map(one, made), 1)  # One after the other, because Kueue orders by creation.
        await run_limited(map(one, changed), MAX_CONCURRENT)
        return refused

    async def _write(self, write: Write) -> None:
        metadata, objects = write.body["metadata"], self._watch.objects
        at = f"{self._path}/{metadata['name']}"
        if write.verb is Verb.DELETE:
            known = {"uid": metadata["uid"], "resourceVersion": metadata["resourceVersion"]}
            await self._api.delete(at, {"preconditions": known})
            objects.pop(metadata["uid"], None)
            return
        if write.verb is Verb.CREATE:
            now = await self._create(at, write.body)
        else:
            now = await self._api.write("PUT", f"{at}/status" if write.verb is Verb.STATUS else at, write.body)
        uid = now["metadata"]["uid"]
        if uid not in objects or _version(objects[uid]) < _version(now):  # The watch may have a newer version.
            objects[uid] = now

    async def _create(self, at: str, body: Json) -> Json:
        """Create a Workload. If it exists without our label, add the label."""
        try:
            return await self._api.write("POST", self._path, body)
        except ApiRefused as error:
            if error.status != CONFLICT:
                raise
            taken = error
        name = body["metadata"]["name"]
        found = (await self._api.get(self._path, {"fieldSelector": f"metadata.name={name}"})).get("items") or ()
        if not found:
            raise taken
        metadata = found[0]["metadata"]
        labels = {**(metadata.get("labels") or {}), **body["metadata"]["labels"]}
        return await self._api.write("PUT", at, {**found[0], "metadata": {**metadata, "labels": labels}})

    async def queue(self, name: str, *, as_now: bool = False) -> Queue:
        """Return a LocalQueue with its ClusterQueue. ``as_now`` reads the remaining quota again. Raises Unavailable."""
        if as_now:
            self._cache.pop(f"queue {name}", None)
        return await self._cached(f"queue {name}", QUEUE_SECONDS, partial(self._read_queue, name))

    async def _read_queue(self, name: str) -> Queue:
        local = await self._get(f"{API}/namespaces/{self.namespace}/localqueues/{quote(name)}")
        behind = None if local is None else spec_of(local).get("clusterQueue")
        cluster = await self._get(f"{API}/clusterqueues/{quote(behind)}") if behind else None
        spec = {} if cluster is None else spec_of(cluster)
        names = dict.fromkeys(
            one["name"] for group in spec.get("resourceGroups") or () for one in group.get("flavors") or ()
        )
        flavors = {one: flavor for one in names if (flavor := await self._flavor(one)) is not None}
        rules = (spec.get("admissionChecksStrategy") or {}).get("admissionChecks") or ()
        checks = [await self._get(f"{API}/admissionchecks/{quote(rule['name'])}") for rule in rules]
        return to_queue(name, local, cluster, flavors, [one for one in checks if one is not None])

    async def _flavor(self, name: str) -> Flavor | None:
        one = await self._get(f"{API}/resourceflavors/{quote(name)}")
        if one is None:
            return None
        labels = (one.get("spec") or {}).get("nodeLabels") or {}
        return to_flavor(one, await self._nodes(labels) if labels else None)

    async def _nodes(self, labels: Mapping[str, str]) -> frozenset[str]:
        """Return the names of the nodes with these labels."""
        query = {"labelSelector": ",".join(f"{k}={v}" for k, v in labels.items()), "limit": str(self._settings.page)}
        found = set[str]()
        while True:
            page = await self._list("/api/v1/nodes", query)
            found |= {one["metadata"]["name"] for one in page.get("items") or ()}
            if not (more := page["metadata"].get("continue")):
                return frozenset(found)
            query["continue"] = more

    async def priority(self, name: str) -> int:
        """Return the value of a WorkloadPriorityClass, 0 if it does not exist. Raises Unavailable."""

        async def read() -> int:
            one = await self._get(f"{API}/workloadpriorityclasses/{quote(name)}")
            return 0 if one is None else int(one.get("value") or 0)

        return await self._cached(f"priority {name}", QUEUE_SECONDS, read)

    async def pending(self, queue: str, *, as_now: bool = False) -> dict[str, Pending]:
        """Return the waiting Workloads of a LocalQueue by name. {} if Kueue does not report positions."""
        key = f"positions {queue}"
        if as_now:
            self._cache.pop(key, None)
        try:
            found = await self._cached(key, POSITION_SECONDS, partial(self._read_pending, queue))
        except (ApiRefused, Unavailable) as error:
            log.debug("Positions of Workloads of %s are unknown: %s", queue, error)
            self.positions_unknown = "Kueue does not report positions now."
            return {}
        self.positions_unknown = ""
        return found

    async def _read_pending(self, queue: str) -> dict[str, Pending]:
        path = f"{POSITIONS}/namespaces/{self.namespace}/localqueues/{quote(queue)}/pendingworkloads"
        answer = await self._api.get(path, {"limit": "1000"})
        return {
            one["metadata"]["name"]: Pending(int(one.get("positionInClusterQueue") or 0) + 1, one.get("priority") or 0)
            for one in answer.get("items") or ()
        }

    async def close(self) -> None:
        """Stop to watch."""
        await stop_task(self._following)

    async def _cached(self, key: str, seconds: float, read: Callable[[], Awaitable[T]]) -> T:
        until, known = self._cache.get(key, (0.0, None))
        if time.monotonic() < until:
            return known  # type: ignore[no-any-return]
        found = await read()
        self._cache[key] = time.monotonic() + seconds, found
        return found

    async def _get(self, path: str) -> Json | None:
        """Return an object, None if it does not exist. Raises Unavailable."""
        try:
            return await self._api.get(path)
        except ApiRefused as error:
            if error.status == NOT_FOUND:
                return None
            raise Unavailable(f"Kueue's objects cannot be read: {error}.") from error

    async def _list(self, path: str, query: Mapping[str, str]) -> Json:
        try:
            return await self._api.get(path, query)
        except ApiRefused as error:
            raise Unavailable(f"Kueue's objects cannot be read: {error}.") from error


def _version(one: Json) -> int:
    """Return the version of an object. Versions are comparable in Kubernetes 1.35 and newer."""
    return int(one["metadata"].get("resourceVersion") or 0)
