"""Helpers for tests on a cluster: their own namespaces, pods, and commands in pods."""

import contextlib
import os
import secrets
import time
from pathlib import Path

from kubernetes import client, config
from kubernetes.stream import stream

from tools.cluster.cluster import Cluster
from tools.cluster.workspace import ensure_image

ROOT = Path(__file__).resolve().parents[2]
WAIT_SECONDS = 90
"""The longest that anything may take on a busy machine; what is waited for ends it at once."""


def wait_for(look, what, seconds=WAIT_SECONDS):
    """Call ``look()`` until it returns a true value, and return that value.

    Raises:
        AssertionError: it was not within ``seconds``; the message tells ``what`` and the last answer.
    """
    begun = time.monotonic()
    while not (found := look()):
        waited = time.monotonic() - begun
        assert waited < seconds, f"not within {seconds} s: {what}; last seen: {found!r}"
        # Many a look is a run of kubectl: what takes long is asked for seldom.
        time.sleep(min(0.5, 0.1 + waited / 20))
    return found


class TestCluster:
    """A cluster seen through ``kubeconfig``; ``own`` is its parts where `make cluster` started it, else None."""

    __test__ = False

    def __init__(self, kubeconfig: Path, own: Cluster | None):
        self.kubeconfig = kubeconfig
        self.own = own
        self.api = config.new_client_from_config(str(kubeconfig))
        self.core = client.CoreV1Api(self.api)
        self._namespaces = []
        self._image = os.environ.get("GPUSPAWNER_TEST_IMAGE", "")

    def wait_until_gone(self):
        """Wait until every namespace of the tests is gone."""
        for name in self._namespaces:
            wait_for(lambda name=name: not self._exists(name), f"namespace {name} is gone")

    @contextlib.contextmanager
    def namespace(self, **labels):
        """Make a namespace with ``labels``, and begin its removal at the end: `wait_until_gone` waits for that."""
        name = f"gpuspawner-test-{secrets.token_hex(4)}"
        self.core.create_namespace({"metadata": {"name": name, "labels": labels}})
        try:
            # No pod can be made before.
            wait_for(lambda: self.core.list_namespaced_service_account(name).items, "the default service account")
            yield name
        finally:
            self.core.delete_collection_namespaced_pod(name, grace_period_seconds=0)
            self.core.delete_namespace(name)
            self._namespaces.append(name)

    @property
    def image(self) -> str:
        """The workspace image, which the node has by now; ``GPUSPAWNER_TEST_IMAGE`` on another cluster.

        On one of ours ``GPUSPAWNER_TEST_IMAGE`` is NAME=ARCHIVE, as `make images` builds it and buildah writes it.
        """
        if self.own and "=" in self._image:
            self._image, archive = self._image.split("=")
            self.own.import_image(Path(archive))
        elif not self._image:
            assert self.own, "GPUSPAWNER_TEST_IMAGE must name a workspace image that the cluster can pull"
            self._image = self.own.give_image(ensure_image(self.own.folder))
        return self._image

    def start_pod(self, namespace, name, command, limits=None, wait=True, annotations=None, **spec):
        """Start a pod of one container of the workspace image; return it, running unless ``wait`` is false."""
        container = {
            "name": "notebook",
            "image": self.image,
            "imagePullPolicy": "Never" if self.own else "IfNotPresent",
            "command": command,
            "resources": {"limits": limits or {}},
        }
        body = {
            "metadata": {"name": name, "annotations": annotations or {}},
            "spec": {"terminationGracePeriodSeconds": 1, "restartPolicy": "Never", "containers": [container], **spec},
        }
        self.core.create_namespaced_pod(namespace, body)
        if wait:
            self.wait_for_phase(namespace, name, "Running")
        return self.core.read_namespaced_pod(name, namespace)

    def wait_for_phase(self, namespace, name, phase):
        """Wait until a pod is "Running", "Succeeded" or "Failed"."""
        wait_for(lambda: self.core.read_namespaced_pod(name, namespace).status.phase == phase, f"pod {name} is {phase}")

    def run_in(self, namespace, name, *command):
        """Run a command in a pod's workspace; return its exit code, standard output and standard error."""
        session = stream(
            self.core.connect_get_namespaced_pod_exec, name, namespace, container="notebook", command=list(command),
            stdout=True, stderr=True, stdin=False, _preload_content=False,
        )  # fmt: skip
        try:
            session.run_forever(timeout=WAIT_SECONDS)
            return session.returncode, session.read_stdout(timeout=0), session.read_stderr(timeout=0)
        finally:
            session.close()
            session.sock.shutdown()  # the client leaves the socket open where the other side closed first

    def _exists(self, namespace):
        return any(found.metadata.name == namespace for found in self.core.list_namespace().items)
