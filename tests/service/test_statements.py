"""Statements: months close by themselves, a closed one never changes, and every way to read a month says the same."""

import csv
import io
import json
import random
import re
from dataclasses import replace
from datetime import datetime
from fractions import Fraction
from zoneinfo import ZoneInfo

import pytest
from lease_builders import a_lease
from page_world import CATALOG, GPUS, Browser, api, asked, running

from gpuspawner.catalog import load_catalog
from gpuspawner.cli.main import main
from gpuspawner.core.events import MonthClosed
from gpuspawner.core.gpus.fleet import Slot
from gpuspawner.core.leases.exits import ExitReason
from gpuspawner.core.leases.lease import Phase
from gpuspawner.core.rules import LostInterval, Rate
from gpuspawner.service.forgetting import forget
from gpuspawner.service.quotas import api as quotas_api
from gpuspawner.service.store import ReadingRow
from gpuspawner.service.usage.closing import close_months

ZURICH = ZoneInfo("Europe/Zurich")
PRICE = Fraction("2.1")
SECOND = 1 / 3600
TEAMS = ("vision", "speech", "")
NAMES = ("allocated", "active", "idle", "not_measured", "reclaimed", "charged", "credited", "cost")


def at(*parts):
    return datetime(2027, *parts, tzinfo=ZURICH).timestamp()


@pytest.fixture
def world(make_web_world):
    teams = {"vision": {"title": "Vision"}, "speech": {}}
    quotas = {"money": {"group": "vision", "cost": {"per": "month", "hard": 100}}}
    made = make_web_world(
        load_catalog({**CATALOG, "timezone": "Europe/Zurich", "currency": "CHF", "teams": teams, "quotas": quotas})
    )
    made.clock.at = at(1, 31, 12)
    made.observe()
    return made


def begin(world, name, user="alice", gpus=(0,), team="vision", **more):
    now, rate = world.clock.at, Rate(Fraction(len(gpus)), PRICE * len(gpus))
    changes = {"phase_since": now, "running_at": now, "sampled_at": None, "deadline_at": now + 9e5, "rate": rate}
    lease = running(name, user, gpus, server=name, **{**changes, **more})
    slots = tuple(Slot(GPUS[index % len(GPUS)].id) for index in gpus)
    world.save(replace(lease, request=replace(lease.request, team=team), slots=slots))


def sample(world, name, kind="busy"):
    now, lease = world.clock.at, world.lease(name)
    since = max(lease.running_at, lease.sampled_at or 0.0)
    rows = [ReadingRow(name, now, now - since, slot.gpu, 50.0, 1, 2, kind, "", kept=False) for slot in lease.slots]
    world.save(replace(lease, sampled_at=now), readings=[] if kind == "unknown" else rows)


def end(world, name, reason=ExitReason.STOPPED):
    now = world.clock.at
    over = replace(world.lease(name), phase=Phase.STOPPING, phase_since=now, reason=reason)
    world.save(over)
    world.save(replace(over, phase=Phase.ENDED, ended_at=now))


def later(world, *parts):
    world.clock.at = at(*parts)
    world.call(close_months, world.parts)


def statement(world, month="2027-01", team="vision", who="admin"):
    return api(world, who, f"statement?team={team}&month={month}").json()


def lines_of(world, month="2027-01", team="vision"):
    return list(csv.DictReader(io.StringIO(asked(world, f"console/statements.csv?team={team}&month={month}").text)))


