"""Read profiles from a chart's values, a hub's configuration or a JSON file, without running them."""

from __future__ import annotations

import ast
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from gpuspawner.core.units import show_bytes

SETTING = "profile_list"
MOST_BYTES, MOST_VALUES = 8 * 2**20, 100_000
"""Limits of a file's bytes, and of its values with aliases written out. Arbitrary: larger than any chart's values."""
AMOUNTS = {
    "cpu_limit": ("cpu", "limit"),
    "cpu_guarantee": ("cpu", "guarantee"),
    "mem_limit": ("memory", "limit"),
    "mem_guarantee": ("memory", "guarantee"),
}
"""KubeSpawner's settings that limit every profile, and their places below singleuser in the chart."""
DUMP = (
    "Write what it returns into a JSON file and import that, for example by "
    "import json; json.dump(my_function(None), open('profiles.json', 'w'))"
)


ALONE = "Put only the profiles into a file, and import that file."


class SourceError(Exception):
    """A file has no profiles that can be read. The message says what was searched for, and what to do."""


@dataclass(frozen=True)
class UnreadValue:
    """The source code of a value that is known only when the configuration runs."""

    source: str


@dataclass(frozen=True)
class Source:
    """Profiles as they are written.

    ``where`` is their setting: ``singleuser.profileList`` or ``c.KubeSpawner.profile_list``. ``base`` are KubeSpawner's
    settings for all of them. ``told`` are sentences about what was not read.
    """

    profiles: tuple[Any, ...]
    where: str
    base: Mapping[str, Any] = field(default_factory=dict)
    told: tuple[str, ...] = ()


def read_source(path: Path) -> Source:
    """Return the profiles of a file: of Python if its name ends in .py, or else of YAML or JSON.

    Raises:
        SourceError: it cannot be read, or has no profiles.
    """
    try:
        with path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
        text = content.decode("utf-8-sig")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise SourceError(f"{path} cannot be read: {reason}.") from error
    if len(content) > MOST_BYTES:
        raise SourceError(f"{path} is longer than {show_bytes(MOST_BYTES)}. {ALONE}")
    try:
        return _python(path, ast.parse(text)) if path.suffix == ".py" else _data(path, _yaml(path, text))
    except (SyntaxError, yaml.YAMLError, ValueError, RecursionError) as error:
        kind = "Python" if path.suffix == ".py" else "YAML or JSON"
        raise SourceError(f"{path} is not {kind}: {str(error).splitlines()[0]}.") from error


def _yaml(path: Path, text: str) -> Any:
    """Return the contents of YAML. Aliases are written out, so they are counted before."""
    node = yaml.compose(text, Loader=yaml.SafeLoader)
    if node is None:
        return None
    count = _values(node, {})
    if count > MOST_VALUES:
        raise SourceError(f"{path} has over {MOST_VALUES:,} values once its aliases (*name) are written out. {ALONE}")
    return yaml.SafeLoader("").construct_document(node)


def _values(node: yaml.Node, known: dict[int, float]) -> float:
    """Return the number of values in a node with its aliases written out. It is infinite for a node in itself."""
    if id(node) not in known:
        known[id(node)] = math.inf
        parts: list[yaml.Node] = []
        if isinstance(node, yaml.MappingNode):
            parts = [part for pair in node.value for part in pair]
        elif isinstance(node, yaml.SequenceNode):
            parts = node.value
        known[id(node)] = 1 + sum(_values(part, known) for part in parts)
    return known[id(node)]


def _data(path: Path, data: Any) -> Source:
    """Return the profiles of a values file, or of a list or dict by itself."""
    singleuser = _mapping(_mapping(data).get("singleuser"))
    spawner = _mapping(_mapping(_mapping(_mapping(data).get("hub")).get("config")).get("KubeSpawner"))
    found = {
        "singleuser.profileList": singleuser.get("profileList"),
        "hub.config.KubeSpawner.profile_list": spawner.get(SETTING),
        SETTING: _mapping(data).get(SETTING, data if isinstance(data, list) or _is_profiles(data) else None),
    }
    where = next((name for name, profiles in found.items() if profiles), None)
    if where is None:
        raise SourceError(
            f"{path} has no profiles: neither {', '.join(found)} nor a list of profiles was found. Name the values "
            "for helm, jupyterhub_config.py, or a JSON file with the result of your function."
        )
    base = {
        name: _mapping(singleuser.get(group))[key]
        for name, (group, key) in AMOUNTS.items()
        if _mapping(singleuser.get(group)).get(key) is not None
    }
    for name in ("limits", "guarantees"):
        if extra := _mapping(singleuser.get("extraResource")).get(name):
            base[f"extra_resource_{name}"] = extra
    return Source(_listed(path, found[where]), where, {**base, **settings_of_all(spawner)})


