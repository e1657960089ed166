"""Code that tests plant in hubs and services is text. A rename must not leave old names in it, slow tests included."""

import ast
import importlib
import re
from pathlib import Path

FOLDER = Path(__file__).parent
IMPORT = re.compile(r"^\s*from (gpuspawner[\w.]*) import ([\w, ]+)$", re.MULTILINE)


def imports_in_text():
    """Yield file and line of each text of a test that imports from the package, with module and names."""
    for file in FOLDER.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                for module, names in IMPORT.findall(node.value):
                    yield f"{file.relative_to(FOLDER)}:{node.lineno}", module, names


def is_there(module, name):
    try:
        return hasattr(importlib.import_module(module), name) or bool(importlib.import_module(f"{module}.{name}"))
    except ModuleNotFoundError:
        return False


def test_planted_code_imports_names_that_are_there():
    planted = list(imports_in_text())
    assert len(planted) > 20
    missing = [
        f"{where}: {module}.{name}"
        for where, module, names in planted
        for name in (word.strip().partition(" as ")[0] for word in names.split(","))
        if not is_there(module, name)
    ]
    assert missing == []
