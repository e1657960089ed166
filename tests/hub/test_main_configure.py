"""configure(): its refusals in the words of ``gpuspawner server check``, and the settings that it keeps."""

import configparser
import contextlib
import errno
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from harness.fork_server import run_python, start_python
from harness.hub import RealHub
from jupyterhub.spawner import LocalProcessSpawner, SimpleLocalProcessSpawner
from traitlets.config import Config

from gpuspawner.cli.main import main
from gpuspawner.spawner import GPUSpawnerMixin, LocalGPUSpawner, configure
from gpuspawner.spawner.hub import settings
from gpuspawner.spawner.hub.service import as_json

CATALOG = {"version": 1, "templates": {"cpu": {"title": "No GPU"}}}
BAD_CATALOG = """
version: 1
gpus:
  a100: {title: A100, match: NVIDIA-A100, memory: 80G}
templates:
  lab: {gpus: {h100: 1}}
quotas:
  each-user: {each: user, gpus: {soft: 2, hard: 1}}
"""


READS_AS_A_HUB = """
from jupyterhub.app import JupyterHub
JupyterHub.instance().load_config_file("jupyterhub_config.py")
"""


class OwnSpawner(SimpleLocalProcessSpawner):
    """An administrator's own class."""


@pytest.fixture
def configured(tmp_path):
    """A function that configures, and returns what is then configured."""

    def make(**settings) -> Config:
        c = Config()
        for name, value in settings.items():
            setattr(c.JupyterHub, name, value)
        configure(c, catalog=CATALOG, data_dir=tmp_path / "gpu")
        return c

    return make


def start_jupyterhub(hub: RealHub) -> subprocess.CompletedProcess[str]:
    """Start a hub that should refuse to."""
    config = hub.folder / "jupyterhub_config.py"
    config.write_text(hub.config())
    command = [sys.executable, "-m", "jupyterhub", "-f", str(config)]
    return run_python(command, cwd=hub.folder)


def test_a_hub_whose_port_another_hubs_service_has_names_it_and_does_not_start(shared_hub, tmp_path):
    hub = shared_hub()
    second = RealHub(tmp_path)
    second.service_port = hub.service_port
    started = start_jupyterhub(second)
    (pid,) = hub.service_pids()
    holder = f"the GPU service of the hub whose data_dir is {hub.folder}/gpu (process {pid})"
    assert f"gpuspawner: port {hub.service_port}, which this hub's GPU service needs, is taken by {holder}." in (
        started.stderr
    )
    assert re.search(r"give this hub another: configure\(c, \.\.\., port=\d+\)\.\n$", started.stderr)
    assert (started.returncode, "Traceback" in started.stderr) == (1, False)


def test_a_second_hub_on_the_same_data_dir_names_the_first_and_leaves_it_alone(shared_hub):
    hub = shared_hub()
    command = [sys.executable, "-m", "jupyterhub"]
    config = str(hub.folder / "jupyterhub_config.py")
    second = run_python([*command, "-f", config], cwd=hub.folder)
    assert second.returncode == 1
    first = f"process {hub.hub.pid} on {socket.gethostname()}, started 20"
    assert f"gpuspawner: another hub uses data_dir {hub.folder}/gpu: {first}" in second.stderr
    assert f" in {hub.folder}, which serves {hub.url}. " in second.stderr
    assert "give this one another data_dir." in second.stderr
    assert "Traceback" not in second.stderr
    hub.add_user("anna")
    token = run_python([*command, "token", "-f", config, "anna"], cwd=hub.folder)
    assert token.returncode == 0, "a command that only reads the configuration goes on"
    (service,) = hub.service_pids()
    assert not [link for link in Path(f"/proc/{service}/fd").iterdir() if link.readlink().name == settings.LOCK]


