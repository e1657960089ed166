"""Extend, Keep and the end of a lifetime: by API, by a page's ticket and by the workspace's own token."""

import pytest
import requests
from harness.hub import ADMIN_TOKEN, RealHub, eventually

FAST = 20
HOUR = 3600 / FAST  # as the policies' times pass here
# All times are divided by FAST: 2m are 6 s. A workspace is judged after a minute: 3 s.
CATALOG = """
version: 1
gpus:
  a100: {title: A100, match: NVIDIA-A100, memory: 80GiB}
simulated: {a100: 6}
templates:
  long:
    gpus: {a100: 1}
    default: {lifetime: 2h}
  brief:
    policy: brief
    gpus: {a100: 1}
    default: {lifetime: 2m}
  idle:
    policy: idle
    gpus: {a100: 1}
policies:
  default:
    mode: observe
    lifetime: 1s-24h
    extend: {each: 2h, total: 3h, warn: [10m]}
  brief:
    mode: observe
    lifetime: 1s-24h
    extend: {each: 1h, total: 1h, warn: [80s]}
  idle:
    mode: enforce
    lifetime: 1s-24h
    idle: {below: 5%, for: 40s, sample: 20s, grace: 2h}
    keep: {times: 2, each: 80s}
"""


@pytest.fixture(scope="module")
def hub(tmp_path_factory):
    real = RealHub(tmp_path_factory.mktemp("lifetimes"), fast=FAST)
    real.catalog.write_text(CATALOG)
    with real:
        yield real


def start(hub, user: str, **options):
    hub.add_user(user)
    assert hub.begin(user, **options).status_code in {201, 202}
    return hub.until(user, "running")


def ask(hub, method: str, path: str, credential: str) -> requests.Response:
    """Ask the service's API with what stands behind ``Authorization:``."""
    headers = {"Authorization": credential}
    data = "{}" if method == "POST" else None
    return requests.request(method, f"{hub.url}/services/gpu/api/v1{path}", headers=headers, data=data, timeout=20)


def credentials(hub, lease) -> dict[str, str]:
    """Everything that may act on a user's own workspace."""
    user = lease["user"]
    return {
        "hub token": f"token {hub.api('POST', f'/users/{user}/tokens', {}).json()['token']}",
        "ticket": f"ticket {hub.ticket(user)}",
        "workspace token": f"token {hub.environment(lease['id'])['GPUSPAWNER_WORKSPACE_TOKEN']}",
    }


@pytest.mark.parametrize("who", ["hub token", "ticket", "workspace token"])
def test_extend_moves_the_deadline_as_far_as_the_policy_lets_it(hub, who):
    lease = start(hub, f"ext-{who.partition(' ')[0]}", template="long")
    credential, path = credentials(hub, lease)[who], f"/workspaces/{lease['id']}"
    assert lease["extend"] == {"left_seconds": 3 * HOUR, "each_seconds": 2 * HOUR, "why": None}
    ends = [lease["ends_at"]]
    for step, left in ((2 * HOUR, HOUR), (HOUR, 0)):
        answer = ask(hub, "POST", f"{path}/extend", credential)
        assert answer.status_code == 200, answer.text
        ends.append(answer.json()["ends_at"])
        assert ends[-1] == pytest.approx(ends[-2] + step)
        assert answer.json()["extend"] == {"left_seconds": left, "each_seconds": min(2 * HOUR, left), "why": None}
    refused = ask(hub, "POST", f"{path}/extend", credential)
    assert refused.status_code == 409
    assert refused.json()["error"]["message"].startswith(
        "Extend: You asked for 6 min more. 9 min of 9 min are used. Save "
    )
    assert ask(hub, "GET", path, credential).json()["ends_at"] == pytest.approx(ends[-1])
    audit = [(line["action"], line["actor"], line["why"]) for line in audit_of(hub, lease)]
    assert [line for line in audit if line[0] == "extended"] == [
        ("extended", lease["user"], "by 3 min"),
        ("extended", lease["user"], "by 6 min"),
    ]


def audit_of(hub, lease):
    return hub.gpu(f"/workspaces/{lease['id']}/audit")["audit"]


