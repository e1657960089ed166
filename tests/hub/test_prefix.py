"""A hub under a path prefix: form, service pages, API and command line, as the how-to page `prefix.md` has it."""

import re
import sys

import pytest
import requests
from harness import pages
from harness.fork_server import run_python
from harness.hub import ADMIN_TOKEN, REPO, RealHub, eventually

from gpuspawner import __version__

PREFIX = "/jupyter"


@pytest.fixture
def hub(tmp_path):
    (extra,) = pages.blocks(pages.page("how-to/administrators/prefix"), "python")
    hub = RealHub(tmp_path, gpus=1, extra=extra)
    hub.url += PREFIX
    yield hub
    hub.close()


def test_a_user_gets_a_gpu_and_every_link_stays_below_the_prefix(hub):
    hub.start()
    hub.add_user("ada")
    eventually(lambda: hub.begin("ada").status_code in {201, 202}, 60, "ada starts")
    lease = hub.until("ada", "running")
    session = hub.login("ada")
    page = session.get(f"{hub.url}/services/gpu/", timeout=30)
    assert (page.status_code, lease["id"] in page.text) == (200, True)
    links = set(re.findall(r'(?:href|src|action)="(/[^"]*)"', page.text))
    assert len(links) > 3
    assert {link for link in links if not link.startswith(f"{PREFIX}/")} == set()
    of_page = next(link for link in sorted(links) if link.endswith(".css") or ".css?" in link)
    assert session.get(hub.url.removesuffix(PREFIX) + of_page, timeout=20).status_code == 200
    form = session.get(f"{hub.url}/hub/spawn/ada/second", timeout=30)
    assert form.status_code == 200
    offers = re.search(rf'"?({PREFIX}/services/gpu/[^"]*)', form.text)
    assert offers, "the form asks the service below the prefix"
    command = [sys.executable, "-m", "gpuspawner.cli", "list", "--all", "--url", f"{hub.url}/services/gpu"]
    told = run(*command)
    assert (told.returncode, "ada" in told.stdout) == (0, True), told.stderr
    here = [
        sys.executable,
        "-m",
        "gpuspawner.cli",
        "server",
        "doctor",
        f"--service=http://127.0.0.1:{hub.service_port}",
    ]
    said = run(*here, f"--hub=http://127.0.0.1:{hub.hub_port}{PREFIX}/hub/api").stdout
    assert f"service {__version__}" in said, "it was asked below the prefix"
    assert "BAD" not in said, said
    assert requests.get(f"{hub.url.removesuffix(PREFIX)}/services/gpu/", timeout=20).status_code == 404


def run(*command):
    environment = {"GPUSPAWNER_TOKEN": ADMIN_TOKEN, "PATH": "/usr/bin"}
    return run_python(command, cwd=REPO, env=environment)
