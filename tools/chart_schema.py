"""Writes helm/gpuspawner/values.schema.json: `python -m tools.chart_schema`.

It is made of values.yaml, whose defaults tell each value's type and whose comments describe it, and of the catalog's
models. helm refuses by it what has a wrong shape; the chart's Job `gpuspawner server check` judges the rest.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import yaml
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from gpuspawner.catalog.entry import Section, Sections
from gpuspawner.catalog.models import CatalogEntry
from tools.install import ROOT

VALUES = ROOT / "helm" / "gpuspawner" / "values.yaml"
SCHEMA = VALUES.with_name("values.schema.json")
DIALECT = "https://json-schema.org/draft/2020-12/schema"
SCALAR = {"type": ["string", "number", "boolean"]}
FREE = {"additionalProperties": True}
TEXTS = {"additionalProperties": {"type": "string"}}
NARROWER: dict[str, dict[str, Any]] = {
    "hub.url": {"pattern": "^http://.+"},
    "hub.publicUrl": {"pattern": "^(https?://.+)?$"},
    "hub.podLabels": TEXTS,
    "hub.proxyPodLabels": TEXTS,
    "workspaces.podLabels": TEXTS,
    "cluster": FREE,
    "settings": FREE,
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
    "monitoring.rules.labels": TEXTS,
    "monitoring.dashboards.labels": TEXTS,
}
"""By path: what a default does not tell of a value, as which keys a mapping may have."""


class _AsWritten(GenerateJsonSchema):
    """The catalog as people write it: what a parser makes of a text is for the parser to judge."""

    def function_before_schema(self, schema: core_schema.BeforeValidatorFunctionSchema) -> JsonSchemaValue:
        """Return a section as its model has it; all else as a list, or as any scalar."""
        inner = self.generate_inner(schema["schema"])
        if schema["function"]["function"] in {Section.func, Sections.func}:
            return inner
        listed = any(one.get("type") == "array" and "items" in one for one in [inner, *inner.get("anyOf", [])])
        return {"type": "array"} if listed else dict(SCALAR)

    def default_schema(self, schema: core_schema.WithDefaultSchema) -> JsonSchemaValue:
        """Leave defaults out: of the models, none stands for what the catalog means."""
        return self.generate_inner(schema["schema"])

    def title_schema(self, *_: Any) -> None:
        """Have no titles."""


def schema() -> dict[str, Any]:
    """Return the schema of the chart's values."""
    document = yaml.compose(VALUES.read_text())
    lines = VALUES.read_text().splitlines()
    assert isinstance(document, yaml.MappingNode)
    values = _mapping(document, lines, "")
    catalog = CatalogEntry.model_json_schema(schema_generator=_AsWritten)
    kinds = _tidied(catalog.pop("$defs"))
    described = {"description": values["properties"]["catalog"]["description"]}
    values["properties"]["catalog"] = {**described, **_tidied(catalog), "type": ["object", "string"]}
    # Of helm's own, where the chart is part of another one.
    values["properties"]["global"] = {"type": "object"}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "gpuspawner",
        **values,
        "$defs": {**kinds, "Scalar": SCALAR},
    }


def paths(node: dict[str, Any], above: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each value that is no group of values, by its path, with its schema."""
    for key, one in node["properties"].items():
        path = f"{above}{key}"
        if one.get("type") == "object" and "properties" in one:
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


def _tidied(node: Any) -> Any:
    """Return a schema without pydantic's titles and docstrings, whose sections may be empty."""
    if isinstance(node, list):
        return [_tidied(one) for one in node]
    if not isinstance(node, dict):
        return node
    named = node.get("properties", {})
    kept = {key: _tidied(one) for key, one in node.items() if key not in {"title", "description", "properties"}}
    if kept == SCALAR:
        return {"$ref": "#/$defs/Scalar"}
    if kept.get("type") in ("object", "array"):
        kept["type"] = [kept["type"], "null"]
    return {**kept, "properties": {key: _tidied(one) for key, one in named.items()}} if named else kept


def text() -> str:
    """Return the file's contents."""
    return json.dumps(schema(), indent=1) + "\n"


if __name__ == "__main__":
    SCHEMA.write_text(text())
