"""Other cullers are named where the hub starts, in every form that people write them, and nothing else is."""

import sys

import pytest
from jupyterhub.spawner import LocalProcessSpawner
from traitlets.config import Config

from gpuspawner.spawner import configure

CATALOG = {"version": 1, "templates": {"cpu": {"title": "No GPU"}}}


@pytest.fixture(autouse=True)
def machine(monkeypatch, tmp_path):
    """A machine without configuration of single-user servers; returns the folder where it would lie."""
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.setattr(sys.modules["gpuspawner.spawner.configure"], "CONFIG_FOLDERS", ())
    folder = tmp_path / "etc" / "jupyter"
    folder.mkdir(parents=True)
    return folder


@pytest.fixture
def named(tmp_path, capsys):
    """The messages about a configuration."""

    def say(c, spawner_class=LocalProcessSpawner):
        c.JupyterHub.spawner_class = spawner_class
        configure(c, catalog=CATALOG, data_dir=tmp_path / "gpu")
        return [line for line in capsys.readouterr().err.splitlines() if "Take it out" in line]

    return say


@pytest.mark.parametrize(
    "service",
    [
        {"name": "jupyterhub-idle-culler-service", "command": [sys.executable, "-m", "jupyterhub_idle_culler"]},
        {"name": "cull-idle", "admin": True, "command": ["python3", "/srv/cull_idle_servers.py", "--timeout=3600"]},
        {"name": "sweeper", "command": ["jupyterhub-idle-culler", "--timeout=900"]},
        {"name": "sweeper", "command": "python3 -m jupyterhub_idle_culler --timeout=900 --cull-every=60"},
        {"name": "idle-culler", "api_token": "elsewhere-0123456789"},
    ],
)
def test_a_culler_as_a_service_of_the_hub_is_named(named, service):
    c = Config()
    c.JupyterHub.services = [{"name": "other", "command": ["announce", "culture"]}, service]
    (sentence,) = named(c)
    assert sentence == (
        f"gpuspawner: c.JupyterHub.services has the culler {service['name']!r}. It stops servers without HTTP traffic, "
        "also while their GPUs compute, and without a warning. Take it out: the catalog's policies stop what is idle."
    )
    assert [one["name"] for one in c.JupyterHub.services] == ["other", service["name"], "gpu"], "it is left in force"


def test_a_culler_that_is_only_appended_is_named_too(named):
    c = Config()
    c.JupyterHub.services.append({"name": "cull", "command": ["python", "-m", "jupyterhub_idle_culler"]})
    assert len(named(c)) == 1


@pytest.mark.parametrize("section", ["Spawner", "LocalProcessSpawner"])
@pytest.mark.parametrize("setting", ["args", "cmd"])
@pytest.mark.parametrize(
    "word",
    [
        "--MappingKernelManager.cull_idle_timeout=3600",
        "--ServerApp.shutdown_no_activity_timeout=7200",
        "--TerminalManager.cull_inactive_timeout=60",
    ],
)
def test_a_setting_among_the_arguments_of_workspaces_is_named(named, section, setting, word):
    c = Config()
    c[section][setting] = ["jupyterhub-singleuser", word]
    (sentence,) = named(c)
    name = word.partition(".")[2]
    assert sentence.startswith(f"gpuspawner: c.{section}.{setting} sets {name}: workspaces end their own")


def test_arguments_of_pods_are_read_but_not_the_files_of_the_hubs_machine(named, machine):
    (machine / "jupyter_server_config.py").write_text("c.MappingKernelManager.cull_idle_timeout = 600\n")
    c = Config()
    c.KubeSpawner.args = ["--MappingKernelManager.cull_idle_timeout=3600"]
    (sentence,) = named(c, "kubespawner.KubeSpawner")
    assert "c.KubeSpawner.args sets cull_idle_timeout=3600" in sentence


def test_a_setting_in_the_hub_s_own_file_is_named(named):
    c = Config()
    c.MappingKernelManager.cull_idle_timeout = 1200
    assert "c.MappingKernelManager sets cull_idle_timeout=1200" in named(c)[0]


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("jupyter_server_config.py", "c = get_config()\nc.MappingKernelManager.cull_idle_timeout = 600\n"),
        ("jupyter_notebook_config.py", "c.NotebookApp.shutdown_no_activity_timeout=60 * 60  # an hour\n"),
        ("jupyter_server_config.json", '{"MappingKernelManager": {"cull_idle_timeout": 600, "cull_interval": 60}}'),
        ("jupyter_server_config.d/cull.json", '{"ServerApp": {"shutdown_no_activity_timeout": 600}}'),
    ],
)
def test_a_setting_in_the_configuration_of_this_machine_s_servers_is_named_by_its_file(named, machine, file, text):
    path = machine / file
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    (sentence,) = named(Config())
    assert sentence.startswith(f"gpuspawner: {path} sets ")


@pytest.mark.parametrize(
    "text",
    [
        "# c.MappingKernelManager.cull_idle_timeout = 600\n",
        "c.MappingKernelManager.cull_idle_timeout = 0\n",
        "\x00\xff",
    ],
)
def test_a_commented_or_disabled_culler_is_not_named(named, machine, text):
    (machine / "jupyter_server_config.py").write_text(text)
    c = Config()
    c.Spawner.args = ["--MappingKernelManager.cull_idle_timeout=0", "--MappingKernelManager.cull_interval=300"]
    c.MappingKernelManager.cull_busy = False
    assert named(c) == []


def test_the_role_of_a_culler_is_named_with_it_and_a_role_of_a_missing_service_at_once(tmp_path, capsys):
    c = Config()
    c.JupyterHub.services = [{"name": "jupyterhub-idle-culler", "command": ["jupyterhub-idle-culler"]}]
    c.JupyterHub.load_roles = [{"name": "culls", "services": ["jupyterhub-idle-culler"], "scopes": ["list:users"]}]
    configure(c, catalog=CATALOG, data_dir=tmp_path)
    told = capsys.readouterr().err
    assert "Take it out of c.JupyterHub.load_roles, too ('culls'): the hub does not start otherwise." in told
    assert "is not in c.JupyterHub.services" not in told
    c.JupyterHub.services = []
    configure(c, catalog=CATALOG, data_dir=tmp_path)
    assert (
        "gives the role 'culls' to the service 'jupyterhub-idle-culler', which is not in c.JupyterHub.services: the "
        "hub does not start. Take it out of that role."
    ) in capsys.readouterr().err
