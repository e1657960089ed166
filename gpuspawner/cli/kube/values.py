"""``gpuspawner kube values``: the values that a release of Zero to JupyterHub needs for the service.

Names are those of version 4 of its chart. helm replaces whole lists, so ours include the entries of the release.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import yaml

from gpuspawner import __version__
from gpuspawner.catalog import Catalog, load_catalog
from gpuspawner.cli import base
from gpuspawner.cli.errors import InvalidError
from gpuspawner.cli.output import say_lines
from gpuspawner.core.errors import CatalogError
from gpuspawner.core.text_fields import is_service_address

PORT = 9470
NAME = re.compile("[a-z](?:[-a-z0-9]{0,48}[a-z0-9])?")
"""The name of a Service, as short as the chart needs it."""
KEY = "zz-gpuspawner"
"""A key of hub.extraConfig. Keys run in their order, and configure() checks the configuration before it."""
PACKAGE, CATALOG, SECRET = "/opt/gpuspawner", "/etc/gpuspawner/catalog", "/etc/gpuspawner/secret"
PURE = ("gpuspawner", "itsdangerous", "tzdata")
"""Packages that the hub's own image lacks. They are pure Python and work with each version of it."""
COPY = f"""\
import importlib.util, shutil
for name in {PURE}:
    if found := importlib.util.find_spec(name):
        shutil.copytree(found.submodule_search_locations[0], "{PACKAGE}/" + name, dirs_exist_ok=True)
"""
CONFIG = """\
c.KubeSpawner.setdefault("priority_class_name", "gpu-workspace")  # of the chart gpuspawner: below training
from gpuspawner.spawner import configure
configure(
    c,
    catalog="{catalog}/catalog.yaml",
    data_dir="/srv/jupyterhub/gpuspawner",
    service_url="{url}",
    secret_file="{secret}/secret",
)
"""
HEADER = """\
# Printed by `gpuspawner kube values`: GPU workspaces for a release of Zero to JupyterHub. Homes, volumes, images,
# profiles and limits stay as they are.
#
# cull: the chart's culler stops servers whose browser is closed, GPU work or not. The catalog's policies judge instead.
# cloudMetadata: its init container is privileged, which the restricted Pod Security Standard refuses. The chart's
#   network policy, on by default, keeps workspaces from the metadata server too. Where your network enforces no
#   policies, leave this value out, and write c.GPUSpawner.gpu_restricted = False into hub.extraConfig.
# priority_class_name: training jobs preempt workspaces. The chart gpuspawner makes the class.
# networkPolicy: warnings and Keep in JupyterLab, and the hub's pages, ask the service.
"""
RESTRICTED = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "readOnlyRootFilesystem": True,
    "runAsGroup": 1000,
    "runAsNonRoot": True,
    "runAsUser": 1000,
    "seccompProfile": {"type": "RuntimeDefault"},
}

Values = dict[str, Any]
RIGHT = "Write what `helm get values RELEASE --output yaml` prints."
SHAPES: Mapping[tuple[str, ...], tuple[type, ...]] = {
    ("hub", "initContainers"): (list,),
    ("hub", "extraVolumes"): (list,),
    ("hub", "extraVolumeMounts"): (list,),
    ("hub", "extraEnv"): (dict, list),
    ("hub", "extraConfig"): (dict,),
    ("hub", "networkPolicy", "egress"): (list,),
    ("proxy", "chp", "networkPolicy", "egress"): (list,),
    ("singleuser", "networkPolicy", "egress"): (list,),
}
"""The types of the values that are read, by path, as in values.schema.json of the hub's chart."""
_SHAPE_NAMES: Mapping[type, str] = {dict: "a mapping", list: "a list"}


@dataclass(frozen=True)
class ValuesRequest:
    """The options of the values. ``name`` is the release of the service's chart, which names its objects."""

    name: str = "gpuspawner"
    service_url: str = ""
    image: str = ""
    """The image that brings the package to the hub's own image."""
    hub_image: str = ""
    """An image of the hub that has the package."""


class NotValuesError(Exception):
    """The values of the hub's release cannot be read, or an option is wrong. The message says why."""