def test_a_month_closes_on_the_third_day_and_a_workspace_that_runs_on_is_billed_in_both(world):
    begin(world, "runs", gpus=(0, 1))
    world.clock.at = at(1, 31, 18)
    sample(world, "runs")
    later(world, 2, 2, 23, 59)
    assert (statement(world)["state"], statement(world)["total"]["charged"]) == ("open", pytest.approx(24))
    later(world, 2, 3)
    closed = statement(world)
    assert (closed["state"], closed["number"], closed["made_at"]) == ("closed", "2027-01-vision", at(2, 3))
    assert (closed["since"], closed["until"], closed["closes_at"]) == (at(1, 1), at(2, 1), at(2, 3))
    total = closed["total"]
    assert [round(total[name], 6) for name in ("allocated", "active", "not_measured", "charged")] == [24, 12, 12, 24]
    assert total["cost"] == pytest.approx(24 * 2.1)
    used = api(world, "alice", "workspaces/runs").json()["charged"]["gpu_hours"]
    assert used == pytest.approx(2 * 60), "its user sees all of it, also what is billed"
    later(world, 2, 4)
    end(world, "runs", ExitReason.IDLE)
    assert statement(world) == closed
    following = statement(world, "2027-02")
    assert following["total"]["charged"] == pytest.approx(2 * 72)
    assert following["total"]["allocated"] == pytest.approx(2 * 72)
    (entry,) = [x for x in world.parts.store.audit_log.latest() if x.event == MonthClosed("2027-01")]
    assert entry.actor == "gpuspawner"


def test_the_statement_of_a_closed_month_is_the_same_bytes_whatever_follows(world):
    begin(world, "runs")
    later(world, 2, 3)
    paths = [f"console/statements{form}?team=vision&month=2027-01" for form in (".csv", ".json")]
    before = [asked(world, path).content for path in paths]
    sums = world.parts.store.statements.sums("2027-01", "vision")
    sheet = Browser(world, "admin").look("console/statements?team=vision&month=2027-01").text
    correct = {"user": "alice", "team": "vision", "amount": "-1 GPU h", "why": "late"}
    assert api(world, "admin", "usage/corrections", "POST", correct).status_code == 201
    world.parts.in_force.catalog = load_catalog({**CATALOG, "currency": "EUR", "timezone": "America/New_York"})
    world.call(world.parts.accounting.follow)
    later(world, 2, 5)
    end(world, "runs")
    assert [asked(world, path).content for path in paths] == before
    assert world.parts.store.statements.sums("2027-01", "vision") == sums, "in New York some of it was in January"
    again = Browser(world, "admin").look("console/statements?team=vision&month=2027-01").text
    assert _sheet(again) == _sheet(sheet)
    assert statement(world, "2027-02")["total"]["credited"] == pytest.approx(1)


def _sheet(text):
    return text.partition("gs-stats")[2].partition("</main>")[0]


def correct(world, month, amount="-2 GPU h"):
    body = {"user": "alice", "team": "vision", "amount": amount, "why": "an outage", "month": month}
    return api(world, "admin", "usage/corrections", "POST", body)


def test_a_correction_counts_in_the_month_that_it_corrects_until_that_is_closed(world):
    begin(world, "runs")
    later(world, 2, 2)
    answer = correct(world, "2027-01").json()
    assert (answer["month"], answer["note"]) == (
        "2027-01",
        "The cost stays as it was: correct it by an amount of cost.",
    )
    assert answer["sides"][0]["words"].startswith("alice in Team Vision: 12.0 GPU hours charged in January 2027, 10.0")
    assert len(answer["sides"]) == 2, "the budgets are those of February"
    later(world, 2, 3)
    assert statement(world)["total"]["charged"] == pytest.approx(10)
    answer = correct(world, "2027-01").json()
    assert answer["month"] == "2027-02"
    assert answer["note"].startswith("January 2027 is closed: the correction counts in February 2027.")
    assert statement(world)["total"]["charged"] == pytest.approx(10)
    (credit,) = statement(world, "2027-02")["credits"]
    assert (credit["day"], credit["gpu_hours"], credit["why"]) == ("2027-02-03", 2, "an outage (for January 2027)")
    assert "Name a month that has begun." in correct(world, "2027-03").text
    assert "is not a month" in correct(world, "soon").text


