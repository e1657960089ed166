"""Parts are built once into the cache, whole or not at all: here with a stand-in for Go."""

import json
import os
import signal
import subprocess
import sys

import pytest
from nodes import ROOT, wait_for

from tools.cluster import build
from tools.cluster.recipes import Component
from tools.progress import StepError

pytestmark = pytest.mark.slow

PART = Component("part", "example.org/part", "1.0.0", ("one", "two"), staging="0.1.0", link=("example.org/part.v=1",))
GO = """#!/bin/sh
echo "$@" >>"{log}"
case $1 in
env) echo go1.99.1 ;;
mod) echo '{module}' ;;
build) sleep "$(cat {seconds})"; [ -z "$FAIL" ] || { echo no such package; exit 1; }
    while [ "$1" != -o ]; do shift; done; echo program >"$2/one" ;;
esac
"""
ENSURE = "from test_build import PART; from tools.cluster.build import ensure_component; print(ensure_component(PART))"


@pytest.fixture
def go(tmp_path, monkeypatch):
    """A Go that takes a moment; the test reads what it was asked in its log."""
    module = tmp_path / "module"
    module.mkdir()
    (module / "go.mod").write_text(
        "module part\nrequire (\n\tk8s.io/api v0.0.0\n\tk8s.io/utils v0.1.0\n)\n"
        "replace k8s.io/cri => ./staging/src/cri\n"
    )
    (module / "go.sum").write_text("sums\n")
    log, seconds = tmp_path / "log", tmp_path / "seconds"
    seconds.write_text("0")
    answer = json.dumps({"GoMod": str(module / "go.mod"), "Dir": str(module)})
    program = tmp_path / "bin" / "go"
    program.parent.mkdir()
    text = GO.replace("{log}", str(log)).replace("{module}", answer).replace("{seconds}", str(seconds))
    program.write_text(text)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("GPUSPAWNER_CACHE", str(tmp_path / "cache"))
    return tmp_path


def builds(go):
    return [line for line in (go / "log").read_text().splitlines() if line.startswith("build")]


def test_a_part_is_built_once_from_its_pinned_modules(go):
    programs = build.ensure_component(PART)
    assert build.ensure_component(PART) == programs == go / "cache" / PART.folder / "bin"
    assert (programs / "one").read_text() == "program\n"
    (asked,) = builds(go)
    assert asked.endswith("-X example.org/part.v=1 example.org/part/cmd/one example.org/part/cmd/two")
    wrapper = (programs.parent / "go.mod").read_text()
    assert "require example.org/part v1.0.0" in wrapper
    assert "replace k8s.io/api => k8s.io/api v0.1.0\nreplace k8s.io/cri => k8s.io/cri v0.1.0\n" in wrapper
    assert (programs.parent / "go.sum").read_text() == "sums\n"


def test_parts_that_are_built_together_get_the_same_versions_and_one_apart_its_own(go, monkeypatch):
    beside, apart = (Component(name, f"example.org/{name}", "2.0.0", ("one",)) for name in ("beside", "apart"))
    monkeypatch.setattr(build, "TOGETHER", (PART, beside))
    wrappers = [(build.ensure_component(one).parent / "go.mod").read_text() for one in (PART, beside, apart)]
    assert wrappers[0] == wrappers[1]
    assert "require example.org/part v1.0.0\n" in wrappers[1]
    assert "require example.org/beside v2.0.0" in wrappers[0]
    assert wrappers[2].splitlines()[2:] == ["require example.org/apart v2.0.0"]


def test_shared_build_files_are_removed_at_the_end_but_not_during_a_build(go):
    shared = go / "cache" / "go" / "mod"
    shared.mkdir(parents=True)
    with build.one_at_a_time("part"):
        build.forget_sources()
        assert shared.exists()
    build.ensure_component(PART)
    assert shared.exists()
    build.forget_sources()
    assert not shared.exists()


def test_another_recipe_is_another_folder():
    other = Component(
        "part", "example.org/part", "1.0.0", ("one", "two"), staging="0.1.0", link=("example.org/part.v=2",)
    )
    assert other.folder != PART.folder


def test_a_build_that_was_killed_leaves_nothing_half_and_the_next_one_is_whole(go):
    (go / "seconds").write_text("60")
    paths = f"{ROOT}:{ROOT / 'tests' / 'cluster'}"
    first = subprocess.Popen(
        [sys.executable, "-c", ENSURE], env={**os.environ, "PYTHONPATH": paths}, start_new_session=True
    )
    wait_for(lambda: (go / "log").exists() and builds(go), "the build began")
    os.killpg(first.pid, signal.SIGKILL)
    first.wait()
    assert not (go / "cache" / PART.folder).exists()
    (go / "seconds").write_text("0")
    assert (build.ensure_component(PART) / "one").exists()
    assert [path.name for path in (go / "cache").iterdir() if "partial" in path.name] == []


def test_two_at_once_build_once(go):
    (go / "seconds").write_text("2")
    paths = f"{ROOT}:{ROOT / 'tests' / 'cluster'}"
    both = [
        subprocess.Popen(
            [sys.executable, "-c", ENSURE], env={**os.environ, "PYTHONPATH": paths}, stdout=subprocess.PIPE
        )
        for _ in range(2)
    ]
    said = [process.communicate()[0].decode() for process in both]
    assert all(str(go / "cache" / PART.folder / "bin") in text for text in said)
    assert len(builds(go)) == 1


def test_a_failure_keeps_its_log_and_says_what_to_do(go, monkeypatch):
    monkeypatch.setenv("FAIL", "1")
    with pytest.raises(StepError, match=r"part 1\.0\.0 could not be built.*Then run it again") as caught:
        build.ensure_component(PART)
    assert caught.value.log.read_text() == "no such package\n"
    assert not (go / "cache" / PART.folder).exists()


def test_a_long_build_says_how_long_it_runs_and_what_it_is_at(go, monkeypatch, capsys):
    monkeypatch.setattr(build, "PROGRESS_SECONDS", 0.5)
    build.run_with_progress("part", ["sh", "-c", "echo compiling; sleep 1.5"], go / "build.log")
    assert "part: 1 s, step 1: compiling" in capsys.readouterr().out
