"""The commands of the tutorials for The Littlest JupyterHub and for one server run as they are written."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import requests
import yaml
from harness import pages
from harness.fork_server import run_python, start_python
from harness.hub import REPO, RealHub, eventually

TLJH = pages.page("tutorials/tljh")
LINES = pages.commands(TLJH)


class LittleHub(RealHub):
    """A hub whose configuration first loads another one, as TLJH does. Its service runs by the command of its unit."""

    service = None
    snippet = ""

    def config(self) -> str:
        (self.folder / "its_own_config.py").write_text(super().config())
        own = f'load_subconfig("{self.folder}/its_own_config.py")\n'
        snippet = self.put(self.snippet).replace("import tljh\n", "")
        return re.sub(r"^load_subconfig\(.*\n", own, snippet, flags=re.MULTILINE) or own

    def put(self, text):
        """Return the tutorial's text with this hub's paths and ports."""
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


class ServerHub(RealHub):
    """A hub that ends its configuration with the lines of a page, on a port of its own and faster."""

    snippet = ""

    def config(self) -> str:
        lines = self.snippet.replace("/srv/jupyterhub", f"{self.folder}/config")
        faster = "" if "fast=" in lines else ", fast=8"
        return super().config() + re.sub(r"\)$", f", port={self.service_port}{faster})", lines.strip())


def unit_of_tljh():
    """Return the unit that the tutorial's sed makes of hub_config/gpuspawner.service."""
    (line,) = [line for line in LINES if line.startswith("sed ")]
    words = shlex.split(line.partition(" | ")[0])
    made = subprocess.run(words, capture_output=True, text=True, timeout=20, check=True, cwd=REPO)
    return re.sub(r"\\\n\s*", "", made.stdout)


def test_tljh_as_the_tutorial_has_it_reclaims_a_gpu_and_is_left_and_the_server_goes_on(tmp_path):
    (snippet,) = pages.blocks(TLJH, "python")
    (trial,) = pages.blocks(TLJH, "yaml")
    unit = unit_of_tljh()
    assert "/srv/jupyterhub" not in unit
    command = re.search(r"^ExecStart=(.*)$", unit, re.MULTILINE)[1]
    hub = LittleHub(tmp_path, configured=False)
    hub.snippet = snippet
    write_trial(hub, trial, tmp_path / "config" / "gpu")
    try:
        hub.start_service(f"{command} --fast 8")
        hub.start()
        eventually(lambda: hub.gpu("/"), 90, "the service answers behind its hub")
        start_and_reclaim(hub, ada="lab", bob="trial")
        (doctor,) = [line for line in LINES if " doctor " in line]
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


def test_one_server_as_the_tutorial_has_it_reclaims_a_gpu_and_is_left_and_the_server_goes_on(tmp_path):
    text = pages.page("tutorials/one-server")
    (snippet,), (trial,) = pages.blocks(text, "python"), pages.blocks(text, "yaml")
    hub = ServerHub(tmp_path, configured=False, cleanup_servers=False)
    hub.snippet = snippet
    write_trial(hub, trial, tmp_path / "config")
    try:
        hub.start()
        start_and_reclaim(hub, ada="lab", bob="trial")
        hub.snippet = ""
        hub.terminate_hub()
        hub.start_hub()
        eventually(lambda: hub.server("ada")["ready"], 30, "the server goes on without gpuspawner")
    finally:
        hub.close()
        for pid in servers_in(tmp_path):
            os.kill(pid, 9)


def test_a_hub_with_simulated_gpus_as_the_page_has_it_reclaims_one(tmp_path):
    text = pages.page("how-to/administrators/simulate")
    (catalog,), (configuration, use) = pages.blocks(text, "yaml"), pages.blocks(text, "python")
    assert "busy(90, percent=80)" in use
    hub = ServerHub(tmp_path, configured=False, cleanup_servers=False)
    (tmp_path / "catalog.yaml").write_text(catalog)
    hub.snippet = configuration
    try:
        hub.start()
        start_and_reclaim(hub, ada="lab")
    finally:
        hub.close()


def write_trial(hub, trial, folder):
    """Write the hub's catalog, with the template of a tutorial, into a folder."""
    catalog = combined(yaml.safe_load(hub.catalog.read_text()), yaml.safe_load(trial))
    catalog["templates"]["trial"]["extends"] = "lab"
    folder.mkdir(parents=True)
    (folder / "catalog.yaml").write_text(yaml.safe_dump(catalog))


def start_and_reclaim(hub, **templates):
    """Start a workspace of each user, and wait until the last one has ended because it was idle."""
    hub.add_user(*templates)
    for user, template in templates.items():
        eventually(lambda u=user, t=template: hub.begin(u, template=t).status_code in {201, 202}, 60, "it starts")
        assert hub.until(user, "running")["gpus"], f"{user} has a GPU"
    hub.until_ended(user, "idle", 240)


def combined(into, more):
    """Return one mapping of both, also of the mappings within them."""
    for key, value in more.items():
        into[key] = combined(into[key], value) if isinstance(value, dict) and key in into else value
    return into


def servers_in(folder):
    """Return the processes whose working folder is below this one. The harness finds them by another data folder."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if str((process / "cwd").readlink()).startswith(str(folder / "homes")):
                found.append(int(process.name))
        except OSError:
            continue
    return found


@pytest.mark.parametrize("name", ["one-server", "no-hub", "kubernetes", "tljh", "zero-to-jupyterhub"])
def test_each_tutorial_has_the_template_whose_gpu_is_reclaimed_after_three_minutes(name):
    (trial,) = [one for one in pages.blocks(pages.page(f"tutorials/{name}"), "yaml") if "trial:" in one]
    policy = yaml.safe_load(trial)["policies"]["trial"]
    assert (policy["mode"], policy["idle"]) == ("enforce", {"for": "2m", "grace": "1m", "sample": "10s"})
