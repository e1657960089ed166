"""Tests of the figures that describe the size of the code."""

import textwrap

from tools.size import Size, measure_folder, measure_source, packages_of


def test_docstrings_and_imports_are_statements_but_no_code_statements():
    source = textwrap.dedent('''\
        """A module."""
        import os

        class Lamp:
            """A class."""

            def light(self):
                """A function."""
                from sys import argv
                return os, argv
        ''')
    assert measure_source(source) == Size(files=1, lines=10, statements=8, code_statements=3, classes=1, functions=1)


def test_each_package_is_measured_and_the_sum_is_that_of_the_folder(tmp_path):
    for name, source in {"one/a.py": "x = 1\n", "two/b.py": "class B:\n    pass\n", "c.py": "\n\n"}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(source)
    (tmp_path / "empty").mkdir()
    packages = dict(packages_of(tmp_path))
    assert {name: size.statements for name, size in packages.items()} == {"one": 1, "two": 2, "(modules)": 0}
    total = Size()
    for size in packages.values():
        total.add(size)
    assert total == measure_folder(tmp_path)
    assert total.lines == 5
