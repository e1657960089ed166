"""Write helm/gpuspawner/values.schema.json: `python -m tools.chart_schema`.

The types come from the defaults in values.yaml, the descriptions from its comments, and the catalog from its models.
With the schema helm refuses values of a wrong shape. `gpuspawner server check`, a Job of the chart, checks the rest.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import Field, fields
from typing import Any

import yaml

from gpuspawner.catalog.keys import Key, keys_of
from gpuspawner.catalog.models import WrittenCatalog
from gpuspawner.core.text_fields import LOG_FORMATS
from gpuspawner.service.settings import Settings
from tools.install import ROOT

VALUES = ROOT / "helm" / "gpuspawner" / "values.yaml"
SCHEMA = VALUES.with_name("values.schema.json")
DIALECT = "https://json-schema.org/draft/2020-12/schema"
SCALAR = {"type": ["string", "number", "boolean"]}
FREE = {"additionalProperties": True}
TEXTS = {"additionalProperties": {"type": "string"}}


def _setting(field: Field[Any]) -> dict[str, Any]:
    """Return the schema of one of the service's settings, by its default."""
    if field.name == "log_format":
        return {"enum": list(LOG_FORMATS)}
    if isinstance(field.default, tuple):
        return {"type": "array"}
    if field.default_factory is dict:
        return TEXTS
    if isinstance(field.default, str):
        return {"type": "string"}
    return {"exclusiveMinimum": 0, "type": "integer" if isinstance(field.default, int) else "number"}


NARROWER: dict[str, dict[str, Any]] = {
    "hub.url": {"pattern": "^http://.+"},
    "hub.publicUrl": {"pattern": "^(https?://.+)?$"},
    "hub.podLabels": TEXTS,
    "hub.proxyPodLabels": TEXTS,
    "workspaces.podLabels": TEXTS,
    "workspaces.podNamePrefix": {"minLength": 1, "pattern": "^[a-z0-9]([-.a-z0-9]*)$"},
    "cluster": FREE,
    "settings": {"additionalProperties": False, "properties": {one.name: _setting(one) for one in fields(Settings)}},
    "store.postgresql.url": {"pattern": "^(postgres(ql)?://([^:/@]+@)?[^@]+)?$"},
    "store.postgresql.secretKey": {"minLength": 1},
    "replicas": {"minimum": 1, "maximum": 3},
    "persistence.size": {"pattern": r"^[0-9]+(\.[0-9]+)?([kMGTPE]|[KMGTPE]i)?$"},
    "persistence.accessModes": {"items": {"type": "string"}, "minItems": 1},
    "image.pullPolicy": {"enum": ["Always", "IfNotPresent", "Never"]},
    "image.pullSecrets": {"items": {"type": "string"}},
    "customResources.resources": FREE,
    "resources": FREE,
    "nodeSelector": TEXTS,
    "tolerations": {"items": {"type": "object"}},
    "podAnnotations": TEXTS,
    "expose.service.type": {"enum": ["ClusterIP", "NodePort", "LoadBalancer"]},
    "expose.service.targetPort": {"minimum": 1, "maximum": 65535},
    "expose.service.nodePort": {"minimum": 0, "maximum": 65535},
    "expose.service.sourceRanges": {"items": {"type": "string"}},
    "expose.service.annotations": TEXTS,
    "expose.ingress.hosts": {"items": {"type": "string"}},
    "expose.ingress.annotations": TEXTS,
    "expose.httpRoute.parentRefs": {"items": {"type": "object"}},
    "expose.httpRoute.hosts": {"items": {"type": "string"}},
    "expose.httpRoute.annotations": TEXTS,
    "networkPolicy.ingress": {"items": {"type": "object"}},
    "networkPolicy.egress": {"items": {"type": "object"}},
    "priorityClass.value": {"maximum": 1_000_000_000},
    "prePuller.nodeSelector": TEXTS,
    "prePuller.tolerations": {"items": {"type": "object"}},
    "monitoring.serviceMonitor.interval": {"pattern": "^([0-9]+(ms|[smhdwy]))+$"},
    "monitoring.serviceMonitor.labels": TEXTS,
    "monitoring.serviceMonitor.podLabels": TEXTS,
    "monitoring.rules.labels": TEXTS,
    "monitoring.dashboards.labels": TEXTS,
}
"""More of the schema of some values than their defaults show, by path."""


