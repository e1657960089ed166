"""The chart's values, from values.yaml by its schema."""

from __future__ import annotations

import json
from typing import Any

import yaml

from tools.chart_schema import VALUES, paths, schema
from tools.docs.reference.written import table

HEAD = """\
# Chart values

Values of `helm/gpuspawner`. `catalog` and `image.name` must be written.
[Configure the chart](../how-to/administrators/helm.md) says how they are used.

"""


def chart() -> str:
    """Return the page.

    Raises:
        KeyError: neither a value nor the group that it is in has a comment in values.yaml.
    """
    defaults, found = yaml.safe_load(VALUES.read_text()), schema()
    del found["properties"]["global"]
    found["properties"]["catalog"] = {"description": found["properties"]["catalog"]["description"]}
    rows = []
    for path, one in paths(found):
        default = json.dumps(_at(defaults, path))
        rows.append((f"`{path}`", f"`{default}`", one.get("description") or _group(found, path)))
    return HEAD + table(("value", "default", "what it means"), rows)


def _at(values: Any, path: str) -> Any:
    for key in path.split("."):
        values = values[key]
    return values


def _group(found: dict[str, Any], path: str) -> str:
    """Return the description of the innermost group around a value that has one."""
    told = ""
    for key in path.split("."):
        found = found["properties"][key]
        told = found.get("description", told)
    if not told:
        raise KeyError(path)
    return told
