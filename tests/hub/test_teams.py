"""Teams and groups in a real hub: who sees and gets what, by form, REST and API, as the hub says who is in which."""

import re
from html import unescape

import pytest
import requests
from groups import MAY_CHANGE_GROUPS, gpu, join, leave, make_groups, token_of
from harness.hub import ADMIN_TOKEN, RealHub, eventually
from versions import both_hubs, newest_hub

CATALOG = """
version: 1
gpus:
  a100: {title: A100, match: NVIDIA-A100, memory: 80GiB, price: 2.10}
  h100: {title: H100, match: NVIDIA-H100, memory: 80GiB, groups: [leads]}
  t4: {title: T4, match: Tesla-T4, memory: 16GiB, price: 0.35}
simulated: {a100: 1, h100: 1, t4: 1}
templates:
  lab:
    title: Lab
    gpus: {a100: 1, h100: 1, t4: 1}
    bounds: {lifetime: 1s-24h}
    default: {gpu: a100, lifetime: 8h}
    substitutes: {a100: [t4]}
  cpu: {title: No GPU}
  lead: {title: For leads, gpus: {a100: 1}, groups: [leads]}
policies: {default: {mode: enforce, lifetime: 1s-24h}}
teams: {vision: {title: Vision lab}, speech: {title: Speech group}}
"""
HIDDEN = [("template", "lead"), ("gpu", "h100"), ("team", "speech")]


@pytest.fixture(scope="module")
def hub(python, tmp_path_factory):
    """One A100 and one H100; the hub of 5.5 too, whose rights tell what groups one may read."""
    folder = tmp_path_factory.mktemp("teams")
    # On a busy machine a refusal takes over a second, and the hub would answer that the start is slow.
    real = RealHub(folder, python=python, wait=600.0, slow_spawn_timeout=5.0, extra=MAY_CHANGE_GROUPS)
    real.catalog.write_text(CATALOG)
    try:
        real.start()
        make_groups(real, "vision", "speech", "leads")
        yield real
    finally:
        real.close()


def stop(hub, user):
    hub.stop(user)
    eventually(lambda: hub.server(user) is None, what=f"{user} is stopped")


def by_form(hub, user, session, **options):
    """Return the form's message of a refusal."""
    page = unescape(hub.submit(session, user, **options).text)
    return re.search(r'spawn-error-msg"[^>]*>(.*?)</p>', page, re.DOTALL)[1].strip()


@pytest.mark.parametrize(("option", "name"), HIDDEN)
def test_a_template_for_others_answers_by_every_way_as_an_unknown_name(hub, option, name):
    join(hub, "anna", "vision")
    session, token = hub.login("anna"), token_of(hub, "anna")
    for ask in (
        lambda **options: by_form(hub, "anna", session, **options),
        lambda **options: hub.begin("anna", **options).json(),
        lambda **options: gpu(hub, token, "/check", options).json(),
    ):
        hidden, none = (repr(ask(**{option: asked})) for asked in (name, "nothing"))
        assert none.count("nothing") == hidden.count(name) > 0
        assert hidden.replace(name, "nothing") == none
    assert hub.server("anna") is None
    assert "h100" not in gpu(hub, token, "/offers").text


@both_hubs
def test_the_form_shows_what_is_for_its_user_and_asks_who_is_in_several_teams(hub):
    for user, groups in {"eva": ("vision",), "lena": ("vision", "speech", "leads")}.items():
        join(hub, user, *groups)
        page = hub.login(user).get(f"{hub.url}/hub/spawn/{user}", timeout=30).text
        assert ("For leads" in page, "H100" in page) == ("leads" in groups, "leads" in groups)
        assert ("Speech group" in page) == ("speech" in groups)
        assert page.count('name="team"') == (1 if "speech" in groups else 0)


@both_hubs
def test_a_start_for_another_user_has_that_users_groups(hub):
    join(hub, "admin", "leads", "speech")
    join(hub, "mia", "vision")
    admin = hub.login("admin")
    assert "For leads" in admin.get(f"{hub.url}/hub/spawn/admin", timeout=30).text
    page = admin.get(f"{hub.url}/hub/spawn/mia", timeout=30).text
    assert "For leads" not in page
    assert "Vision lab" in page
    assert "Allowed: lab, cpu" in by_form(hub, "mia", admin, template="lead")
    assert hub.submit(admin, "mia", template="cpu").status_code == 302
    assert hub.until("mia", "running")["request"]["team"] == "vision"
    stop(hub, "mia")


