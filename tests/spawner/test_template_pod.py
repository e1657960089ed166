"""What a template adds to the pod of a workspace, over the real KubeSpawner's manifest."""

from types import SimpleNamespace

from gpuspawner.catalog import load_text

CATALOG = load_text("""
version: 1
templates:
  lab:
    environment: {HF_HOME: /data/hf, TOKEN_FILE: /run/keys/token}
    resources: {rdma/hca: 1, ephemeral-storage: 10Gi}
    priority_class: research
    volumes:
      data: {claim: datasets, mount: /data, read_only: true, groups: [vision]}
      own: {per_user: 50GiB, storage_class: fast, mount: /own}
      scratch: {empty: memory, size: 4GiB, mount: /scratch}
      export: {nfs: "nfs.example.org:/export", mount: /export}
      vault: {csi: {driver: secrets-store.csi.k8s.io}, mount: /run/vault}
      settings: {config_map: settings, mount: /etc/settings}
      keys: {secret: keys, mount: /run/keys}
    init: {fetch: {image: "fetch:1", command: [sh, -c, fetch]}}
    sidecars: {proxy: {image: "proxy:1", cpu: 0.5, memory: 1GiB, environment: {MODE: fast}}}
  plain: {}
""")


async def pod_of(a_spawner, *groups, template="lab", **settings):
    spawner = a_spawner({"template": template}, catalog=CATALOG, **settings)
    spawner.user.groups = [SimpleNamespace(name=one) for one in groups]
    return spawner, spawner._gpu_as_json(await spawner.get_pod_manifest())


async def test_the_server_and_the_other_containers_mount_every_volume(a_spawner):
    home = {"name": "home", "persistentVolumeClaim": {"claimName": "home"}}
    _, pod = await pod_of(
        a_spawner, "vision", volumes=[home], volume_mounts=[{"name": "home", "mountPath": "/home/jovyan"}]
    )
    volumes = {one["name"]: one for one in pod["spec"]["volumes"]}
    assert volumes["home"] == home
    assert volumes["gpu-data"]["persistentVolumeClaim"] == {"claimName": "datasets", "readOnly": True}
    assert volumes["gpu-own"]["persistentVolumeClaim"] == {"claimName": "gpu-own-alice"}
    assert volumes["gpu-scratch"]["emptyDir"] == {"medium": "Memory", "sizeLimit": str(4 * 2**30)}
    assert volumes["gpu-export"]["nfs"] == {"server": "nfs.example.org", "path": "/export"}
    assert volumes["gpu-vault"]["csi"] == {"driver": "secrets-store.csi.k8s.io"}
    assert volumes["gpu-settings"]["configMap"] == {"name": "settings"}
    assert volumes["gpu-keys"]["secret"] == {"secretName": "keys"}
    server, proxy = pod["spec"]["containers"]
    (fetch,) = pod["spec"]["initContainers"]
    mounts = {one["name"]: one["mountPath"] for one in proxy["volumeMounts"]}
    assert mounts["gpu-data"] == "/data"
    assert fetch["volumeMounts"] == proxy["volumeMounts"]
    own = [one for one in server["volumeMounts"] if one["name"] in mounts]
    assert own == proxy["volumeMounts"]
    assert own[0] == {"name": "gpu-data", "mountPath": "/data", "readOnly": True}


async def test_other_containers_run_as_the_restricted_standard_demands_and_see_no_gpu(a_spawner):
    _, pod = await pod_of(a_spawner)
    proxy, fetch = pod["spec"]["containers"][1], pod["spec"]["initContainers"][0]
    assert (proxy["name"], proxy["image"], fetch["command"]) == ("proxy", "proxy:1", ["sh", "-c", "fetch"])
    assert proxy["resources"]["limits"] == {"cpu": "0.5", "memory": str(2**30)}
    assert {"name": "MODE", "value": "fast"} in proxy["env"]
    for one in (proxy, fetch):
        assert one["securityContext"]["allowPrivilegeEscalation"] is False
        assert {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"} in one["env"]


async def test_a_volume_of_a_group_is_for_its_members(a_spawner):
    _, pod = await pod_of(a_spawner, "speech")
    assert "gpu-data" not in {one["name"] for one in pod["spec"]["volumes"]}


async def test_resources_variables_and_priority_class_reach_the_server(a_spawner):
    spawner, pod = await pod_of(a_spawner)
    resources = pod["spec"]["containers"][0]["resources"]
    for part in ("limits", "requests"):
        assert (resources[part]["rdma/hca"], resources[part]["ephemeral-storage"]) == ("1", "10Gi")
    assert pod["spec"]["priorityClassName"] == "research"
    assert spawner.get_env()["HF_HOME"] == "/data/hf"


async def test_another_template_has_none_of_it(a_spawner):
    spawner, pod = await pod_of(a_spawner, template="plain")
    assert len(pod["spec"]["containers"]) == 1
    assert not pod["spec"].get("initContainers")
    assert "HF_HOME" not in spawner.get_env()
