"""Edit one value of a catalog's text, and keep everything around it: comments, order and form.

A mapping in braces is written again as a whole, because it has no lines of its own. The result is read again, and is
refused unless exactly the value at the path has changed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import yaml

from gpuspawner.catalog.document import Document, compose, read_text
from gpuspawner.core.units import BadValue

_PLAIN_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
_STEP = 2
"""Spaces by which a new line is indented more than the key above it."""


class _Pair(NamedTuple):
    """A key of a block mapping: its lines, and the lines of its value if that begins below the key."""

    key: yaml.ScalarNode
    value: yaml.Node
    end: int
    """The line after the last line of the value, without the comments and empty lines that follow it."""

    @property
    def line(self) -> int:
        return int(self.key.start_mark.line)

    @property
    def is_below(self) -> bool:
        return int(self.value.start_mark.line) > self.line


def text_at(text: str, path: Sequence[str]) -> str:
    """Return the YAML text of a value without its indentation, or "" if nothing is written there.

    Args:
        text: YAML text that can be read.
        path: the keys that lead to the value.
    """
    node, lines = compose(text), text.splitlines(keepends=True)
    for depth, name in enumerate(path):
        pair = None if not isinstance(node, yaml.MappingNode) else _find(node, name, lines)
        if pair is None:
            return ""
        if depth == len(path) - 1 and pair.is_below:
            return _dedent(lines[pair.line + 1 : pair.end], int(pair.value.start_mark.column))
        node = pair.value
    return "" if node is None else text[node.start_mark.index : node.end_mark.index].rstrip("\n")


def with_value(text: str, path: Sequence[str], value: str | None) -> str:
    """Return a text with another value at a path. Missing mappings are added at the end of the one around them.

    Args:
        text: YAML text that can be read.
        path: the keys that lead to the value.
        value: the new value as YAML text, or None to remove the key.

    Raises:
        BadValue: the value can't be read, or can't be placed without changing something else.
    """
    value = None if value is None else "\n".join(value.splitlines()).strip("\n")
    expected = _read(text).data or {}
    if not isinstance(expected, dict):
        raise BadValue("the text is not a mapping", "edit it as a whole")
    if value is None and len(path) > 1 and _is_last(expected, path):
        return with_value(text, path[:-1], None)
    _set(expected, path, None if value is None else _read(f"{value}\n").data)
    edited = _edit(text if text.endswith("\n") or not text else f"{text}\n", path, value)
    found = read_text(edited)
    if found.issues or (found.data or {}) != expected:
        raise BadValue(f"{'.'.join(path)} can't be edited alone", "edit the whole file")
    return edited


def _read(text: str) -> Document:
    document = read_text(text)
    if document.issues:
        issue = document.issues[0]
        line = "" if issue.line is None else f"line {issue.line}: "
        raise BadValue(f"{line}{issue.wrong}", issue.right)
    return document


def _is_last(data: Any, path: Sequence[str]) -> bool:
    """Return whether a path leads to the only key of its mapping, which is removed with it."""
    for name in path[:-1]:
        data = data.get(name) if isinstance(data, dict) else None
    return isinstance(data, dict) and list(data) == [path[-1]]


def _set(data: dict[str, Any], path: Sequence[str], value: Any) -> None:
    *around, last = path
    for name in around:
        if not isinstance(data.get(name), dict):
            data[name] = {}
        data = data[name]
    if value is None:
        data.pop(last, None)
    else:
        data[last] = value


def _edit(text: str, path: Sequence[str], value: str | None) -> str:
    node, lines = compose(text), text.splitlines(keepends=True)
    for depth, name in enumerate(path):
        if not isinstance(node, yaml.MappingNode) or not node.value:
            break
        if node.flow_style:
            return _edit_flow(text, node, path[depth:], value)
        pair = _find(node, name, lines)
        if pair is None:
            if value is None:
                return text
            new = _nested(path[depth:], value)
            _, last = node.value[-1]
            at, column = _end(last, node.value[-1][0], lines), int(node.start_mark.column)
            return "".join([*lines[:at], _indent(new, column), *lines[at:]])
        if depth == len(path) - 1:
            return _replace(lines, pair, value)
        node = pair.value
        if not isinstance(node, yaml.MappingNode) or not node.value:
            return text if value is None else _replace(lines, pair, _nested(path[depth + 1 :], value))
    return text if value is None else f"{text}{_nested(path, value)}\n"


def _edit_flow(text: str, node: yaml.MappingNode, path: Sequence[str], value: str | None) -> str:
    data = read_text(text[node.start_mark.index : node.end_mark.index]).data or {}
    _set(data, path, None if value is None else _read(f"{value}\n").data)
    new = json.dumps(data, ensure_ascii=False)
    return text[: node.start_mark.index] + new + text[node.end_mark.index :]


def _replace(lines: list[str], pair: _Pair, value: str | None) -> str:
    """Return the text with another value of a key of a block mapping."""
    if value is None:
        return "".join([*lines[: pair.line], *lines[pair.end :]])
    key_line, column = lines[pair.line], int(pair.key.start_mark.column)
    colon = key_line.index(":", int(pair.key.end_mark.column)) + 1
    if pair.is_below:
        head, rest, inner = key_line[:colon], key_line[colon:], int(pair.value.start_mark.column)
    else:
        begin, end = pair.value.start_mark, pair.value.end_mark
        rest = lines[end.line][end.column :] if end.line < len(lines) and end.column else "\n"
        head, inner = key_line[: colon if _is_empty(pair.value) else begin.column].rstrip(), column + _STEP
    if _is_block(value):
        new = f"{head}{rest.rstrip()}\n{_indent(value, max(inner, column + _STEP))}"
    else:
        first, *others = value.split("\n")
        below = "".join(f"{' ' * (column + _STEP)}{line}\n" for line in others)
        new = f"{head} {first}{rest.rstrip()}\n{below}" if not others else f"{head} {first}\n{below}"
    return "".join([*lines[: pair.line], new, *lines[pair.end :]])


def _nested(path: Sequence[str], value: str) -> str:
    """Return the text of a value below the keys of a path."""
    for name in reversed(path):
        key = name if _PLAIN_KEY.fullmatch(name) else json.dumps(name, ensure_ascii=False)
        if _is_block(value):
            value = f"{key}:\n{_indent(value, _STEP)}".rstrip("\n")
        else:
            first, *others = value.split("\n")
            value = "\n".join([f"{key}: {first}", *(f"{' ' * _STEP}{line}" for line in others)])
    return value


def _find(node: yaml.MappingNode, name: str, lines: list[str]) -> _Pair | None:
    for key, value in node.value:
        if isinstance(key, yaml.ScalarNode) and key.value == name:
            return _Pair(key, value, _end(value, key, lines))
    return None


def _end(value: yaml.Node, key: yaml.Node, lines: list[str]) -> int:
    """Return the line after a value. Comments that are indented like its key, or less, belong to what follows."""
    mark = value.end_mark
    is_open = isinstance(value, yaml.CollectionNode) and not value.flow_style
    end = int(mark.line) if (is_open or (mark.column == 0 and mark.line > key.start_mark.line)) else int(mark.line) + 1
    while end - 1 > key.start_mark.line:
        line = lines[end - 1] if end <= len(lines) else ""
        indent = len(line) - len(line.lstrip(" "))
        if line.strip() and not (line.lstrip().startswith("#") and indent <= key.start_mark.column):
            break
        end -= 1
    return end


def _is_empty(node: yaml.Node) -> bool:
    return bool(node.start_mark.index == node.end_mark.index)


def _is_block(value: str) -> bool:
    node = compose(value)
    return isinstance(node, yaml.CollectionNode) and not node.flow_style


def _indent(text: str, columns: int) -> str:
    return "".join(f"{' ' * columns}{line}\n" if line.strip() else "\n" for line in text.split("\n"))


def _dedent(lines: Sequence[str], columns: int) -> str:
    return "".join(line[min(columns, len(line) - len(line.lstrip(" "))) :] for line in lines).strip("\n")