@base.command(
    "values",
    examples="""\
helm get values jhub --namespace jhub --output yaml > hub.yaml
gpuspawner kube values --values hub.yaml > gpu.yaml
helm upgrade jhub jupyterhub/jupyterhub --version VERSION --namespace jhub --values hub.yaml --values gpu.yaml""",
)
@click.option("--name", default="gpuspawner", show_default=True, help="Release of the service's chart.")
@click.option("--values", metavar="FILE", help="Values of the hub's release; - reads them from standard input.")
@click.option("--catalog", metavar="FILE", help="The catalog. The chart then pulls its templates' images.")
@click.option("--service-url", metavar="URL", default="", help="Where hub and workspaces reach the service.")
@click.option("--image", default="", help="Image that brings the package to the hub. Default: the service's.")
@click.option("--hub-image", metavar="IMAGE", default="", help="An image of the hub that has the package.")
def values(values: str | None, catalog: str | None, **options: str) -> None:
    """Print the values that add GPU workspaces to Zero to JupyterHub.

    The chart gpuspawner is a release of its own. The values replace none of the hub's homes, volumes, images,
    profiles or limits. helm replaces whole lists, so name the values of the release: their entries are then kept.

    VERSION is the version of the hub's release, as helm list shows it. Without it helm takes the newest. To leave, run
    the same upgrade without gpu.yaml, then helm uninstall gpuspawner. Running servers go on.
    """
    if options["image"] and options["hub_image"]:
        raise click.UsageError("Write either --image or --hub-image.")
    request = ValuesRequest(**options)
    try:
        _check(request)
        release = _read(values) if values else {}
        read = load_catalog(catalog) if catalog else None
    except (NotValuesError, CatalogError) as error:
        raise InvalidError(str(error)) from error
    say_lines(as_text(z2jh_values(request, release, read)))


def _check(request: ValuesRequest) -> None:
    """Refuse a name that Kubernetes does not take, and a wrong address. Raises NotValuesError."""
    if not NAME.fullmatch(request.name):
        raise NotValuesError(
            f"--name: {request.name!r} is not a Service's name: a small letter, then small letters, digits and -. "
            "Write what `helm list` calls the release."
        )
    if request.service_url and not is_service_address(request.service_url):
        raise NotValuesError(
            f"--service-url: {request.service_url!r} is no address of a service. Write it with its port, without a "
            "path, like http://gpuspawner:9470."
        )


def z2jh_values(request: ValuesRequest, theirs: Mapping[str, Any], catalog: Catalog | None = None) -> Values:
    """Return the values to add to ``theirs``, the values of the release."""
    url = request.service_url or f"http://{request.name}:{PORT}"
    volumes: list[Values] = [
        {"name": f"{request.name}-catalog", "configMap": {"name": f"{request.name}-catalog"}},
        {"name": f"{request.name}-secret", "secret": {"secretName": f"{request.name}-secret"}},
    ]
    mounts: list[Values] = [
        {"name": f"{request.name}-catalog", "mountPath": CATALOG, "readOnly": True},
        {"name": f"{request.name}-secret", "mountPath": SECRET, "readOnly": True},
    ]
    hub: Values = {}
    if request.hub_image:
        name, tag = name_and_tag(request.hub_image)
        hub["image"] = {"name": name, "tag": tag}
    else:
        package = {"name": f"{request.name}-package", "mountPath": PACKAGE}
        volumes.append({"name": package["name"], "emptyDir": {}})
        mounts.append({**package, "readOnly": True})
        bringing = {
            "name": f"{request.name}-package",
            "image": request.image or f"gpuspawner/service:{__version__}",
            "command": ["python3", "-c", COPY],
            "securityContext": RESTRICTED,
            "volumeMounts": [package],
        }
        hub["initContainers"] = _beside(_found(theirs, "hub", "initContainers"), [bringing])
        hub["extraEnv"] = _with_path(_found(theirs, "hub", "extraEnv"))
    hub["extraVolumes"] = _beside(_found(theirs, "hub", "extraVolumes"), volumes)
    hub["extraVolumeMounts"] = _beside(_found(theirs, "hub", "extraVolumeMounts"), mounts)
    hub["extraConfig"] = {_last_key(theirs): CONFIG.format(catalog=CATALOG, secret=SECRET, url=url)}
    hub["networkPolicy"] = _way_out(theirs, "hub")
    values: Values = {
        "hub": hub,
        "proxy": {"chp": {"networkPolicy": _way_out(theirs, "proxy", "chp")}},
        "singleuser": {
            "networkPolicy": _way_out(theirs, "singleuser"),
            "cloudMetadata": {"blockWithIptables": False},
        },
        "cull": {"enabled": False},
    }
    if images := _images(catalog):
        values["prePuller"] = {"extraImages": images}
    return values