def test_a_service_that_a_killed_hub_left_is_no_reason_to_refuse(shared_hub):
    hub = shared_hub()
    (service,) = hub.service_pids()
    os.kill(service, signal.SIGSTOP)  # it cannot see that its hub is gone, and keeps its port
    hub.kill_hub()
    started = start_python([sys.executable, "-c", READS_AS_A_HUB], cwd=hub.folder)
    assert started.wait(60) == 0
    os.kill(service, signal.SIGCONT)
    hub.start_hub()  # nor is what it held of its folder


@pytest.mark.parametrize(("number", "goes_on"), [(errno.ENOLCK, True), (errno.EIO, False)])
def test_a_file_system_without_locks_is_told_and_no_reason_to_refuse(tmp_path, monkeypatch, capsys, number, goes_on):
    def flock(_file, _how):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(settings.fcntl, "flock", flock)
    with contextlib.nullcontext() if goes_on else pytest.raises(SystemExit, match=r"hub\.lock cannot be"):
        settings.lock_data_folder(tmp_path, "http://127.0.0.1:8000/")
    assert ("has no locks (No locks available). Make sure" in capsys.readouterr().err) == goes_on


def test_a_restart_of_the_hub_ends_no_workspace_unless_its_administrator_says_so(configured, capsys):
    assert configured().JupyterHub.cleanup_servers is False
    assert "c.JupyterHub.cleanup_servers is set to False" in capsys.readouterr().out
    assert configured(cleanup_servers=True).JupyterHub.cleanup_servers is True
    assert "cleanup_servers" not in capsys.readouterr().out


def test_a_wrong_form_of_the_log_is_refused_before_the_hub_starts():
    with pytest.raises(SystemExit, match="log_format 'xml' is not right; write text or json"):
        as_json({"log_format": "xml"})
    assert as_json({"log_format": "json"}) == '{"log_format": "json"}'


def test_the_configuration_and_the_unit_to_copy_leave_workspaces_running(tmp_path):
    source = Path(__file__).parents[2] / "hub_config"
    shutil.copy(source / "catalog.yaml", tmp_path)
    text, c = (source / "jupyterhub_config.py").read_text(), Config()
    exec(compile(text, "jupyterhub_config.py", "exec"), {"c": c, "__file__": str(tmp_path / "jupyterhub_config.py")})
    assert (c.JupyterHub.spawner_class.__mro__[1], c.JupyterHub.cleanup_servers) == (LocalGPUSpawner, False)
    unit = configparser.ConfigParser()
    unit.optionxform = str
    unit.read(source / "jupyterhub.service")
    assert unit["Service"]["KillMode"] == "process", "systemd's own default ends all processes of the unit"
    assert unit["Service"]["Restart"] == "on-failure", "a hub whose service ends while it starts ends itself"


def test_a_bad_catalog_is_refused_in_the_words_of_check(tmp_path):
    hub = RealHub(tmp_path)
    hub.catalog.write_text(BAD_CATALOG)
    started = start_jupyterhub(hub)
    command = [sys.executable, "-m", "gpuspawner.cli", "server", "check", str(hub.catalog)]
    checked = run_python(command)
    assert (started.returncode, checked.returncode) == (1, 1)
    assert f"{hub.catalog}:4: gpus.a100.memory: " in checked.stderr
    assert checked.stderr.rstrip().endswith("3 problems in the catalog")
    assert f"the hub does not start with this catalog:\n{checked.stderr}" in started.stderr
    assert "Traceback" not in started.stderr + started.stdout
    assert not (tmp_path / "hub.sqlite").exists()


def test_a_refused_configuration_ends_the_hub_by_its_words_alone(tmp_path):
    started = start_jupyterhub(RealHub(tmp_path, extra="c.JupyterHub.active_server_limit = 20"))
    assert started.returncode == 1
    assert started.stderr.strip() == (
        "gpuspawner: c.JupyterHub.active_server_limit counts people who only wait in the queue as active. "
        "Remove it; limit GPUs per user by a quota in the catalog."
    )


