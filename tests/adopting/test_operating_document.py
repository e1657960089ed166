"""The commands and configurations of docs/operating.md on adopting, backups and TLJH: run where they can be."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import requests
from harness.fork_server import run_python, start_python
from harness.hub import REPO, RealHub, eventually

from gpuspawner.cli import main

DOCUMENT = (REPO / "docs" / "operating.md").read_text()
SECTIONS = dict(re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", DOCUMENT, re.MULTILINE | re.DOTALL))
TLJH = "The Littlest JupyterHub"
TESTED = ("Restarts and upgrades", "Backup and restore", "Adopting a hub that runs", TLJH)


def commands(section):
    """The lines that are meant to be typed."""
    return re.findall(r"^    (\S.*)$", SECTIONS[section], re.MULTILINE)


@pytest.mark.parametrize("section", TESTED)
def test_each_gpuspawner_command_of_the_document_is_one(section, capsys):
    found = [shlex.split(line) for line in commands(section) if "gpuspawner " in line and " install " not in line]
    assert found
    for words in found:
        start = next(n for n, word in enumerate(words) if word.endswith("gpuspawner") and "/config" not in word)
        arguments = [word for word in words[start + 1 :] if word != ">"]
        if (arguments and words[0] not in {"sed", "sudo"}) or "gpuspawner" in words[1]:
            assert main([*_command(arguments), "--help"]) == 0
            helped = capsys.readouterr().out
            for option in (word for word in arguments if word.startswith("--")):
                assert option in helped, f"{option} of {words}"


def _command(arguments):
    return arguments[: 3 if arguments[:2] == ["server", "store"] else 2]


class LittleHub(RealHub):
    """A hub whose configuration loads another first, as TLJH's does here, and its service by its unit's command."""

    service = None
    snippet = ""

    def config(self) -> str:
        (self.folder / "its_own_config.py").write_text(super().config())
        own = f'load_subconfig("{self.folder}/its_own_config.py")\n'
        snippet = self.put(self.snippet).replace("import tljh\n", "")
        return re.sub(r"^load_subconfig\(.*\n", own, snippet, flags=re.MULTILINE) or own

    def put(self, text):
        """What the document says, with this hub's paths and ports."""
        here = {"/opt/tljh/config": f"{self.folder}/config"}
        here |= {":9470": f":{self.service_port}", ":15001": f":{self.hub_port}"}
        for written, own in here.items():
            text = text.replace(written, own)
        return text

    def start_service(self, command):
        words = shlex.split(self.put(command))
        assert words[0] == "/opt/tljh/hub/bin/gpuspawner"
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("JUPYTERHUB_", "GPUSPAWNER_"))}
        more = [f"--service-url=http://127.0.0.1:{self.service_port}"]
        with (self.folder / "service.log").open("ab") as log:
            self.service = start_python(
                [sys.executable, "-m", "gpuspawner.cli", *words[1:], *more],
                env={**environment, "PYTHONPATH": str(REPO)}, stdout=log, stderr=log, cwd=self.folder,
            )  # fmt: skip

    def close(self):
        super().close()
        if self.service is not None:
            self.service.kill()
            self.service.wait()


def unit_of_tljh(folder):
    """The unit that the document's sed makes of hub_config/gpuspawner.service."""
    line = next(line for line in commands(TLJH) if line.startswith("sed "))
    words = shlex.split(line.partition(" | ")[0])
    unit = str(REPO / "hub_config" / words[-1])
    made = subprocess.run([*words[:-1], unit], capture_output=True, text=True, timeout=20, check=True, cwd=folder)
    return re.sub(r"\\\n\s*", "", made.stdout)


def test_tljh_as_the_document_has_it_is_installed_and_left_and_the_server_goes_on(tmp_path):
    snippet = re.search(r"```python\n(.*?)```", SECTIONS[TLJH], re.DOTALL)[1]
    unit = unit_of_tljh(tmp_path)
    assert "/srv/jupyterhub" not in unit
    command = re.search(r"^ExecStart=(.*)$", unit, re.MULTILINE)[1]
    hub = LittleHub(tmp_path, configured=False)
    hub.snippet = snippet
    (tmp_path / "config" / "gpu").mkdir(parents=True)
    (tmp_path / "config" / "gpu" / "catalog.yaml").write_text(hub.catalog.read_text())
    try:
        hub.start_service(command)
        hub.start()
        eventually(lambda: hub.gpu("/"), 90, "the service answers behind its hub")
        hub.add_user("ada")
        eventually(lambda: hub.begin("ada").status_code in {201, 202}, 60, "ada starts")
        lease = hub.until("ada", "running")
        assert lease["gpus"], "she has a GPU"
        doctor = next(line for line in commands(TLJH) if " doctor " in line)
        words = shlex.split(hub.put(doctor))[2:]
        here = [sys.executable, "-m", "gpuspawner.cli", *words, "--service", f"http://127.0.0.1:{hub.service_port}"]
        told = run_python(here, cwd=REPO)
        assert told.returncode == 0, told.stdout + told.stderr

        url = f"{hub.url}{hub.server('ada')['url']}"
        hub.snippet = ""
        hub.terminate_hub()
        hub.start_hub()
        hub.service.terminate()
        assert hub.service.wait(60) == 0
        eventually(lambda: hub.server("ada")["ready"], 30, "the server goes on without gpuspawner")
        assert requests.get(url, timeout=20, allow_redirects=False).status_code < 500
    finally:
        hub.close()
        for pid in servers_in(tmp_path):
            os.kill(pid, 9)


def servers_in(folder):
    """Processes whose own folder is below this one: the data folder by which the harness finds them is elsewhere."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if str((process / "cwd").readlink()).startswith(str(folder / "homes")):
                found.append(int(process.name))
        except OSError:
            continue
    return found


def test_adopting_and_backups_run_as_the_document_has_them(tmp_path):
    (tmp_path / "values.yaml").write_text("singleuser: {profileList: [{display_name: Lab}]}\n")
    path = f"PATH={tmp_path}/bin:/usr/bin:/bin"
    (tmp_path / "bin").mkdir()
    tool = tmp_path / "bin" / "gpuspawner"
    tool.write_text(f'#!/bin/sh\nPYTHONPATH={REPO} exec {sys.executable} -m gpuspawner.cli "$@"\n')
    tool.chmod(0o755)
    (tmp_path / "gpuspawner-data").mkdir()
    make = (
        "from gpuspawner.service.store import Store; s = Store('sqlite:///gpuspawner-data/gpuspawner.sqlite'); s.open()"
    )
    subprocess.run([sys.executable, "-c", make], cwd=tmp_path, env={"PYTHONPATH": str(REPO)}, check=True, timeout=60)
    lines = [line for section in TESTED[:3] for line in commands(section) if line.startswith("gpuspawner ")]
    assert len(lines) == 6
    for line in [one for one in lines if " doctor " not in one]:
        shell = ["/bin/sh", "-c", f"{path} {line}"]
        told = subprocess.run(shell, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
        assert told.returncode == 0, (line, told.stdout, told.stderr)
    assert {"catalog.yaml", "profiles.yaml", "gpu.tar"} <= {path.name for path in tmp_path.iterdir()}
