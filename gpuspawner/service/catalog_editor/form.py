"""The form of one catalog entry, generated from the keys of its model, and the entry's YAML with what was typed."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from gpuspawner.catalog.document import read_text
from gpuspawner.catalog.edits import with_value
from gpuspawner.catalog.keys import Key, descriptions_of, keys_of
from gpuspawner.catalog.models import WrittenCatalog

PARTS = {
    "templates": "Templates",
    "policies": "Policies",
    "gpus": "GPU kinds and prices",
    "quotas": "Quotas",
    "teams": "Teams",
}
"""The sections with a form, and their titles."""
DEEPEST_SECTION = 2
"""Sections in sections have fields down to here. The rest is YAML alone."""


@dataclass(frozen=True)
class FormField:
    """One key of an entry.

    Args:
        path: the keys that lead to it in the entry.
        key: the key of the model.
        hint: its documentation.
        value: what is written, on one line; "" if nothing is.
    """

    path: tuple[str, ...]
    key: Key
    hint: str
    value: str

    @property
    def name(self) -> str:
        """The name in the form."""
        return ".".join(self.path)

    @property
    def label(self) -> str:
        """The label: the key, after the section that it is in."""
        words = ": ".join(one.replace("_", " ") for one in self.path)
        return f"{words[:1].upper()}{words[1:]}".replace("Gpu", "GPU").replace("gpu", "GPU").replace("cpu", "CPU")

    def yaml(self, typed: str) -> str:
        """Return the typed text as YAML. A list or mapping may lack its brackets. Text gets quotes if it needs them."""
        kind = _kind(self.key)
        if kind != "text":
            begin, end = "[]" if kind == "list" else "{}"
            return typed if typed[:1] in {"[", "{"} else f"{begin}{typed}{end}"
        is_text = self.key.reader is not None and self.key.reader.schema.get("type") == "string"
        found = read_text(typed)
        is_plain = not found.issues and (found.data == typed or not (is_text or isinstance(found.data, (dict, list))))
        return typed if is_plain else json.dumps(typed, ensure_ascii=False)


def fields_of(section: str, text: str) -> list[FormField]:
    """Return a field for each key of an entry that fits on one line.

    Args:
        section: the section of the catalog.
        text: the entry as YAML. Text that can't be read has no fields.
    """
    model, data = keys_of(WrittenCatalog)[section].section, read_text(text).data
    if model is None or not isinstance(data, (dict, type(None))):
        return []
    return list(_fields(model, (), data or {}))


def _fields(model: type, around: tuple[str, ...], data: Mapping[str, Any]) -> Iterator[FormField]:
    hints = descriptions_of(model)
    for name, key in keys_of(model).items():
        value, path = data.get(name), (*around, name)
        if key.section is not None:
            if not key.container and len(path) <= DEEPEST_SECTION and isinstance(value, (dict, type(None))):
                yield from _fields(key.section, path, value or {})
        elif (shown := _shown(value)) is not None:
            yield FormField(path, key, hints[name].replace("`", ""), shown)


def _kind(key: Key) -> str:
    if key.container:
        return key.container
    return "list" if key.reader is not None and key.reader.schema.get("type") == "array" else "text"


def _shown(value: object) -> str | None:
    """Return a value on one line as the form shows it, or None if it needs more."""
    if value is None:
        return ""
    if isinstance(value, (list, dict)):
        flow = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, allow_unicode=True, width=math.inf)
        text = flow.strip()[1:-1]
    else:
        text = str(value).lower() if isinstance(value, bool) else str(value)
    return None if "\n" in text else text


def common_keys(section: str, entries: Mapping[str, Any]) -> frozenset[str]:
    """Return the names of the fields that some entry of a section writes, or that each entry needs."""
    return frozenset(_written(section, entries))


def _written(section: str, entries: Mapping[str, Any]) -> Iterator[str]:
    for one in fields_of(section, ""):
        if one.key.required is not None or any(_has(entry, one.path) for entry in entries.values()):
            yield one.name


def _has(data: object, path: Iterable[str]) -> bool:
    for name in path:
        if not isinstance(data, Mapping) or name not in data:
            return False
        data = data[name]
    return True


def with_fields(section: str, text: str, seen: str, typed: Mapping[str, str]) -> str:
    """Return the YAML of an entry with the fields that were changed in the form.

    Args:
        section: the section of the catalog.
        text: the YAML as it was typed.
        seen: the YAML that the form was made from.
        typed: the fields of the form by their names.

    Raises:
        BadValue: a field or the text is not YAML.
    """
    for one in fields_of(section, seen):
        value = typed.get(one.name, one.value).strip()
        if value != one.value:
            text = with_value(text, one.path, one.yaml(value) if value else None)
    return text
