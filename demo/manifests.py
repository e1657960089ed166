"""Manifests that `make run-cluster` applies to its cluster: a namespace, rights, homes, and the hub's pod."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from demo.data import DEMO, NO_NEWS, PEOPLE, SIMULATED_DRIVER, Settings
from demo.place import MARK, Images, Place
from tools.cluster.clients import Kubectl
from tools.install import ROOT

RIGHTS = (ROOT / "hub_config" / "kubernetes-hub.yaml", ROOT / "hub_config" / "kubernetes-service-rbac.yaml")
ACCOUNT = "gpuspawner-hub"
"""The hub starts the service, so both roles are for its account."""
CONFIGURATION = ("cluster_config.py", "people_config.py", "machine.py", "cluster_catalog.yaml")
PORT = 8000
"""Port of the proxy, in the hub's pod."""
FIRST = "/opt/first"
COPY = f"""\
cd {FIRST}
[ -e ~/demo.ipynb ] || cp demo.ipynb ~/
lab=~/.jupyter/lab/user-settings/@jupyterlab/apputils-extension
mkdir -p $lab
cp notification.jupyterlab-settings $lab/
"""
RESTRICTED = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "runAsNonRoot": True,
    "seccompProfile": {"type": "RuntimeDefault"},
}

Object = dict[str, Any]


def objects(place: Place, settings: Settings) -> list[Object]:
    """Return all objects of a run, in the order of their making.

    Raises:
        StepError: the cluster's kubectl cannot read the manifests of hub_config.
    """
    namespace, images, homes = place.namespace, place.images, place.homes
    rights = list(_rights(place.kubectl, namespace))
    priority = next(found["metadata"]["name"] for found in rights if found["kind"] == "PriorityClass")
    demo = {
        "secrets": "/etc/demo/secrets.json",
        "port": PORT,
        "namespace": namespace,
        "image": images.workspace,
        "pull_policy": images.pull_policy,
        "priority_class": priority,
        "first": FIRST,
        "kinds": place.kinds,
        "label": SIMULATED_DRIVER if place.control else "",
        "fast": settings.fast,
    }
    enforced = {"pod-security.kubernetes.io/enforce": "restricted"}
    config = {name: (DEMO / name).read_text() for name in CONFIGURATION}
    first = {
        "copy.sh": COPY,
        "demo.ipynb": (DEMO / "demo.ipynb").read_text(),
        "notification.jupyterlab-settings": json.dumps(NO_NEWS),
    }
    made = [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace, "labels": enforced}},
        *rights,
        *([_volume(namespace, user, homes) for user in PEOPLE] if homes else []),
        _object("ConfigMap", "hub", namespace, data=config),
        _object("ConfigMap", "home", namespace, data=first),
        _object("Secret", "hub", namespace, stringData={"secrets.json": settings.secrets.read_text()}),
        _object("Pod", "hub", namespace, spec=_hub(images, demo)),
    ]
    for found in made:
        found["metadata"].setdefault("labels", {})[MARK] = namespace
    return made


def _rights(kubectl: Kubectl, namespace: str) -> list[Object]:
    """Return the manifests for this namespace and one account; what the whole cluster shares is named for it."""
    files = [f"--filename={path}" for path in RIGHTS]
    text = kubectl("apply", "--dry-run=client", "--validate=false", "--output=json", *files)
    found = []
    for item in json.loads(text)["items"]:
        if item["kind"] == "Namespace":  # the demonstration has one, with all that it makes
            continue
        name = item["metadata"]["name"]
        if item["kind"] in ("ClusterRole", "ClusterRoleBinding", "PriorityClass"):
            name = f"{namespace}-{name}"
            if "roleRef" in item:
                item["roleRef"]["name"] = f"{namespace}-{item['roleRef']['name']}"
            item["metadata"] = {"name": name}
        else:
            item["metadata"] = {"name": name, "namespace": namespace}
        if "subjects" in item:
            item["subjects"] = [{"kind": "ServiceAccount", "name": ACCOUNT, "namespace": namespace}]
        found.append(item)
    return found


def _volume(namespace: str, user: str, homes: Path) -> Object:
    """Return a volume in a folder of the node that only this user's claim may have."""
    claim = {"namespace": namespace, "name": f"home-{user}"}
    spec = {
        "accessModes": ["ReadWriteOnce"],
        "capacity": {"storage": "1Gi"},
        "claimRef": claim,
        "hostPath": {"path": str(homes / user)},
        "persistentVolumeReclaimPolicy": "Retain",
    }
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": f"{namespace}-{user}"},
        "spec": spec,
    }


def _hub(images: Images, demo: Object) -> Object:
    address = {"fieldRef": {"fieldPath": "status.podIP"}}
    container = {
        "name": "hub",
        "image": images.hub,
        "imagePullPolicy": images.pull_policy,
        "args": ["jupyterhub", "--config=/etc/demo/cluster_config.py"],
        "env": [
            {"name": "GPUSPAWNER_DEMO", "value": json.dumps(demo)},
            {"name": "POD_IP", "valueFrom": address},
        ],
        "resources": {"requests": {"cpu": "200m", "memory": "384Mi"}, "limits": {"memory": "1Gi"}},
        # Only until it has started: each look is a line in the hub's log.
        "startupProbe": {
            "httpGet": {"path": "/hub/api/", "port": PORT},
            "periodSeconds": 1,
            "timeoutSeconds": 5,
            "failureThreshold": 300,
        },
        "securityContext": RESTRICTED,
        "volumeMounts": [
            {"name": "config", "mountPath": "/etc/demo", "readOnly": True},
            {"name": "data", "mountPath": "/home/jovyan"},
        ],
    }
    sources = [{"configMap": {"name": "hub"}}, {"secret": {"name": "hub"}}]
    return {
        "serviceAccountName": ACCOUNT,
        "restartPolicy": "OnFailure",
        "terminationGracePeriodSeconds": 5,
        "containers": [container],
        "volumes": [{"name": "config", "projected": {"sources": sources}}, {"name": "data", "emptyDir": {}}],
    }


def _object(kind: str, name: str, namespace: str, **more: Any) -> Object:
    return {"apiVersion": "v1", "kind": kind, "metadata": {"name": name, "namespace": namespace}, **more}