@pytest.mark.parametrize(
    "line",
    [
        pytest.param('c.JupyterHub.spawner_class = "gpu"', id="its short name"),
        pytest.param('c.JupyterHub.spawner_class = "gpuspawner.spawner.LocalGPUSpawner"', id="its dotted name"),
        pytest.param(
            'c.JupyterHub.spawner_class = "gpuspawner.spawner.kubernetes.spawner.GPUSpawner"',
            id="the name of its module",
        ),
        pytest.param(
            "from gpuspawner.spawner import LocalGPUSpawner as one; c.JupyterHub.spawner_class = one", id="its class"
        ),
    ],
)
def test_a_hub_with_our_spawner_and_without_configure_is_refused_with_the_lines_to_add(tmp_path, line):
    started = start_jupyterhub(RealHub(tmp_path, configured=False, extra=line))
    assert started.returncode == 1
    told = (
        r"gpuspawner: c\.JupyterHub\.spawner_class is (Local)?GPUSpawner, and configure\(\) was not called\. Add these "
    )
    assert re.search(told, started.stderr), started.stderr
    assert '\n    configure(c, catalog="catalog.yaml")\n' in started.stderr
    assert "Traceback" not in started.stderr


@pytest.mark.parametrize("name", ["options_form", "options_from_form"])
def test_an_own_form_is_refused_by_name(tmp_path, name):
    c = Config()
    setattr(c.LocalProcessSpawner, name, "<input>")
    with pytest.raises(SystemExit, match=rf"c\.LocalProcessSpawner\.{name} would replace gpuspawner's form\."):
        configure(c, catalog=CATALOG, data_dir=tmp_path)


def test_a_hub_with_the_kubernetes_spawner_and_without_its_packages_is_refused_in_a_sentence(tmp_path):
    missing = """
import sys
for imported in [name for name in sys.modules if "kubernetes" in name]:  # by the fork server of the tests
    del sys.modules[imported]
sys.modules["kubernetes_asyncio"] = None
c.JupyterHub.spawner_class = "gpu"
"""
    started = start_jupyterhub(RealHub(tmp_path, configured=False, extra=missing))
    assert started.returncode == 1
    assert started.stderr.strip() == (
        "gpuspawner: c.JupyterHub.spawner_class is GPUSpawner. It is for Kubernetes, and the package "
        "kubernetes_asyncio is not installed. On Kubernetes, run pip install '.[kubernetes]' in a checkout. On one "
        "machine, remove the line: configure() wraps the spawner class of the hub."
    )


def test_a_spawner_class_that_cannot_be_imported_is_refused_by_name(configured):
    with pytest.raises(SystemExit, match=r"c\.JupyterHub\.spawner_class = 'nobody\.Knows' cannot be imported"):
        configured(spawner_class="nobody.Knows")


@pytest.mark.parametrize("name", ["batchspawner.SlurmSpawner", "dockerspawner.SwarmSpawner"])
def test_a_spawner_whose_servers_run_on_other_machines_is_refused_by_name(tmp_path, name):
    c = Config()
    c.JupyterHub.spawner_class = name
    with pytest.raises(SystemExit, match=rf"is {name.rpartition('.')[2]}, which starts servers on other machines\."):
        configure(c, catalog=CATALOG, data_dir=tmp_path)


def test_a_catalog_that_is_not_there_is_refused_by_name(tmp_path):
    with pytest.raises(SystemExit, match=r"nowhere\.yaml"):
        configure(Config(), catalog=tmp_path / "nowhere.yaml", data_dir=tmp_path)


