"""How many small faults the in-process tests find: a mutation score on a random sample.

    python -m tools.mutation            300 faults in core, service/engine, schedulers and the probe; hours on two cores
    python -m tools.mutation --count 20 --seed 7

First every in-process test runs once with coverage, which tells the tests of each line. Then each fault is written into
a copy of the checkout, and the tests of its line run until one fails. The survivors are listed with their lines.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools.install import ROOT, VENV
from tools.progress import say

TARGETS = (
    "gpuspawner/core",
    "gpuspawner/service/engine",
    "gpuspawner/schedulers",
    "gpuspawner/backends/probes/script.py",
    "gpuspawner/backends/probes/gpu_tools.py",
    "gpuspawner/backends/probes/activity.py",
)
TESTS = ("tests/core", "tests/catalog", "tests/service", "tests/schedulers", "tests/backends", "tests/spawner")
NOT_MUTATED = {"__repr__", "__str__", "__hash__"}
TESTS_OF_A_LINE = 60
"""How many tests run for a fault: those that run the fewest lines, as they look most closely."""
SECONDS_FOR_A_FAULT = 240
COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult, ast.Mod: ast.Mult,
}  # fmt: skip
FUNCTIONS = {"min": "max", "max": "min", "any": "all", "all": "any"}


@dataclass(frozen=True)
class Mutant:
    """A small fault: ``text`` takes the place of an expression from ``start`` to ``end`` (line, byte column)."""

    path: str
    start: tuple[int, int]
    end: tuple[int, int]
    text: str

    def applied(self, source: str) -> str:
        """Return the source with the fault."""
        lines = source.encode().splitlines(keepends=True)
        (first, begin), (last, stop) = self.start, self.end
        changed = lines[first - 1][:begin] + self.text.encode() + lines[last - 1][stop:]
        return b"".join([*lines[: first - 1], changed, *lines[last:]]).decode()

    def __str__(self) -> str:
        return f"{self.path}:{self.start[0]}: {self.text}"


def mutants_of(path: str, source: str) -> Iterator[Mutant]:
    """Yield every fault that a file can have."""
    tree = ast.parse(source)
    for node in _visible_nodes(tree):
        for changed in _variants(node):
            start = (node.lineno, node.col_offset)
            end = (node.end_lineno or node.lineno, node.end_col_offset or 0)
            yield Mutant(path, start, end, f"({ast.unparse(changed)})")


def _visible_nodes(tree: ast.AST) -> Iterator[ast.expr]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name in NOT_MUTATED:
            continue
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        if isinstance(node, ast.arg):
            continue
        if isinstance(node, ast.AnnAssign):
            if node.value is not None:
                yield from _visible_nodes(ast.Expr(node.value))
            continue
        if isinstance(node, ast.JoinedStr):
            continue  # messages
        if isinstance(node, ast.expr):
            yield node
        yield from _visible_nodes(node)


def _variants(node: ast.expr) -> Iterator[ast.expr]:
    match node:
        case ast.Compare(left, [op], comparators) if type(op) in COMPARISONS:
            yield ast.Compare(left, [COMPARISONS[type(op)]()], comparators)
        case ast.BinOp(left, op, right) if type(op) in OPERATORS:
            yield ast.BinOp(left, OPERATORS[type(op)](), right)
        case ast.BoolOp(op, values):
            yield ast.BoolOp(ast.Or() if isinstance(op, ast.And) else ast.And(), values)
        case ast.UnaryOp(ast.Not(), operand):
            yield operand
        case ast.IfExp(test, body, orelse):
            yield ast.IfExp(test, orelse, body)
        case ast.Constant(bool() as value):
            yield ast.Constant(not value)
        case ast.Constant(int() | float() as value):
            yield ast.Constant(value + 1)
        case ast.Call(ast.Name(name), arguments, keywords) if name in FUNCTIONS:
            yield ast.Call(ast.Name(FUNCTIONS[name]), arguments, keywords)


def sample(count: int, seed: int, root: Path = ROOT) -> list[Mutant]:
    """Return ``count`` faults of TARGETS, drawn with this seed."""
    files = sorted(file for target in TARGETS for file in _python_files(root / target))
    every = [one for file in files for one in mutants_of(str(file.relative_to(root)), file.read_text())]
    return random.Random(seed).sample(every, min(count, len(every)))


def _python_files(path: Path) -> Iterator[Path]:
    yield from [path] if path.is_file() else path.rglob("*.py")


def tests_by_line(folder: Path, marker: str) -> dict[str, dict[int, list[str]]]:
    """Run the in-process tests with coverage. Return the tests of each line, by file, the most specific test first."""
    database, report = folder / "coverage", folder / "report.xml"
    settings = folder / "coveragerc"
    settings.write_text(f"[run]\nsource = gpuspawner\ndata_file = {database}\n")
    command: list[str | Path] = [
        VENV / "bin" / "python",
        "-m",
        "pytest",
        "-q",
        "-n",
        "2",
        "--dist=loadfile",
        "-m",
        marker,
        *TESTS,
    ]
    command += ["--cov", "--cov-context=test", f"--cov-config={settings}", "--cov-report=", f"--junit-xml={report}"]
    subprocess.run(command, check=False, cwd=ROOT, env=_environment({"COVERAGE_FILE": str(database)}))
    import coverage  # noqa: PLC0415 - of the environment that the tests are in

    data = coverage.CoverageData(str(database))
    data.read()
    by_file = {str(Path(file).relative_to(ROOT)): data.contexts_by_lineno(file) for file in data.measured_files()}
    breadth = Counter(one for lines in by_file.values() for contexts in lines.values() for one in contexts)
    return {
        file: {
            line: list(dict.fromkeys(one.partition("|")[0] for one in sorted(contexts, key=breadth.__getitem__) if one))
            for line, contexts in lines.items()
        }
        for file, lines in by_file.items()
    }


def _environment(more: dict[str, str]) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, "PATH": f"{VENV / 'bin'}:{os.environ['PATH']}", **more}


def is_found(mutant: Mutant, tests: Sequence[str], copy: Path) -> bool:
    """Return whether one of these tests fails with the fault in a copy of the checkout."""
    file = copy / mutant.path
    original = file.read_text()
    try:
        file.write_text(mutant.applied(original))
        command: list[str | Path] = [VENV / "bin" / "python", "-m", "pytest", "-qx", "-p", "no:cacheprovider", *tests]
        env = _environment({"PYTHONPATH": str(copy)})
        try:
            run = subprocess.run(
                command, check=False, cwd=copy, env=env, capture_output=True, timeout=SECONDS_FOR_A_FAULT
            )
        except subprocess.TimeoutExpired:
            return True
        return run.returncode != 0
    finally:
        file.write_text(original)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the score and the survivors."""
    parser = argparse.ArgumentParser(prog="python -m tools.mutation", description=__doc__.partition("\n")[0])
    parser.add_argument("--count", type=int, default=300, help="faults to draw; default: 300")
    parser.add_argument("--seed", type=int, default=40, help="of the draw; default: 40")
    parser.add_argument("--marker", default="not slow", help='the tests that count; default: "not slow"')
    parser.add_argument("--lines", type=Path, help="keep the tests of each line in this file, and use it if it exists")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if options.lines and options.lines.exists():
            lines = {
                f: {int(n): t for n, t in found.items()} for f, found in json.loads(options.lines.read_text()).items()
            }
        else:
            lines = tests_by_line(folder, options.marker)
            if options.lines:
                options.lines.write_text(json.dumps(lines))
        drawn = sample(options.count, options.seed)
        copies = [_copied(folder / str(number)) for number in range(2)]

        def judge(number: int) -> list[tuple[Mutant, bool]]:
            return [(one, _judge(one, lines, copies[number])) for one in drawn[number :: len(copies)]]

        with ThreadPoolExecutor(len(copies)) as pool:
            judged: list[tuple[Mutant, bool]] = [one for part in pool.map(judge, range(len(copies))) for one in part]
    found = sum(was_found for _, was_found in judged)
    say(f"Found {found} of {len(judged)} faults: {100 * found / len(judged):.1f} %. The others:")
    for mutant in sorted(str(one) for one, was_found in judged if not was_found):
        say(f"  {mutant}")
    return 0


def _judge(mutant: Mutant, lines: dict[str, dict[int, list[str]]], copy: Path) -> bool:
    of_file: dict[int, list[Any]] = lines.get(mutant.path, {})
    tests = next((of_file[line] for line in range(mutant.start[0], mutant.end[0] + 1) if of_file.get(line)), [])
    was_found = bool(tests) and is_found(mutant, tests[:TESTS_OF_A_LINE], copy)
    say(f"{'found   ' if was_found else 'survived'}  {mutant}")
    return was_found


def _copied(folder: Path) -> Path:
    for part in (
        "gpuspawner",
        "tests",
        "tools",
        "demo",
        "bench",
        "docs",
        "helm",
        "images",
        "hub_config",
        "pyproject.toml",
    ):
        source = ROOT / part
        if source.is_dir():
            shutil.copytree(source, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, folder / part)
    return folder


if __name__ == "__main__":
    sys.exit(main())
