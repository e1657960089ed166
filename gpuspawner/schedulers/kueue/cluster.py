"""Kueue's side as the API server has it: our Workloads, followed and written; queues and places, asked for."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from typing import Any, TypeVar
from urllib.parse import quote

from gpuspawner.backends.kubernetes.api import Api, ApiRefused
from gpuspawner.backends.kubernetes.names import HUB_LABEL
from gpuspawner.backends.kubernetes.settings import ClusterSettings
from gpuspawner.backends.kubernetes.watches import Watch
from gpuspawner.core.errors import Unavailable
from gpuspawner.schedulers.base import Unfit
from gpuspawner.schedulers.kueue import fits
from gpuspawner.schedulers.kueue.models import (
    GROUP,
    VERSION,
    Flavor,
    Json,
    Pending,
    Queue,
    Workload,
    spec_of,
    to_flavor,
    to_queue,
)
from gpuspawner.schedulers.kueue.scheduler import Verb, Write

log = logging.getLogger("gpuspawner.scheduler")

API = f"/apis/{GROUP}/{VERSION}"
PLACES = f"/apis/visibility.{GROUP}/{VERSION}"
NOT_FOUND, CONFLICT = 404, 409
AT_ONCE = 16
"""Writes under way. Arbitrary: Kueue's webhooks answer each of them."""
QUEUES_SECONDS = 10.0
"""For so long what queues and flavors are is taken for the same: administrators change them by the week."""
PLACES_SECONDS = 2.0
"""So often it is asked where who stands: each question lists the whole queue."""
FIRST_SECONDS = 10.0
"""So long the first look at the Workloads may take."""

T = TypeVar("T")


