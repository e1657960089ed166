"""Reads docstrings and comments of the code and writes them as Markdown."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Iterable, Sequence


def attribute_docstrings(kind: type) -> dict[str, str]:
    """Return by attribute the text that stands right below it in a class, as one paragraph."""
    (made,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    assert isinstance(made, ast.ClassDef)
    found = {}
    for one, below in zip(made.body, made.body[1:], strict=False):
        text = below.value.value if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant) else None
        if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name) and isinstance(text, str):
            found[one.target.id] = paragraph(text)
    return found


def docstring(thing: object) -> str:
    """Return a docstring's first paragraph; "" without a docstring."""
    return paragraph((inspect.getdoc(thing) or "").split("\n\n")[0])


def paragraph(text: str) -> str:
    """Return text as one line, code marked as Markdown does."""
    one = re.sub(r":\w+:`~?([^`]+)`", r"`\1`", " ".join(text.split()))
    return one.replace("``", "`")


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table of Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(cell.replace('|', '&#124;') for cell in line)} |\n" for line in lines)
