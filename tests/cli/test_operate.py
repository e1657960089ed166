"""``gpuspawner kube operate`` names options and files with which it cannot start."""

import pytest

from gpuspawner.cli.errors import INVALID
from gpuspawner.cli.main import main

GOOD = "namespace: jhub\ncustom_resources: jhub\noperated_elsewhere: true\n"


@pytest.fixture
def files(tmp_path):
    (tmp_path / "secret").write_text("5e" * 32)
    (tmp_path / "no-secret").write_text("not hexadecimal")
    (tmp_path / "good").write_text(GOOD)
    (tmp_path / "no-yaml").write_text("{")
    (tmp_path / "list").write_text("- namespace")
    (tmp_path / "unknown").write_text(f"{GOOD}custom_resource: jhub\n")
    (tmp_path / "no-namespace").write_text("namespace: jhub\n")
    return tmp_path


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("--secret-file", "absent", "--secret-file: {} cannot be read: No such file or directory. Name a file"),
        ("--secret-file", "no-secret", "--secret-file: {} holds no secret of 64 hexadecimal digits"),
        ("--cluster", "absent", "--cluster: {} cannot be read: No such file or directory. Name a file"),
        ("--cluster", "no-yaml", "--cluster: {} is not YAML of names and values"),
        ("--cluster", "list", "--cluster: {} is not YAML of names and values"),
        ("--cluster", "unknown", "--cluster: {}: custom_resource: no such setting of the cluster; there are"),
        ("--cluster", "no-namespace", "--cluster: {} names no namespace: add custom_resources: NAMESPACE"),
        ("--service-url", "ftp://gpuspawner:9470", "--service-url ftp://gpuspawner:9470 is not an http address"),
        ("--listen", "banana", "--listen banana is not an address with a port. Write it like"),
    ],
)
def test_an_impossible_argument_is_named_with_a_correct_one(files, capsys, option, value, words):
    of_file = option in {"--secret-file", "--cluster"}
    options = {
        "--service-url": "http://127.0.0.1:9",
        "--secret-file": str(files / "secret"),
        "--cluster": str(files / "good"),
        option: str(files / value) if of_file else value,
    }
    assert main(["kube", "operate", *(f"{name}={one}" for name, one in options.items())]) == INVALID
    assert capsys.readouterr().err.startswith(f"gpuspawner kube operate: {words.format(files / value)}")
