"""Environment variables of one's own, a line for each: ``NAME=value``, as a shell or ``.env`` has it."""

from __future__ import annotations

import re
import shlex

REFUSED = ("NVIDIA_", "CUDA_VISIBLE", "JUPYTERHUB_", "GPUSPAWNER_", "KUBERNETES_", "LD_")
"""How names begin that say which GPUs, which hub and which libraries these are: they are the workspace's."""
MOST = 200
"""Arbitrary: more than anybody writes."""
LONGEST_BYTES = 65536
"""Of one value. Arbitrary: with one of 128 KiB or more Linux starts no program."""

_LINE = re.compile(r"(?:export\s+)?([A-Za-z_][A-Za-z0-9_]*)=(.*)")


def read_variables(text: str, shown: str) -> tuple[dict[str, str], list[str]]:
    """Return the variables of a file, and a sentence for each line that is passed over, which never tells a value.

    ``shown`` is what people call the file. Empty lines and those that begin with ``#`` are no variables; quotes around
    a value are not part of it, and nothing in it is expanded.
    """
    found: dict[str, str] = {}
    wrong: list[str] = []
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.strip()
        if not line or line.startswith("#"):
            continue
        where = f"{shown}, line {number}"
        match = _LINE.fullmatch(line)
        if match is None:
            wrong.append(f"{where} is passed over: write NAME=value.")
        elif match[1].upper().startswith(REFUSED):
            refused = f"{match[1][:60]} is refused: names that begin {_begins(match[1])} are the workspace's."
            wrong.append(f"{where}: {refused}")
        elif "\0" in match[2] or len(match[2].encode()) > LONGEST_BYTES:
            wrong.append(f"{where} is passed over: a value has at most {LONGEST_BYTES:,} bytes, and none is 0.")
        elif len(found) >= MOST:
            wrong.append(f"{where} is passed over, and all after it: at most {MOST} variables.")
            break
        else:
            found[match[1]] = _unquoted(match[2])
    return found, wrong


def _begins(name: str) -> str:
    return next(prefix for prefix in REFUSED if name.upper().startswith(prefix))


def _unquoted(value: str) -> str:
    if value[:1] not in {"'", '"'}:
        return value
    try:
        parts = shlex.split(value, comments=True)
    except ValueError:
        return value
    return parts[0] if len(parts) == 1 else value