def test_a_correction_whose_month_closes_while_it_is_checked_counts_in_the_next(world, monkeypatch):
    begin(world, "runs")
    later(world, 2, 2)
    check = quotas_api._uncorrected

    async def check_late(*arguments):
        world.clock.at = at(2, 3)
        await close_months(world.parts)
        return await check(*arguments)

    monkeypatch.setattr(quotas_api, "_uncorrected", check_late)
    assert correct(world, "2027-01").status_code == 201
    assert (statement(world)["state"], statement(world)["credits"]) == ("closed", [])
    (credit,) = statement(world, "2027-02")["credits"]
    assert (credit["day"], credit["gpu_hours"]) == ("2027-02-01", 2)


def test_a_month_is_closed_once_also_after_a_restart_and_late(world):
    begin(world, "runs")
    later(world, 4, 20)
    first = statement(world)
    assert [statement(world, f"2027-0{month}")["state"] for month in (1, 2, 3, 4)] == ["closed"] * 3 + ["open"]
    world.parts.accounting.closed_month = ""
    world.call(world.parts.accounting.load)
    assert world.parts.accounting.closed_month == "2027-03"
    later(world, 4, 21)
    assert statement(world) == first
    hours = [statement(world, f"2027-0{month}")["total"]["charged"] for month in (1, 2, 3)]
    assert hours == pytest.approx([12, 28 * 24, 31 * 24 - 1]), "the clock goes forward in March"


def test_a_machine_that_starts_a_month_ahead_closes_nothing_and_deletes_nothing(world):
    parts = replace(world.parts, settings=replace(world.parts.settings, keep_ended_seconds=20 * 86400))
    begin(world, "ran")
    world.clock.at = at(1, 31, 20)
    end(world, "ran")
    world.clock.awake_since = lambda: at(2, 28)
    for now, wall, is_settled in (
        (at(2, 28, 0, 9), at(2, 28, 0, 9), False),  # it has just started
        (at(2, 28, 1), at(1, 31, 21), False),  # its time server answered
        (at(2, 28, 1), at(2, 28, 1), True),
    ):
        world.clock.at, world.clock.wall = now, lambda wall=wall: wall
        world.call(close_months, world.parts)
        world.call(forget, parts)
        assert statement(world)["state"] == ("closed" if is_settled else "open")
        assert (world.lease("ran") is None) is is_settled


def test_all_ended_workspaces_older_than_the_setting_are_deleted(world):
    ages = {f"lease-{age}": age for age in (399, 401, *range(500, 900))}
    world.call(world.parts.registry.save, *(
        a_lease(name, Phase.ENDED, ended_at=world.clock.now() - age * 86400) for name, age in ages.items()
    ))  # fmt: skip
    world.call(forget, world.parts)
    assert [name for name in ages if world.lease(name)] == ["lease-399"]


@pytest.mark.parametrize("seed", range(4))
def test_statement_usage_page_csv_and_api_agree_to_the_second(world, seed, monkeypatch, capsys):
    chance, live, expected = random.Random(seed), {}, {}
    world.clock.at = at(1, 28)
    for number in range(120):
        world.clock.at += chance.uniform(60, 4 * 3600)
        world.call(close_months, world.parts)
        now, act = world.clock.at, chance.random()
        if act < 0.3 or not live:
            name, gpus = f"ws{number}", tuple(range(chance.choice((1, 2))))
            team = chance.choice(("vision", "speech", ""))
            lost = (LostInterval(now + 600, now + 1200, "a node failed"),) if chance.random() < 0.2 else ()
            begin(world, name, chance.choice(("alice", "bob", "erin")), gpus, team, lost=lost)
            live[name] = (team, len(gpus), now, bool(lost))
        elif act < 0.8:
            sample(world, chance.choice([*live]), chance.choice(("busy", "idle", "unknown")))
        elif act < 0.95:
            name = chance.choice([*live])
            end(world, name, chance.choice((ExitReason.IDLE, ExitReason.STOPPED)))
            _expect(expected, *live.pop(name), now)
        else:
            hours, team = chance.choice((-2, 3)), chance.choice(("vision", "speech"))
            body = {"user": "bob", "team": team, "amount": f"{hours} GPU h", "why": "a test"}
            if api(world, "admin", "usage/corrections", "POST", body).status_code == 400:
                continue  # there is not so much to credit
            month = f"{datetime.fromtimestamp(now, ZURICH):%Y-%m}"
            expected[month, team] = expected.get((month, team), 0.0) + hours
    for one in live.values():
        _expect(expected, *one, world.clock.at)
    monkeypatch.setenv("GPUSPAWNER_TOKEN", world.token("admin"))
    states = {_agrees(world, month, team, expected, capsys) for month in ("2027-01", "2027-02") for team in TEAMS}
    assert states == {"open", "closed"}