def test_a_folder_that_cannot_be_made_is_refused_by_name(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(SystemExit, match=r"data_dir .*file/gpu cannot be made"):
        configure(Config(), catalog=CATALOG, data_dir=tmp_path / "file" / "gpu")


@pytest.mark.parametrize(
    ("spawner_class", "base"),
    [
        pytest.param(None, LocalProcessSpawner, id="none set"),
        pytest.param("simple", SimpleLocalProcessSpawner, id="a short name"),
        pytest.param("jupyterhub.spawner.SimpleLocalProcessSpawner", SimpleLocalProcessSpawner, id="a dotted name"),
        pytest.param(OwnSpawner, OwnSpawner, id="a class"),
    ],
)
def test_the_configured_spawner_class_is_wrapped(configured, spawner_class, base):
    settings = {} if spawner_class is None else {"spawner_class": spawner_class}
    wrapped = configured(**settings).JupyterHub.spawner_class
    assert issubclass(wrapped, GPUSpawnerMixin)
    assert issubclass(wrapped, base)
    assert wrapped.mro().index(GPUSpawnerMixin) < wrapped.mro().index(base)


def test_a_gpu_spawner_is_not_wrapped_twice(configured):
    wrapped = configured(spawner_class=LocalGPUSpawner).JupyterHub.spawner_class
    assert (wrapped.__name__, wrapped.__mro__[1]) == ("LocalGPUSpawner", LocalGPUSpawner)


def test_earlier_configuration_is_kept(configured):
    culler = {"name": "announcer", "api_token": "x"}
    roles = [
        {"name": "user", "scopes": ["self", "shares!user"]},
        {"name": "gpu-admin", "scopes": ["list:users"], "groups": ["operators"]},
        {"name": "own", "services": ["announcer"], "scopes": ["list:users"]},
    ]
    c = configured(
        services=[culler],
        load_roles=roles,
        template_paths=["/srv/templates"],
        template_vars={"announcement": "hello"},
        custom_scopes={"custom:own:use": {"description": "own"}},
    )
    hub = c.JupyterHub
    assert hub.services[0] == culler
    assert [service["name"] for service in hub.services] == ["announcer", "gpu"]
    merged = {role["name"]: role for role in hub.load_roles}
    assert merged["user"]["scopes"] == ["self", "shares!user", "custom:gpu:use", "access:services!service=gpu"]
    assert merged["gpu-admin"]["scopes"] == ["list:users", "custom:gpu:admin", "access:services!service=gpu"]
    assert merged["gpu-admin"]["groups"] == ["operators"]
    assert merged["own"] == roles[2]
    assert hub.template_paths[0] == "/srv/templates"
    assert hub.template_vars["announcement"] == "hello"
    ours = {f"custom:gpu:{name}" for name in ("use", "lead", "audit", "operate", "admin")}
    assert set(hub.custom_scopes) == {"custom:own:use", *ours}
    assert roles[0]["scopes"] == ["self", "shares!user"], "the administrator's own objects are not changed"


@pytest.mark.parametrize("section", ["Authenticator", "PAMAuthenticator", "GitHubOAuthenticator"])
def test_administrators_of_the_authenticator_administer_gpus_too(tmp_path, capsys, section):
    c = Config()
    c[section].admin_users = {"root"}
    configure(c, catalog=CATALOG, data_dir=tmp_path)
    assert next(r for r in c.JupyterHub.load_roles if r["name"] == "gpu-admin")["users"] == ["root"]
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("role", "extra", "scopes"),
    [
        pytest.param({}, {"read:users:name"}, ["self", "read:users:name"], id="more for every user"),
        pytest.param({"description": "People"}, set(), ["self"], id="a role that is only described"),
        pytest.param({"scopes": ["self", "shares!user"]}, {"read:groups"}, ["self", "shares!user"], id="own scopes"),
        pytest.param({"scopes": []}, set(), [], id="none at all, as it is written"),
    ],
)
def test_no_user_loses_a_right(tmp_path, role, extra, scopes):
    c = Config()
    c.JupyterHub.extra_user_scopes = extra
    c.JupyterHub.load_roles = [{"name": "user", **role}] if role else []
    configure(c, catalog=CATALOG, data_dir=tmp_path)
    user = next(role for role in c.JupyterHub.load_roles if role["name"] == "user")
    assert user["scopes"] == [*scopes, "custom:gpu:use", "access:services!service=gpu"]


def test_with_a_role_managing_authenticator_users_get_no_role(tmp_path, capsys):
    c = Config()
    c.OAuthenticator.manage_roles = True
    c.OAuthenticator.admin_users = {"root"}
    configure(c, catalog=CATALOG, data_dir=tmp_path)
    assert not any(role.get(kind) for role in c.JupyterHub.load_roles for kind in ("users", "groups"))
    assert "It must give the role gpu-admin to the administrators." in capsys.readouterr().err


