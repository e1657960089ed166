"""A draft of a catalog: entries with comments about what a person must decide, and the file that is written."""

from __future__ import annotations

import json
import re
import sys
import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpuspawner.catalog import load_text
from gpuspawner.cli.errors import RefusedError

WIDTH = 118
MOST_GPUS = 4
"""The quota of each user. Arbitrary: as in hub_config/catalog.yaml."""
LONGEST_NAME = 63
_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9 ._/+*-]*[A-Za-z0-9*]|[A-Za-z]")
_AMOUNT = re.compile(r"[0-9.]+[A-Za-z%]+|[0-9.]+[A-Za-z]*-[0-9.]+[A-Za-z]*|[0-9]+/[0-9]+")
_WORDS = {"null", "true", "false", "yes", "no", "on", "off"}


@dataclass(frozen=True)
class Entry:
    """One entry of a section: its keys and values, and the comments before it."""

    name: str
    values: Mapping[str, Any]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Draft:
    """A catalog with one quota, and with one policy, which only records."""

    head: tuple[str, ...]
    gpus: tuple[Entry, ...] = ()
    templates: tuple[Entry, ...] = ()
    more: tuple[str, ...] = field(default=())
    """Comments at the end of the file."""

    @property
    def quota(self) -> int:
        """How many GPUs each user may hold. It is enough for the least request of each template."""
        least = [int(str(count).partition("-")[0]) for one in self.templates for count in _gpus(one).values()]
        usual = [int(one.values.get("default", {}).get("count", 0)) for one in self.templates]
        return max([MOST_GPUS, *least, *usual])


def _gpus(template: Entry) -> Mapping[str, Any]:
    gpus: Mapping[str, Any] = template.values.get("gpus", {})
    return gpus


POLICY = """\
policies:
  default:
    # observe only records which workspaces would have been stopped. After a week or two, look at the records with
    # gpuspawner server simulate. Then write warn, which warns users, and later enforce, which stops workspaces. A
    # workspace always stops at the end of its lifetime.
    mode: observe
    # A workspace is idle if every GPU is below 5 % in every sample for 30 minutes. Its user is then warned and has 10
    # minutes to keep it.
    idle: {below: 5%, for: 30m, sample: 60s, grace: 10m}
    keep: {times: 3, each: 2h}
    extend: {each: 4h, total: 24h, warn: [1h, 10m]}
"""


def render(draft: Draft) -> str:
    """Return the catalog as YAML."""
    lines = [*_comments(draft.head), "version: 1", ""]
    if draft.gpus:
        lines.append("gpus: # the GPU kinds that users may choose")
        for gpu in draft.gpus:
            lines += [*_comments(gpu.notes, 2), f"  {_key(gpu.name)}: {_flow(gpu.values)}"]
        lines.append("")
    lines.append("templates: # the kinds of workspace; the first one is preselected")
    for template in draft.templates:
        lines += [*_comments(template.notes, 2), f"  {_key(template.name)}:"]
        lines += [f"    {name}: {_flow(value)}" for name, value in template.values.items()]
    lines += ["", *POLICY.splitlines(), "", "quotas:"]
    lines += _comments(["No user holds more GPUs than this at once. Decide how many."], 2)
    lines.append(f"  each-user: {{each: user, gpus: {{hard: {draft.quota}}}}}")
    return "\n".join([*lines, *(["", *_comments(draft.more)] if draft.more else [])]) + "\n"


def _comments(notes: Iterable[str], indent: int = 0) -> list[str]:
    space = " " * indent
    return [
        f"{space}# {line}"
        for note in notes
        for line in textwrap.wrap(_printable(note), WIDTH - indent - 2, break_long_words=False)
    ]


def _flow(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_key(name)}: {_flow(one)}" for name, one in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_flow, value)) + "]"
    return _text(value) if isinstance(value, str) else json.dumps(value)


def _key(name: str) -> str:
    return name if re.fullmatch(r"[a-z_][a-z0-9_-]*", name) and name not in _WORDS else json.dumps(name)


def _text(text: str) -> str:
    """Return a scalar without quotes if YAML reads it as the same text."""
    if _AMOUNT.fullmatch(text) or (_PLAIN.fullmatch(text) and text.lower() not in _WORDS):
        return text
    return json.dumps(_printable(text), ensure_ascii=False)


def _printable(text: str) -> str:
    return "".join(one if one.isprintable() else " " for one in text)


def named(text: str, taken: Iterable[str], otherwise: str) -> str:
    """Return a new name for an entry, made of its title: lower-case letters, digits and dashes."""
    plain = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[: LONGEST_NAME - 4].strip("-") or otherwise
    used, name, number = set(taken), plain, 1
    while name in used:
        number += 1
        name = f"{plain}-{number}"
    return name


def write_catalog(file: str, text: str, *, force: bool) -> None:
    """Check a catalog and write it. ``-`` is standard output.

    Raises:
        RefusedError: the file exists, and ``force`` is not given.
        CatalogError: the text is not a good catalog, which is an error of gpuspawner.
        OSError: the file cannot be written.
    """
    load_text(text, file)
    if file == "-":
        sys.stdout.write(text)
        return
    try:
        with Path(file).open("w" if force else "x", encoding="utf-8") as out:
            out.write(text)
    except FileExistsError:
        raise RefusedError(
            f"{file} exists and was not changed. Name another file, - to print, or --force to replace it."
        ) from None
