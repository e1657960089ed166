"""Tables of wrong input and the words that refuse it, in text files beside their tests."""

from pathlib import Path

import pytest


def read_cases(file: Path) -> list:
    """Return (input, words) of each case as parameters. A case is the lines "# id", the input, and "=> words"."""
    cases = []
    for case in file.read_text(encoding="utf-8").split("\n\n"):
        name, _, rest = case.partition("\n")
        wrong, _, words = rest.rstrip("\n").rpartition("=> ")
        cases.append(pytest.param(wrong, words, id=name.removeprefix("# ")))
    return cases