def as_text(values: Values) -> str:
    """Return the values as YAML with an explanation."""
    return HEADER + dumped(values)


def dumped(values: Values) -> str:
    """Return values as YAML. A text of several lines is written as a block."""
    return yaml.dump(values, Dumper=_Dumper, sort_keys=False, width=120)


class _Dumper(yaml.SafeDumper):
    """Writes no references."""

    def ignore_aliases(self, _data: Any) -> bool:
        return True


def _text(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _text)


def _read(path: str) -> Values:
    """Return the values of a release from a file or standard input. Raises NotValuesError."""
    try:
        found = yaml.safe_load(sys.stdin if path == "-" else Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        raise NotValuesError(f"--values: {path} cannot be read as YAML ({error}).") from error
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise NotValuesError(f"--values: {path} holds no values of a release. {RIGHT}")
    _check_shapes(path, found)
    return found


def _check_shapes(path: str, values: Values) -> None:
    """Refuse values of a wrong type, which would be lost. Raises NotValuesError."""
    for keys, shapes in SHAPES.items():
        found: Any = values
        for depth, key in enumerate(keys, 1):
            found = found.get(key)
            wanted = shapes if depth == len(keys) else (dict,)
            if found is None:
                break
            if not isinstance(found, wanted):
                named, right = ".".join(keys[:depth]), " or ".join(_SHAPE_NAMES[one] for one in wanted)
                raise NotValuesError(f"--values: {path}: {named} is {str(found)[:40]!r}, not {right}. {RIGHT}")


def _found(values: Mapping[str, Any], *path: str) -> Any:
    found: Any = values
    for key in path:
        found = found.get(key) if isinstance(found, Mapping) else None
    return found


def _beside(theirs: Any, ours: list[Values]) -> list[Values]:
    """Return their entries and ours. Entries of an earlier run of this command are replaced."""
    names = {one["name"] for one in ours}
    kept = [one for one in theirs or () if not (isinstance(one, Mapping) and one.get("name") in names)]
    return [*kept, *ours]


def _with_path(theirs: Any) -> Any:
    """Return the hub's variables with the package's path first in PYTHONPATH."""
    if isinstance(theirs, list):
        named = {one.get("name"): one.get("value", "") for one in theirs if isinstance(one, Mapping)}
        others = [one for one in theirs if not (isinstance(one, Mapping) and one.get("name") == "PYTHONPATH")]
        return [*others, {"name": "PYTHONPATH", "value": _path(named.get("PYTHONPATH"))}]
    return {"PYTHONPATH": _path(_found(theirs or {}, "PYTHONPATH"))}


def _path(theirs: Any) -> str:
    parts = str(theirs).split(":") if theirs else []
    return ":".join([PACKAGE, *(part for part in parts if part != PACKAGE)])


def _last_key(theirs: Mapping[str, Any]) -> str:
    """Return a key that sorts after all of their keys."""
    others = [str(key) for key in _found(theirs, "hub", "extraConfig") or () if not str(key).endswith(KEY)]
    last = max(others, default="")
    return KEY if last < KEY else f"{last}-{KEY}"


def _way_out(theirs: Mapping[str, Any], *path: str) -> Values:
    """Return the egress rules of a network policy with a rule to the service."""
    selector = {"app.kubernetes.io/name": "gpuspawner", "app.kubernetes.io/component": "service"}
    ours = {"ports": [{"port": PORT}], "to": [{"podSelector": {"matchLabels": selector}}]}
    kept = [rule for rule in _found(theirs, *path, "networkPolicy", "egress") or () if rule != ours]
    return {"egress": [*kept, ours]}


def _images(catalog: Catalog | None) -> Values:
    """Return the images of the catalog's templates for the chart's pre-puller."""
    templates = catalog.templates if catalog else {}
    found = {name: template.image for name, template in templates.items() if template.image}
    pairs = {name: name_and_tag(image) for name, image in found.items()}
    return {name: {"name": image, "tag": tag} for name, (image, tag) in pairs.items()}


def name_and_tag(image: str) -> tuple[str, str]:
    """Split an image at its colon. The chart joins name and tag again, also those of a digest."""
    name, colon, tag = image.rpartition(":")
    return (name, tag) if colon and "/" not in tag else (image, "latest")
