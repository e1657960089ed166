"""KubeSpawner's private methods that are overridden: all of them, and nothing else.

They are no promise of KubeSpawner's: ``tests/spawner/test_kube_private.py`` shows of the installed one that what is
relied on holds.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

from aiohttp import ClientError
from kubernetes_asyncio.client import ApiException

from gpuspawner.spawner.kubernetes.manifests import contradiction
from gpuspawner.spawner.kubernetes.pod_ends import refusal
from gpuspawner.spawner.kubernetes.starting import ASK_SECONDS, PodStart, message_of
from gpuspawner.spawner.kubernetes.watches import WATCHES
from gpuspawner.spawner.progress import ended_start


class PodRequests(PodStart):
    """How the requests of KubeSpawner's start and stop, and its watches, are made."""

    async def _start_reflector(self, kind: str, reflector_class: Any, *args: Any, **kwargs: Any) -> Any:
        """Watch by our own watches, begun once for all spawners: one start that is cancelled must not end them.

        Nor does a stop that takes long, after which KubeSpawner makes the watch anew: until a new one has listed, every
        pod would be taken for gone, and each start for ended. Ours never gives up.
        """
        await self._gpu_client_known()
        own_class = WATCHES.get(kind, reflector_class)
        once = {**kwargs, "replace": False} if kind in WATCHES else kwargs
        return await asyncio.shield(super()._start_reflector(kind, own_class, *args, **once))

    def _get_reflector_key(self, kind: str) -> Any:
        """Return what a watch is kept under: each cluster has its own."""
        key = super()._get_reflector_key(kind)
        return key if self.gpu_in_cluster is None else (*key, self._gpu_attempt.cluster)

    def _get_pod_url(self, pod: Any) -> str:
        """Return where the proxy reaches a pod, in whichever cluster it is."""
        return self._gpu_address(super()._get_pod_url(pod))

    async def _make_create_pvc_request(self, pvc: Any, request_timeout: float) -> bool:
        """Make the claim, and remember it: the scheduler may see the pod before it sees the claim."""
        made = bool(await self._gpu_asked(super()._make_create_pvc_request, pvc, request_timeout))
        self._gpu_attempt = self._gpu_attempt.with_pod(claim=pvc.metadata.name if made else "")
        return made

    async def _ensure_namespace(self) -> None:
        await self._gpu_asked(super()._ensure_namespace)

    async def _make_create_pod_request(self, pod: Any, request_timeout: float) -> bool:
        """Make the pod, unless a hook took the lease off it; asks again as long as this start may take.

        An existing pod is never killed with grace 0, as KubeSpawner would: its container could outlive it unseen,
        on the GPU that this start was granted.
        """
        manifest = self._gpu_as_json(pod)
        lost = contradiction(manifest, self._gpu_attempt.patch, self._gpu_attempt.pod.mark)
        if lost:
            raise ended_start(f"This hub is set up wrongly: {lost}", reason="conflict", status=409)
        await self._gpu_until_home_is_free(manifest)
        while not await self._gpu_is_made(pod, request_timeout):  # noqa: ASYNC110 - the cluster is asked, nobody tells
            await asyncio.sleep(ASK_SECONDS)
        self._gpu_attempt = self._gpu_attempt.with_pod(made_at=time.monotonic())
        return True

    async def _make_delete_pod_request(self, *arguments: Any) -> bool:
        """Ask for the pod's end; False, to ask again, where the API server does not answer or is busy."""
        try:
            return bool(await super()._make_delete_pod_request(*arguments))
        except (ClientError, OSError) as error:
            self.log.warning("the cluster does not answer (%s): the end of %s waits", error, self._log_name)
        except ApiException as error:
            if refusal(error.status, message_of(error)):
                raise
            self.log.warning("the cluster is busy (%s): the end of %s waits", error.status, self._log_name)
        return False
