"""JupyterHub with GPU workspaces as pods, to copy. Run it with: jupyterhub -f kubernetes_config.py.

For a hub that runs without a chart. With Zero to JupyterHub install helm/gpuspawner instead: copied into
hub.extraConfig, the lines below would replace the chart's homes, volumes, image and namespace.
"""

from pathlib import Path

from gpuspawner.spawner import configure

here = Path(__file__).parent

# Your hub as it is: who signs in, and where pods reach it.
c.Authenticator.allow_all = True
c.Authenticator.admin_users = {"admin"}
c.JupyterHub.hub_ip = "0.0.0.0"  # noqa: S104 - pods reach it
c.JupyterHub.hub_connect_ip = "10.0.0.1"

# Workspaces: KubeSpawner as you have it. GPUs, CPU, memory and image come from the catalog; leave out mem_limit,
# cpu_limit and any GPU in extra_resource_limits: the hub names what contradicts a lease, and does not start.
c.JupyterHub.spawner_class = "kubespawner.KubeSpawner"
c.KubeSpawner.namespace = "gpu-workspaces"  # of kubernetes-hub.yaml: not the hub's own
c.KubeSpawner.image = "quay.io/jupyter/base-notebook:latest"  # of templates that name none
c.KubeSpawner.start_timeout = 900  # a large image comes once to each node
c.KubeSpawner.http_timeout = 60  # from a ready pod to the server's first answer; its GPU is then released
c.KubeSpawner.priority_class_name = "gpu-workspace"  # of kubernetes-hub.yaml: below training, and never preempts
# These volumes apply to every template. `volumes` of a template in the catalog adds more.
c.KubeSpawner.storage_pvc_ensure = True
c.KubeSpawner.storage_capacity = "20Gi"
c.KubeSpawner.pvc_name_template = "home-{user_server}"
c.KubeSpawner.fs_gid = 100
c.KubeSpawner.volumes = {"home": {"name": "home", "persistentVolumeClaim": {"claimName": "{pvc_name}"}}}
c.KubeSpawner.volume_mounts = {"home": {"name": "home", "mountPath": "/home/jovyan"}}

# Settings of gpuspawner for pods, with their defaults: the time to save before the end, the part of the memory for
# /dev/shm, the restricted Pod Security Standard, and whether a pod must run on the granted node ("required") or should.
c.GPUSpawner.gpu_grace_seconds = 30
c.GPUSpawner.gpu_shared_memory_share = 0.5
c.GPUSpawner.gpu_restricted = True
c.GPUSpawner.gpu_placement = "preferred"
c.GPUSpawner.gpu_runtime_class = ""  # "nvidia" where the cluster's default runtime cannot use GPUs

# Last: it wraps the spawner class that is set above, and starts the GPU service with the hub.
configure(c, catalog=here / "kubernetes-catalog.yaml", data_dir=here / "gpuspawner-data")