def _agrees(world, month, team, expected, capsys):
    """Compare each way to read a team's month, and return the state of its statement."""
    last = min(
        f"{month}-{'31' if month == '2027-01' else '28'}", f"{datetime.fromtimestamp(world.clock.at, ZURICH):%F}"
    )
    days = f"since={month}-01&until={last}"
    page = {x["key"]: x for x in asked(world, f"console/usage.json?by=team&{days}").json()["rows"]}
    of_api = {x["key"]: x for x in api(world, "admin", f"usage?by=team&all=1&{days}").json()["rows"]}
    found, lines = statement(world, month, team), lines_of(world, month, team)
    total = found["total"]
    if team:
        assert main(["admin", "statement", "--team", team, "--month", month, "--json", "--url", world.home]) == 0
        assert json.loads(capsys.readouterr().out)["total"] == pytest.approx(total, abs=SECOND)
    for name in NAMES:
        close = pytest.approx(total[name], abs=SECOND)
        assert sum(float(line[name]) for line in lines) == close, name
        assert page.get(team, dict.fromkeys(NAMES, 0.0))[name] == close, name
    assert total["allocated"] == pytest.approx(total["active"] + total["idle"] + total["not_measured"])
    assert total["charged"] == pytest.approx(expected.get((month, team), 0.0), abs=SECOND)
    row = of_api.get(team, {"charged_gpu_hours": 0.0, "credited_gpu_hours": 0.0, "cost": 0.0})
    assert row["charged_gpu_hours"] == pytest.approx(total["charged"], abs=SECOND)
    assert row["credited_gpu_hours"] == pytest.approx(total["credited"], abs=SECOND)
    assert row["cost"] == pytest.approx(total["cost"], abs=SECOND)
    assert sum(x["gpu_hours"] for x in found["credits"] if x["gpu_hours"] > 0) <= total["credited"] + SECOND
    return found["state"]


def _expect(expected, team, gpus, since, lost, until):
    """Add the charged hours of a workspace to those of each month."""
    edge = at(2, 1)
    for month, begins, ends in (("2027-01", since, min(until, edge)), ("2027-02", max(since, edge), until)):
        gone = max(0.0, min(ends, since + 1200) - max(begins, since + 600)) if lost else 0.0
        hours = gpus * (max(0.0, ends - begins) - gone) / 3600
        expected[month, team] = expected.get((month, team), 0.0) + hours


def test_the_page_adds_up_and_prints_what_is_meant_for_paper(world):
    for number, user in enumerate(("alice", "bob", "erin")):
        begin(world, f"ws{number}", user, gpus=(number,))
    world.clock.at += 1000
    for number, kind in enumerate(("busy", "idle", "unknown")):
        sample(world, f"ws{number}", kind)
    later(world, 2, 3)
    page = Browser(world, "admin").look("console/statements?team=vision&month=2027-01").text
    assert "Statement of Vision" in page
    assert "Closed on 3 Feb 2027 at 00:00." in page
    assert "% of CHF 100.00" in page
    shown = re.sub(r"\s+", " ", page)
    for table in re.findall(r"<tbody>(.*?)</tbody> *<tfoot>(.*?)</tfoot>", shown):
        rows = [_numbers(row) for row in table[0].split("</tr>") if "<td" in row]
        assert [round(sum(column), 2) for column in zip(*rows, strict=True)] == _numbers(table[1])
        for allocated, active, idle, not_measured, _, credited, charged, _ in [*rows, _numbers(table[1])]:
            assert allocated == pytest.approx(active + idle + not_measured)
            assert charged == pytest.approx(allocated - credited)


