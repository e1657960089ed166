"""``gpuspawner z2jh-values``: what a release of Zero to JupyterHub needs beside the chart of the service.

Names are those of version 4 of that chart. What is a list there is replaced whole by helm, so ours holds theirs too.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from gpuspawner import __version__
from gpuspawner.catalog import Catalog, load_catalog
from gpuspawner.cli.errors import INVALID
from gpuspawner.core.addresses import is_service_address
from gpuspawner.core.errors import CatalogError

PORT = 9470
NAME = re.compile("[a-z](?:[-a-z0-9]{0,48}[a-z0-9])?")
"""Of a Service, as short as the chart keeps it."""
KEY = "zz-gpuspawner"
"""Of hub.extraConfig, whose keys run in their order: configure() judges what stands before it."""
PACKAGE, CATALOG, SECRET = "/opt/gpuspawner", "/etc/gpuspawner/catalog", "/etc/gpuspawner/secret"
PURE = ("gpuspawner", "itsdangerous", "tzdata")
"""What the hub's own image lacks: Python alone, so it serves any version of it."""
COPY = f"""\
import importlib.util, shutil
for name in {PURE}:
    if found := importlib.util.find_spec(name):
        shutil.copytree(found.submodule_search_locations[0], "{PACKAGE}/" + name, dirs_exist_ok=True)
"""
CONFIG = """\
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
# Printed by `gpuspawner z2jh-values`: GPU workspaces for a release of Zero to JupyterHub. Homes, volumes, images,
# profiles and limits stay as they are.
#
# cull: the chart's culler stops servers whose browser is closed, GPU work or not. The catalog's policies judge instead.
# cloudMetadata: its init container is privileged, which the restricted Pod Security Standard refuses. The chart's
#   network policy, on by default, keeps workspaces from the metadata server too. Where your network enforces no
#   policies, leave this value out, and write c.GPUSpawner.gpu_restricted = False into hub.extraConfig.
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
"""What is read of a release's values, by its path, as values.schema.json of z2jh's chart has it."""
_SHAPE_NAMES: Mapping[type, str] = {dict: "a mapping", list: "a list"}


@dataclass(frozen=True)
class Asked:
    """What the values are made for; ``name`` is the service's own, as the chart calls all that it makes."""

    name: str = "gpuspawner"
    service_url: str = ""
    image: str = ""
    """Brings the package to the hub's own image."""
    hub_image: str = ""
    """A hub's image that has the package in it."""


class NotValuesError(Exception):
    """The values of the hub's release cannot be read, or an option is wrong; says why."""


def print_values(arguments: argparse.Namespace) -> int:
    """Print the values. 1 where an option, or a file that was named, cannot be used, and why."""
    asked = Asked(arguments.name, arguments.service_url or "", arguments.image or "", arguments.hub_image or "")
    try:
        _check(asked)
        theirs = _read(arguments.values) if arguments.values else {}
        catalog = load_catalog(arguments.catalog) if arguments.catalog else None
    except (NotValuesError, CatalogError) as error:
        print(error, file=sys.stderr)
        return INVALID
    print(as_text(z2jh_values(asked, theirs, catalog)), end="")
    return 0


def _check(asked: Asked) -> None:
    """Refuse names that Kubernetes does not take, and what is no address. Raises NotValuesError."""
    if not NAME.fullmatch(asked.name):
        raise NotValuesError(
            f"--name: {asked.name!r} is no name of a Service: small letters, digits and -, a letter first, at most 50. "
            "Write what `helm list` calls the release."
        )
    if asked.service_url and not is_service_address(asked.service_url):
        raise NotValuesError(
            f"--service-url: {asked.service_url!r} is no address of a service. Write it with its port, without a "
            "path, like http://gpuspawner:9470."
        )


