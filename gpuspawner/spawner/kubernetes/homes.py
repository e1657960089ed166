"""How a start waits for a volume that another workspace mounts: it says which one, and how to go on."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Any
from zoneinfo import ZoneInfo

from kubernetes_asyncio.client import ApiException

from gpuspawner.core.units import show_time
from gpuspawner.spawner.kubernetes.clusters import InCluster
from gpuspawner.spawner.kubernetes.pod_states import Stage
from gpuspawner.spawner.kubernetes.volumes import (
    BLOCKED_SECONDS,
    Holder,
    claims_of,
    for_one_pod,
    holder_of,
    holder_words,
    is_attached_elsewhere,
)

LOOK_SECONDS = 0.2


class HomeWaits(InCluster):
    """What a start of a pod knows of who has its volumes."""

    async def _gpu_until_home_is_free(self, pod: Mapping[str, Any]) -> None:
        """Return once no other pod mounts what one pod alone may mount. How long that may take, `_gpu_blocked` says.

        A pod made before would wait for that as one that finds no node, and go back to the queue again and again.
        """
        alone = [claim for claim in sorted(claims_of(pod)) if await self._gpu_is_for_one_pod(claim)]
        while alone and (holder := holder_of(pod, alone, self._gpu_pods_seen())) is not None:
            known = self._gpu_attempt.pod.blocked_at
            self._gpu_attempt = self._gpu_attempt.with_pod(holder=holder, blocked_at=known or time.monotonic())
            await asyncio.sleep(LOOK_SECONDS)
        self._gpu_attempt = self._gpu_attempt.with_pod(holder=None)

    def _gpu_blocked(
        self, pod: Mapping[str, Any] | None, events: Sequence[Mapping[str, Any]], seconds: float
    ) -> Stage | None:
        """Return where a start stands whose volume another pod has; None where it waits for none.

        ``seconds`` is how long ago its pod was made.
        """
        holder, blocked_at = self._gpu_attempt.pod.holder, self._gpu_attempt.pod.blocked_at
        if pod is None and holder is not None and blocked_at is not None:
            return self._gpu_held_by(holder, time.monotonic() - blocked_at)
        if pod is None or not is_attached_elsewhere(events):
            return None
        found = holder_of(pod, claims_of(pod), self._gpu_pods_seen())
        return None if found is None else self._gpu_held_by(found, seconds)

    def _gpu_held_by(self, holder: Holder, seconds: float) -> Stage:
        since = show_time(holder.since, time.time(), ZoneInfo(self.gpu_catalog.rules.timezone))
        words, own = holder_words(holder, self.user.name, since), holder.user == self.user.name
        goes_on = f"{words} {'Stop that one, and this' if own else 'This'} start goes on by itself once it has ended."
        stop = f"Stop that one on its page, or by gpuspawner stop {holder.server or '-'}: then start this again."
        fatal = f"{words} {stop if own else 'Start this again once that has ended.'}"
        lease = holder.lease if own else ""
        link = f"{self.gpu_service_prefix}workspaces/{lease}" if lease else ""
        over = fatal if seconds >= BLOCKED_SECONDS else ""
        return Stage(55, goes_on, over, link=link, link_text="Its page, to stop it", stop=lease)

    def _gpu_pods_seen(self) -> list[Mapping[str, Any]]:
        reflector = self.pod_reflector
        return [] if reflector is None else list(reflector.pods.values())

    async def _gpu_is_for_one_pod(self, claim: str) -> bool:
        try:
            found = await self._gpu_asked(self.api.read_namespaced_persistent_volume_claim, claim, self.namespace)
        except ApiException:  # not there, or no right to see it: its pod tells
            return False
        return for_one_pod(self._gpu_as_json(found))
