"""Writes helm/gpuspawner-jupyterhub/values.yaml: `python -m tools.chart_umbrella`.

It is what `gpuspawner z2jh-values` prints, for a release that holds both charts.
"""

from __future__ import annotations

from gpuspawner.cli.chart.z2jh_values import Asked, dumped, z2jh_values
from tools.install import ROOT

NAME = "gpuspawner"
VALUES = ROOT / "helm" / "gpuspawner-jupyterhub" / "values.yaml"
HEADER = """\
# Made by tools/chart_umbrella.py. Write gpuspawner.catalog, or add --set-file gpuspawner.catalog=catalog.yaml. The
# other values of gpuspawner are told in ../gpuspawner/values.yaml, those of jupyterhub by its own chart.
#
# helm replaces lists whole: where you have entries of your own in one of these, keep ours beside them.
# jupyterhub.enabled: false installs no hub, for one that is there.
"""


def text() -> str:
    """Return the file's contents."""
    hub = {"enabled": True, **z2jh_values(Asked(name=NAME), {})}
    # By one name whatever the release is called, since the hub's configuration is a text.
    return HEADER + dumped({"gpuspawner": {"fullnameOverride": NAME}, "jupyterhub": hub})


if __name__ == "__main__":
    VALUES.write_text(text())
