"""Kernels of tools: a real venv and a real pip on a wheel made here, without a network."""

import asyncio
import json
import logging
import os
import subprocess
import sys

import pytest
from a_wheel import make_wheel
from jupyter_client.kernelspec import KernelSpecManager

from gpuspawner.workspace.home import packages as module
from gpuspawner.workspace.home.own_files import Notes
from gpuspawner.workspace.home.packages import TOOLS_VARIABLE, install_tool, selected_tools
from gpuspawner.workspace.home.start import begin

VERSION = f"{sys.version_info[0]}.{sys.version_info[1]}"


@pytest.fixture(scope="module")
def wheels(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheels")
    make_wheel(folder, "atool", "1.0", "ANSWER = 42")
    return folder


@pytest.fixture
def environ(tmp_path, wheels):
    (tmp_path / ".gpuspawner").mkdir()
    pip = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheels), "PIP_CONFIG_FILE": os.devnull}
    return {"HOME": str(tmp_path), "PATH": os.environ["PATH"], "GPUSPAWNER_LEASE_ID": "w", **pip}


def with_tools(environ, **packages):
    return {**environ, TOOLS_VARIABLE: json.dumps({"template": "lab", "tools": packages})}


def start(environ):
    """Do what a workspace does when it starts; return what was shown meanwhile, what is told, and its kernels."""
    notes, folders, seen = Notes(logging.getLogger("workspace")), [], []

    async def whole():
        task = begin(environ, notes, folders)
        while not task.done():
            seen.append(notes.busy)
            await asyncio.sleep(0.02)
        await task

    asyncio.run(whole())
    assert notes.busy == ""
    return list(dict.fromkeys(filter(None, seen))), notes.view()["notes"], KernelSpecManager(kernel_dirs=folders)


def test_a_selected_tool_becomes_a_kernel_once_and_is_found_again(environ, tmp_path):
    environ = with_tools(environ, mine=["atool==1.0"])
    shown, told, kernels = start(environ)
    assert (shown, told) == (["Installing the tool mine into your home…"], [])
    spec = kernels.get_kernel_spec("mine")
    assert spec.display_name == f"mine (Python {VERSION})"
    assert spec.argv[0].startswith(str(tmp_path / ".gpuspawner" / "tools" / "lab" / f"python{VERSION}" / "mine-"))
    assert environ["JUPYTER_PATH"] == str(tmp_path / spec.resource_dir).removesuffix("/kernels/mine")
    code = "import atool, ipykernel, sys; print(atool.ANSWER, sys.prefix)"
    run = subprocess.run([spec.argv[0], "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["42", spec.argv[0].removesuffix("/bin/python")]
    assert subprocess.run([sys.executable, "-c", "import atool"], capture_output=True, check=False).returncode

    shown, told, kernels = start({**environ, "PATH": "/nowhere", "PIP_FIND_LINKS": "/nowhere"})
    assert (shown, told, "mine" in kernels.find_kernel_specs()) == ([], [], True), "it is not made again"


def test_a_failure_is_reported_and_the_next_tool_is_made(environ, tmp_path):
    shown, told, kernels = start(with_tools(environ, lost=["no-such-package"], mine=["atool"]))
    assert shown == ["Installing the tool lost into your home…", "Installing the tool mine into your home…"]
    (failure,) = told
    assert failure.startswith(
        "The tool lost was not installed: exit code 1. The workspace goes on without it. "
        f"See ~/.gpuspawner/tools/lab/python{VERSION}/lost-"
    )
    assert "Its last line: ERROR: No matching distribution found for no-such-package" in failure
    assert set(kernels.find_kernel_specs()) - {"python3"} == {"mine"}
    below = tmp_path / ".gpuspawner" / "tools" / "lab" / f"python{VERSION}"
    assert not [one for one in below.glob("lost-*") if one.is_dir()], "what failed leaves its log alone"


def test_an_interrupted_install_is_made_again_and_another_list_is_kept_next_to_it(environ, tmp_path):
    (tool,) = selected_tools(with_tools(environ, mine=["atool"]), tmp_path / ".gpuspawner")
    tool.folder.mkdir(parents=True)
    (tool.folder / "bin").write_text("of a start that was cut off")
    assert asyncio.run(install_tool(tool, environ)).failure == ""
    assert tool.is_whole
    (other,) = selected_tools(with_tools(environ, mine=["atool", "more"]), tmp_path / ".gpuspawner")
    assert other.folder.parent == tool.folder.parent
    assert other.folder != tool.folder


def test_two_workspaces_of_one_home_make_it_once(environ, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "LOOK_SECONDS", 0.02)
    (tool,) = selected_tools(with_tools(environ, mine=["atool"]), tmp_path / ".gpuspawner")
    made = []

    async def counted(program, *_):
        made.append(program)
        await asyncio.sleep(0.2)
        if program[1:3] == ("-m", "venv"):
            (tool.folder / "lib" / f"python{VERSION}" / "site-packages").mkdir(parents=True)
        return module.Outcome("", "")

    monkeypatch.setattr(module, "run", counted)

    async def both():
        return await asyncio.gather(
            install_tool(tool, environ), install_tool(tool, environ), install_tool(tool, environ, 0.1)
        )

    assert [one.failure for one in asyncio.run(both())] == [
        "",
        "",
        "another workspace has been installing it for 0.1 s",
    ]
    assert len(made) == 2, "one venv, one pip"


def test_variables_that_no_spawner_sets_are_reported_and_the_workspace_starts(environ):
    for text in ("{", "[]", '{"template": 1, "tools": {}}', '{"template": "lab", "tools": {"x": 7}}'):
        shown, told, _ = start({**environ, TOOLS_VARIABLE: text})
        assert shown == []
        assert len(told) == 1, text
