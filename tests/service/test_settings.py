"""Changes of the service's settings by an administrator, and the settings that are refused by name."""

import json
import os
from pathlib import Path

import pytest
from harness.fork_server import run_python
from traitlets.config import Config

from gpuspawner.service.settings import Settings, SettingsError, change_settings
from gpuspawner.spawner import configure


def test_written_settings_replace_only_their_defaults():
    after = change_settings(Settings(), {"tick_seconds": 0.3, "concurrent_starts": 2, "back_off_seconds": [1, 2.5]})
    assert after == Settings(tick_seconds=0.3, concurrent_starts=2, back_off_seconds=(1, 2.5))


WRONG = {
    ("tick_seconds", "a number of seconds above 0"): ("1", None, True, 0, -1, float("nan"), float("inf"), [1]),
    ("concurrent_starts", "a whole number of at least 1"): (0, 1.5, "1", True),
    ("documentation_url", "an address that begins with https://"): (
        7,
        "docs.example.org",
        "javascript:alert(1)",
        "https://a b",
    ),
    ("back_off_seconds", "a list of seconds"): (5, [], "60", [0], [None]),
}


@pytest.mark.parametrize(
    ("name", "right", "value"), [(*known, value) for known, values in WRONG.items() for value in values]
)
def test_a_wrong_value_of_a_setting_is_refused_by_name(name, right, value):
    with pytest.raises(SettingsError, match=f"service_settings.{name}: .* is not right; write {right}"):
        change_settings(Settings(), {name: value})


def test_an_unknown_setting_is_refused_with_a_similar_one():
    with pytest.raises(SettingsError, match="tick_secnds: there is no such setting; did you mean `tick_seconds`"):
        change_settings(Settings(), {"tick_secnds": 1})


@pytest.mark.parametrize("name", ["notify_users", "notify_admins", "notify_teams"])
@pytest.mark.parametrize("value", [7, None, ["mailto://bob:s3cret@example.org", 7], {"a": "s3cret", "b": 7}])
def test_an_invalid_address_is_refused_without_showing_it(name, value):
    with pytest.raises(SettingsError, match=f"service_settings.{name}: what is written is not right; write") as refused:
        change_settings(Settings(), {name: value})
    assert "s3cret" not in str(refused.value)


def test_all_errors_are_reported_at_once():
    with pytest.raises(SettingsError) as refused:
        change_settings(Settings(), {"tick_seconds": 0, "fleet_seconds": 0})
    assert len(str(refused.value).splitlines()) == 2


CATALOG = {"version": 1, "templates": {"cpu": {"title": "No GPU"}}}


def test_the_service_that_a_hub_starts_with_a_wrong_setting_ends_by_its_words_alone(tmp_path):
    c = Config()
    configure(c, catalog=CATALOG, data_dir=tmp_path, service_settings={"tick_secnds": 1})
    service = c.JupyterHub.services[-1]
    hub = {
        f"JUPYTERHUB_{name}": "http://127.0.0.1:9/"
        for name in ("API_URL", "SERVICE_URL", "SERVICE_PREFIX", "API_TOKEN")
    }
    environment = {**os.environ, **service["environment"], **hub, "PYTHONPATH": str(Path(__file__).parents[2])}
    command = service["command"]
    ended = run_python(command, env=environment)
    assert ended.returncode == 1
    assert (
        "gpuspawner server serve: service_settings.tick_secnds: there is no such setting; did you mean" in ended.stderr
    )
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ("tick_seconds=1", r"configure\(service_settings='tick_seconds=1'\) is not a dict"),
        ([1], r"configure\(service_settings=\[1\]\) is not a dict"),
        ({"tick_seconds": json}, r"configure\(service_settings=\.\.\.\) takes a dict of numbers and texts"),
    ],
)
def test_settings_that_are_no_numbers_by_name_are_refused_at_start(tmp_path, settings, says):
    with pytest.raises(SystemExit, match=says):
        configure(Config(), catalog=CATALOG, data_dir=tmp_path, service_settings=settings)
