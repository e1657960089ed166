"""Writes helm/gpuspawner-jupyterhub/values.yaml: `python -m tools.chart_umbrella [IMAGE]`.

It is what `gpuspawner kube values` prints, for a release that holds both charts. IMAGE is the service's, where it is in
a registry of one's own; the hub's pod takes the package from it.
"""

from __future__ import annotations

import sys

from gpuspawner.cli.kube.values import ValuesRequest, dumped, name_and_tag, z2jh_values
from tools.install import ROOT

NAME = "gpuspawner"
VALUES = ROOT / "helm" / "gpuspawner-jupyterhub" / "values.yaml"
HEADER = """\
# Made by tools/chart_umbrella.py. Write gpuspawner.catalog, or add --set-file gpuspawner.catalog=catalog.yaml. The
# other values of gpuspawner are told in ../gpuspawner/values.yaml, those of jupyterhub by its own chart.
#
# helm replaces whole lists. If you have entries of your own in one of these lists, keep ours too.
# jupyterhub.enabled: false installs no hub, for one that is there.
"""


def text(image: str = "") -> str:
    """Return the file's contents, with the service's ``image`` where it is not the one of its chart."""
    hub = {"enabled": True, **z2jh_values(ValuesRequest(name=NAME, image=image), {})}
    # By one name whatever the release is called, since the hub's configuration is a text.
    service: dict[str, object] = {"fullnameOverride": NAME}
    if image:
        service["image"] = dict(zip(("name", "tag"), name_and_tag(image), strict=True))
    return HEADER + dumped({"gpuspawner": service, "jupyterhub": hub})


if __name__ == "__main__":
    VALUES.write_text(text(*sys.argv[1:2]))
