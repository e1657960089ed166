"""Print the size of the code: `python -m tools.size [--json] [FOLDER ...]` (default: gpuspawner).

A statement is a node of the syntax tree that Python calls a statement. Code statements leave out docstrings and
imports, which say nothing about how much the code does.
"""

import argparse
import ast
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path

ROOT = Path(__file__).parents[1]


@dataclass
class Size:
    """The size of some Python files, as sums."""

    files: int = 0
    lines: int = 0
    statements: int = 0
    code_statements: int = 0
    """Statements without docstrings and imports."""
    classes: int = 0
    functions: int = 0

    def add(self, other: "Size") -> None:
        """Add the figures of other files to these."""
        for field in fields(self):
            setattr(self, field.name, getattr(self, field.name) + getattr(other, field.name))


def measure_source(source: str) -> Size:
    """Return the size of one module from its source."""
    size = Size(files=1, lines=source.count("\n"))
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.stmt):
            continue
        size.statements += 1
        size.classes += isinstance(node, ast.ClassDef)
        size.functions += isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        size.code_statements += not _says_nothing(node)
    return size


def _says_nothing(node: ast.stmt) -> bool:
    if isinstance(node, ast.Import | ast.ImportFrom):
        return True
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def measure_folder(folder: Path) -> Size:
    """Return the size of all Python files below a folder."""
    total = Size()
    for path in sorted(folder.rglob("*.py")):
        total.add(measure_source(path.read_text(encoding="utf-8")))
    return total


def packages_of(folder: Path) -> Iterator[tuple[str, Size]]:
    """Yield name and size of each package directly in a folder, then of the modules in the same folder."""
    loose = Size()
    for path in sorted(folder.iterdir()):
        if path.is_dir() and any(path.rglob("*.py")):
            yield path.name, measure_folder(path)
        elif path.suffix == ".py":
            loose.add(measure_source(path.read_text(encoding="utf-8")))
    if loose.files:
        yield "(modules)", loose


def main() -> None:
    """Measure the folders named on the command line."""
    parser = argparse.ArgumentParser(prog="python -m tools.size", description="Print the size of the code.")
    parser.add_argument("folders", nargs="*", default=["gpuspawner"], metavar="FOLDER")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    arguments = parser.parse_args()
    folders = [ROOT / folder for folder in arguments.folders]
    for folder in folders:
        if not folder.is_dir():
            parser.error(f"{folder} is no folder")
    tables = {folder.name: [*packages_of(folder), ("all", measure_folder(folder))] for folder in folders}
    if arguments.json:
        print(json.dumps({name: {row: asdict(size) for row, size in rows} for name, rows in tables.items()}, indent=2))
        return
    for name, rows in tables.items():
        titles = [field.name.replace("_", " ") for field in fields(Size)]
        print(f"{name:<16}" + "".join(f"{title:>17}" for title in titles))
        for row, size in rows:
            print(f"  {row:<14}" + "".join(f"{getattr(size, field.name):>17,}" for field in fields(Size)))


if __name__ == "__main__":
    main()
