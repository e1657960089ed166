"""init and doctor say beforehand whether a running hub ends its servers when it restarts."""

import os
import socket
import time

import pytest

from gpuspawner.adoption.doctor import hub_checks
from gpuspawner.adoption.doctor.command import _process_at
from gpuspawner.adoption.doctor.findings import State
from gpuspawner.adoption.doctor.hub_checks import restarts, running_hubs
from gpuspawner.cli.main import main

CONFIGURE = "from gpuspawner.spawner import configure\nconfigure(c, catalog='catalog.yaml')\n"
COMMAND = ["/opt/hub/bin/python3", "/opt/hub/bin/jupyterhub"]


@pytest.fixture
def hub(tmp_path):
    """Return a function that makes the process of a hub. ``changed``: the configuration is newer than the process."""

    def make(text, *arguments, changed=False, command=COMMAND, name="jupyterhub_config.py"):
        folder = tmp_path / "proc" / "4242"
        folder.mkdir(parents=True)
        (folder / "cmdline").write_bytes("\0".join([*command, *arguments, ""]).encode())
        (tmp_path / "srv").mkdir()
        (folder / "cwd").symlink_to("/srv")
        (folder / "root").symlink_to(tmp_path)  # as of a hub in a container
        started = 100.0  # seconds after the boot
        ticks = int(started * os.sysconf("SC_CLK_TCK"))
        (folder / "stat").write_text(f"4242 (jupyter hub) S {'0 ' * 18}{ticks} 0 0\n")
        now = int(time.time())
        (tmp_path / "proc" / "stat").write_text(f"cpu 1 2 3\nbtime {now}\n")
        if text is not None:
            (tmp_path / "srv" / name).write_text(text)
        at = now + started + (60 if changed else -60)
        if text is not None:
            os.utime(tmp_path / "srv" / name, (at, at))
        return [one.ends_servers for one in running_hubs(tmp_path / "proc")]

    return make


@pytest.mark.parametrize(
    ("text", "ends"),
    [
        ("c.JupyterHub.port = 8000\n", True),
        ("# c.JupyterHub.cleanup_servers = False\n", True),
        ("c.JupyterHub.cleanup_servers = False\n", False),
        ("c.JupyterHub.cleanup_servers = False\nc.JupyterHub.cleanup_servers = True\n", True),
        (CONFIGURE, False),
        (f"c.JupyterHub.cleanup_servers = True\n{CONFIGURE}", True),
        ("load_subconfig('more.py')\n", None),
        (None, None),
    ],
)
def test_the_configuration_that_it_started_with_tells(hub, text, ends):
    assert hub(text) == [ends]


@pytest.mark.parametrize(
    "text",
    [CONFIGURE, "c.JupyterHub.cleanup_servers = False\n", "c.JupyterHub.port = 8000\n"],
)
def test_nothing_is_claimed_of_a_configuration_that_was_changed_since_the_start(hub, text):
    assert hub(text, changed=True) == [None]


@pytest.mark.parametrize(
    ("command", "arguments", "found"),
    [
        (COMMAND, ["-f", "other.py"], [False]),
        (["/opt/hub/bin/python3", "-m", "jupyterhub"], ["--config=other.py"], [False]),
        (["/opt/hub/bin/python3", "-m", "jupyterhub"], ["--JupyterHub.cleanup_servers=True", "-f", "other.py"], [True]),
        (["/opt/hub/bin/python3", "/opt/hub/bin/jupyterhub-singleuser"], [], []),
        (["vim", "jupyterhub_config.py"], [], []),
    ],
)
def test_a_hub_is_found_by_its_command(hub, command, arguments, found):
    assert hub("c.JupyterHub.cleanup_servers = False\n", *arguments, command=command, name="other.py") == found


def test_doctor_names_it_with_the_way_that_keeps_the_servers(hub, tmp_path):
    hub("c.JupyterHub.port = 8000\n")
    (finding,) = restarts(running_hubs(tmp_path / "proc"), 4242)
    assert (finding.state, finding.check) == (State.BAD, "restart")
    assert "ends every server when it stops: c.JupyterHub.cleanup_servers is True" in finding.words
    assert "Stop it by its API" in finding.remedy
    assert list(restarts(running_hubs(tmp_path / "proc"), 17)) == [], "it is another hub than the examined one"


def test_a_hub_whose_configuration_ends_its_servers_is_not_bad(hub, tmp_path):
    hub(f"c.JupyterHub.cleanup_servers = True\n{CONFIGURE}")
    (finding,) = restarts(running_hubs(tmp_path / "proc"), 4242)
    assert finding.state is State.UNKNOWN
    assert "its configuration sets c.JupyterHub.cleanup_servers to True" in finding.words
    assert "default" not in finding.words
    assert "configure() sets" not in finding.remedy


def test_doctor_examines_the_hub_that_listens_at_the_address():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert _process_at(f"http://127.0.0.1:{port}/hub/api") == os.getpid()
        assert _process_at(f"http://hub.invalid:{port}/hub/api") is None


def test_init_says_it_before_the_restart(monkeypatch, hub, tmp_path, capsys):
    hub("c.JupyterHub.port = 8000\n")
    found = list(running_hubs(tmp_path / "proc"))
    monkeypatch.setattr("gpuspawner.adoption.init.running_hubs", lambda: found)
    main(["server", "init", str(tmp_path / "catalog.yaml")])
    assert f"{hub_checks.warning_of(found[0])} {hub_checks.RESTART_REMEDY}\n" in capsys.readouterr().err