def test_a_get_never_acts(hub):
    lease = start(hub, "getter", template="long")
    session = hub.login("getter")
    everybody = credentials(hub, lease)
    for action in ("keep", "extend", "stop", "seen"):
        for credential in everybody.values():
            assert ask(hub, "GET", f"/workspaces/{lease['id']}/{action}", credential).status_code == 405
        page = session.get(f"{hub.url}/services/gpu/workspaces/{lease['id']}/{action}", timeout=20)
        assert page.status_code in {200, 404, 405}
    for path in ("/user/getter/?stop=1", "/hub/home?hub", f"/services/gpu/workspaces/{lease['id']}"):
        session.get(f"{hub.url}{path}", timeout=20)
    now = hub.lease("getter")
    changed = {key for key in ("phase", "ends_at", "extend", "keep", "end") if now[key] != lease[key]}
    assert changed == set()


def test_keep_ends_the_grace_as_often_as_the_policy_lets_it(hub):
    lease = start(hub, "keeper", template="idle")
    hub.until("keeper", "reclaiming", 180)
    warned = hub.lease("keeper")["warning"]
    assert warned["actions"] == ["keep", "without-gpu"]
    assert warned["text"].startswith("The GPU has been idle for ")
    everybody, path = credentials(hub, lease), f"/workspaces/{lease['id']}/keep"
    for who, left in (("ticket", 1), ("workspace token", 0)):
        hub.until("keeper", "reclaiming", 180)
        kept = ask(hub, "POST", path, everybody[who])
        assert kept.status_code == 200, kept.text
        assert (kept.json()["phase"], kept.json()["keep"]["left"]) == ("running", left)
        assert kept.json()["warning"] is None
        again = ask(hub, "POST", path, everybody[who])
        assert (again.status_code, again.json()["keep"]["left"]) == (200, left), "a second click uses none up"
    hub.until("keeper", "reclaiming", 180)
    refused = ask(hub, "POST", path, everybody["hub token"])
    assert refused.status_code == 409
    assert refused.json()["error"]["message"] == (
        "Keep: You asked for one more. 2 of 2 are used. Compute on the GPU, or save your work and stop. Files are kept."
    )
    assert hub.lease("keeper")["warning"]["actions"] == ["without-gpu"]
    hub.stop("keeper")
    hub.until_ended("keeper", "stopped")
    eventually(lambda: hub.last_end("keeper")["end"]["by"] == "the service tests", what="who stopped it is told")


def test_a_lifetime_ends_warned_and_with_its_reason(hub):
    lease = start(hub, "brief", template="brief")
    told = eventually(lambda: hub.lease("brief")["warning"], what="the coming end is told")
    assert told["kind"] == "expiry"
    assert told["ends_at"] - told_at(hub, lease) >= 3.5
    assert told["actions"] == ["extend"]
    ended = hub.until_ended("brief", "expired", 60)
    assert ended["end"]["message"] == "Its lifetime was 6 s."
    assert ended["end"]["at"] >= told["ends_at"]
    assert ended["end"]["by"] == "gpuspawner"
    assert hub.server("brief") is None
    assert hub.workspace_pids(lease["id"]) == []
    refused = ask(hub, "POST", f"/workspaces/{lease['id']}/extend", f"token {ADMIN_TOKEN}")
    assert refused.status_code == 409
    assert "This workspace has ended." in refused.json()["error"]["message"]
    page = hub.login("brief").get(f"{hub.url}/hub/spawn", timeout=20)
    assert "Its lifetime was 6 s." in page.text


def told_at(hub, lease) -> float:
    return next(line["at"] for line in audit_of(hub, lease) if line["action"] == "warned")


def test_an_extend_before_the_end_prevents_it(hub):
    lease = start(hub, "later", template="brief")
    eventually(lambda: hub.lease("later")["warning"], what="the coming end is told")
    answer = ask(hub, "POST", f"/workspaces/{lease['id']}/extend", credentials(hub, lease)["workspace token"])
    assert answer.status_code == 200
    assert answer.json()["warning"] is None
    until = lease["ends_at"] + 2
    eventually(lambda: hub.lease("later")["now"] > until, what="the first deadline has passed")
    assert hub.lease("later")["phase"] == "running"
