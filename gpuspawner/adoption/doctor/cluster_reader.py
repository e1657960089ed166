"""Requests to a cluster: version and clock, rights, nodes, policies, classes, and one exec."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterable
from dataclasses import replace
from typing import Any
from urllib.parse import quote, urlsplit

import aiohttp

from gpuspawner.adoption.doctor import (
    cluster_checks,
    hub_checks,
    source_checks,
)
from gpuspawner.adoption.doctor.findings import (
    TIMEOUT_SECONDS,
    Answer,
    DoctorOptions,
    Finding,
    seconds_of,
    too_long,
    unknown,
)
from gpuspawner.adoption.doctor.queue_checks import REVIEWS, judge_kueue, judge_pod_queues
from gpuspawner.backends.kubernetes.api import Api, ApiRefused, Connection
from gpuspawner.backends.kubernetes.dra.view import GROUP as CLAIMS
from gpuspawner.backends.kubernetes.pods import HUB_LABEL
from gpuspawner.backends.kubernetes.settings import ClusterSettings
from gpuspawner.catalog import Catalog, HttpSchedulerAddress, KueueQueues, PodQueues
from gpuspawner.catalog import Cluster as OtherCluster
from gpuspawner.cli import base
from gpuspawner.core.errors import Unavailable

Owner = HttpSchedulerAddress | KueueQueues | PodQueues
CONTAINER = "notebook"
MOST_BYTES = 65536
"""The largest output of an exec."""
LONGEST_ANSWER_BYTES = 256 * 2**20
"""The longest answer of the API server: 10,000 nodes."""
WORKSPACE = {"app": "jupyterhub", "component": "singleuser-server"}
"""KubeSpawner's own labels. They are used if no workspace runs."""


class Cluster:
    """An API server, asked as the service account ``account`` if it is not "" (``kubectl --as``)."""

    def __init__(self, connection: Connection, account: str) -> None:
        """Use this connection."""
        self._connection, self._account = connection, account

    async def ask(self, path: str, body: Any = None) -> Answer:
        """Return the answer to a GET, or to a POST of ``body``. Never raises."""
        began, connection = time.time(), self._connection
        try:
            headers = await connection.headers()
            if self._account:
                headers["Impersonate-User"] = self._account
            async with connection.session.request(
                "GET" if body is None else "POST",
                connection.host + path,
                json=body,
                headers=headers,
                timeout=aiohttp.ClientTimeout(total=TIMEOUT_SECONDS),
                **connection.options,
            ) as response:
                content = await _read(response)
                if content is None:
                    return Answer(0, problem=too_long(LONGEST_ANSWER_BYTES))
                body = _json(content)
                if not isinstance(body, dict):
                    return Answer(0, problem=f"it answered {response.status} with something that is not a JSON object")
                date = seconds_of(response.headers.get("Date"))
                return Answer(response.status, body, date=date, at=(began + time.time()) / 2)
        except (aiohttp.ClientError, OSError, asyncio.TimeoutError, Unavailable) as error:
            return Answer(0, problem=str(error) or type(error).__name__)

    async def list(self, path: str) -> Answer:
        """Return a list as :meth:`ask` does, with its objects as ``body``. Each has a spec and a status."""
        answer = await self.ask(path)
        if not answer.ok:
            return answer
        items = answer.body.get("items")
        if not isinstance(items, list) or not all(_is_object(item) for item in items):
            return replace(
                answer, status=0, problem="it answered with something that is not a list of Kubernetes objects"
            )
        return replace(answer, body=[{"spec": {}, "status": {}, **item} for item in items])


async def _read(response: aiohttp.ClientResponse) -> bytes | None:
    """Return the answer, or None if it is too long."""
    content = bytearray()
    async for part in response.content.iter_any():
        content += part
        if len(content) > LONGEST_ANSWER_BYTES:
            return None
    return bytes(content)


def _json(content: bytes) -> Any:
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        return None


def _is_object(item: Any) -> bool:
    """Return whether a value has a name, and mappings as its parts."""
    if not isinstance(item, dict):
        return False
    metadata, *others = (item.get(part, {}) for part in ("metadata", "spec", "status"))
    return all(isinstance(part, dict) for part in (metadata, *others)) and isinstance(metadata.get("name"), str)


async def examine_cluster(arguments: DoctorOptions, catalog: Catalog | None) -> tuple[list[Finding], Answer]:
    """Return the findings of a cluster, and its answer about its version."""
    settings = base.cluster_settings(arguments.kubeconfig, arguments.context, arguments.namespace)
    try:
        connection = await Connection.open(settings)
    except Unavailable as error:
        answer = Answer(0, problem=str(error).rstrip("."))
        return [cluster_checks.reached(answer)], answer
    try:
        cluster = Cluster(connection, arguments.account or "")
        version = await cluster.ask("/version")
        found = [cluster_checks.reached(version)]
        if version.ok:
            found.append(hub_checks.clock("The API server", version))
            found += await _judged(cluster, settings, catalog, urlsplit(arguments.service).port or 80)
            found += await _elsewhere(settings, catalog)
        return found, version
    finally:
        await connection.close()


