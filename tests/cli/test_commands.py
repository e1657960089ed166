"""The command line with a real hub: its output, its effects, and the exit codes 0, 1, 2 and 3."""

import json
import os
import re
import subprocess
import sys
from html import unescape
from pathlib import Path

import click
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "hub"))

from harness.fork_server import run_python
from harness.hub import ADMIN_TOKEN, REPO, RealHub, eventually

from gpuspawner.cli import main
from gpuspawner.cli.main import gpuspawner as gpuspawner_group

GOOD = "version: 1\ntemplates:\n  cpu: {title: No GPU}\nquotas: {each: {each: user, workspaces: {hard: 3}}}\n"
BAD = "version: 1\ngpus:\n  a100: {memory: 80G}\ntemplates:\n  lab: {gpus: {h100: 1}}\n"
DONE, INVALID, REFUSED, AWAY = 0, 1, 2, 3


@pytest.fixture(scope="module")
def hub(tmp_path_factory):
    """A hub with one GPU. ada has it, and bob waits for it."""
    real = RealHub(
        tmp_path_factory.mktemp("cli"),
        gpus=1,
        wait=600.0,
        settings={"listen_seconds": 30.0},
        extra='c.JupyterHub.load_roles[0]["scopes"].append("admin:groups")',
    )
    try:
        real.start()
        real.add_user("ada", "bob")
        real.begin("ada")
        real.until("ada", "running")
        real.begin("bob")
        real.until("bob", "queued")
        yield real
    finally:
        real.close()


def gpuspawner(*arguments: str, token: str = "", url: str = "") -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("GPUSPAWNER_", "JUPYTERHUB_"))}
    environment |= {name: value for name, value in {"GPUSPAWNER_TOKEN": token, "GPUSPAWNER_URL": url}.items() if value}
    environment["PYTHONPATH"] = str(REPO)
    command = [sys.executable, "-m", "gpuspawner.cli", *arguments]
    return run_python(command, env=environment)


