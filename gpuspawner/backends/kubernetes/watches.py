"""A copy of one collection of the cluster, kept by list and watch."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import random
import time
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

from gpuspawner.backends.kubernetes.api import Api, ApiRefused
from gpuspawner.backends.kubernetes.connection import ClusterSettings
from gpuspawner.core.errors import Unavailable

log = logging.getLogger("gpuspawner.kubernetes")

T = TypeVar("T")

GONE = 410
UNKNOWN, FORBIDDEN, NOT_THERE = 401, 403, 404
"""Who asks is not known, whatever it asks: that passes. Or this is not for who asks, or the cluster has none of it."""
REFUSED_SECONDS = 15.0
"""A refusal that lasts as long is meant. An API server that starts refuses everybody whose roles it has not read yet: a
service that believed it would see less of the cluster. What is refused for long is asked for again as often: the right
may be given by then.
"""
WATCH_SECONDS = (240, 300)
"""How long one watch lasts, drawn anew each time so that they never all end at once."""
BACK_OFF_SECONDS = (0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
"""Between tries, times 0.5 to 1.5 at random: a cluster's API server comes back to all its clients at once."""
SHORTEST_WATCH_SECONDS = 1.0
"""One that was followed for less is no watch: it failed. One that broke later did not: load balancers before an API
server cut those that say nothing for 35 s, and each time to wait longer would leave the cluster unseen for most of it.
"""
TRIES_BEFORE_LISTING = 4
"""So many watches that fail one after the other are no passing trouble: the version may be another cluster's."""


class Watch(Generic[T]):
    """One collection: ``objects`` by uid, trimmed to what is needed.

    ``complete`` is true from the first whole list on. ``refused`` says what the API server refused, "" otherwise.
    ``answered`` is set once it is either.
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
        """Copy what ``path`` lists. ``changed`` hears of each change: before, and after."""
        self._api, self._path, self._query = api, path, dict(query)
        self._trim, self._changed, self._settings = trim, changed, settings
        self._lost_at: float | None = time.monotonic()
        self._found_at = 0.0
        self._refused_at = math.inf
        self._version = ""
        self.objects: dict[str, T] = {}
        self._unread: set[str] = set()
        self.answered = asyncio.Event()
        self.complete = False
        self.refused = ""
        self.problem = ""
        """Why it was not followed last."""

    @property
    def lost_seconds(self) -> float:
        """For how long the copy has been neither listed nor followed: 0 while it is followed."""
        return 0.0 if self._lost_at is None else time.monotonic() - self._lost_at

    async def run(self, *, until_refused: bool = False) -> None:
        """Follow the collection until cancelled, whatever the API server does.

        With ``until_refused`` it ends where the first list is refused for long: less may be asked for instead.
        """
        failures = 0
        while True:
            try:
                if not self._version:
                    await self._list()
                await self._follow()
                failures = 0
                continue
            except ApiRefused as error:
                if error.status == UNKNOWN:
                    self.refused, self._refused_at = str(error), math.inf
                    self.answered.set()
                if error.status in {FORBIDDEN, NOT_THERE} and self._gives_up(error, until_refused=until_refused):
                    return
                if error.status == GONE:
                    self._version = ""
                problem: Exception = error
            except Unavailable as error:
                problem, self._refused_at = error, math.inf
            except Exception as error:  # an object nobody foresaw must not end the view of all others
                log.exception("following %s failed", self._path)
                self._version, problem = "", error
            finally:
                was_followed = self._lose()
            failures = 1 if was_followed else failures + 1
            if failures >= TRIES_BEFORE_LISTING:
                self._version = ""
            wait_seconds = BACK_OFF_SECONDS[min(failures, len(BACK_OFF_SECONDS)) - 1] * random.uniform(0.5, 1.5)  # noqa: S311
            self.problem = str(problem).rstrip(".")
            # An outage of the API server has one line of its own. What it refuses is said until it is allowed.
            level = logging.DEBUG if isinstance(problem, Unavailable) else logging.WARNING
            log.log(level, "%s is not followed (%s): again in %.1f s", self._path, problem, wait_seconds)
            await asyncio.sleep(wait_seconds)

    async def allowed(self, meanwhile: Watch[T] | None = None) -> None:
        """Return once all is listed that was refused for long; until then follow ``meanwhile``, which sees less of it.

        Both keep one copy, by turns: what one no longer lists of what the other saw is told as gone.
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
                log.debug("%s is not seen yet (%s)", self._path, error)
            except Exception:  # an object nobody foresaw must not end the view of what is seen
                log.exception("listing %s failed", self._path)
        log.info("%s is seen now", self._path)

    def _gives_up(self, error: ApiRefused, *, until_refused: bool) -> bool:
        """Note a refusal; return whether it ends the following."""
        self.refused, self._refused_at = str(error), min(self._refused_at, time.monotonic())
        if until_refused and time.monotonic() - self._refused_at < REFUSED_SECONDS:
            return False
        self.answered.set()
        return until_refused and not self.complete

    def _lose(self) -> bool:
        """Note that it is not followed any more; return whether it was, and for long enough."""
        if self._lost_at is not None:
            return False
        self._lost_at = time.monotonic()
        return self._lost_at - self._found_at >= SHORTEST_WATCH_SECONDS

    async def _list(self) -> None:
        """Take the whole collection, page by page, and only then put it in the copy's place."""
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
            await asyncio.sleep(0)  # others run between two pages
        for uid in [uid for uid in self.objects if uid not in listed]:
            self._take(uid, None)
        for uid, trimmed in listed.items():
            self._take(uid, trimmed)
        self._version, self._lost_at = metadata["resourceVersion"], time.monotonic()
        self.complete, self.refused, self._refused_at = True, "", math.inf
        self.answered.set()

    async def _follow(self) -> None:
        """Take in one watch's events until it ends."""
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
                        self._hear(event["type"], event["object"])
        except Unavailable:
            # Without even a bookmark: a store that was restored may be behind this version, and is silent until then.
            followed_seconds = 0.0 if self._lost_at is not None else time.monotonic() - self._found_at
            if self._version == begun_at and followed_seconds >= self._settings.silent_seconds:
                self._version = ""
            raise
        if time.monotonic() - self._found_at < SHORTEST_WATCH_SECONDS:
            raise Unavailable("the watch ended as soon as it began")

    def _hear(self, kind: str, item: dict[str, Any]) -> None:
        if kind == "ERROR":
            raise ApiRefused(int(item.get("code") or 0), str(item.get("message")))
        if kind in {"ADDED", "MODIFIED"}:
            self._take(item["metadata"]["uid"], self._trimmed(item))
        elif kind == "DELETED":
            self._take(item["metadata"]["uid"], None)
            self._unread.discard(item["metadata"]["uid"])
        self._version = item["metadata"]["resourceVersion"]

    def _trimmed(self, item: dict[str, Any]) -> T | None:
        """Return an object trimmed. One that nobody foresaw must not hide all others.

        Of that what was read before stands, so that nothing that runs is taken for gone; None where nothing was.
        """
        try:
            return self._trim(item)
        except Exception:
            before = self.objects.get(uid := item["metadata"]["uid"])
            if uid not in self._unread:
                self._unread.add(uid)
                done = "left out" if before is None else "kept as it was"
                log.exception("%s has an object that is not understood, and is %s: %s", self._path, done, uid)
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