def test_a_group_changed_in_the_hub_holds_for_the_next_request(hub):
    join(hub, "nico")
    assert hub.begin("nico", template="lead").status_code == 400
    join(hub, "nico", "leads")
    assert hub.begin("nico", template="lead").status_code in {201, 202}
    lease = hub.until("nico", "running")
    environment = hub.environment(lease["id"])
    assert (environment["GPUSPAWNER_GPU_KIND"], environment["GPUSPAWNER_GPU_ASKED"]) == ("a100", "a100")
    leave(hub, "nico", "leads")
    assert hub.begin("nico", template="lead").status_code == 400, "it runs, and is not asked for anew"
    assert hub.lease("nico")["phase"] == "running", "leaving a group ends nothing that runs"
    stop(hub, "nico")
    assert hub.begin("nico", template="lead").status_code == 400


@newest_hub  # both read groups alike by the tests before
def test_members_of_several_teams_choose_one_and_the_last_choice_is_remembered(hub):
    join(hub, "sam", "vision", "speech")
    refused = hub.begin("sam", template="cpu")
    assert refused.status_code == 400
    assert "Allowed: vision, speech" in refused.json()["message"]
    for options in ({"team": "speech"}, {}):
        assert hub.begin("sam", template="cpu", **options).status_code in {201, 202}
        assert hub.until("sam", "running")["request"]["team_title"] == "Speech group"
        stop(hub, "sam")
    leave(hub, "sam", "speech")
    assert hub.begin("sam", template="cpu").status_code in {201, 202}
    assert hub.until("sam", "running")["request"]["team"] == "vision", "the only one that is left"
    stop(hub, "sam")


def test_a_user_who_left_the_group_while_waiting_is_told_at_the_grant(hub):
    join(hub, "otto", "vision")
    join(hub, "uma", "vision", "leads")
    hub.begin("otto", template="lab")
    hub.until("otto", "running")
    hub.begin("uma", template="lead")
    waiting = hub.until("uma", "queued")
    leave(hub, "uma", "leads")
    hub.stop("otto")
    end = hub.until_ended("uma", "not allowed")
    assert end["id"] == waiting["id"]
    assert (
        end["end"]["message"] == "You are no longer in leads. Press Start to request one for another team or template."
    )
    eventually(lambda: hub.server("uma") is None, what="its start is over")
    assert hub.workspace_pids(waiting["id"]) == []


@newest_hub  # what the service alone does
def test_promise_7_who_consents_while_waiting_is_given_another_gpu_and_reads_which(hub):
    join(hub, "paul", "vision")
    join(hub, "vera", "vision")
    hub.begin("paul", template="lab")
    hub.until("paul", "running")
    hub.begin("vera", template="lab")
    waiting = hub.until("vera", "queued")
    answer = gpu(hub, token_of(hub, "vera"), f"/workspaces/{waiting['id']}/consent", {"substitutes": ["t4"]})
    assert answer.status_code == 200, answer.text
    lease = hub.until("vera", "running")
    assert (lease["id"], lease["gpu"], lease["request"]["gpu"]) == (waiting["id"], "t4", "a100")
    assert lease["words"] == (
        "Running on 1 simulated T4 instead of simulated A100, as you allowed: 0.35 instead of 2.10 per hour"
    )
    environment = hub.environment(lease["id"])
    assert (environment["GPUSPAWNER_GPU_KIND"], environment["GPUSPAWNER_GPU_ASKED"]) == ("t4", "a100")
    done = [(line["action"], line["why"]) for line in hub.audit(lease["id"])]
    assert ("consented", "t4") in done
    assert ("substituted", "t4 instead of a100") in done
    headers = {"Authorization": f"token {ADMIN_TOKEN}"}

    def told(line):
        return line in requests.get(f"{hub.url}/services/gpu/metrics", headers=headers, timeout=20).text

    substituted = 'gpuspawner_substitutions_total{asked="a100",given="t4"} 1.0'
    eventually(lambda: told(substituted), 60, "it is counted: counters are told as they are stored")
    assert told('gpuspawner_leases{kind="t4",phase="running",team="vision"} 1.0')
    for user in ("vera", "paul"):
        stop(hub, user)


@both_hubs
def test_administrators_are_told_which_groups_the_hub_lacks(hub):
    assert hub.gpu("/groups") == {"groups": ["leads", "speech", "vision"], "missing": []}
