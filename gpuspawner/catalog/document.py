"""A catalog as it is written: plain data, the line of every entry, and errors of its form.

Only a small and safe part of YAML is read: mappings, lists and plain scalars. A scalar without quotes is null, true,
false, a decimal number, or text. ``no``, ``on``, ``1:30`` and dates are text, as administrators mean them. Anchors,
aliases, tags and a second document are refused: they could make a small file very large, and ``extends`` replaces them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

import yaml

from gpuspawner.core.errors import quoted

LARGEST_BYTES = 256 * 1024
"""The largest catalog file. Arbitrary: a thousand templates, which are read in seconds."""
DEEPEST = 12
"""The deepest nesting. Arbitrary: twice the levels of the catalog."""

Loc = tuple[str | int, ...]
"""The path to an entry: ``("templates", "pytorch", "bounds", "cpu")``."""

_WHOLE = re.compile(r"[-+]?[0-9]{1,30}")
_DECIMAL = re.compile(r"[-+]?[0-9]{1,30}\.[0-9]{1,30}")
_WORDS = {"": None, "~": None, "null": None, "true": True, "false": False}


@dataclass(frozen=True)
class Issue:
    """One error at ``loc``. ``line`` is set only if it is not the line of the entry at ``loc``.

    ``meant`` is the key that a misspelt key at ``loc`` was meant to be, which is not reported as missing.
    """

    loc: Loc
    wrong: str
    right: str
    line: int | None = None
    meant: Loc | None = None


@dataclass(frozen=True)
class WrongPaths:
    """The paths that are known to be wrong, and the paths around them."""

    at: frozenset[Loc]
    around: frozenset[Loc]

    @classmethod
    def of(cls, locs: Iterable[Loc]) -> WrongPaths:
        """Return the paths of ``locs`` with those around them."""
        at = frozenset(locs)
        return cls(at, frozenset(loc[:end] for loc in at for end in range(len(loc))))

    def touch(self, loc: Loc) -> bool:
        """Return whether something at this path, around it or in it is wrong."""
        return loc in self.around or any(loc[:end] in self.at for end in range(len(loc) + 1))


@dataclass
class Document:
    """A catalog that is being read. ``data`` is None if nothing could be read."""

    data: Any = None
    lines: dict[Loc, int] = field(default_factory=dict)
    issues: list[Issue] = field(default_factory=list)

    def wrong_paths(self) -> list[Loc]:
        """Return the paths of all issues, and the keys that misspelt keys were meant to be."""
        return [loc for issue in self.issues for loc in (issue.loc, issue.meant) if loc is not None]

    def remove(self, loc: Loc, stand_in: Any) -> None:
        """Remove a wrong value, or put ``stand_in`` in its place if that is not None."""
        holder: Any = self.data
        for part in loc[:-1]:  # the entry is gone already if it was wrong as a whole
            holder = holder[int(part)] if isinstance(holder, list) else holder.get(part, {})
        if isinstance(holder, list):
            holder[int(loc[-1])] = {} if stand_in is None else stand_in  # the other items keep their numbers
        elif stand_in is None:
            holder.pop(loc[-1], None)
        else:
            holder[loc[-1]] = stand_in

    def line_of(self, loc: Loc) -> int | None:
        """Return the line of an entry, or of the closest entry around it, or None for a catalog without lines."""
        for end in range(len(loc), -1, -1):
            if loc[:end] in self.lines:
                return self.lines[loc[:end]]
        return None


def read_mapping(data: Mapping[Any, Any]) -> Document:
    """Copy a catalog that is given as a dict. It has no lines."""
    return Document(data=_plain(data))


def read_file(path: Path) -> Document:
    """Read a catalog file. Never raises: if it cannot be read, the document has an issue."""
    raw = read_raw(path)
    return raw if isinstance(raw, Document) else read_bytes(raw)


def read_raw(path: Path) -> bytes | Document:
    """Return the bytes of a catalog file, or a document with an issue if it cannot be read."""
    try:
        if path.exists() and not path.is_file():
            return _stopped("not a file", "name the catalog's YAML file")
        with path.open("rb") as file:
            return file.read(LARGEST_BYTES + 1)
    except FileNotFoundError:
        return _stopped("no such file", "name the catalog's YAML file, or copy hub_config/catalog.yaml to begin one")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        return _stopped(f"cannot be read: {reason}", "make it readable for the user that runs the hub")


def read_bytes(raw: bytes) -> Document:
    """Read the bytes of a catalog file. Never raises: if they cannot be read, the document has an issue."""
    if len(raw) > LARGEST_BYTES:
        return _stopped(f"larger than {LARGEST_BYTES // 1024} KiB", "shorten it: `extends` repeats an entry in a line")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        return _stopped("not UTF-8 text", "save the file in UTF-8", line)
    return read_text(text)


def read_text(text: str) -> Document:
    """Read YAML text. Never raises: if it cannot be read, the document has an issue."""
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        wrong, right = _explained(str(error.problem or error.context))
        return _stopped(wrong, right, mark.line + 1 if mark else None)
    except yaml.reader.ReaderError as error:
        line = text[: error.position].count("\n") + 1
        return _stopped(f"character {text[error.position]!r} is not allowed in YAML", "remove it", line)
    except (ValueError, OverflowError):  # an escape or a version with a number that Python cannot hold
        return _stopped("not YAML: an escape or directive holds an impossible number", "remove it", loader.line + 1)
    document = Document(lines={(): 1})
    if node is not None:
        document.data = _converted(node, (), document)
    return document


def compose(text: str) -> yaml.Node | None:
    """Return the nodes of YAML text with their positions, or None for an empty text. Raises yaml.YAMLError."""
    node: yaml.Node | None = _Loader(text).get_single_node()
    return node


class _Loader(yaml.SafeLoader):
    """Composes nodes, and refuses everything that could make them a graph, a very large tree, or objects."""

    depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]  # types-PyYAML has no type for it
        refused = ""
        if isinstance(event, yaml.AliasEvent) or event.anchor is not None:
            refused = "anchors and aliases (& and *) are not read"
        elif getattr(event, "tag", None) is not None:
            refused = "tags (!) are not read"
        elif self.depth >= DEEPEST:
            refused = f"nested more than {DEEPEST} levels deep"
        if refused:
            raise yaml.composer.ComposerError(None, None, refused, event.start_mark)
        self.depth += 1
        node: yaml.Node | None = super().compose_node(parent, index)
        self.depth -= 1
        return node


def _explained(problem: str) -> tuple[str, str]:
    if "'\\t'" in problem:
        return "there is a tab where YAML needs spaces", "indent with spaces"
    if "&" in problem:
        return problem, "put text that begins with * or & in quotes; write an entry out, or use `extends`"
    if "another document" in problem:
        return "a second document begins here", "remove the line `---` and what follows"
    if "tags (!)" in problem:
        return problem, "write the plain value; put text that begins with ! in quotes"
    if "nested" in problem:
        return problem, "compare with hub_config/catalog.yaml"
    return f"not YAML: {problem}", "check quotes, colons, brackets and indentation here and on the line before"


def _stopped(wrong: str, right: str, line: int | None = None) -> Document:
    return Document(issues=[Issue(("catalog",), wrong, right, line)])


def _converted(node: yaml.Node, loc: Loc, document: Document) -> Any:
    """Return a node as plain data and note the line of each entry. A repeated key keeps its first value."""
    if isinstance(node, yaml.SequenceNode):
        document.lines.update({(*loc, i): child.start_mark.line + 1 for i, child in enumerate(node.value)})
        return [_converted(child, (*loc, i), document) for i, child in enumerate(node.value)]
    if isinstance(node, yaml.ScalarNode):
        return _scalar(node)
    data: dict[str, Any] = {}
    for key_node, value_node in node.value:
        line = key_node.start_mark.line + 1
        if not isinstance(key_node, yaml.ScalarNode):
            document.issues.append(Issue(loc, "a key is a list or a mapping", "write a plain word as key", line))
            continue
        key = _readable(key_node.value)
        here = (*loc, key)
        if key in data:
            first = document.lines[here]
            wrong = f"written twice, first in line {first}"
            document.issues.append(Issue(here, wrong, "keep one of them, or give this one another name", line))
            continue
        document.lines[here] = line
        data[key] = _converted(value_node, here, document)
    return data


def _scalar(node: yaml.ScalarNode) -> Any:
    text: str = node.value
    if node.style is not None:
        return text
    if text in _WORDS:
        return _WORDS[text]
    if _WHOLE.fullmatch(text):
        return int(text)
    return float(text) if _DECIMAL.fullmatch(text) else text


def _key_text(key: Any) -> str:
    """Return a key of a dict as a file has it. YAML makes a date of a key like 2027-01-01."""
    if isinstance(key, date):
        return key.isoformat()
    return key if isinstance(key, str) else quoted(key)


def _readable(key: str) -> str:
    """Return a key without characters that UTF-8 cannot encode."""
    return key.encode("utf-8", "backslashreplace").decode()


def _plain(data: Any, depth: int = 0) -> Any:
    """Copy mappings and lists as dict and list with text as keys, down to the depth that a catalog can have."""
    if depth < DEEPEST:
        if isinstance(data, Mapping):
            return {_readable(_key_text(key)): _plain(value, depth + 1) for key, value in data.items()}
        if isinstance(data, (list, tuple)):
            return [_plain(item, depth + 1) for item in data]
    return data
