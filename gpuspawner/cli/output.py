"""How a command tells what it was answered: as JSON for programs, in words for people."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from typing import Any

from gpuspawner.cli.clock import note_time


def show(arguments: argparse.Namespace, answer: Any, printer: Callable[[Any], None]) -> None:
    """Print the answer as JSON where ``--json`` asks for it, else by ``printer``."""
    if arguments.json:
        print(json.dumps(answer, indent=1))
    else:
        printer(answer)


def shown(text: str) -> str:
    """Return a text for a terminal: names are people's own, and may hold what moves its cursor."""
    note_time(text)
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)