@pytest.mark.parametrize(
    ("setting", "value", "words"),
    [
        ("internal_ssl", True, "c.JupyterHub.internal_ssl is not supported: the GPU service could not call the hub"),
        ("services", [{"name": "gpu", "url": "http://10.0.0.1"}], "c.JupyterHub.services has another service of the"),
    ],
)
def test_promise_10_what_would_leave_the_service_out_of_reach_is_refused_by_name(tmp_path, setting, value, words):
    c = Config()
    c.JupyterHub[setting] = value
    with pytest.raises(SystemExit, match=f"^gpuspawner: {words}"):
        configure(c, catalog=CATALOG, data_dir=tmp_path)


def test_a_service_that_is_a_process_of_its_own_is_told_its_domain_by_options_that_the_hub_names(tmp_path, capsys):
    c = Config()
    c.JupyterHub.subdomain_host = "https://hub.example.org"
    configure(c, catalog=CATALOG, data_dir=tmp_path, service_url="http://127.0.0.1:9470")
    options = "--public-url=https://hub.example.org --own-public-url=https://gpu--service.hub.example.org"
    assert f"start the GPU service with {options}\n" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("settings", "prefix"),
    [
        ({}, "/services/gpu/"),
        ({"subdomain_host": "https://hub.example.org"}, "https://gpu--service.hub.example.org/services/gpu/"),
        ({"subdomain_host": "hub.example.org:444"}, "https://gpu--service.hub.example.org:444/services/gpu/"),
        (
            {"subdomain_host": "http://hub.example.org", "subdomain_hook": "legacy"},
            "http://services.hub.example.org/services/gpu/",
        ),
        (
            {"subdomain_host": "http://a.org", "subdomain_hook": lambda name, domain, kind: f"{kind}-{name}.{domain}"},
            "http://service-gpu.a.org/services/gpu/",
        ),
    ],
)
def test_browsers_find_the_service_on_the_domain_that_the_hub_gives_it(configured, settings, prefix):
    c = configured(**settings)
    assert c.JupyterHub.spawner_class.gpu_service_prefix == c.JupyterHub.template_vars["gpuspawner_prefix"] == prefix


def test_configured_twice_it_is_there_once(tmp_path):
    c = Config()
    configure(c, catalog=CATALOG, data_dir=tmp_path)
    configure(c, catalog=CATALOG, data_dir=tmp_path)
    assert [service["name"] for service in c.JupyterHub.services] == ["gpu"]


def test_without_a_gpu_administrator_the_hubs_log_says_how_to_add_one(tmp_path, capsys):
    configure(Config(), catalog=CATALOG, data_dir=tmp_path)
    assert capsys.readouterr().err == (
        "gpuspawner: GPUs have no administrator. Users in c.Authenticator.admin_users are; for others add to "
        'c.JupyterHub.load_roles, before configure(): {"name": "gpu-admin", "users": [...], "groups": [...]}.\n'
    )


def test_earlier_additions_are_kept_as_well(tmp_path):
    c = Config()
    c.JupyterHub.services.append({"name": "announcer", "api_token": "x"})
    c.JupyterHub.load_roles.append({"name": "own", "services": ["announcer"], "scopes": ["list:users"]})
    c.JupyterHub.template_vars.update({"announcement": "hello"})
    c.Authenticator.admin_users.update({"root"})
    configure(c, catalog=CATALOG, data_dir=tmp_path)
    assert [service["name"] for service in c.JupyterHub.services] == ["announcer", "gpu"]
    assert [role["name"] for role in c.JupyterHub.load_roles][:2] == ["own", "user"]
    assert c.JupyterHub.template_vars["announcement"] == "hello"
    assert next(r for r in c.JupyterHub.load_roles if r["name"] == "gpu-admin")["users"] == ["root"]