class KueueCluster:
    """The objects of Kueue in one namespace, of one hub."""

    def __init__(self, api: Api, settings: ClusterSettings, namespace: str, hub: str) -> None:
        """Ask nothing yet."""
        self._api, self._settings, self.namespace = api, settings, namespace
        self._path = f"{API}/namespaces/{namespace}/workloads"
        self.changed: Callable[[], None] = lambda: None
        """Called whenever a Workload changed."""
        self._watch: Watch[Json] = Watch(
            api, self._path, {"labelSelector": f"{HUB_LABEL}={hub}"}, lambda one: one, self._heard, settings
        )
        self._following: asyncio.Task[None] | None = None
        self._kept: dict[str, tuple[float, Any]] = {}
        """What was asked lately, and until when it is taken for the same."""
        self.places_away = ""
        """Why it is not known who stands where, in a sentence; "" where it is."""

    def _heard(self, _before: Json | None, _after: Json | None) -> None:
        self.changed()

    async def meet(self) -> None:
        """See that Kueue is there, and leaves workspaces' pods alone. Raises Unfit, or Unavailable: nobody answers."""
        try:
            told = await self._one(f"/apis/{GROUP}")
        except Unavailable as error:
            raise Unavailable(f"The cluster does not tell whether it has Kueue: {error}") from error
        if why := fits.why_unfit(told):
            raise Unfit(why)
        if not self._settings.all_namespaces:  # else it is only known at each start in which one its pod is
            await self._try_a_pod(self._settings.namespace)

    async def _try_a_pod(self, namespace: str) -> None:
        """Raise Unfit where Kueue would hold back a workspace's pod; an account that may make none can't tell."""
        path = f"/api/v1/namespaces/{namespace}/pods"
        try:
            made = await self._api.write("POST", path, fits.trial(), fits.DRY_RUN)
        except ApiRefused as error:
            log.info(
                "whether Kueue holds back pods of %s was not tried (`gpuspawner server doctor` does): %s",
                namespace,
                error,
            )
            return
        if why := fits.why_gated(made, namespace):
            raise Unfit(why)

    async def workloads(self) -> dict[str, Workload]:
        """Return the Workloads of this hub, by name. Raises Unavailable while they are not seen as they are now."""
        if self._following is None:
            self._following = asyncio.create_task(self._watch.run())
        if not self._watch.complete:
            try:
                await asyncio.wait_for(self._watch.answered.wait(), FIRST_SECONDS)
            except asyncio.TimeoutError:
                raise Unavailable("Kueue's Workloads have not been seen yet: the API server does not answer.") from None
        if self._watch.refused or not self._watch.complete:
            why = self._watch.refused or "the API server does not answer"
            raise Unavailable(f"Kueue's Workloads can't be seen in {self.namespace}: {why}.")
        if self._watch.lost_seconds > self._settings.stale_seconds:
            raise Unavailable("Kueue's Workloads are not seen now: the API server does not answer.")
        return {one["metadata"]["name"]: Workload(one) for one in self._watch.objects.values()}

    async def write(self, writes: Iterable[Write]) -> dict[str, str]:
        """Write all, new ones in their order; what another changed meanwhile is left for the next look.

        Return why some were refused, by the name of the Workload.

        Raises:
            Unavailable: no answer.
        """
        turns, failed, refused = asyncio.Semaphore(AT_ONCE), list[Unavailable](), dict[str, str]()

        async def one(write: Write) -> None:
            async with turns:  # else all would have begun before the first fails
                if failed:
                    return
                try:
                    await self._write(write)
                except ApiRefused as error:
                    if error.status not in {NOT_FOUND, CONFLICT}:
                        name = write.body["metadata"]["name"]
                        log.warning("Kueue: %s of %s: %s", write.verb.value, name, error)
                        refused[name] = str(error)
                except Unavailable as error:
                    failed.append(error)

        made, changed = list[Write](), list[Write]()
        for write in writes:
            (made if write.verb is Verb.CREATE else changed).append(write)
        for write in made:
            await one(write)  # one after the other: Kueue goes by when they were made
        await asyncio.gather(*map(one, changed))
        if failed:
            raise failed[0]
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
            now = await self._made(at, write.body)
        else:
            now = await self._api.write("PUT", f"{at}/status" if write.verb is Verb.STATUS else at, write.body)
        uid = now["metadata"]["uid"]
        if uid not in objects or _version(objects[uid]) < _version(now):  # the watch may have said what came after it
            objects[uid] = now

    async def _made(self, at: str, body: Json) -> Json:
        """Make a Workload. One that is there and not seen has lost the label by which it is: it gets that again."""
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
        """Return a LocalQueue with what is behind it; what is left of its quota is ``as_now``. Raises Unavailable."""
        if as_now:
            self._kept.pop(f"queue {name}", None)
        return await self._lately(f"queue {name}", QUEUES_SECONDS, partial(self._ask_queue, name))

    async def _ask_queue(self, name: str) -> Queue:
        local = await self._one(f"{API}/namespaces/{self.namespace}/localqueues/{quote(name)}")
        behind = None if local is None else spec_of(local).get("clusterQueue")
        cluster = await self._one(f"{API}/clusterqueues/{quote(behind)}") if behind else None
        spec = {} if cluster is None else spec_of(cluster)
        names = dict.fromkeys(
            one["name"] for group in spec.get("resourceGroups") or () for one in group.get("flavors") or ()
        )
        flavors = {one: flavor for one in names if (flavor := await self._flavor(one)) is not None}
        rules = (spec.get("admissionChecksStrategy") or {}).get("admissionChecks") or ()
        checks = [await self._one(f"{API}/admissionchecks/{quote(rule['name'])}") for rule in rules]
        return to_queue(name, local, cluster, flavors, [one for one in checks if one is not None])

    async def _flavor(self, name: str) -> Flavor | None:
        one = await self._one(f"{API}/resourceflavors/{quote(name)}")
        if one is None:
            return None
        labels = (one.get("spec") or {}).get("nodeLabels") or {}
        return to_flavor(one, await self._nodes(labels) if labels else None)

    async def _nodes(self, labels: Mapping[str, str]) -> frozenset[str]:
        """Return the names of the nodes with these labels."""
        query = {"labelSelector": ",".join(f"{k}={v}" for k, v in labels.items()), "limit": str(self._settings.page)}
        found = set[str]()
        while True:
            page = await self._asked("/api/v1/nodes", query)
            found |= {one["metadata"]["name"] for one in page.get("items") or ()}
            if not (more := page["metadata"].get("continue")):
                return frozenset(found)
            query["continue"] = more

    async def priority(self, name: str) -> int:
        """Return the value of a WorkloadPriorityClass; 0 of one that is not there. Raises Unavailable."""

        async def ask() -> int:
            one = await self._one(f"{API}/workloadpriorityclasses/{quote(name)}")
            return 0 if one is None else int(one.get("value") or 0)

        return await self._lately(f"priority {name}", QUEUES_SECONDS, ask)

    async def pending(self, queue: str, *, as_now: bool = False) -> dict[str, Pending]:
        """Return who waits in a LocalQueue, by the name of the Workload; none where Kueue does not tell."""
        what = f"places {queue}"
        if as_now:
            self._kept.pop(what, None)
        try:
            found = await self._lately(what, PLACES_SECONDS, partial(self._ask_pending, queue))
        except (ApiRefused, Unavailable) as error:
            log.debug("where Workloads of %s stand is not known: %s", queue, error)
            self.places_away = "Kueue does not tell places now."
            return {}
        self.places_away = ""
        return found

    async def _ask_pending(self, queue: str) -> dict[str, Pending]:
        path = f"{PLACES}/namespaces/{self.namespace}/localqueues/{quote(queue)}/pendingworkloads"
        told = await self._api.get(path, {"limit": "1000"})
        return {
            one["metadata"]["name"]: Pending(int(one.get("positionInClusterQueue") or 0) + 1, one.get("priority") or 0)
            for one in told.get("items") or ()
        }

    async def close(self) -> None:
        """Follow no more."""
        if self._following is not None:
            self._following.cancel()
            await asyncio.gather(self._following, return_exceptions=True)

    async def _lately(self, what: str, seconds: float, ask: Callable[[], Awaitable[T]]) -> T:
        """Return what was asked lately, or ask."""
        until, known = self._kept.get(what, (0.0, None))
        if time.monotonic() < until:
            return known  # type: ignore[no-any-return]
        found = await ask()
        self._kept[what] = time.monotonic() + seconds, found
        return found

    async def _one(self, path: str) -> Json | None:
        """Return one object, None where there is none. Raises Unavailable."""
        try:
            return await self._api.get(path)
        except ApiRefused as error:
            if error.status == NOT_FOUND:
                return None
            raise Unavailable(f"Kueue's objects can't be seen: {error}.") from error

    async def _asked(self, path: str, query: Mapping[str, str]) -> Json:
        try:
            return await self._api.get(path, query)
        except ApiRefused as error:
            raise Unavailable(f"Kueue's objects can't be seen: {error}.") from error


def _version(one: Json) -> int:
    """Return the version of an object: Kubernetes 1.35 and newer says that they may be compared."""
    return int(one["metadata"].get("resourceVersion") or 0)