def _is_profiles(data: Any) -> bool:
    return bool(data) and all("display_name" in _mapping(one) for one in _mapping(data).values())


def settings_of_all(spawner: Mapping[str, Any]) -> dict[str, Any]:
    """Return the amounts among the settings of KubeSpawner, which apply below every profile."""
    names = (*AMOUNTS, "extra_resource_limits", "extra_resource_guarantees")
    return {name: spawner[name] for name in names if spawner.get(name) is not None}


def _python(path: Path, tree: ast.Module) -> Source:
    """Return the profiles of a configuration file, whose assignments are read and not run."""
    names: dict[str, ast.expr] = {}
    settings: dict[str, Any] = {}
    told, line = [], 0
    for statement in tree.body:
        for target, value in _assigned(statement):
            if isinstance(target, ast.Name):
                names[target.id] = value
            elif isinstance(target, ast.Attribute) and _is_spawner(target.value):
                settings[target.attr] = _value(value, names)
                line = statement.lineno if target.attr == SETTING else line
        if any(_adds(node) for node in ast.walk(statement)):
            told.append(f"line {statement.lineno}: profiles that are added there were not read.")
    if SETTING not in settings:
        raise SourceError(
            f"{path} has no line c.KubeSpawner.{SETTING} = ... outside of functions and conditions. If it is made "
            f"elsewhere: {DUMP[0].lower()}{DUMP[1:]}."
        )
    if isinstance(settings[SETTING], UnreadValue):
        raise SourceError(f"{path}:{line}: {settings[SETTING].source} is not a list that can be read. {DUMP}.")
    return Source(_listed(path, settings[SETTING]), f"c.KubeSpawner.{SETTING}", settings_of_all(settings), tuple(told))


def _assigned(statement: ast.stmt) -> Iterator[tuple[ast.expr, ast.expr]]:
    if isinstance(statement, ast.Assign):
        yield from ((target, statement.value) for target in statement.targets)
    elif isinstance(statement, ast.AnnAssign) and statement.value is not None:
        yield statement.target, statement.value


def _is_spawner(node: ast.expr) -> bool:
    """Return whether an expression is ``c.KubeSpawner`` or a subclass of it."""
    return isinstance(node, ast.Attribute) and node.attr.endswith("Spawner")


def _adds(node: ast.AST) -> bool:
    of_call = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.value
    target = node.target if isinstance(node, ast.AugAssign) else of_call
    return isinstance(target, ast.Attribute) and target.attr == SETTING


def _value(node: ast.expr, names: Mapping[str, ast.expr]) -> Any:
    """Return the value of a literal expression, or an :class:`UnreadValue`."""
    if isinstance(node, ast.Dict) and all(isinstance(key, ast.Constant) for key in node.keys):
        pairs = zip(node.keys, node.values, strict=True)
        return {key.value: _value(value, names) for key, value in pairs if isinstance(key, ast.Constant)}
    if isinstance(node, (ast.List, ast.Tuple)) and not any(isinstance(one, ast.Starred) for one in node.elts):
        return [_value(one, names) for one in node.elts]
    if isinstance(node, ast.Name) and node.id in names:
        return _value(names[node.id], {name: value for name, value in names.items() if name != node.id})
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, MemoryError):
        return UnreadValue(ast.unparse(node)[:80])


def _listed(path: Path, profiles: Any) -> tuple[Any, ...]:
    if isinstance(profiles, Mapping):  # KubeSpawner takes the values in the order of their keys
        profiles = [profiles[key] for key in sorted(profiles, key=str)]
    if not isinstance(profiles, list) or not profiles:
        raise SourceError(f"{path}: profiles are a list, or a dict by slug. {DUMP}.")
    return tuple(profiles)


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def as_json(value: Any) -> str:
    """Return a value for a sentence."""
    if isinstance(value, UnreadValue):
        return value.source
    try:
        return json.dumps(value, default=str)
    except TypeError:  # YAML and Python allow a date or a list as a key
        return str(value)
