"""Volumes, ports, variables, resources and containers of a template: what is accepted, and each error."""

import pytest

from gpuspawner.catalog import load_catalog, load_text
from gpuspawner.catalog.load import refused
from gpuspawner.core.errors import CatalogError

WHOLE = """
version: 1
gpus: {a100: {match: A100, memory: 80GiB}}
templates:
  lab:
    gpus: {a100: 1}
    ports: {tensorboard: {port: 6006, title: TensorBoard}, app: {port: 8501}}
    environment: {HF_HOME: /data/hf, OMP_NUM_THREADS: 4}
    resources: {rdma/hca: 1, hugepages-2Mi: 1Gi, ephemeral-storage: 100Gi}
    priority_class: research
    volumes:
      data: {claim: datasets, mount: /data/, read_only: true, groups: [vision]}
      own: {per_user: 50GiB, storage_class: fast, access: many, mount: /own}
      scratch: {empty: memory, size: 4GiB, mount: /scratch}
      export: {nfs: "nfs.example.org:/export", mount: /export}
      vault: {csi: {driver: secrets-store.csi.k8s.io, readOnly: true}, mount: /run/vault}
      settings: {config_map: settings, mount: /etc/settings}
      keys: {secret: keys, mount: /run/keys}
    init: {fetch: {image: "tools/fetch:1", command: [sh, -c, fetch]}}
    sidecars: {proxy: {image: "tools/proxy:1", cpu: 0.5, memory: 1GiB, environment: {MODE: fast}}}
  heir: {extends: lab}
"""


def test_a_template_has_volumes_ports_variables_resources_and_containers_and_its_heirs_have_them_too():
    catalog = load_text(WHOLE)
    lab = catalog.templates["lab"]
    assert [one.sources for one in lab.volumes.values()] == [
        ("claim",),
        ("per_user",),
        ("empty",),
        ("nfs",),
        ("csi",),
        ("config_map",),
        ("secret",),
    ]
    assert (lab.volumes["data"].mount, lab.volumes["own"].access) == ("/data", "ReadWriteMany")
    assert dict(lab.environment) == {"HF_HOME": "/data/hf", "OMP_NUM_THREADS": "4"}
    assert lab.ports["tensorboard"].title == "TensorBoard"
    heir = catalog.templates["heir"]
    assert (heir.volumes, heir.sidecars, heir.resources) == (lab.volumes, lab.sidecars, lab.resources)


ERRORS = {
    "volumes: {d: {mount: /data}}": "templates.lab.volumes.d: nothing says what it contains. Add one of claim,",
    "volumes: {d: {claim: a, nfs: 's:/x', mount: /data}}": "volumes.d: claim and nfs contradict each other. Keep one",
    "volumes: {d: {claim: a}}": "volumes.d: mount is missing. Add mount: with the path in the workspace, for example",
    "volumes: {d: {claim: a, mount: data}}": "volumes.d.mount: 'data' is not a path from the root or from ~.",
    "volumes: {d: {claim: a, mount: /proc/x}}": "'/proc/x' is a path that every container needs as it is. Mount it",
    "volumes: {d: {claim: a, mount: /a/../dev}}": "'/a/../dev' is a path that every container needs as it is.",
    "volumes: {d: {claim: a, mount: ~/data}}": "volumes.d.mount: claim cannot be mounted at ~/data. Write a path from",
    "volumes: {d: {folder: /srv, mount: /data}}": "folder cannot be mounted at /data. Write a path below the home,",
    "volumes: {d: {claim: a, mount: /x}, e: {claim: b, mount: /x/}}": "volumes.e.mount: `d` is also mounted at /x.",
    "volumes: {d: {claim: a, size: 1GiB, mount: /x}}": "volumes.d.size: size means nothing without empty. Remove it.",
    "volumes: {d: {nfs: /export, mount: /x}}": "'/export' is not an NFS export. Write server:/path, for example",
    "volumes: {d: {csi: {name: x}, mount: /x}}": "has no driver. Write the csi: of a pod's volume, for example",
    "resources: {nvidia.com/gpu: 1}": "nvidia.com/gpu is a GPU, and GPUs come from the lease alone. Remove it, and",
    "resources: {memory: 1Gi}": "memory has a key of its own. Write bounds: {memory: ...} and default: {memory: ...}.",
    "resources: {huge: 1}": "'huge' is not a resource of a node. Write it as nodes show it, for example rdma/hca,",
    "environment: {GPUSPAWNER_X: a}": "GPUSPAWNER_X is set by the hub or by the lease. Choose another name.",
    "environment: {A: true}": "True is not the value of a variable. Write at most 4096 characters of text; put true,",
    "ports: {a: {port: 1}, b: {port: 1}}": "ports.b.port: `a` also has port 1. Remove one of them.",
    "ports: {a: {port: 70000}}": "Write a whole number from 1 to 65535.",
    "sidecars: {notebook: {image: 'a:1'}}": "sidecars.notebook: `notebook` is the container of the server. Give it",
    "{init: {a: {image: 'a:1'}}, sidecars: {a: {image: 'a:1'}}}": "sidecars.a: `a` is also in init. Give one of them",
}


@pytest.mark.parametrize("written", ERRORS)
def test_each_contradiction_is_named_with_its_remedy(written):
    text = written if written.startswith("{") else f"{{{written}}}"
    with pytest.raises(CatalogError) as error:
        load_text(f"version: 1\ntemplates:\n  lab: {text}\n")
    assert ERRORS[written] in str(error.value), str(error.value)
    assert len(error.value.problems) == 1, str(error.value)


def test_a_hub_refuses_by_name_what_its_workspaces_cannot_have():
    written = {
        "version": 1,
        "templates": {
            "pods": {"volumes": {"d": {"claim": "a", "mount": "/d"}}, "sidecars": {"s": {"image": "a:1"}}},
            "here": {"volumes": {"d": {"folder": "/srv/data", "mount": "~/data"}}},
        },
    }
    catalog = load_catalog(written)
    places = [problem.entry for problem in refused(written, catalog, makes_pods=False)]
    assert places == ["templates.pods.sidecars", "templates.pods.volumes.d"]
    (folder,) = refused(written, catalog, makes_pods=True)
    assert folder.entry == "templates.here.volumes.d.folder"
    assert folder.right == "Use claim, nfs or csi if c.JupyterHub.spawner_class is 'kubespawner'."