def z2jh_values(asked: Asked, theirs: Mapping[str, Any], catalog: Catalog | None = None) -> Values:
    """Return the values that are to be added to ``theirs``, which the release has."""
    url = asked.service_url or f"http://{asked.name}:{PORT}"
    volumes: list[Values] = [
        {"name": f"{asked.name}-catalog", "configMap": {"name": f"{asked.name}-catalog"}},
        {"name": f"{asked.name}-secret", "secret": {"secretName": f"{asked.name}-secret"}},
    ]
    mounts: list[Values] = [
        {"name": f"{asked.name}-catalog", "mountPath": CATALOG, "readOnly": True},
        {"name": f"{asked.name}-secret", "mountPath": SECRET, "readOnly": True},
    ]
    hub: Values = {}
    if asked.hub_image:
        name, tag = name_and_tag(asked.hub_image)
        hub["image"] = {"name": name, "tag": tag}
    else:
        package = {"name": f"{asked.name}-package", "mountPath": PACKAGE}
        volumes.append({"name": package["name"], "emptyDir": {}})
        mounts.append({**package, "readOnly": True})
        bringing = {
            "name": f"{asked.name}-package",
            "image": asked.image or f"gpuspawner/service:{__version__}",
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
    """Return the values as people read them."""
    return HEADER + dumped(values)


def dumped(values: Values) -> str:
    """Return values as YAML, their texts line by line."""
    return yaml.dump(values, Dumper=_Dumper, sort_keys=False, width=120)


class _Dumper(yaml.SafeDumper):
    """Writes texts of several lines as such, and nothing by reference."""

    def ignore_aliases(self, _data: Any) -> bool:
        return True


def _text(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _text)


def _read(path: str) -> Values:
    """Return what a file, or standard input, says of a release. Raises NotValuesError."""
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
    """Refuse what would be lost, or is no release's, where ours is put beside it. Raises NotValuesError."""
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
    """Return their entries and ours; those that an earlier run of this command left are ours."""
    names = {one["name"] for one in ours}
    kept = [one for one in theirs or () if not (isinstance(one, Mapping) and one.get("name") in names)]
    return [*kept, *ours]


def _with_path(theirs: Any) -> Any:
    """Return the variables of the hub with the package's path before theirs, which stays."""
    if isinstance(theirs, list):
        named = {one.get("name"): one.get("value", "") for one in theirs if isinstance(one, Mapping)}
        others = [one for one in theirs if not (isinstance(one, Mapping) and one.get("name") == "PYTHONPATH")]
        return [*others, {"name": "PYTHONPATH", "value": _path(named.get("PYTHONPATH"))}]
    return {"PYTHONPATH": _path(_found(theirs or {}, "PYTHONPATH"))}


def _path(theirs: Any) -> str:
    parts = str(theirs).split(":") if theirs else []
    return ":".join([PACKAGE, *(part for part in parts if part != PACKAGE)])


def _last_key(theirs: Mapping[str, Any]) -> str:
    """Return a key that sorts after all of theirs."""
    others = [str(key) for key in _found(theirs, "hub", "extraConfig") or () if not str(key).endswith(KEY)]
    last = max(others, default="")
    return KEY if last < KEY else f"{last}-{KEY}"


def _way_out(theirs: Mapping[str, Any], *path: str) -> Values:
    """Return the egress rules of a network policy, with one to the service."""
    selector = {"app.kubernetes.io/name": "gpuspawner", "app.kubernetes.io/component": "service"}
    ours = {"ports": [{"port": PORT}], "to": [{"podSelector": {"matchLabels": selector}}]}
    kept = [rule for rule in _found(theirs, *path, "networkPolicy", "egress") or () if rule != ours]
    return {"egress": [*kept, ours]}


def _images(catalog: Catalog | None) -> Values:
    """Return the images of the catalog's templates, as the chart's pre-puller takes them."""
    templates = catalog.templates if catalog else {}
    found = {name: template.image for name, template in templates.items() if template.image}
    pairs = {name: name_and_tag(image) for name, image in found.items()}
    return {name: {"name": image, "tag": tag} for name, (image, tag) in pairs.items()}


def name_and_tag(image: str) -> tuple[str, str]:
    """Return what stands before and behind the colon; of a digest, the chart puts them together again."""
    name, colon, tag = image.rpartition(":")
    return (name, tag) if colon and "/" not in tag else (image, "latest")
