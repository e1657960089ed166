"""configure() and gpuspawner server serve where the hub does not start the service: what each is told, and refuses."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from harness.command_lines import read_command
from traitlets.config import Config

from gpuspawner.core.authentication import derive_hub_id, derive_hub_token
from gpuspawner.service.process.serve_options import ServeOptions, StartError, read_own_start
from gpuspawner.spawner import configure

CATALOG = {"version": 1, "templates": {"cpu": {"title": "No GPU"}}}
URL = "http://gpuspawner:9470"
SECRET = "5e" * 32
HUB = "http://hub:8081/hub/api"
OWN = "https://gpu--service.h.org"


@pytest.fixture
def secret_file(tmp_path):
    file = tmp_path / "secret-file"
    file.write_text(SECRET + "\n")
    return file


def configured(folder, services=(), **arguments):
    c = Config()
    c.JupyterHub.services = list(services)
    configure(c, catalog=CATALOG, data_dir=folder / "hub-data", **arguments)
    return c


def started(folder, *options, environment=None):
    words = ["server", "serve", "--catalog=c.yaml", f"--data={folder / 'data'}", *options]
    return read_own_start(ServeOptions(**read_command(words).params), environment or {})


def of_hub(c):
    (service,) = [one for one in c.JupyterHub.services if one["name"] == "gpu"]
    return service, c.JupyterHub.spawner_class


def test_promise_2_hub_and_service_that_share_a_secret_alone_know_each_other(tmp_path, secret_file):
    service, spawner = of_hub(configured(tmp_path, service_url=URL, secret_file=secret_file))
    assert "command" not in service
    assert spawner.gpu_service_url == f"{URL}/services/gpu"
    told = started(tmp_path, f"--hub={HUB}/", f"--secret-file={secret_file}", f"--service-url={URL}", "--listen=:9470")
    options = told.options
    assert options.secret.hex() == SECRET == Path(spawner.gpu_secret_file).read_text().strip()
    assert options.hub_id == spawner.gpu_hub_id == derive_hub_id(options.secret)
    assert options.hub_api_token == service["api_token"] == derive_hub_token(options.secret) != SECRET
    assert (options.service_url, options.listen, options.prefix) == (URL, "http://0.0.0.0:9470", "/services/gpu/")
    assert (options.hub_api_url, options.stands_by, options.hub_pid) == (HUB, True, None)
    assert SECRET not in json.dumps(service)
    assert options.hub_api_token not in repr(told.options.hub_auth["hub_prefix"])


@pytest.mark.parametrize("first", ["hub", "service"])
def test_the_first_process_makes_the_shared_folder(tmp_path, first):
    folder = tmp_path / "hub-data"
    if first == "service":
        (tmp_path / "data").symlink_to(folder)
        folder.mkdir()
        options = started(tmp_path, f"--hub={HUB}").options
    service, spawner = of_hub(configured(tmp_path, service_url=URL))
    if first == "hub":
        (tmp_path / "data").symlink_to(folder)
        options = started(tmp_path, f"--hub={HUB}").options
    assert (options.hub_id, options.hub_api_token) == (spawner.gpu_hub_id, service["api_token"])
    assert (folder / "secret").stat().st_mode & 0o777 == 0o600


def test_each_option_may_be_a_variable(tmp_path, monkeypatch, secret_file):
    variables = {"HUB": HUB, "SECRET_FILE": secret_file, "BASE_URL": "/jupyter", "PUBLIC_URL": "https://h.org/jupyter/"}
    for name, value in variables.items():
        monkeypatch.setenv(f"GPUSPAWNER_SERVE_{name}", str(value))
    options = started(tmp_path, "--hub-id=abc").options
    assert (options.prefix, options.public_url) == ("/jupyter/services/gpu/", "https://h.org/jupyter/services/gpu")
    assert (options.hub_id, options.hub_auth["hub_prefix"]) == ("abc", "/jupyter/hub/")
    assert options.listen == "http://127.0.0.1:9470"


def test_settings_and_cluster_are_files(tmp_path, secret_file):
    (tmp_path / "settings.yaml").write_text("keep_ended_seconds: 86400\n")
    (tmp_path / "cluster.yaml").write_text("namespace: jhub\n")
    files = [f"--settings={tmp_path}/settings.yaml", f"--cluster={tmp_path}/cluster.yaml", "--backend=kubernetes"]
    told = started(tmp_path, f"--hub={HUB}", f"--secret-file={secret_file}", *files, environment={"A": "b"})
    assert told.settings == {"keep_ended_seconds": 86400}
    assert told.environment == {
        "A": "b",
        "GPUSPAWNER_BACKEND": "kubernetes",
        "GPUSPAWNER_KUBERNETES": '{"namespace": "jhub"}',
    }


def test_a_service_with_a_domain_of_its_own_knows_it_and_its_hubs(tmp_path, secret_file):
    domains = ["--public-url=https://h.org/jupyter/", f"--own-public-url={OWN}", "--base-url=/jupyter"]
    options = started(tmp_path, f"--hub={HUB}", f"--secret-file={secret_file}", *domains).options
    assert options.public_url == f"{OWN}/jupyter/services/gpu"
    assert options.hub_auth["hub_host"] == "https://h.org"
    assert options.hub_auth["oauth_redirect_uri"] == f"{OWN}/jupyter/services/gpu/oauth_callback"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ([], "--hub is missing: the hub's API, such as http://127.0.0.1:8081/hub/api"),
        (["--hub=hub:8081"], "--hub hub:8081 is not an http address"),
        (["--hub=http://gpu:geheim@hub:8081/hub/api"], "--hub: the address has a name or a password."),
        ([f"--hub={HUB}", "--listen=9470"], "--listen 9470 is not an address with a port"),
        ([f"--hub={HUB}", "--secret-file=/nowhere"], "--secret-file: /nowhere cannot be read"),
        ([f"--hub={HUB}", "--secret-file=/dev/null"], "holds no secret of 64 hexadecimal digits"),
        ([f"--hub={HUB}", "--settings=/nowhere"], "--settings: /nowhere cannot be read: No such file or directory."),
        ([f"--hub={HUB}", "--settings=/dev/null/x"], "--settings: /dev/null/x cannot be read: Not a directory."),
        ([f"--hub={HUB}", "--backend=kubernetes"], "--cluster is missing: write a YAML file with namespace:"),
        ([f"--hub={HUB}", "--token-file=/nowhere"], "--token-file: /nowhere cannot be read"),
        ([f"--hub={HUB}", f"--own-public-url={OWN}"], "--own-public-url needs --public-url"),
        (
            [f"--hub={HUB}", "--public-url=https://h.org", "--own-public-url=gpu"],
            "--own-public-url gpu is not an https addr",
        ),
        (
            [f"--hub={HUB}", "--public-url=https://h.org", f"--own-public-url={OWN}/services/gpu"],
            "Write it without a path",
        ),
        (
            [f"--hub={HUB}", "--public-url=https://h.org", "--own-public-url=https://h.org"],
            "not a domain of the service alone",
        ),
    ],
)
def test_promise_10_serve_names_the_invalid_option(tmp_path, options, words):
    with pytest.raises(StartError) as refused:
        started(tmp_path, *options)
    assert words in str(refused.value)


def test_a_token_comes_from_a_file_or_from_the_entry_of_a_chart(tmp_path, secret_file):
    (tmp_path / "token").write_text("another-token\n")
    given = {"service_url": URL, "secret_file": secret_file}
    assert of_hub(configured(tmp_path, **given, token_file=tmp_path / "token"))[0]["api_token"] == "another-token"
    entry = [{"name": "gpu", "api_token": "of-the-chart"}]
    assert of_hub(configured(tmp_path, entry, **given))[0]["api_token"] == "of-the-chart"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"secret_file": "x"}, "configure(secret_file=...) is for a service that is a process of its own"),
        (
            {"service_url": URL, "port": 9000},
            "configure(service_url=..., port=...): the hub does not start this service",
        ),
        (
            {"service_url": URL, "service_settings": {}},
            "give it to gpuspawner server serve: see gpuspawner server serve --help",
        ),
        ({"service_url": "gpuspawner:9470"}, "configure(service_url='gpuspawner:9470') is no address of a service"),
        ({"service_url": f"{URL}/services/gpu"}, "without a path, like http://gpuspawner:9470"),
        ({"service_url": URL, "secret_file": "/nowhere"}, "configure(secret_file=...): /nowhere cannot be read"),
        ({"service_url": URL, "secret_file": "/dev/null"}, "/dev/null holds no secret of 32 bytes"),
    ],
)
def test_promise_10_configure_names_the_invalid_argument(tmp_path, arguments, words):
    with pytest.raises(SystemExit) as refused:
        configured(tmp_path, **arguments)
    assert words in str(refused.value)


@pytest.mark.skipif(
    not shutil.which("systemd-analyze"), reason="systemd-analyze is not installed: apt-get install systemd"
)
def test_systemd_takes_the_unit_to_copy(tmp_path):
    text = (Path(__file__).parents[2] / "hub_config" / "gpuspawner.service").read_text()
    program = Path(sys.executable).parent / "gpuspawner"
    assert "/opt/jupyterhub/bin/gpuspawner server serve" in text
    unit = tmp_path / "gpuspawner.service"
    unit.write_text(text.replace("/opt/jupyterhub/bin/gpuspawner", str(program)))
    verified = subprocess.run(["systemd-analyze", "verify", unit], check=False, capture_output=True, text=True)
    assert (verified.returncode, verified.stderr) == (0, "")
    begins, ends = text.index("gpuspawner server serve"), text.index("\n\n# It ends by itself")
    told = text[begins:ends].replace("\\\n", "").split()[3:]
    assert read_command(["server", "serve", *told]).params["hub"] == "http://127.0.0.1:8081/hub/api"