def schema() -> dict[str, Any]:
    """Return the schema of the chart's values."""
    document = yaml.compose(VALUES.read_text())
    lines = VALUES.read_text().splitlines()
    assert isinstance(document, yaml.MappingNode)
    values = _mapping(document, lines, "")
    definitions: dict[str, Any] = {}
    described = {"description": values["properties"]["catalog"]["description"]}
    catalog = _section(WrittenCatalog, definitions)
    values["properties"]["catalog"] = {**described, **catalog, "type": ["object", "string"]}
    # Helm's own, for a chart that is part of another one.
    values["properties"]["global"] = {"type": "object"}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "gpuspawner",
        **values,
        "$defs": {**dict(sorted(definitions.items())), "Scalar": SCALAR},
    }


def paths(node: dict[str, Any], above: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each value that is no group of values, by its path, with its schema."""
    for key, one in node["properties"].items():
        path = f"{above}{key}"
        if one.get("type") == "object" and "properties" in one and path not in NARROWER:
            yield from paths(one, f"{path}.")
        else:
            yield path, one


def _mapping(node: yaml.MappingNode, lines: list[str], above: str) -> dict[str, Any]:
    properties = {}
    for key, value in node.value:
        path = f"{above}{key.value}"
        if isinstance(value, yaml.MappingNode) and value.value and path not in NARROWER:
            found = _mapping(value, lines, f"{path}.")
        else:
            found = {"type": _type(value), **NARROWER.get(path, {})}
        described = _comment(lines, key.start_mark.line)
        properties[key.value] = {"description": described, **found} if described else found
    return {"type": "object", "additionalProperties": False, "properties": properties}


def _type(value: yaml.Node) -> str:
    if isinstance(value, yaml.MappingNode):
        return "object"
    if isinstance(value, yaml.SequenceNode):
        return "array"
    return {"bool": "boolean", "int": "integer", "str": "string"}[value.tag.rpartition(":")[2]]


def _comment(lines: list[str], line: int) -> str:
    """Return the comment right above a line, as one paragraph."""
    found: list[str] = []
    while line and lines[line - 1].lstrip().startswith("#"):
        line -= 1
        found.insert(0, lines[line].lstrip().removeprefix("#").strip())
    return " ".join(found)


def _section(model: type, definitions: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a section of the catalog, adding those of the sections below it to ``definitions``.

    It only says which keys there are, and whether each is a scalar, a list or a mapping. `gpuspawner server check`
    judges the values.
    """
    properties = {}
    for name, key in keys_of(model).items():
        found = _value(key, definitions)
        if key.container:
            kind, below = ("array", "items") if key.container == "list" else ("object", "additionalProperties")
            found = {below: found, "type": [kind, "null"]}
        properties[name] = found
    return {"additionalProperties": False, "type": ["object", "null"], "properties": properties}


def _value(key: Key, definitions: dict[str, Any]) -> dict[str, Any]:
    if key.section is not None:
        name = key.section.__name__
        if name not in definitions:
            definitions[name] = _section(key.section, definitions)
        return {"$ref": f"#/$defs/{name}"}
    assert key.reader is not None, "a key has a reader or a section"
    kind = key.reader.schema.get("type")
    return {"type": [kind, "null"]} if kind in ("array", "object") else {"$ref": "#/$defs/Scalar"}


def text() -> str:
    """Return the file's contents."""
    return json.dumps(schema(), indent=1) + "\n"


if __name__ == "__main__":
    SCHEMA.write_text(text())
