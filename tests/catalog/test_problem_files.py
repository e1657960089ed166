"""Files and other sources that are not a catalog."""

from pathlib import Path

import pytest

from gpuspawner.catalog import check

# Whole files.
ANCHORS = (
    "anchors and aliases (& and *) are not read. Put text that begins with * or & in quotes; write an entry out, or "
    "use `extends`."
)
FILES = {
    "empty": (
        "# nothing yet\n",
        "1 version: missing. Begin the file with version: 1.",
        "1 templates: the catalog is empty. Write at least one, for example templates: {lab: {gpus: {a100: 1}}}.",
    ),
    "a list": ("- a\n", "1 catalog: ['a'] is not a mapping. Write keys and values, for example version: 1."),
    "another version": ("version: 2\ntemplates: {lab: }\n", "1 version: version 2 is not known. Write version: 1."),
    "no templates": (
        "version: 1\ntemplates:\n",
        (
            "2 templates: missing, or without a template. "
            "Write at least one, for example templates: {lab: {gpus: {a100: 1}}}."
        ),
    ),
    "a tab": (
        "version: 1\ntemplates:\n\tlab: {}\n",
        "3 catalog: there is a tab where YAML needs spaces. Indent with spaces.",
    ),
    "an open bracket": (
        "version: 1\ntemplates: {lab: {}\nquotas: {}\n",
        (
            "3 catalog: not YAML: expected ',' or '}', but got '<scalar>'. "
            "Check quotes, colons, brackets and indentation here and on the line before."
        ),
    ),
    "an anchor": ("version: 1\ntemplates:\n  lab: &lab {}\n  b: *lab\n", f"3 catalog: {ANCHORS}"),
    "a pattern without its quotes": ("version: 1\ngpus: {t4: {memory: 16GiB, match: *T4}}\n", f"2 catalog: {ANCHORS}"),
    "a bomb": ("a: &a [x, x]\n" + "".join(f"b{i}: &b{i} [*a, *a]\n" for i in range(30)), f"1 catalog: {ANCHORS}"),
    "a tag": (
        "version: !!python/object/apply:os.system [exit]\n",
        "1 catalog: tags (!) are not read. Write the plain value; put text that begins with ! in quotes.",
    ),
    "a second document": (
        "version: 1\ntemplates: {lab: }\n---\nversion: 1\n",
        "3 catalog: a second document begins here. Remove the line `---` and what follows.",
    ),
    "a pit": (
        "version: 1\ntemplates: " + "[" * 100_000,
        "2 catalog: nested more than 12 levels deep. Compare with hub_config/catalog.yaml.",
    ),
    "an impossible escape": (
        'version: "\\UFFFFFFFF"\n',
        "1 catalog: not YAML: an escape or directive holds an impossible number. Remove it.",
    ),
    "a control character": ("version: 1\nx: \x07\n", "2 catalog: character '\\x07' is not allowed in YAML. Remove it."),
}


@pytest.mark.parametrize(("text", "problems"), [pytest.param(c[0], list(c[1:]), id=n) for n, c in FILES.items()])
def test_promise_10_a_file_that_is_wrong_is_refused(text, problems, problems_of):
    assert problems_of(text) == problems


def test_promise_10_a_file_that_cannot_be_read_is_refused(tmp_path: Path):
    latin, large = tmp_path / "latin.yaml", tmp_path / "large.yaml"
    latin.write_bytes(b"version: 1\n# caf\xe9\n")
    large.write_bytes(b"#" * 10_000_000)
    found = [
        str(problem) for path in (latin, large, tmp_path, tmp_path / "none", "no\0name") for problem in check(path)
    ]
    assert [line.replace(f"{tmp_path}", "") for line in found] == [
        "/latin.yaml:2: catalog: not UTF-8 text. Save the file in UTF-8.",
        "/large.yaml: catalog: larger than 256 KiB. Shorten it: `extends` repeats an entry in a line.",
        ": catalog: not a file. Name the catalog's YAML file.",
        "/none: catalog: no such file. Name the catalog's YAML file, or copy hub_config/catalog.yaml to begin one.",
        "'no\\x00name': catalog: cannot be read: embedded null byte. Make it readable for the user that runs the hub.",
    ]


@pytest.mark.parametrize("source", [None, 3, ["c.yaml"], b"c.yaml"])
def test_promise_10_other_objects_are_refused(source):
    (problem,) = check(source)
    assert "neither a path nor a dict" in problem.wrong


def test_promise_10_a_dict_is_refused_by_its_entry():
    catalog = {"version": True, 7: {}, "templates": {"lab": {"gpus": {"a100": object()}}}, "policies": {"\ud800": {}}}
    catalog["templates"]["loop"] = catalog
    found = [str(problem) for problem in check(catalog)]
    assert all(line.startswith("configure(catalog=...): ") for line in found)
    assert {line.split(": ")[1] for line in found} == {
        "version",
        "7",
        "templates.lab.gpus.a100",
        "policies.\\ud800",
        *(f"templates.loop.{key}" for key in ("version", "7", "templates", "policies")),
    }
