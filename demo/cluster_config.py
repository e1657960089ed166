"""The hub of `make run-cluster`. It runs in a pod, its workspaces are other pods, and gpuspawner is configured last."""

import json
import os
import sys
from collections import Counter
from pathlib import Path

import yaml

from gpuspawner.spawner import configure

demo = json.loads(os.environ["GPUSPAWNER_DEMO"])  # written by demo/manifests.py
here = Path(__file__).parent

sys.path.insert(0, str(here))
from machine import with_own  # noqa: E402 - found by the line above

load_subconfig("people_config.py", path=str(here))

# The proxy in front, where the launcher's forwarder finds it; the hub where workspaces do.
c.JupyterHub.bind_url = f"http://0.0.0.0:{demo['port']}"
c.JupyterHub.hub_ip = "0.0.0.0"
c.JupyterHub.hub_connect_ip = os.environ["POD_IP"]
# It ends with its container, and its id with it: on the pod's volume that would name one of the next hub's own threads,
# which JupyterHub would end, and itself by that, again and again.
c.ConfigurableHTTPProxy.pid_file = "/tmp/jupyterhub-proxy.pid"

c.JupyterHub.spawner_class = "kubespawner.KubeSpawner"
c.KubeSpawner.namespace = demo["namespace"]
c.KubeSpawner.image = demo["image"]
c.KubeSpawner.image_pull_policy = demo["pull_policy"]
c.KubeSpawner.priority_class_name = demo["priority_class"]
c.KubeSpawner.start_timeout = 600  # on another cluster the image comes once to each node
c.KubeSpawner.http_timeout = 120
c.Spawner.default_url = "/lab/tree/demo.ipynb"

# Each home is a volume, which outlives its workspaces. The example files are copied there once.
c.KubeSpawner.storage_pvc_ensure = True
c.KubeSpawner.storage_capacity = "1Gi"
c.KubeSpawner.pvc_name_template = "home-{username}"
c.KubeSpawner.fs_gid = 100
c.KubeSpawner.volumes = {
    "home": {"name": "home", "persistentVolumeClaim": {"claimName": "{pvc_name}"}},
    "first": {"name": "first", "configMap": {"name": "home"}},
}
c.KubeSpawner.volume_mounts = {
    "home": {"name": "home", "mountPath": "/home/jovyan"},
    "first": {"name": "first", "mountPath": demo["first"], "readOnly": True},
}
copy = f"sh {demo['first']}/copy.sh"
c.KubeSpawner.lifecycle_hooks = {"postStart": {"exec": {"command": ["sh", "-c", copy]}}}

catalog = yaml.safe_load((here / "cluster_catalog.yaml").read_text())
if demo["kinds"] is not None:
    own = Counter({(name, memory, compute): count for name, memory, compute, count in demo["kinds"]})
    catalog = with_own(catalog, own, demo["label"])

configure(c, catalog=catalog, data_dir="gpuspawner", fast=demo["fast"])
