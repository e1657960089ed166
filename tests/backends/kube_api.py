"""An API server of one's own: lists in pages, watches, deletes and execs as Kubernetes does, and fails when told to."""

import asyncio
import contextlib
import json

from aiohttp import WSMsgType, web
from harness.waiting import until

from gpuspawner.catalog.resources.definitions import KINDS

VERSION = "resourceVersion"


def merged(old, patch):
    """A merge patch, RFC 7386."""
    if not isinstance(patch, dict):
        return patch
    new = dict(old) if isinstance(old, dict) else {}
    for key, value in patch.items():
        if value is None:
            new.pop(key, None)
        else:
            new[key] = merged(new.get(key), value)
    return new


COLLECTIONS = {"ResourceSlice": "resourceslices", "DeviceClass": "deviceclasses", "ResourceClaim": "resourceclaims"}


class KubeApi:
    """``objects`` are by path (``/api/v1/nodes``) and uid. ``asked`` records all requests of the clients.

    ``refused`` holds (verb, path) that answer 403. ``rights`` holds (verb, resource) that reviews of rights allow.
    Unless a user is ``known``, requests answer 401. ``execs`` is what an exec does, by pod: called with socket and
    script.
    """

    def __init__(self):
        self.version = 100
        self.oldest = 0
        self.objects = {}
        self.events = []
        self.asked = []
        self.tokens = set()
        self.refused = set()
        self.rights = set()
        self.known = True
        self.execs = {}
        self.grace_seconds = 0.0
        self.watchers = []
        self.snapshots = {}
        self.failing = 0
        self.frozen = self.database_frozen = False
        self.runner = self.port = None

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    async def start(self):
        app = web.Application(client_max_size=2**24)
        app.router.add_route("*", "/{path:.*}", self._serve)
        self.runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self.runner.setup()
        site = web.TCPSite(self.runner, "127.0.0.1", self.port or 0)
        await site.start()
        self.port = self.runner.addresses[0][1]

    async def stop(self):
        """As a crash: every connection breaks."""
        self.break_watches()
        await self.runner.cleanup()

    def kubeconfig(self, folder, cluster=None, user=None):
        path = folder / "kubeconfig"
        cluster, user = cluster or {"server": self.url}, user or {"token": "t0ken"}
        path.write_text(
            json.dumps({
                "apiVersion": "v1", "kind": "Config", "current-context": "it",
                "clusters": [{"name": "it", "cluster": cluster}], "users": [{"name": "it", "user": user}],
                "contexts": [{"name": "it", "context": {"cluster": "it", "user": "it"}}],
            })
        )  # fmt: skip
        return str(path)

    def _paths(self, item):
        if item.get("kind") == "PodGroup":
            return f"/apis/{item['apiVersion']}/podgroups"
        if (own := next((kind.plural for kind in KINDS if kind.name == item.get("kind")), None)) is not None:
            return f"/apis/gpuspawner.io/v1alpha1/{own}"
        if (collection := COLLECTIONS.get(item.get("kind"))) is not None:
            return f"/apis/resource.k8s.io/v1/{collection}"
        if "nodeName" in item["spec"] or "containers" in item["spec"]:
            return "/api/v1/pods"
        if "limits" in item["spec"]:
            return "/api/v1/limitranges"
        return "/api/v1/nodes" if "capacity" in item.get("status", {}) else "/api/v1/resourcequotas"

    def put(self, item):
        """Create or change an object."""
        path = self._paths(item)
        self.version += 1
        item = json.loads(json.dumps(item))
        item["metadata"][VERSION] = str(self.version)
        known = self.objects.setdefault(path, {})
        kind = "MODIFIED" if item["metadata"]["uid"] in known else "ADDED"
        known[item["metadata"]["uid"]] = item
        self._tell(kind, path, item)
        return item

    def remove(self, item):
        path = self._paths(item)
        found = self.objects.get(path, {}).pop(item["metadata"]["uid"], None)
        if found is not None:
            self.version += 1
            found["metadata"][VERSION] = str(self.version)
            self._tell("DELETED", path, found)

    def compact(self):
        """Forget the past changes: a watch from before gets the answer that its version is gone."""
        self.oldest, self.events = self.version, []

    async def followed(self):
        """Wait until nodes, pods, quotas and limits are watched: what was before, a watch is told by its version."""
        await until(lambda: len(self.watchers) >= 4)

    def break_watches(self):
        for queue in self.watchers:
            queue.put_nowait(None)

    def bookmark(self):
        for queue in self.watchers:
            queue.put_nowait(("BOOKMARK", "", {"metadata": {VERSION: str(self.version)}}))

    def garble(self):
        for queue in self.watchers:
            queue.put_nowait("garbage")

    def _tell(self, kind, path, item):
        event = (kind, path, json.loads(json.dumps(item)))
        self.events.append((self.version, event))
        for queue in self.watchers:
            queue.put_nowait(event)

    def _of(self, path, query):
        """Return the collection's path and what is in it, for all namespaces or one."""
        before, _, after = path.partition("/namespaces/")
        namespace, _, plural = after.partition("/")
        path = f"{before}/{plural}" if plural else path
        wanted = dict(part.split("=") for part in query.get("labelSelector", "").split(",") if part)

        def fits(item):
            labels = item["metadata"].get("labels", {})
            return namespace in {"", item["metadata"].get("namespace")} and wanted.items() <= labels.items()

        return path, fits

    async def _serve(self, request):  # noqa: PLR0911 - one answer for each fault
        query = dict(request.query)
        path = "/" + request.match_info["path"]
        verb = "watch" if "watch" in query else "exec" if path.endswith("/exec") else request.method.lower()
        self.asked.append((verb, path, query))
        self.tokens.add(request.headers.get("Authorization"))
        if self.frozen or (self.database_frozen and path != "/version"):
            await asyncio.Event().wait()
        if path == "/version":
            return web.json_response({"gitVersion": "v1.36.3"})
        if self.failing > 0:
            self.failing -= 1
            return self._status(500, "etcdserver: request timed out")
        if not self.known:
            return self._status(401, "Unauthorized")
        if (verb, path) in self.refused:
            return self._status(403, f'{path.rsplit("/", 1)[-1]} is forbidden: User "hub" cannot {verb} it')
        if verb == "exec":
            return await self._exec(request, path.split("/")[6])
        if verb == "post":
            return self._create(path, await request.json(), query)
        if verb == "patch":
            return await self._patch(path, await request.json(), dry="dryRun" in query)
        if verb == "delete":
            return await self._delete(path, await request.json())
        path, fits = self._of(path, query)
        return await (self._watch if verb == "watch" else self._list)(request, path, fits, query)

    @staticmethod
    def _status(code, message):
        return web.json_response({"kind": "Status", "code": code, "message": message}, status=code)

    async def _list(self, _request, path, fits, query):
        """Every page is of the moment of the first, as etcd's are."""
        snapshot, _, first = (query.get("continue") or ":0").partition(":")
        if not snapshot:
            items = [
                json.loads(json.dumps(item)) for _, item in sorted(self.objects.get(path, {}).items()) if fits(item)
            ]
            snapshot = str(len(self.snapshots))
            self.snapshots[snapshot] = str(self.version), items
        version, items = self.snapshots[snapshot]
        end = int(first) + int(query.get("limit") or 10**6)
        metadata = {VERSION: version}
        if len(items) > end:
            metadata["continue"] = f"{snapshot}:{end}"
        return web.json_response({"metadata": metadata, "items": items[int(first) : end]})

    def _queue(self, since):
        """Return the events after a version; of one that is still to come none: kubernetes/kubernetes#107457."""
        queue = asyncio.Queue()
        for version, event in self.events:
            if version > since:
                queue.put_nowait(event)
        if since <= self.version:
            self.watchers.append(queue)
        return queue

    async def _watch(self, request, path, fits, query):
        since = int(query[VERSION])
        if since < self.oldest:
            return self._status(410, f"too old resource version: {since} ({self.oldest})")
        queue = self._queue(since)
        response = web.StreamResponse()
        await response.prepare(request)
        try:
            while (event := await queue.get()) is not None:
                if event == "garbage":
                    await response.write(b'{"type": "ADDED", "obj\n')
                    continue
                kind, event_path, item = event
                if kind == "BOOKMARK" or (event_path == path and fits(item)):
                    line = json.dumps({"type": kind, "object": item}) + "\n"
                    await response.write(line[:7].encode())  # a line may come in parts
                    await response.write(line[7:].encode())
        except (ConnectionError, asyncio.CancelledError):
            return response
        finally:
            with contextlib.suppress(ValueError):
                self.watchers.remove(queue)
        if request.transport is not None:
            request.transport.abort()
        return response

    def _create(self, path, body, query):
        """Create a custom resource, or say whether a right is given."""
        if path.endswith("selfsubjectaccessreviews"):
            asked = body["spec"]["resourceAttributes"]
            return web.json_response({"status": {"allowed": (asked["verb"], asked["resource"]) in self.rights}})
        namespace, name = path.split("/")[5], body["metadata"]["name"]
        if self._named(path, name) is not None:
            return self._status(409, f'"{name}" already exists')
        if "refuse" in str(body["spec"]):
            return self._status(422, 'strict decoding error: unknown field "spec.refuse"')
        metadata = {"name": name, "namespace": namespace, "uid": f"uid-{name}-{self.version}", "generation": 1}
        metadata["creationTimestamp"] = "2026-11-26T08:00:00Z"
        item = {"kind": body["kind"], "metadata": {**metadata, VERSION: "0"}, "spec": body["spec"]}
        return web.json_response(item if "dryRun" in query else self.put(item), status=201)

    def _named(self, path, name):
        collection, fits = self._of(path, {})
        found = (one for one in self.objects.get(collection, {}).values() if fits(one))
        return next((one for one in found if one["metadata"]["name"] == name), None)

    def _delete_custom(self, path, body):
        collection, _, name = path.rpartition("/")
        item = self._named(collection, name)
        if item is None:
            return self._status(404, f'"{name}" not found')
        guard = body.get("preconditions", {})
        if any(item["metadata"][key] != value for key, value in guard.items()):
            return self._status(409, "the precondition does not match")
        if "dryRun" not in body:
            self.remove(item)
        return web.json_response(item)

    async def _delete(self, path, body):
        if path.startswith("/apis/gpuspawner.io/"):
            return self._delete_custom(path, body)
        _, _, _, _, namespace, _, name = path.split("/")
        pods = self.objects.get("/api/v1/pods", {})
        pod = next(
            (p for p in pods.values() if (p["metadata"]["namespace"], p["metadata"]["name"]) == (namespace, name)), None
        )
        if pod is None:
            return self._status(404, f'pods "{name}" not found')
        uid = body.get("preconditions", {}).get("uid")
        if uid not in {None, pod["metadata"]["uid"]}:
            return self._status(409, f"the UID in the precondition ({uid}) does not match")
        self.asked.append(("deleted", pod["metadata"]["uid"], body))
        pod["metadata"]["deletionTimestamp"] = "2026-11-21T15:00:00Z"
        self.put(pod)
        if self.grace_seconds is not None:
            asyncio.get_running_loop().call_later(self.grace_seconds, self.remove, pod)
        return web.json_response(pod)

    async def _patch(self, path, body, *, dry=False):
        """Merge metadata, as a merge patch with the version that it is of; what goes and is held by nothing is gone."""
        is_status = path.endswith("/status")
        path, _, name = path.removesuffix("/status").rpartition("/")
        path, fits = self._of(path, {})
        item = next(
            (one for one in self.objects.get(path, {}).values() if fits(one) and one["metadata"]["name"] == name), None
        )
        if item is None:
            return self._status(404, f'"{name}" not found')
        if is_status:  # server-side apply: each hub has its own part
            hubs = {**item.get("status", {}).get("hubs", {}), **body["status"].get("hubs", {})}
            status = {**body["status"], "hubs": hubs} if hubs else body["status"]
            return web.json_response(self.put({**item, "status": status}))
        if body["metadata"][VERSION] != item["metadata"][VERSION]:
            return self._status(409, "the object has been modified")
        changed = {**item, "metadata": {**item["metadata"], **body["metadata"]}}
        if "spec" in body:
            changed["spec"] = merged(item["spec"], body["spec"])
            changed["metadata"]["generation"] = item["metadata"]["generation"] + (changed["spec"] != item["spec"])
            if "refuse" in str(changed["spec"]):
                return self._status(422, 'strict decoding error: unknown field "spec.refuse"')
        if dry:
            return web.json_response(changed)
        item = self.put(changed)
        if "deletionTimestamp" in item["metadata"] and not item["metadata"].get("finalizers"):
            self.remove(item)
        return web.json_response(item)

    async def _exec(self, request, pod):
        if "*/*" not in request.headers.get("Accept", "*/*"):
            return self._status(406, "only the following media types are accepted: */*")
        act = self.execs.get(pod)
        if act is None:
            return self._status(404, f'pods "{pod}" not found')
        socket = web.WebSocketResponse(protocols=("v5.channel.k8s.io", "v4.channel.k8s.io"))
        await socket.prepare(request)
        first = await socket.receive()
        if first.type is WSMsgType.BINARY:
            with contextlib.suppress(ConnectionError):
                await act(socket, first.data[1:])
        await socket.close()
        return socket


def ends_with(code, output=b"", said=b""):
    """An exec that prints and ends so."""

    async def act(socket, _script):
        for channel, data in ((1, output), (2, said)):
            if data:
                await socket.send_bytes(bytes([channel]) + data)
        await socket.send_bytes(b"\x03" + json.dumps(exit_status(code)).encode())

    return act


def exit_status(code):
    if code == 0:
        return {"metadata": {}, "status": "Success"}
    return {
        "metadata": {},
        "status": "Failure",
        "message": f"command terminated with non-zero exit code: exit status {code}",
        "reason": "NonZeroExitCode",
        "details": {"causes": [{"reason": "ExitCode", "message": str(code)}]},
    }
