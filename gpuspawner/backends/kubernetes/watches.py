"""A copy of one collection of the cluster, kept by list and watch."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import random
import time
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any, Generic, TypeVar

from gpuspawner.backends.kubernetes.api import Api, ApiRefused
from gpuspawner.backends.kubernetes.settings import ClusterSettings
from gpuspawner.core.errors import Unavailable

log = logging.getLogger("gpuspawner.kubernetes")

T = TypeVar("T")

REFUSED_SECONDS = 15.0
"""How long a refusal must last to count. A starting API server refuses all users until it has read its roles, and a
service that believed it would observe less of the cluster. A lasting refusal is tried again at this interval, because
the right may be granted later."""
WATCH_SECONDS = (240, 300)
"""Duration of one watch, drawn at random so that watches do not all end together."""
BACK_OFF_SECONDS = (0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
"""Pauses between tries, times 0.5 to 1.5 at random, because all clients return to an API server together."""
MIN_WATCH_SECONDS = 1.0
"""A shorter watch counts as failed. A longer one that broke does not: some load balancers cut a connection that is
silent for 35 s, and longer pauses would leave the cluster unobserved most of the time."""
TRIES_BEFORE_LIST = 4
"""After this many failed watches the collection is listed again: the version may be another cluster's."""


class Watch(Generic[T]):
    """A copy of one collection: ``objects`` by uid, reduced to the needed fields.

    ``complete`` is true after the first full list. ``refused`` is the API server's refusal, else "". ``answered`` is
    set after either. ``limit`` is a sentence for the administrator about a lasting refusal, else "".
    """

    def __init__(
        self,
        api: Api,
        path: str,
        query: Mapping[str, str],
        trim: Callable[[dict[str, Any]], T | None],
        changed: Callable[[T | None, T | None], None],
        settings: ClusterSettings,
    ) -> None:
        """Copy the collection at ``path``. ``changed`` is called with each object before and after a change."""
        self._api, self._path, self._query = api, path, dict(query)
        self._trim, self._changed, self._settings = trim, changed, settings
        self._lost_at: float | None = time.monotonic()
        self._found_at = 0.0
        self._refused_at = math.inf
        self._version = ""
        self.objects: dict[str, T] = {}
        self._unreadable: set[str] = set()
        self.answered = asyncio.Event()
        self.complete = False
        self.refused = self.limit = ""
        self.problem = ""
        """Why the last watch failed."""

    @property
    def lost_seconds(self) -> float:
        """Time since the copy was last listed or watched, 0 while it is watched."""
        return 0.0 if self._lost_at is None else time.monotonic() - self._lost_at

    async def run_despite_refusal(
        self,
        describe: Callable[[str], str],
        meanwhile: Watch[T] | None = None,
        then: Callable[[], None] = lambda: None,
    ) -> None:
        """Keep the copy up to date until cancelled. After a lasting refusal, retry until the collection is listed.

        Args:
            describe: returns ``limit`` from the API server's refusal.
            meanwhile: a watch of a part of the collection, which runs until then.
            then: called once the collection is listed.
        """
        await self.run(until_refused=True)
        self.limit = describe(self.refused)
        log.warning(self.limit)
        await self._wait_until_allowed(meanwhile)
        self.limit = ""
        then()
        await self.run()

    async def run(self, *, until_refused: bool = False) -> None:
        """Keep the copy up to date until cancelled, whatever the API server does.

        With ``until_refused`` it returns when the first list is refused for long, so the caller may ask for less.
        """
        failures = 0
        while True:
            try:
                if not self._version:
                    await self._list()
                await self._watch()
                failures = 0
                continue
            except ApiRefused as error:
                if error.status == HTTPStatus.UNAUTHORIZED:
                    self.refused, self._refused_at = str(error), math.inf
                    self.answered.set()
                if error.status in {HTTPStatus.FORBIDDEN, HTTPStatus.NOT_FOUND} and self._gives_up(
                    error, until_refused=until_refused
                ):
                    return
                if error.status == HTTPStatus.GONE:
                    self._version = ""
                problem: Exception = error
            except Unavailable as error:
                problem, self._refused_at = error, math.inf
            except Exception as error:  # an unexpected object must not stop the view of all others
                log.exception("Watching %s failed", self._path)
                self._version, problem = "", error
            finally:
                was_watched = self._lose()
            failures = 1 if was_watched else failures + 1
            if failures >= TRIES_BEFORE_LIST:
                self._version = ""
            wait_seconds = BACK_OFF_SECONDS[min(failures, len(BACK_OFF_SECONDS)) - 1] * random.uniform(0.5, 1.5)  # noqa: S311
            self.problem = str(problem).rstrip(".")
            # An outage of the API server has a log line of its own. A refusal is logged until it ends.
            level = logging.DEBUG if isinstance(problem, Unavailable) else logging.WARNING
            log.log(level, "%s is not watched (%s), next try in %.1f s", self._path, problem, wait_seconds)
            await asyncio.sleep(wait_seconds)

    async def _wait_until_allowed(self, meanwhile: Watch[T] | None = None) -> None:
        """Return once a refused collection is listed. Until then run ``meanwhile``, which observes a part of it.

        Both watches share one copy in turn. Objects that one no longer lists are reported as gone.
        """
        if meanwhile is not None:
            meanwhile.objects = self.objects
        while not self.complete:
            if meanwhile is None:
                await asyncio.sleep(REFUSED_SECONDS)
            else:
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(meanwhile.run(), REFUSED_SECONDS)
            try:
                await self._list()
            except (ApiRefused, Unavailable) as error:
                log.debug("%s is not listed yet (%s)", self._path, error)
            except Exception:  # an unexpected object must not stop the view of all others
                log.exception("Listing %s failed", self._path)
        log.info("%s is listed now", self._path)

    def _gives_up(self, error: ApiRefused, *, until_refused: bool) -> bool:
        """Record a refusal and return whether ``run`` ends."""
        self.refused, self._refused_at = str(error), min(self._refused_at, time.monotonic())
        if until_refused and time.monotonic() - self._refused_at < REFUSED_SECONDS:
            return False
        self.answered.set()
        return until_refused and not self.complete

    def _lose(self) -> bool:
        """Record that the watch ended and return whether it had lasted long enough."""
        if self._lost_at is not None:
            return False
        self._lost_at = time.monotonic()
        return self._lost_at - self._found_at >= MIN_WATCH_SECONDS

    async def _list(self) -> None:
        """Replace the copy after reading the whole collection page by page."""
        listed: dict[str, T] = {}
        query = {**self._query, "limit": str(self._settings.page)}
        while True:
            page = await self._api.get(self._path, query)
            for item in page.get("items") or ():
                trimmed = self._trimmed(item)
                if trimmed is not None:
                    listed[item["metadata"]["uid"]] = trimmed
            metadata = page["metadata"]
            if not metadata.get("continue"):
                break
            query["continue"] = metadata["continue"]
            await asyncio.sleep(0)  # let other tasks run between two pages
        for uid in [uid for uid in self.objects if uid not in listed]:
            self._take(uid, None)
        for uid, trimmed in listed.items():
            self._take(uid, trimmed)
        self._version, self._lost_at = metadata["resourceVersion"], time.monotonic()
        self.complete, self.refused, self._refused_at = True, "", math.inf
        self.answered.set()

    async def _watch(self) -> None:
        """Apply the events of one watch until it ends."""
        query = {
            **self._query,
            "resourceVersion": self._version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(random.randint(*WATCH_SECONDS)),  # noqa: S311
        }
        begun_at = self._version
        try:
            async with contextlib.aclosing(self._api.watch(self._path, query, self._settings.silent_seconds)) as events:
                async for event in events:
                    if self._lost_at is not None:
                        self._lost_at, self._found_at, self.refused = None, time.monotonic(), ""
                    if event:
                        self._apply(event["type"], event["object"])
        except Unavailable:
            # Without even a bookmark: a restored database may be behind this version and stay silent until it catches
            # up.
            watched_seconds = 0.0 if self._lost_at is not None else time.monotonic() - self._found_at
            if self._version == begun_at and watched_seconds >= self._settings.silent_seconds:
                self._version = ""
            raise
        if time.monotonic() - self._found_at < MIN_WATCH_SECONDS:
            raise Unavailable("the watch ended at once")

    def _apply(self, kind: str, item: dict[str, Any]) -> None:
        if kind == "ERROR":
            raise ApiRefused(int(item.get("code") or 0), str(item.get("message")))
        if kind in {"ADDED", "MODIFIED"}:
            self._take(item["metadata"]["uid"], self._trimmed(item))
        elif kind == "DELETED":
            self._take(item["metadata"]["uid"], None)
            self._unreadable.discard(item["metadata"]["uid"])
        self._version = item["metadata"]["resourceVersion"]

    def _trimmed(self, item: dict[str, Any]) -> T | None:
        """Return an object reduced to the needed fields. An unexpected object must not hide all others.

        Its last reading stays, so that nothing that runs counts as gone. None if there is no earlier reading.
        """
        try:
            return self._trim(item)
        except Exception:
            before = self.objects.get(uid := item["metadata"]["uid"])
            if uid not in self._unreadable:
                self._unreadable.add(uid)
                action = "left out" if before is None else "kept as it was"
                log.exception("%s has an unreadable object, which is %s: %s", self._path, action, uid)
            return before

    def _take(self, uid: str, after: T | None) -> None:
        before = self.objects.get(uid)
        if before == after:
            return
        if after is None:
            self.objects.pop(uid, None)
        else:
            self.objects[uid] = after
        self._changed(before, after)
