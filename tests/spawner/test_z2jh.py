"""The values for Zero to JupyterHub: they add to what the chart sets, and refusals name the chart's own values."""

import copy
import os
import sys
from pathlib import Path
from types import ModuleType

import pytest
import yaml
from traitlets.config import Config

from gpuspawner.cli.kube.values import CATALOG, SECRET, ValuesRequest, z2jh_values

HUB_CONFIG = Path(__file__).parents[2] / "hub_config"
VALUES = z2jh_values(ValuesRequest(), {})
CHART = os.environ.get("GPUSPAWNER_TEST_Z2JH", "")
"""A folder with the chart's source, for what its own configuration makes of the values."""


def of_the_chart(c):
    """Set what a release of the chart sets for workspaces by default."""
    c.JupyterHub.spawner_class = "kubespawner.KubeSpawner"
    c.JupyterHub.hub_bind_url = "http://:8081"
    c.JupyterHub.hub_connect_url = "http://hub:8081"
    c.KubeSpawner.namespace = "jhub"
    c.KubeSpawner.image = "quay.io/jupyterhub/k8s-singleuser-sample:4.4.0"
    c.KubeSpawner.mem_guarantee = "1G"
    c.KubeSpawner.storage_pvc_ensure = True
    home = "volume-{user_server}"
    c.KubeSpawner.volumes = {home: {"name": home, "persistentVolumeClaim": {"claimName": "{pvc_name}"}}}
    c.KubeSpawner.volume_mounts = {home: {"name": home, "mountPath": "/home/jovyan", "subPath": None}}
    c.JupyterHub.services = []
    c.JupyterHub.load_roles = []
    return c


@pytest.fixture
def chart(monkeypatch):
    """The chart's own module, with extraConfig as given."""
    module = ModuleType("z2jh")
    module.extra = {}
    module.get_config = lambda key, default=None: module.extra if key == "hub.extraConfig" else default
    monkeypatch.setitem(sys.modules, "z2jh", module)
    return module


def run_extra_config(c, folder, values=VALUES):
    for _, text in sorted(values["hub"]["extraConfig"].items()):
        (folder.parent / "secret").write_text("ab" * 32)
        here = text.replace(f"{CATALOG}/catalog.yaml", str(HUB_CONFIG / "kubernetes-catalog.yaml"))
        here = here.replace(f"{SECRET}/secret", str(folder.parent / "secret"))
        exec(here.replace("/srv/jupyterhub/gpuspawner", str(folder)), {"c": c})
    return c


def test_the_values_leave_homes_volumes_image_and_namespace_as_the_chart_has_them(outside_a_cluster, chart, tmp_path):
    before = of_the_chart(Config())
    after = run_extra_config(of_the_chart(Config()), tmp_path / "gpu")
    assert after.KubeSpawner == {**before.KubeSpawner, "priority_class_name": "gpu-workspace"}
    (service,) = after.JupyterHub.services
    assert service["url"] == "http://gpuspawner:9470", "proxy and workspaces reach it by its Service"


def test_a_refusal_names_the_charts_value(outside_a_cluster, chart, tmp_path):
    c = of_the_chart(Config())
    c.KubeSpawner.mem_limit = "2G"
    with pytest.raises(SystemExit, match=r"c\.KubeSpawner\.mem_limit \(singleuser\.memory\.limit of the chart\)"):
        run_extra_config(c, tmp_path / "gpu")


def test_configuration_that_runs_later_is_named(outside_a_cluster, chart, tmp_path, capsys):
    text = VALUES["hub"]["extraConfig"]["zz-gpuspawner"]
    chart.extra = {"10-gpu": text, "20-limits": "c.KubeSpawner.mem_limit = '2G'"}
    run_extra_config(of_the_chart(Config()), tmp_path / "gpu")
    assert "hub.extraConfig of the chart runs 20-limits after 10-gpu" in capsys.readouterr().err
    chart.extra = {"10-limits": "", "zz-gpuspawner": text}
    run_extra_config(of_the_chart(Config()), tmp_path / "gpu2")
    assert "hub.extraConfig" not in capsys.readouterr().err


@pytest.mark.skipif(not CHART, reason="GPUSPAWNER_TEST_Z2JH names no folder with the chart's source")
def test_the_charts_own_configuration_takes_the_values(outside_a_cluster, monkeypatch, tmp_path):
    defaults = yaml.safe_load((Path(CHART) / "values.yaml").read_text())
    values = merged(defaults, VALUES)
    before = of_charts_own(defaults, monkeypatch, tmp_path)
    after = run_extra_config(
        of_charts_own({**values, "hub": {**values["hub"], "extraConfig": {}}}, monkeypatch, tmp_path), tmp_path / "gpu"
    )
    assert after.KubeSpawner["volumes"] == before.KubeSpawner["volumes"]
    assert after.KubeSpawner.get("pvc_name_template") == before.KubeSpawner.get("pvc_name_template")
    assert (after.KubeSpawner.image != "", after.KubeSpawner.namespace) == (True, before.KubeSpawner.namespace)


def merged(below, above):
    out = copy.deepcopy(below)
    for key, value in above.items():
        both = isinstance(value, dict) and isinstance(out.get(key), dict)
        out[key] = merged(out[key], value) if both else copy.deepcopy(value)
    return out


def of_charts_own(values, monkeypatch, folder):
    """Return the configuration that the chart's own jupyterhub_config.py makes of values."""

    def get_config(key, default=None):
        found = values
        for level in key.split("."):
            if not isinstance(found, dict) or level not in found:
                return default
            found = found[level]
        return found

    module = ModuleType("z2jh")
    module.get_config, module.get_name, module.get_name_env = get_config, lambda name: name, lambda *_: "8081"
    module.get_secret_value = lambda key, default=None: None if key == "hub.db.password" else "ab" * 32
    module.set_config_if_not_none = lambda section, name, key: (
        None if get_config(key) is None else setattr(section, name, get_config(key))
    )
    monkeypatch.setitem(sys.modules, "z2jh", module)
    monkeypatch.setattr("tornado.httpclient.AsyncHTTPClient.configure", lambda *_: None)  # curl's client is not here
    c = Config()
    text = (Path(CHART) / "files/hub/jupyterhub_config.py").read_text()
    exec(compile(text, "jupyterhub_config.py", "exec"), {"get_config": lambda: c, "__file__": str(folder / "x.py")})
    return c
