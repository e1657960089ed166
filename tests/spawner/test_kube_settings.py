"""Settings of KubeSpawner and the catalog: all contradictions to a lease are refused at once, by name."""

import json
import os
import re
import sys

import pytest
from kube_catalog import CATALOG
from kubespawner import KubeSpawner
from traitlets.config import Config

from gpuspawner.catalog import load_catalog
from gpuspawner.catalog.requests.profile_options import Menu, read_menus
from gpuspawner.spawner.kubernetes.configuration import read_setting
from gpuspawner.spawner.kubernetes.spawner import GPUSpawner


class OwnSpawner(KubeSpawner):
    """An administrator's own class."""


PROFILES = [{"display_name": "Small one"}, {"display_name": "Big", "slug": "big"}]
CONFLICTS = {
    "GPUs of its own": (
        {"extra_resource_limits": {"nvidia.com/gpu": "1"}},
        "c.KubeSpawner.extra_resource_limits names nvidia.com/gpu. GPUs come from the lease alone: take it out.",
    ),
    "GPUs guaranteed": (
        {"extra_resource_guarantees": {"nvidia.com/mig-1g.10gb": "1"}},
        (
            "c.KubeSpawner.extra_resource_guarantees names nvidia.com/mig-1g.10gb. "
            "GPUs come from the lease alone: take it out."
        ),
    ),
    "a limit of memory": (
        {"mem_limit": "1G"},
        (
            "c.KubeSpawner.mem_limit would be replaced by what people ask. "
            "Take it out; write bounds: {memory: ...} instead."
        ),
    ),
    "all GPUs by privilege": (
        {"privileged": True},
        "c.KubeSpawner.privileged: a privileged container sees every GPU of its node. Take it out.",
    ),
    "all GPUs by a security context": (
        {"container_security_context": {"privileged": True}},
        (
            "c.KubeSpawner.container_security_context: privileged: a privileged container sees every GPU of its node. "
            "Take it out."
        ),
    ),
    "all GPUs by more of the container": (
        {"extra_container_config": {"securityContext": {"privileged": True}}},
        (
            "c.KubeSpawner.extra_container_config: securityContext: privileged: a privileged container sees every GPU "
            "of its node. Take it out."
        ),
    ),
    "all GPUs by a variable": (
        {"environment": {"NVIDIA_VISIBLE_DEVICES": "all"}},
        (
            "c.KubeSpawner.environment sets NVIDIA_VISIBLE_DEVICES, which shows a workspace other GPUs than its own. "
            "Take it out."
        ),
    ),
    "a form of its own": (
        {"options_form": "<input>"},
        (
            "c.KubeSpawner.options_form would replace gpuspawner's form. Remove it. "
            "Users' choices are configured in the catalog's templates."
        ),
    ),
    "profiles without a choice": (
        {"profile_list": PROFILES},
        (
            "c.KubeSpawner.profile_list has 2 profiles, of which people would only get the default one: Users' "
            "choices are configured in the catalog's templates. Write profile: small-one and so on in the templates, "
            "or keep one profile."
        ),
    ),
    "a profile that is only a name": (
        {"profile_list": ["small"]},
        "c.KubeSpawner.profile_list: profile 1 has no display_name, which KubeSpawner needs. Write one.",
    ),
    "a profile without a name": (
        {"profile_list": [*PROFILES, {"slug": "third"}]},
        "c.KubeSpawner.profile_list: profile 3 has no display_name, which KubeSpawner needs. Write one.",
    ),
}


@pytest.mark.parametrize(("settings", "words"), CONFLICTS.values(), ids=CONFLICTS)
def test_promise_10_what_contradicts_a_lease_is_refused_by_name(configured, settings, words):
    with pytest.raises(SystemExit) as refused:
        configured(**settings)
    assert str(refused.value) == f"gpuspawner: {words}"


def test_settings_that_a_lease_replaces_are_named_and_the_hub_starts(configured, capsys):
    c = Config()
    c.Authenticator.admin_users = {"admin"}
    configured(c, mem_guarantee="1G")
    assert capsys.readouterr().err == (
        "gpuspawner: c.KubeSpawner.mem_guarantee is not used: a workspace gets what its user requests within the "
        "bounds of its template. Write guarantee in the template to guarantee only a part of that.\n"
    )


@pytest.mark.parametrize(("version", "limit"), [("5.5.4", 0), ("6.1.1", 5)])
def test_on_jupyterhub_5_no_refusal_counts_towards_the_hubs_end(configured, monkeypatch, version, limit):
    monkeypatch.setattr(sys.modules["gpuspawner.spawner.configure"], "hub_version", version)
    c = configured(consecutive_failure_limit=5)
    assert read_setting(c, GPUSpawner, "consecutive_failure_limit", None)[1] == limit


def test_all_conflicts_are_reported_at_once_including_appended_settings(configured):
    c = Config()
    c.KubeSpawner.environment.update({"NVIDIA_VISIBLE_DEVICES": "all"})
    with pytest.raises(SystemExit) as refused:
        configured(c, spawner_class=OwnSpawner, cpu_limit=2)
    assert [line.split(" ")[1] for line in str(refused.value).splitlines()] == [
        "c.KubeSpawner.cpu_limit",
        "c.KubeSpawner.environment",
    ]


def test_profiles_that_templates_name_are_kept(configured, tmp_path):
    templates = {"lab": {"profile": "small-one"}, "big": {"profile": "big"}}
    c = configured(catalog={**CATALOG, "templates": templates}, profile_list=PROFILES)
    assert c.KubeSpawner.profile_list == PROFILES
    told = {"lab": Menu("small-one"), "big": Menu("big")}
    assert c.JupyterHub.spawner_class.gpu_read_catalog().menus == told
    assert read_menus(tmp_path / "gpu") == told, "the service judges by the same"


