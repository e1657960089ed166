"""The last layer of an image: this checkout's package, compiled."""

import subprocess
import sys
import tarfile

from tools.cluster.layers import write_layer

RUNS = f"{sys.version_info.major}.{sys.version_info.minor}"


def names(layer):
    with tarfile.open(layer.file) as stream:
        return [entry.name for entry in stream]


def test_modules_are_compiled_for_the_python_that_runs_here_and_the_bytes_are_the_same_each_time(tmp_path):
    source = tmp_path / "source"
    source.mkdir()
    (source / "one.py").write_text("def told():\n    return __file__, {'a', 'b', 'c'} == {*'abc'}\n")
    (source / "text.txt").write_text("text")
    files = {"opt/one": source}
    layer = write_layer(tmp_path / "layer.tar", files, RUNS)
    tag = sys.implementation.cache_tag
    assert names(layer) == ["opt/one/one.py", f"opt/one/__pycache__/one.{tag}.pyc", "opt/one/text.txt"]
    script = "import sys; from pathlib import Path; from tools.cluster.layers import write_layer; "
    script += f"print(write_layer(Path(sys.argv[1]), {{'opt/one': Path(sys.argv[2])}}, {RUNS!r}).digest)"
    again = subprocess.run(
        [sys.executable, "-c", script, tmp_path / "again.tar", source], check=True, capture_output=True, text=True
    )
    assert again.stdout.strip() == layer.digest

    (tmp_path / "root").mkdir()
    subprocess.run(["tar", "--extract", f"--file={layer.file}", f"--directory={tmp_path / 'root'}"], check=True)
    (tmp_path / "root" / "opt" / "one" / "one.py").write_text("raise AssertionError('its source is not asked')")
    told = "import one; assert one.told() == (sys.argv[1] + '/one.py', True), one.told()"
    folder = str(tmp_path / "root" / "opt" / "one")
    command = [sys.executable, "-c", f"import sys; sys.path.insert(0, sys.argv[1]); {told}", folder]
    subprocess.run(command, check=True)


def test_for_another_python_nothing_is_compiled(tmp_path):
    (tmp_path / "one.py").write_text("")
    layer = write_layer(tmp_path / "layer.tar", {"opt/one.py": tmp_path / "one.py"}, "3.0")
    assert names(layer) == ["opt/one.py"]