def _numbers(row):
    found = re.findall(r'data-label="(?!Price)[^"]*">([-0-9.,]+)<', row)
    return [float(one.replace(",", "")) for one in found]


def test_times_in_the_csv_carry_their_offset_and_each_member_has_a_line(world):
    begin(world, "a", "alice", gpus=(0,))
    begin(world, "b", "bob", gpus=(1,))
    later(world, 2, 3)
    lines = lines_of(world)
    assert [line["member"] for line in lines] == ["alice", "bob"]
    times = {name: lines[0][name] for name in ("since", "until", "closes_at")}
    assert times == {
        name: f"2027-{day}T00:00:00+01:00" for name, day in zip(times, ("01-01", "02-01", "02-03"), strict=True)
    }
    assert (lines[0]["gpu"], lines[0]["price"], lines[0]["currency"]) == ("A100 80 GB", "2.1", "CHF")


def test_a_lead_sees_the_statements_of_their_teams_and_users_none(world):
    begin(world, "a", "alice")
    world.names = {"lena": "lena"}
    assert statement(world, who="lena")["team"] == "vision"
    assert [x["team"] for x in api(world, "lena", "statements?month=2027-01").json()["statements"]] == ["vision"]
    for team in ("speech", ""):
        assert api(world, "lena", f"statement?team={team}").status_code == 403
        asked(world, f"console/statements?team={team}", "lena", 403)
    assert api(world, "alice", "statements").status_code == 403
    asked(world, "console/statements?team=vision", "alice", 403)
    for who in ("otto", "vera", "admin"):
        found = api(world, who, "statements?month=2027-01").json()["statements"]
        assert [x["team"] for x in found] == ["speech", "vision", ""]


def test_a_month_that_is_wrong_or_to_come_and_a_team_that_is_not_are_refused(world, monkeypatch, capsys):
    for query, words in (
        ("month=2027-13", "2027-13' is not a month"),
        ("month=2027-02", "Choose a month that has begun."),
        ("team=nobody", "Name a team."),
        ("teem=x", "Leave it out of the address."),
    ):
        answer = api(world, "admin", f"statement?{query}")
        assert (answer.status_code, words in answer.text) == (400, True), answer.text
        asked(world, f"console/statements.json?{query}", status=400)
    monkeypatch.setenv("GPUSPAWNER_TOKEN", world.token("admin"))
    assert main(["admin", "statement", "--month", "soon", "--url", world.home]) == 2
    assert "is not a month" in capsys.readouterr().err


def test_the_command_prints_all_teams_one_team_and_csv(world, monkeypatch, capsys):
    begin(world, "a", "alice")
    later(world, 2, 3)
    monkeypatch.setenv("GPUSPAWNER_TOKEN", world.token("admin"))

    def run(*arguments):
        assert main(["admin", "statement", *arguments, "--url", world.home]) == 0
        return capsys.readouterr().out

    assert re.search(r"^Vision +2027-01 +closed +12\.0", run("--month", "2027-01"), re.MULTILINE)
    printed = run("--team", "vision", "--month", "2027-01")
    assert printed.startswith("Statement 2027-01-vision of Vision, closed. Times in Europe/Zurich. Cost: CHF 25.20.")
    assert re.search(r"^alice +12\.0", printed, re.MULTILINE)
    text = asked(world, "console/statements.csv?team=vision&month=2027-01").text
    assert run("--team", "vision", "--month", "2027-01", "--csv") == text.replace("\r\n", "\n")


def test_an_empty_month_says_so(world):
    page = Browser(world, "admin").look("console/statements?team=speech&month=2027-01").text
    assert "speech used no GPU in January 2027." in page