@pytest.mark.parametrize(
    ("settings", "prefix"),
    [
        pytest.param({}, "/services/gpu/", id="none"),
        pytest.param({"base_url": "/jupyter"}, "/jupyter/services/gpu/", id="base_url"),
        pytest.param({"bind_url": "http://:8000/jupyter/"}, "/jupyter/services/gpu/", id="bind_url"),
        pytest.param({"bind_url": "http://127.0.0.1:8000"}, "/services/gpu/", id="bind_url without a path"),
    ],
)
def test_the_service_stands_below_the_hubs_own_path(configured, settings, prefix):
    c = configured(**settings)
    assert c.JupyterHub.spawner_class.gpu_service_prefix == prefix
    assert c.JupyterHub.spawner_class.gpu_service_url == f"http://127.0.0.1:9470{prefix.rstrip('/')}"


def test_configuring_again_keeps_identity_and_secret_but_counts_as_another_boot(configured):
    first, second = configured().JupyterHub.spawner_class, configured().JupyterHub.spawner_class
    assert first.gpu_hub_id == second.gpu_hub_id
    assert first.gpu_secret_file == second.gpu_secret_file
    assert first.gpu_boot_id != second.gpu_boot_id


def test_a_first_start_that_was_broken_off_leaves_no_empty_secret(configured, tmp_path):
    """With an empty secret anybody could sign tickets, and be the spawner."""
    (tmp_path / "gpu").mkdir()
    for name in ("secret", "hub-id"):
        (tmp_path / "gpu" / name).touch()
    spawner = configured().JupyterHub.spawner_class
    secret = tmp_path / "gpu" / "secret"
    assert len(bytes.fromhex(secret.read_text().strip())) == 32
    assert (spawner.gpu_hub_id != "", secret.stat().st_mode & 0o777) == (True, 0o600)
    assert {path.name for path in (tmp_path / "gpu").iterdir()} == {"secret", "hub-id", "catalog.json"}


@pytest.mark.parametrize("text", [b"00", b"change me", b"\xff" * 64, b"0" * 63])
def test_a_secret_that_can_be_guessed_is_refused_by_its_file(configured, tmp_path, text):
    (tmp_path / "gpu").mkdir()
    (tmp_path / "gpu" / "secret").write_bytes(text)
    with pytest.raises(SystemExit, match=r"gpu/secret holds no secret of 32 bytes in hexadecimal\. Remove it"):
        configured()


def test_a_secret_that_cannot_be_read_is_refused_by_its_file(configured, tmp_path):
    (tmp_path / "gpu" / "secret").mkdir(parents=True)
    with pytest.raises(SystemExit, match=r"gpu/secret cannot be read or written \(Is a directory\)\. Give data_dir"):
        configured()


@pytest.mark.parametrize(
    ("argument", "says"),
    [
        ({"fast": 0}, r"configure\(fast=0\) is not a float\. A number by which every time .*, 1 to 3600\."),
        ({"fast": "30"}, r"configure\(fast='30'\) is not a float"),
        ({"port": "9470"}, r"configure\(port='9470'\) is not an int\. The port .*, 1 to 65535\."),
        ({"port": 70000}, r"configure\(port=70000\) is not an int"),
        ({"hub_id": 7}, r"configure\(hub_id=7\) is not a unicode string\. The old ID of this hub"),
        ({"prot": 9471}, r"configure\(prot=\.\.\.\): there is no such setting; did you mean `port`\?"),
    ],
)
def test_an_argument_that_is_no_such_number_is_refused_by_name(tmp_path, argument, says):
    with pytest.raises(SystemExit, match=says):
        configure(Config(), catalog=CATALOG, data_dir=tmp_path / "gpu", **argument)


def test_settings_of_the_service_come_from_its_section_and_arguments_count_first(tmp_path):
    c = Config()
    c.GPUService.catalog, c.GPUService.data_dir, c.GPUService.port = CATALOG, tmp_path / "gpu", 9471
    c.GPUSpawner.gpu_wait_in_hub_seconds = 7
    configure(c, port=9472)
    spawner = c.JupyterHub.spawner_class
    assert spawner.gpu_service_url == "http://127.0.0.1:9472/services/gpu"
    assert list(spawner.gpu_read_catalog().templates) == ["cpu"]
    assert c.LocalGPUSpawner.gpu_wait_in_hub_seconds == 7  # the section applies to each spawner class