def test_promise_10_the_hub_follows_its_file_and_refuses_catalogs_it_would_not_start_with(
    configured, tmp_path, monkeypatch, caplog
):
    file, clock = tmp_path / "catalog.json", [0.0]
    monkeypatch.setattr("gpuspawner.spawner.hub.catalog.time.monotonic", lambda: clock[0])

    def write(templates):
        file.write_text(json.dumps({**CATALOG, "templates": templates}))
        os.utime(file, (0, 0))
        clock[0] += 3

    write({"lab": {"profile": "small-one"}})
    catalog = configured(catalog=str(file), profile_list=PROFILES).JupyterHub.spawner_class.gpu_read_catalog
    write({"lab": {"profile": "small-one"}, "big": {"profile": "big"}})
    assert catalog().menus == read_menus(tmp_path / "gpu") == {"lab": Menu("small-one"), "big": Menu("big")}
    write({"lab": {"profile": "tiny"}})
    assert list(catalog().templates) == ["lab", "big"]
    assert (
        f"{file}: catalog: templates.lab.profile: c.KubeSpawner.profile_list has no profile with the slug tiny. "
        "It has: small-one, big."
    ) in caplog.text
    handed, problem = tmp_path / "gpu" / "catalog-in-force.yaml", tmp_path / "gpu" / "catalog-problem"
    assert load_catalog(handed).templates.keys() == {"lab", "big"}, "the service goes by the same"
    assert problem.read_text() in caplog.text
    write({"lab": {"profile": "big"}})
    clock[0] -= 2
    assert list(catalog().templates) == ["lab", "big"], "it is not looked at twice in two seconds"
    clock[0] += 2
    assert list(catalog().templates) == ["lab"]
    assert handed.read_bytes() == file.read_bytes()
    assert not problem.exists()


@pytest.mark.parametrize(
    ("owner", "setting", "value", "words"),
    [
        ("KubeSpawner", "node_selector", "pool=gpus", "c.KubeSpawner.node_selector takes a dict, not str."),
        (
            "KubeSpawner",
            "extra_container_config",
            ["x"],
            "c.KubeSpawner.extra_container_config takes a dict, not list.",
        ),
        ("KubeSpawner", "environment", "A=1", "c.KubeSpawner.environment takes a dict, not str."),
        ("KubeSpawner", "tolerations", "all", "c.KubeSpawner.tolerations takes a list or a dict, not str."),
        ("GPUSpawner", "gpu_cluster", "other", "c.GPUSpawner.gpu_cluster takes a dict, not str."),
    ],
)
def test_promise_10_a_setting_of_a_wrong_type_is_refused_by_name(configured, owner, setting, value, words):
    c = Config()
    c[owner][setting] = value
    with pytest.raises(SystemExit, match=f"^gpuspawner: {re.escape(words)}$"):
        configured(c)


def test_a_security_context_may_be_a_function_as_kubespawner_has_it(configured):
    assert configured(container_security_context=lambda spawner: {"runAsUser": spawner.uid})


def test_promise_10_a_profile_that_is_not_there_is_refused_by_name(configured):
    with pytest.raises(SystemExit) as refused:
        configured(catalog={**CATALOG, "templates": {"lab": {"profile": "bigg"}}}, profile_list=PROFILES)
    assert str(refused.value) == (
        "gpuspawner: templates.lab.profile: c.KubeSpawner.profile_list has no profile with the slug bigg. "
        "It has: small-one, big."
    )


OVERRIDES = {
    "GPUs of its own": (
        {"extra_resource_limits": {"nvidia.com/gpu": "1"}},
        "extra_resource_limits names nvidia.com/gpu. GPUs come from the lease alone: take it out.",
    ),
    "a limit of memory": (
        {"mem_limit": "1G"},
        "mem_limit would be replaced by what people ask. Take it out; write bounds: {memory: ...} instead.",
    ),
    "a setting of a wrong type": ({"environment": "A=1"}, "environment takes a dict, not str."),
    "no settings": (["mem_limit"], "kubespawner_override takes a dict, not list."),
    "another namespace": (
        {"namespace": "elsewhere"},
        "namespace: the service would not see its workspaces there. Remove this line.",
    ),
}


@pytest.mark.parametrize("templates", [{"lab": {"profile": "big"}}, {"lab": {}}], ids=["named", "by default"])
@pytest.mark.parametrize(("override", "words"), OVERRIDES.values(), ids=OVERRIDES)
def test_promise_10_a_profile_that_contradicts_a_lease_is_refused_by_name(configured, override, words, templates):
    big = {"display_name": "Big", "default": True, "kubespawner_override": override}
    with pytest.raises(SystemExit) as refused:
        configured(catalog={**CATALOG, "templates": templates}, profile_list=[big])
    (line,) = str(refused.value).splitlines()
    assert line.startswith("gpuspawner: c.KubeSpawner.profile_list, big: ")
    assert line.endswith(words)


def test_unused_profiles_and_settings_outside_a_lease_are_no_conflict(configured):
    unused = {"display_name": "Unused", "default": True, "kubespawner_override": {"mem_limit": "1G"}}
    late = {"extra_container_config": lambda spawner: {"workingDir": f"/srv/{spawner.user.name}"}}
    small = {"display_name": "Small", "kubespawner_override": {"mem_guarantee": "1G", "environment": None, **late}}
    configured(catalog={**CATALOG, "templates": {"lab": {"profile": "small"}}}, profile_list=[unused, small])
