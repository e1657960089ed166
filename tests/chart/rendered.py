"""The chart as helm renders it, without a cluster."""

import os
import shutil
from pathlib import Path

import yaml

from tools.cluster.clients import Helm

ROOT = Path(__file__).parents[2]
CHART = ROOT / "helm" / "gpuspawner"
UMBRELLA = ROOT / "helm" / "gpuspawner-jupyterhub"
Z2JH = os.environ.get("GPUSPAWNER_TEST_Z2JH", "")
"""A folder with the source of Zero to JupyterHub's chart, or "" if this machine has no copy."""


class Chart:
    """Renders the chart as the release gpuspawner in the namespace jhub."""

    def __init__(self, folder):
        self.helm = Helm(folder)
        self.catalog = ROOT / "hub_config" / "kubernetes-catalog.yaml"
        self._folder = folder

    def text(self, values=None, *arguments):
        """Return the manifests rendered with ``values``, which are by path like {"hub.url": "http://hub:8081"}."""
        given = self._folder / "values.yaml"
        given.write_text(yaml.safe_dump(nested({"catalog": self.catalog.read_text(), **(values or {})})))
        return self.helm("template", "gpuspawner", CHART, "--namespace=jhub", f"--values={given}", *arguments)

    def objects(self, values=None, *arguments):
        """The same, by kind and name."""
        parts = [part for part in yaml.safe_load_all(self.text(values, *arguments)) if part]
        found = {(part["kind"], part["metadata"]["name"]): part for part in parts}
        assert len(found) == len(parts), "no two objects have one name"
        return found


def nested(values):
    """Values by their path as mappings of mappings."""
    made = {}
    for path, value in values.items():
        at = made
        *above, last = path.split(".")
        for key in above:
            at = at.setdefault(key, {})
        at[last] = value
    return made


def with_dependencies(folder):
    """The chart of both in ``folder`` with its dependencies, as `helm dependency build` puts them there.

    The hub's own is empty where its source is not at hand; that one lacks a version, which its release fills in.
    """
    both = folder / "both"
    shutil.copytree(UMBRELLA, both)
    shutil.copytree(CHART, both / "charts" / "gpuspawner")
    asked = yaml.safe_load((UMBRELLA / "Chart.yaml").read_text())["dependencies"]
    version = next(one["version"] for one in asked if one["name"] == "jupyterhub")
    hub = both / "charts" / "jupyterhub"
    if Z2JH:
        shutil.copytree(Z2JH, hub)
        about = yaml.safe_load((hub / "Chart.yaml").read_text())
    else:
        (hub / "templates").mkdir(parents=True)
        about = {"apiVersion": "v2", "name": "jupyterhub"}
    (hub / "Chart.yaml").write_text(yaml.safe_dump({**about, "version": version}))
    return both