@pytest.mark.parametrize(
    ("section", "name", "says"),
    [
        ("GPUService", "prot", r"c\.GPUService\.prot: there is no such setting; did you mean `port`\?"),
        ("GPUService", "port", r"c\.GPUService\.port = 'x' is not an int\."),
        (
            "GPUSpawner",
            "wait_in_hub_seconds",
            r"c\.GPUSpawner\.wait_in_hub_seconds: there is no such setting; did you mean `gpu_wait_in_hub_seconds`\?",
        ),
        ("GPUSpawnerMixin", "gpu_secret_file", r"c\.GPUSpawnerMixin\.gpu_secret_file: there is no such setting"),
    ],
)
def test_a_wrong_name_or_value_in_a_section_is_refused_with_the_right_one(tmp_path, section, name, says):
    c = Config()
    setattr(c[section], name, "x")
    with pytest.raises(SystemExit, match=says):
        configure(c, catalog=CATALOG, data_dir=tmp_path / "gpu")


def test_a_configuration_without_a_catalog_is_told_how_to_name_one(tmp_path):
    with pytest.raises(SystemExit, match=r"configure\(c\) has no catalog\. Write configure\(c, catalog="):
        configure(Config(), data_dir=tmp_path / "gpu")


def test_help_of_the_hub_lists_what_administrators_set_and_nothing_internal(tmp_path):
    told = run_python([sys.executable, "-m", "jupyterhub", "--help-all"], cwd=tmp_path).stdout
    assert "--GPUService.port=<Int>" in told
    assert "--GPUSpawner.gpu_wait_in_hub_seconds=<Float>" in told
    assert "gpu_secret_file" not in told


def test_a_hub_id_that_is_given_is_a_new_folders_own(tmp_path):
    for folder in ("gpu", "gpu"):  # the line stays in the configuration
        c = Config()
        configure(c, catalog=CATALOG, data_dir=tmp_path / folder, hub_id="a" * 32)
        assert c.JupyterHub.spawner_class.gpu_hub_id == "a" * 32


def test_a_second_hub_id_is_refused_and_the_folder_stays_unchanged(configured, tmp_path):
    found = configured().JupyterHub.spawner_class.gpu_hub_id
    with pytest.raises(SystemExit, match=rf"gpu belongs to the hub id {found}\..* name a new, empty data_dir\."):
        configure(Config(), catalog=CATALOG, data_dir=tmp_path / "gpu", hub_id="a" * 32)
    assert (tmp_path / "gpu" / "hub-id").read_text().strip() == found


@pytest.mark.parametrize("hub_id", ["", "a" * 31, "A" * 32, "a" * 32 + "\n", "../hub"])
def test_an_invalid_hub_id_is_refused_by_name(tmp_path, hub_id):
    with pytest.raises(SystemExit, match=r"configure\(hub_id=.*\) is not a hub ID\. Give the 32 hexadecimal digits"):
        configure(Config(), catalog=CATALOG, data_dir=tmp_path / "gpu", hub_id=hub_id)
    assert not (tmp_path / "gpu" / "hub-id").exists()


def test_doctor_asks_a_service_that_the_hub_starts_by_the_secret_as_its_page_says(shared_hub, capsys):
    hub = shared_hub()
    where = ["--hub", f"http://127.0.0.1:{hub.hub_port}/hub/api", "--service", f"http://127.0.0.1:{hub.service_port}"]
    secret = str(hub.folder / "gpu" / "secret")
    main(["server", "doctor", *where, "--secret-file", secret, "--catalog", str(hub.catalog)])
    told = capsys.readouterr().out
    assert "good  token: The hub knows the token: service gpu." in told
    assert "good  scopes: The service gpu has the scopes that it needs." in told