@pytest.fixture
def ask(hub):
    """Run a command with a token of a user."""

    def run(user: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        body = {"scopes": ["custom:gpu:use", "access:services!service=gpu"]}
        if user == "the admin":  # a person, where "admin" is a service
            user, body = "admin", {"scopes": [*body["scopes"], "custom:gpu:admin"]}
        elif user == "admin":
            return gpuspawner(*arguments, token=ADMIN_TOKEN, url=f"{hub.url}/services/gpu")
        token = hub.api("POST", f"/users/{user}/tokens", body).json()["token"]
        return gpuspawner(*arguments, token=token, url=f"{hub.url}/services/gpu")

    return run


def test_check_of_a_good_catalog_says_what_it_holds(tmp_path, capsys):
    (tmp_path / "catalog.yaml").write_text(GOOD)
    assert main(["server", "check", str(tmp_path / "catalog.yaml")]) == DONE
    assert capsys.readouterr() == (f"{tmp_path}/catalog.yaml: good (1 template, 0 GPU kinds, 1 policy).\n", "")
    assert main(["server", "check", "--json", str(tmp_path / "catalog.yaml")]) == DONE
    assert json.loads(capsys.readouterr().out) == {"problems": [], "warnings": [], "needs_kubespawner": []}


def test_check_warns_of_what_is_not_right_on_every_hub_or_has_no_effect(tmp_path, capsys):
    file = tmp_path / "catalog.yaml"
    file.write_text(
        "version: 1\n"
        "policies:\n"
        "  short: {lifetime: 10m - 1h, idle: {start_up: 2h}}\n"
        "templates:\n"
        "  lab:\n"
        "    policy: short\n"
        "    image: lab:1\n"
        "quotas:\n"
        "  q: {each: user, cost: {per: week, hard: 10}}\n"
    )
    assert main(["server", "check", str(file)]) == DONE
    out, err = capsys.readouterr()
    assert out.splitlines() == [
        f"{file}: good (1 template, 0 GPU kinds, 2 policies).",
        "Only for a hub with KubeSpawner: templates.lab.image. Another hub does not start with it.",
    ]
    assert err.splitlines() == [
        (
            f"warning: {file}:3: policies.short.idle.start_up: 2 h is not less than the longest lifetime, 1 h. "
            "Shorten it, because no workspace of this policy is ever idle."
        ),
        f"warning: {file}:9: quotas.q.cost: no GPU kind has a price, so this limits nothing. Add price: to gpus.",
    ]
    assert main(["server", "check", "--json", str(file)]) == DONE
    told = json.loads(capsys.readouterr().out)
    assert [(one["entry"], one["line"]) for one in (*told["warnings"], *told["needs_kubespawner"])] == [
        ("policies.short.idle.start_up", 3),
        ("quotas.q.cost", 9),
        ("templates.lab.image", 7),
    ]


def test_check_warns_of_data_that_no_cluster_has(tmp_path, capsys):
    file = tmp_path / "catalog.yaml"
    text = (
        "version: 1\n"
        "clusters: {west: {}, east: {kubeconfig: /east, hub: 'https://hub.example.org', data: [imagenet]}}\n"
        "templates: {lab: {title: Lab, data: [imagnet]}}\n"
        "quotas: {each-user: {each: user, gpus: {hard: 4}}}\n"
    )
    words = f"warning: {file}:3: templates.lab.data: no cluster has `imagnet`, so it selects no cluster. "
    for written, right in (
        (text, "Did you mean `imagenet`?"),
        (text.replace(", data: [imagenet]", ""), "Write data:"),
    ):
        file.write_text(written)
        assert main(["server", "check", str(file)]) == DONE
        assert capsys.readouterr().err.startswith(words + right)
    file.write_text(text.replace("imagnet", "imagenet"))
    assert main(["server", "check", str(file)]) == DONE
    assert capsys.readouterr().err == ""


TEAMS = """version: 1
teams: {vision: {title: Vision lab}}
templates:
  cpu: {title: No GPU}
  lead: {title: For leads, groups: [leads]}
quotas: {each-user: {each: user, gpus: {hard: 4}}}
"""


def test_check_warns_of_a_hold_of_more_gpus_than_there_are(tmp_path, capsys):
    file = tmp_path / "catalog.yaml"
    file.write_text(
        "version: 1\ngpus: {a100: {title: A100, match: 'A100*', memory: 80GiB}}\ntemplates: {lab: {gpus: {a100: 1}}}\n"
        "simulated: {a100: 4}\nholds:\n- {group: cs231, gpu: a100, count: 9, when: 'Thu 09:00-11:00'}\n"
    )
    assert main(["server", "check", str(file)]) == 0
    told = f"warning: {file}:6: holds.0.count: 9 a100 are reserved, but there are only 4. Write at most 4."
    assert told in capsys.readouterr().err
    file.write_text(file.read_text().replace("count: 9", "count: 4"))
    assert main(["server", "check", str(file)]) == 0
    assert "are held" not in capsys.readouterr().err


def test_check_asks_the_hub_for_the_groups_that_the_catalog_names_where_it_can(hub, ask, tmp_path):
    file = tmp_path / "catalog.yaml"
    file.write_text(TEAMS)
    assert hub.api("POST", "/groups/vision").status_code in {201, 409}
    asked = ask("admin", "server", "check", str(file))
    warning = f"warning: {file}:5: templates.lead.groups: the hub has no group leads, so it has no members. "
    assert asked.returncode == DONE
    assert asked.stderr.startswith(warning)
    assert asked.stderr.count("\n") == 1
    assert "was not asked" not in asked.stdout
    offline = gpuspawner("server", "check", str(file))
    assert (offline.returncode, offline.stderr) == (DONE, "")
    assert (
        "The hub was not asked whether it has the groups of this catalog. To ask it, set GPUSPAWNER_URL"
        in offline.stdout
    )
    refused = ask("ada", "server", "check", str(file), "--hub", f"{hub.url}/services/gpu")
    assert (refused.returncode, refused.stderr) == (DONE, "")
    assert "It is not known whether the hub has the groups of this catalog. Only auditors" in refused.stdout
    file.write_text(GOOD)
    assert "groups" not in gpuspawner("server", "check", str(file)).stdout


def test_check_warns_where_nothing_bounds_anybody(tmp_path, capsys):
    file = tmp_path / "catalog.yaml"
    file.write_text("version: 1\ntemplates: {lab:}\nquotas:\n")
    assert main(["server", "check", str(file)]) == DONE
    assert capsys.readouterr().err == (
        f"warning: {file}:3: quotas: there is no quota, so every user may take all GPUs. "
        "Write one, for example each-user: {each: user, gpus: {hard: 4}}.\n"
    )


def test_check_of_a_bad_catalog_tells_all_at_once(tmp_path, capsys):
    file = tmp_path / "catalog.yaml"
    file.write_text(BAD)
    assert main(["server", "check", str(file)]) == INVALID
    out, err = capsys.readouterr()
    assert out == ""
    assert f"{file}:3: gpus.a100.memory: '80G' is not a size. " in err
    assert f"{file}:5: templates.lab.gpus.h100: no GPU kind is called `h100`. " in err
    assert err.endswith("3 problems in the catalog\n")
    assert main(["server", "check", "--json", str(file)]) == INVALID
    problems = json.loads(capsys.readouterr().out)["problems"]
    entries = [(3, "gpus.a100.memory"), (3, "gpus.a100"), (5, "templates.lab.gpus.h100")]
    assert [(p["line"], p["entry"]) for p in problems] == entries


def test_check_of_a_file_that_is_not_there_is_invalid(tmp_path, capsys):
    assert main(["server", "check", str(tmp_path / "none.yaml")]) == INVALID
    assert "none.yaml" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "told"),
    [
        ([], "Exit codes: 0 done, 1 invalid, 2 refused, 3 service away, 130 interrupted."),
        (["server", "check"], "FILE"),
        (["server", "serve"], "--catalog"),
        (["admin"], "preempt"),
        (["list"], "--ended"),
        (["stop"], "NAME"),
        (["ssh"], "~/.ssh/config"),
    ],
)
def test_help_tells_the_arguments(command, told, capsys):
    assert main([*command, "--help"]) == DONE
    shown = capsys.readouterr().out
    assert shown.startswith(" ".join(["Usage: gpuspawner", *command]))
    assert told in " ".join(shown.split())


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["lost"], "There is no command 'lost'. Did you mean list or logout?"),
        (["drain", "node-7"], "There is no command 'drain'. Did you mean admin drain?"),
        (["admin", "drian"], "There is no command 'drian'. Did you mean drain or grant?"),
        (["admin", "queue"], "There is no command 'queue'. Did you mean gpuspawner queue?"),
        ([], "Usage: gpuspawner"),
        (["server", "check"], "Missing argument 'FILE'."),
        (["list", "--ended", "many"], "Invalid value for '--ended': Write a number from 0 to 200."),
        (["list", "--ended", "-3"], "Invalid value for '--ended': Write a number from 0 to 200."),
        (["list", "--edned", "5"], "No such option"),
        (["admin", "preempt", "take", "a100", "1"], "Write one of --external, --team and --user."),
        (["server", "simulate", "x.yaml", "--data", "a", "--sessions", "5"], "Write one of --data, --store and"),
    ],
)
def test_arguments_that_cannot_be_are_invalid_and_not_refused(arguments, told, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("x.yaml").write_text(GOOD)
    assert main(arguments) == INVALID
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("Usage: gpuspawner")
    assert told in shown.err


def test_each_line_of_the_table_of_commands_is_the_first_of_the_command_s_help():
    context = click.Context(gpuspawner_group)
    groups = [gpuspawner_group, *(gpuspawner_group.get_command(context, name) for name in ("admin", "server", "kube"))]
    for group in groups:
        for name, (_, line) in group.lazy.items():
            command = group.get_command(context, name)
            assert (command.name, command.help.partition("\n\n")[0].replace("\n", " ")) == (name, line)


@pytest.mark.parametrize(
    ("options", "variables", "told"),
    [
        pytest.param([], {}, "--data: {data} is not the folder that configure() made", id="no secret"),
        pytest.param(["--fast", "0"], {}, "Invalid value for '--fast': Write a number from 1 to 3600.", id="no factor"),
        pytest.param([], {"GPUSPAWNER_SETTINGS": "{"}, "GPUSPAWNER_SETTINGS is not a JSON object", id="torn settings"),
    ],
)
def test_promise_10_serve_by_hand_names_what_is_wrong(tmp_path, monkeypatch, capsys, options, variables, told):
    (tmp_path / "catalog.yaml").write_text(GOOD)
    if variables:
        (tmp_path / "secret").write_text("00" * 32)
        (tmp_path / "hub-id").write_text("hub")
    for name in ("API_URL", "API_TOKEN", "SERVICE_URL", "SERVICE_PREFIX"):
        monkeypatch.setenv(f"JUPYTERHUB_{name}", "x")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    arguments = ["server", "serve", "--catalog", str(tmp_path / "catalog.yaml"), "--data", str(tmp_path), *options]
    assert main(arguments) == INVALID
    assert told.format(data=tmp_path) in capsys.readouterr().err


def test_serve_outside_a_hub_says_who_starts_it(tmp_path):
    (tmp_path / "catalog.yaml").write_text(GOOD)
    answer = gpuspawner("server", "serve", "--catalog", str(tmp_path / "catalog.yaml"), "--data", str(tmp_path))
    assert answer.returncode == INVALID
    assert "--hub is missing: the hub's API, such as" in answer.stderr
    assert "let JupyterHub start the service: put configure(c, catalog=...) into" in answer.stderr
    assert "Traceback" not in answer.stderr


def test_list_shows_ones_own_with_the_numbers_of_the_api(hub, ask):
    lease = hub.lease("ada")
    answer = ask("ada", "list")
    assert answer.returncode == DONE, answer.stderr
    header, row = answer.stdout.splitlines()
    assert header.split() == ["ID", "USER", "SERVER", "STATE", "ENDS", "IDLE"]
    assert row.startswith(f"{lease['id'][:8]}  ada   -       Running on 1 simulated A100  in ")
    waiting = ask("bob", "list").stdout.splitlines()[1]
    assert "Waiting for 1 simulated A100 (place 1 of 1)" in waiting
    listed = json.loads(ask("ada", "list", "--json").stdout)["workspaces"]
    assert [(w["id"], w["ends_at"], w["words"]) for w in listed] == [(lease["id"], lease["ends_at"], lease["words"])]


def test_list_of_all_is_for_administrators(ask):
    refused = ask("ada", "list", "--all")
    assert (refused.returncode, refused.stdout) == (REFUSED, "")
    assert refused.stderr.startswith("Only team leads, auditors, operators and administrators may see other users'")
    assert refused.stderr.endswith(" If you have such a role, sign in with gpuspawner login --admin.\n")
    everybody = ask("admin", "list", "--all")
    assert everybody.returncode == DONE
    assert [line.split()[1] for line in everybody.stdout.splitlines()[1:]] == ["ada", "bob"]


def test_without_or_with_a_wrong_token_it_is_refused(hub):
    url = f"{hub.url}/services/gpu"
    without = gpuspawner("list", url=url)
    assert without.returncode == REFUSED
    assert without.stderr.startswith("You are not signed in. Run gpuspawner login --url ADDRESS: the hub's page")
    wrong = gpuspawner("list", token="nobody-knows-this-0123456789", url=url)
    assert (wrong.returncode, "Traceback" in wrong.stderr) == (REFUSED, False)
    assert wrong.stderr.startswith("The hub does not know this token: it has expired or was revoked.")
    body = {"scopes": ["access:services!service=gpu"]}
    narrow = hub.api("POST", "/users/ada/tokens", body).json()["token"]
    assert "a token with the scope custom:gpu:use" in gpuspawner("list", token=narrow, url=url).stderr


def test_explain_says_what_the_page_says(hub, ask):
    def shape(text):
        return re.sub(r"[\d.]+", "N", text)  # each call is a second later than the one before

    def same(user, *arguments):
        (lease,) = json.loads(ask(user, "list", "--json").stdout)["workspaces"]
        answer = ask(user, "explain", *arguments)
        first = f"{user}: default workspace ({lease['id'][:8]}). {lease['words']}."
        return shape(answer.stdout) == shape("\n".join([first, *lease["explained"], ""]))

    eventually(lambda: same("ada", hub.lease("ada")["id"][:8]), 60)
    eventually(lambda: same("bob"), 60, "without a name it is the only one")
    document = json.loads(ask("ada", "explain", "--json").stdout)
    assert (document["id"], document["idle"]["for_seconds"]) == (hub.lease("ada")["id"], 3600)
    page = hub.login("ada").get(f"{hub.url}{hub.lease('ada')['page']}", timeout=30).text
    assert shape(document["explained"][0]) in shape(unescape(page))


def test_explain_of_none_or_of_several_is_refused(ask):
    unknown = ask("ada", "explain", "lost")
    assert unknown.returncode == REFUSED
    assert unknown.stderr == "No workspace has the name 'lost' or an ID that begins so. See gpuspawner list.\n"
    several = ask("admin", "explain")
    assert (several.returncode, several.stderr) == (
        REFUSED,
        "There are 2 workspaces now. Name one. See gpuspawner list --all.\n",
    )


@pytest.mark.parametrize("arguments", [[], ["-"]], ids=["without a name", "by the name of all three"])
def test_an_administrators_own_comes_before_everybodys_and_ended_it_is_still_meant(hub, ask, arguments):
    hub.add_user("admin")
    hub.begin("admin", template="cpu")
    own = hub.until("admin", "running")["id"][:8]
    assert ask("the admin", "explain", *arguments).stdout.startswith(f"admin: default workspace ({own}). Running")
    stopped = ask("the admin", "stop", "-")
    assert stopped.stdout.startswith(f"admin: default workspace ({own}): Ended."), stopped.stderr
    eventually(lambda: hub.last_end("admin")["id"].startswith(own), what="it has ended")
    told = ask("the admin", "explain", *arguments)
    assert told.returncode == DONE, told.stderr
    assert told.stdout.startswith(f"admin: default workspace ({own}). Ended.\n")
    eventually(lambda: hub.server("admin") is None, what="the hub has no server of it any more")


@pytest.mark.parametrize(("where", "status"), [("", 302), ("/hub", 404), ("/services/gpus", 302)])
def test_an_address_without_the_service_is_named_with_how_the_right_one_ends(hub, where, status):
    answer = gpuspawner("list", token=ADMIN_TOKEN, url=f"{hub.url}{where}")
    assert (answer.returncode, answer.stdout) == (REFUSED, "")
    assert answer.stderr == (
        f"No GPU service is at {hub.url}{where}: the answer there was {status}. Its address ends in /services/gpu. "
        "Set --url or GPUSPAWNER_URL.\n"
    )


def test_stop_of_what_is_not_ones_own_or_not_there_is_refused(hub, ask):
    for user, wanted in (("bob", hub.lease("ada")["id"]), ("ada", "0" * 32)):
        answer = ask(user, "stop", wanted)
        assert answer.returncode == REFUSED
        assert answer.stderr == f"No workspace has the name '{wanted}' or an ID that begins so. See gpuspawner list.\n"
    assert hub.lease("ada")["phase"] == "running"


def test_a_name_that_fits_two_stops_none(hub, ask):
    answer = ask("admin", "stop", "-")
    assert answer.returncode == REFUSED
    assert answer.stderr.startswith("2 workspaces have the name '-' or an ID that begins so.")
    assert {w["phase"] for w in hub.workspaces()} == {"running", "queued"}


def test_an_administrator_stops_another_s_workspace_by_all_that_is_shown_of_its_id_alone(hub, ask):
    lease = hub.lease("ada")["id"]
    answer = ask("admin", "stop", lease[:7])
    assert answer.returncode == REFUSED
    assert answer.stderr == (
        f"ada: default workspace ({lease[:8]}) is not yours. Write its ID as gpuspawner list --all shows it.\n"
    )
    assert {w["phase"] for w in hub.workspaces()} == {"running", "queued"}


def test_stop_withdraws_a_waiting_and_stops_a_running_workspace(hub, ask):
    waiting, running = hub.lease("bob"), hub.lease("ada")
    answer = ask("bob", "stop", waiting["id"][:8])
    said = f"bob: default workspace ({waiting['id'][:8]}): Ended. Its files are kept.\n"
    assert (answer.returncode, answer.stdout) == (DONE, said)
    assert hub.until_ended("bob", "cancelled")["end"]["by"] == "bob"
    answer = ask("ada", "stop", "--json", running["id"])
    assert answer.returncode == DONE
    assert json.loads(answer.stdout)["id"] == running["id"]
    assert hub.until_ended("ada", "stopped")["end"]["by"] == "ada"
    eventually(lambda: hub.server("ada") is None, what="the hub has no server of it any more")
    assert ask("ada", "list").stdout.startswith(
        "You have no workspaces now. Start one with gpuspawner start, or on the hub's page Start. "
    )
    ended = ask("ada", "list", "--ended", "5").stdout.splitlines()[1]
    assert re.search(r"It was stopped \(ada\) +\d\d:\d\d:\d\d$", ended), ended  # and when
    told = ask("ada", "explain", running["id"][:8]).stdout.splitlines()
    assert told[1].startswith("You stopped it at ")
    again = ask("ada", "stop", running["id"][:8])
    assert (again.returncode, again.stdout) == (REFUSED, "")
    own = f"ada: default workspace ({running['id'][:8]})"
    assert again.stderr.startswith(f"{own} has ended already. You stopped it at ")
    assert ask("admin", "list", "--disputed", "--all").stdout == "Every report of a wrong end is answered.\n"
