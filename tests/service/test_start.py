"""The start of the service imports nothing that only some services need: users wait for each start."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import requests
from harness.waiting import eventually

REPO = Path(__file__).parents[2]
LISTS_MODULES = """
import json, os, signal, sys, types

def write(*_):
    with open(os.environ["LIST"] + ".new", "w") as file:  # a deferred module has another type until it is used
        json.dump([name for name, module in sys.modules.items() if type(module) is types.ModuleType], file)
    os.rename(os.environ["LIST"] + ".new", os.environ["LIST"])

signal.signal(signal.SIGUSR1, write)
"""
CATALOG = {
    "version": 1,
    "gpus": {"a100": {"memory": "80GiB", "match": "*"}},
    "simulated": {"a100": 1},
    "templates": {"lab": {"gpus": {"a100": 1}}},
}
UNUSED = {
    "a migration": ("alembic",),
    "the hub's database": ("jupyterhub.orm", "jupyterhub.roles", "sqlalchemy.orm"),
    "a notification": ("apprise",),
    "the schema of a catalog": ("jsonschema",),
    "a cluster": ("kubernetes_asyncio",),
    "PostgreSQL": ("psycopg",),
}


@pytest.fixture
def modules_of_a_started_service(tmp_path, port):
    """The modules that a service has imported when it answers."""
    (tmp_path / "planted").mkdir()
    (tmp_path / "planted" / "sitecustomize.py").write_text(LISTS_MODULES)
    (tmp_path / "catalog.yaml").write_text(json.dumps(CATALOG))
    (tmp_path / "secret").write_text("5" * 64)
    (tmp_path / "secret").chmod(0o600)
    url, found = f"http://127.0.0.1:{port}", tmp_path / "modules.json"
    options = {"hub": "http://127.0.0.1:9/hub/api", "service-url": url, "catalog": tmp_path / "catalog.yaml"}
    options |= {"data": tmp_path / "data", "secret-file": tmp_path / "secret"}
    command = [
        sys.executable,
        "-m",
        "gpuspawner.cli",
        "server",
        "serve",
        *(f"--{name}={one}" for name, one in options.items()),
    ]
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path / 'planted'}:{REPO}", "LIST": str(found)}
    with (tmp_path / "log").open("w") as log:
        service = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
    try:
        eventually(lambda: service.poll() or requests.get(f"{url}/readyz", timeout=20).ok, 60, "the service answers")
        assert service.poll() is None, (tmp_path / "log").read_text()
        service.send_signal(signal.SIGUSR1)
        eventually(found.exists, 20, "the service lists its modules")
        yield set(json.loads(found.read_text()))
    finally:
        service.kill()
        service.wait()


def test_a_service_that_answers_has_imported_nothing_that_it_does_not_use(modules_of_a_started_service):
    assert "gpuspawner.service.app" in modules_of_a_started_service
    unused = {name for names in UNUSED.values() for name in names}
    assert sorted(unused & modules_of_a_started_service) == []


def test_the_installed_command_prints_its_help():
    program = Path(sys.executable).with_name("gpuspawner")
    helped = subprocess.run([program, "--help"], capture_output=True, text=True, timeout=60, check=True)
    assert helped.stdout.startswith("Usage: gpuspawner ")