async def _elsewhere(settings: ClusterSettings, catalog: Catalog | None) -> list[Finding]:
    """Return the findings of other clusters. They are asked as hub and service ask there."""
    found: list[Finding] = []
    for one in catalog.clusters.values() if catalog else ():
        if not one.kubeconfig:
            continue
        try:
            connection = await Connection.open(replace(settings, kubeconfig=one.kubeconfig, context=one.context))
        except Unavailable as error:
            judged = [cluster_checks.reached(Answer(0, problem=str(error).rstrip(".")), cluster_checks.WAY_THERE)]
        else:
            try:
                judged = await _there(Cluster(connection, ""), settings.namespace, one)
            finally:
                await connection.close()
        found += [replace(x, check=f"{x.check} of {one.name}") for x in judged]
    return found


async def _there(cluster: Cluster, namespace: str, one: OtherCluster) -> list[Finding]:
    version = await cluster.ask("/version")
    if not version.ok:
        return [cluster_checks.reached(version, cluster_checks.WAY_THERE)]
    wanted, within = cluster_checks.rights_there(one), quote(namespace, safe="")
    answers = {right: await cluster.ask(REVIEWS, cluster_checks.review_of(right, within)) for right in wanted}
    found = [cluster_checks.reached(version), hub_checks.clock("The API server", version)]
    found += cluster_checks.rights(answers, within, manifest=cluster_checks.OTHER_MANIFEST)
    return found + await _owner(cluster, namespace, one.scheduler)


def _of_home(catalog: Catalog | None) -> Owner | None:
    """Return the scheduler that owns the queue of the hub's own cluster."""
    if catalog is None or not catalog.clusters:
        return catalog.scheduler if catalog else None
    return next(one.scheduler for one in catalog.clusters.values() if not one.kubeconfig)


async def _owner(cluster: Cluster, namespace: str, owner: Owner | None) -> list[Finding]:
    if isinstance(owner, KueueQueues):
        return await judge_kueue(cluster, namespace, owner)
    if isinstance(owner, PodQueues):
        return await judge_pod_queues(cluster, namespace, owner)
    return []


async def _judged(cluster: Cluster, settings: ClusterSettings, catalog: Catalog | None, port: int) -> list[Finding]:
    namespace = quote(settings.namespace, safe="")
    answers = {
        one: await cluster.ask(REVIEWS, cluster_checks.review_of(one, namespace)) for one in cluster_checks.RIGHTS
    }
    there = await cluster.ask(f"/api/v1/namespaces/{namespace}")
    found = [*cluster_checks.namespace_there(settings.namespace, there), *cluster_checks.rights(answers, namespace)]
    found += await _owner(cluster, settings.namespace, _of_home(catalog))
    own = {name: kind for name, kind in catalog.gpus.items() if not kind.cluster} if catalog else {}
    claimed, slices = {name: kind for name, kind in own.items() if kind.claim}, None
    if claimed:
        slices, classes = [await cluster.list(f"{CLAIMS}/{name}") for name in ("resourceslices", "deviceclasses")]
        found += cluster_checks.kinds_met(claimed, slices, classes)
    nodes = await cluster.list("/api/v1/nodes")
    if nodes.ok:
        found += cluster_checks.devices(nodes.body, cluster_checks.nodes_of(slices))
        others = {name: kind for name, kind in own.items() if not kind.claim}
        found += cluster_checks.kinds_there(others, nodes.body) if others or (catalog and not claimed) else ()
        found += source_checks.drivers_of_nodes(nodes.body, catalog) if catalog else ()
    else:
        found.append(
            unknown("GPU labels", "The API server did not list the nodes.", "Fix the findings about rights first.")
        )
    pods = await cluster.list(f"/api/v1/namespaces/{namespace}/pods?labelSelector={quote(HUB_LABEL, safe='')}")
    running = [pod for pod in (pods.body if pods.ok else ()) if pod["status"].get("phase") == "Running"]
    found += cluster_checks.unhealthy_of_pods(running)
    found += cluster_checks.one_hub(settings.namespace, running)
    labels = running[0]["metadata"].get("labels") or {} if running else WORKSPACE
    policies = await cluster.list(f"/apis/networking.k8s.io/v1/namespaces/{namespace}/networkpolicies")
    found.append(cluster_checks.network(policies, labels, port))
    classes = await cluster.list("/apis/scheduling.k8s.io/v1/priorityclasses")
    found.append(cluster_checks.priority(classes, running))
    found.append(await _exec_in(settings, running))
    return found


async def _exec_in(settings: ClusterSettings, running: Iterable[Any]) -> Finding:
    """Try an exec in the first running workspace, as the probe does."""
    name = next((str(pod["metadata"]["name"]) for pod in running), "")
    if not name:
        return cluster_checks.exec_tried("", "")
    api = Api(settings)
    try:
        ended = await api.execute(settings.namespace, name, CONTAINER, ["sh", "-s"], b"exit 0\n", MOST_BYTES)
        return cluster_checks.exec_tried(
            name, ended.problem or ("" if ended.code == 0 else f"sh ended with {ended.code}")
        )
    except (ApiRefused, Unavailable) as error:
        return cluster_checks.exec_tried(name, str(error).rstrip("."))
    finally:
        await api.close()
