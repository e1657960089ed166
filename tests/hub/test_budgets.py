"""Budgets on a real hub, past the ends of weeks and months and a change of the clocks: the service's clock is moved.

All tests share one hub. Each test moves the clock further and ends its workspaces.
"""

import re
import sqlite3
from contextlib import closing
from datetime import datetime, timedelta
from html import unescape
from zoneinfo import ZoneInfo

import pytest
import requests
from groups import gpu, join, ruled_hub, token_of
from harness.hub import eventually
from moved_clock import MovedClock

ZURICH = ZoneInfo("Europe/Zurich")
HOUR, NOTICE = 3600.0, 600.0
CATALOG = """
version: 1
timezone: Europe/Zurich
contact: gpu-help@example.org
gpus: {a100: {title: A100, match: NVIDIA-A100, memory: 80GiB, price: 2}}
simulated: {a100: 4}
templates:
  lab: {title: Lab, gpus: {a100: 1-4}, default: {gpu: a100, lifetime: 8h}}
policies:
  default: {mode: observe, lifetime: 10m-24h, extend: {each: 1h, total: 9h, warn: [10m]}}
teams: {vision: {title: Vision}, speech: {title: Speech}}
quotas:
  each-of-speech: {each: user, group: speech, gpu_hours: {per: week, soft: 1, hard: 2}}
  vision: {group: vision, cost: {per: month, hard: 6}}
  each-user: {each: user, gpu_hours: {per: day, hard: 23}}
"""
OF_WEEK = "your 2 GPU hours this week are used up"


@pytest.fixture(scope="module")
def hub(tmp_path_factory):
    folder = tmp_path_factory.mktemp("budgets")
    with ruled_hub(folder, CATALOG, "vision", "speech", clock=MovedClock(folder), slow_spawn_timeout=5.0) as real:
        yield real


def first_of(hub, per):
    """When the next week or month begins in the catalog's zone."""
    today = datetime.fromtimestamp(hub.clock.now(), ZURICH).replace(hour=0, minute=0, second=0, microsecond=0)
    if per == "week":
        return today + timedelta(days=7 - today.weekday())
    return (today.replace(day=1) + timedelta(days=32)).replace(day=1)


def run(hub, user, server="", **options):
    assert hub.begin(user, server, **options).status_code in {201, 202}
    return hub.until(user, "running", server=server)


def stop(hub, lease):
    hub.stop(lease["user"], lease["server"])
    eventually(lambda: hub.server(lease["user"], lease["server"]) is None, what="it is stopped")
    eventually(lambda: hub.last_end(lease["user"])["id"] == lease["id"], what="it has ended")


def budget(hub, user, entry):
    (found,) = (one for one in hub.gpu(f"/quota?user={user}")["budgets"] if one["entry"] == entry)
    return found


def refusals(hub, user, token, server="more"):
    """Return the refusals by form, REST API and check of a start for which a budget has too little left."""
    session = hub.login(user)

    def refused():
        """Return the form's page of the refusal; None while the hub is too busy to wait for it, and shows progress."""
        try:
            page = unescape(hub.submit(session, user, server, template="lab").text)
        except AssertionError:  # the form is not there while the start before it is pending
            return None
        return re.search(r'spawn-error-msg"[^>]*>(.*?)</p>', page, re.DOTALL)

    by_form = eventually(refused, what="the form says why")[1].strip().removeprefix("Error: ")
    by_rest = hub.begin(user, server, template="lab")
    by_check = gpu(hub, token, "/check", {"template": "lab", "server": server})
    assert (by_rest.status_code, by_check.status_code) == (403, 403)
    said = [by_form, by_rest.json()["message"], by_check.json()["error"]["message"]]
    return [re.sub(r"\(.*?\)", "()", text) for text in said]  # what is used grows while it is asked


def alive_at(hub):
    with closing(sqlite3.connect(f"file:{hub.folder}/gpu/gpuspawner.sqlite?mode=ro", uri=True)) as database:
        return database.execute("SELECT number FROM meta WHERE name = 'alive'").fetchone()[0]


def killed(hub):
    """Kill the service, and wait for the next one's first look: a clock that moves before it moves what it sees.

    Time since the service's last heartbeat counts for no user. So the next heartbeat uses a clock that moved first.
    """
    eventually(lambda: alive_at(hub) >= hub.clock.now() - 120, what="it notes that it serves")
    before = hub.service_pids()
    hub.kill_service()
    eventually(lambda: set(hub.service_pids()) - set(before) and hub.gpu("/"), what="the next service answers")
    ready = f"http://127.0.0.1:{hub.service_port}/readyz"
    eventually(lambda: requests.get(ready, timeout=5).status_code == 200, 90, what="it has looked")


def test_the_end_by_a_budget_is_told_before_start_and_set_aside_and_what_is_left_returns(hub):
    hub.clock.move_to((first_of(hub, "week") + timedelta(hours=9)).timestamp())
    join(hub, "lena", "speech")
    token = token_of(hub, "lena")
    told = gpu(hub, token, "/check", {"template": "lab"}).json()["sentence"]
    assert re.search(rf"Ends at .*, when {OF_WEEK}\.", told)
    assert hub.submit(hub.login("lena"), "lena", template="lab").status_code == 302
    lease = hub.until("lena", "running")
    assert OF_WEEK in lease["latest_end"]["sentence"]
    assert lease["ends_at"] - hub.clock.now() == pytest.approx(2 * HOUR, abs=60)
    aside = budget(hub, "lena", "each-of-speech")
    assert (aside["left"], aside["set_aside"] + aside["used"]) == (
        pytest.approx(0, abs=0.001),
        pytest.approx(2, abs=0.001),
    )
    by_form, by_rest, by_check = refusals(hub, "lena", token)
    assert by_form == by_rest == by_check
    assert by_form.startswith("GPU hours: You asked for 1 GPU for 8 h. Allowed: ")
    assert "0 of your 2 GPU hours this week are left" in by_form.replace("less than 0.1", "0")
    renews = first_of(hub, "week").strftime("They reset %a %d %b 00:00.")
    assert by_form.endswith(f"{renews} Stop what you do not need, or ask gpu-help@example.org for more.")
    hub.clock.move_to(hub.clock.now() + HOUR)
    stop(hub, lease)
    back = budget(hub, "lena", "each-of-speech")
    assert (back["set_aside"], back["left"]) == (0, pytest.approx(1, abs=0.05))
    (row,) = hub.gpu("/usage?all=1&by=user")["rows"]
    assert (row["name"], row["charged_gpu_hours"]) == ("lena", back["used"])
    assert row["cost"] == pytest.approx(2 * back["used"])


def test_killed_between_the_warning_and_the_end_the_budget_ends_it_once_and_it_is_charged_once(hub):
    join(hub, "mara", "speech")
    lease = run(hub, "mara")
    ends_at = lease["ends_at"]
    hub.clock.move_to(ends_at - NOTICE + 2)
    warned = eventually(lambda: hub.lease("mara")["warning"], what="its end is told")
    assert (warned["kind"], warned["ends_at"]) == ("expiry", pytest.approx(ends_at, abs=10))
    ends_at = warned["ends_at"]  # ten minutes from the warning, at least
    killed(hub)
    assert hub.lease("mara")["ends_at"] == ends_at
    hub.clock.move_to(ends_at + 1)
    ended = hub.until_ended("mara", "budget")
    assert ended["id"] == lease["id"]
    assert ended["end"]["at"] >= ends_at
    assert ended["end"]["message"].startswith("Your 2 GPU hours this week are used up. They reset Mon ")
    assert hub.workspace_pids(lease["id"]) == []
    assert [len(hub.audit(lease["id"], action)) for action in ("warned", "stop")] == [1, 1]
    assert budget(hub, "mara", "each-of-speech")["used"] == pytest.approx(2, abs=0.01)
    by_form, by_rest, by_check = refusals(hub, "mara", token_of(hub, "mara"), server="")
    assert by_form == by_rest == by_check
    assert "Allowed: 0 of your 2 GPU hours this week are left" in by_form


def test_a_grant_of_hours_moves_the_end_of_running_workspaces_expires_and_a_new_week_has_its_own(hub):
    join(hub, "nele", "speech")
    token = token_of(hub, "nele")
    lease = run(hub, "nele")
    made = hub.gpu("/quota-grants", "POST", {"user": "nele", "what": "+1 GPU h", "until": "2h", "why": "the paper"})
    assert made["state"] == "in force"
    assert hub.lease("nele")["ends_at"] == pytest.approx(lease["ends_at"] + HOUR, abs=5)
    hub.clock.move_to(hub.clock.now() + 2 * HOUR + 60)
    assert hub.gpu("/quota-grants")["grants"][0]["state"] == "over"
    assert hub.lease("nele")["ends_at"] == pytest.approx(lease["ends_at"] + HOUR, abs=5), "it ends nothing earlier"
    extended = gpu(hub, token, f"/workspaces/{lease['id']}/extend", {})
    assert extended.status_code == 409
    assert "when your 2 GPU hours this week are used up" in extended.json()["error"]["message"]
    stop(hub, lease)
    assert hub.begin("nele").status_code == 403
    hub.clock.move_to(first_of(hub, "week").timestamp() + 60)
    assert budget(hub, "nele", "each-of-speech")["used"] == 0
    assert OF_WEEK in gpu(hub, token, "/check", {"template": "lab"}).json()["sentence"]
    stop(hub, run(hub, "nele"))


def test_money_of_a_team_lasts_past_the_end_of_a_month_as_far_as_the_next_one_s_goes(hub):
    join(hub, "olga", "vision")
    join(hub, "paul", "vision")
    first = first_of(hub, "month")
    month_ends = first.timestamp()
    hub.clock.move_to(month_ends - HOUR)
    lease = run(hub, "olga")  # 2.00 per hour: of this month for one hour, then 6.00 for three
    assert lease["ends_at"] == pytest.approx(month_ends + 3 * HOUR, abs=1)
    assert "vision's 6.00 of the month from" in lease["latest_end"]["sentence"]
    assert hub.begin("paul").status_code in {201, 202}
    second = hub.until("paul", "running")  # 4.00 are left of this month, nothing of the next
    assert second["ends_at"] == pytest.approx(month_ends, abs=1)
    stop(hub, second)
    hub.clock.move_to(month_ends + HOUR)
    stop(hub, lease)
    days = {row["name"]: row["cost"] for row in hub.gpu(f"/usage?all=1&since={first - timedelta(days=1):%F}")["rows"]}
    assert days[f"{first:%F}"] == pytest.approx(2, abs=0.05)
    assert days[f"{first - timedelta(days=1):%F}"] == pytest.approx(2, abs=0.1)
    assert budget(hub, "olga", "vision")["used"] == pytest.approx(days[f"{first:%F}"])
