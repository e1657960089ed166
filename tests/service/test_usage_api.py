"""Quotas, use and grants over HTTP: the numbers, who may see and change them, and what a grant changes at once."""

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from fractions import Fraction

import pytest
from page_world import CATALOG, NOW, api, command_fixture, running

from gpuspawner.catalog import load_catalog
from gpuspawner.cli.main import main
from gpuspawner.core.errors import Unavailable
from gpuspawner.core.events import QuotaTakenBack
from gpuspawner.core.leases import exits
from gpuspawner.core.leases.transitions import end
from gpuspawner.core.quotas.limits import Requester
from gpuspawner.core.rules import LatestEnd, Rate

HOUR = 3600.0
QUOTAS = {
    "each-user": {"each": "user", "gpus": {"hard": 4}, "gpu_hours": {"per": "week", "soft": 10, "hard": 40}},
    "vision": {"group": "vision", "gpu_hours": {"per": "month", "hard": 100}, "cost": {"per": "month", "hard": 500}},
}


@pytest.fixture
def world(make_web_world):
    rules = {"timezone": "Europe/Zurich", "currency": "CHF", "teams": {"vision": {}}, "quotas": QUOTAS}
    made = make_web_world(load_catalog({**CATALOG, **rules}))
    made.groups["alice"] = {"vision"}
    made.observe()
    return made


def runs(world, lease_id="runs", user="alice", minutes=60, **changes):
    rate = Rate(Fraction(1), Fraction(2))
    return world.save(running(lease_id, user, minutes=minutes, **{"rate": rate, "server": lease_id, **changes}))


def ended(world, lease_id="ended", user="alice", minutes=120, **changes):
    lease = runs(world, lease_id, user, minutes, **changes)
    world.call(world.parts.allocator.commits.finish, lease, exits.stopped_by(user, "a test"))
    world.save(end(world.lease(lease_id), NOW))


def ask(world, path, name="alice", status=200, method="GET", **body):
    return api(world, name, path, method, body, status=status).json()


def refused(world, path, name="admin", status=400, method="POST", **body):
    return ask(world, path, name, status, method, **body)["error"]["message"]


def test_a_small_reserved_amount_begins_a_sentence(world):
    runs(world, minutes=0, deadline_at=NOW + 120)
    (week, *_) = ask(world, "quota")["budgets"]
    assert "this week. Less than 0.1 reserved by running workspaces. Resets on Mon" in week["words"]


def test_everybody_sees_what_is_used_set_aside_left_and_when_it_renews(world):
    ended(world)
    runs(world)
    answer = ask(world, "quota")
    assert (answer["user"], answer["teams"], answer["timezone"]) == ("alice", ["vision"], "Europe/Zurich")
    week, month, money = answer["budgets"]
    assert (week["entry"], week["limit"], week["per"], week["whose"]) == ("each-user", "gpu_hours", "week", "you")
    assert (week["used"], week["set_aside"], week["left"], week["soft"], week["hard"]) == (3, 7, 30, 10, 40)
    assert week["words"].startswith(
        "30 left of your 40 GPU hours this week. 7 reserved by running workspaces. Resets on Mon"
    )
    assert week["lasts_until"] == NOW + 37 * HOUR
    assert (month["whose"], month["used"], month["per"]) == ("team vision", 0, "month")  # alice charged no team
    assert (money["limit"], money["hard"]) == ("cost", 500)
    assert answer["limits"][0]["words"] == "1 of 4 GPUs used"


def test_the_form_tells_what_the_whole_start_costs_and_leaves_of_budgets(world):
    ended(world, minutes=10 * 60)
    told = ask(world, "check", method="POST", team="vision", count=2, lifetime="5h")["cost"]
    assert (told["amount"], told["currency"]) == (21.0, "CHF")
    assert told["words"] == [
        "CHF 4.20 per hour, CHF 21.00 for 5 h.",
        "Leaves 20 of your 40 GPU hours this week.",
        "Leaves 90 of vision's 100 GPU hours this month.",
        "Leaves CHF 479.00 of vision's CHF 500.00 this month.",
    ]
    assert ask(world, "check", method="POST", team="vision", gpu="none")["cost"] == {
        "amount": None,
        "currency": "CHF",
        "words": [],
    }


def test_the_form_tells_the_end_by_budget_before_start(world):
    ended(world, minutes=35 * 60)
    told = ask(world, "check", method="POST", team="vision")
    assert told["ends_at"] == NOW + 5 * HOUR
    assert told["sentence"].startswith("Starts now on 1 simulated A100 80 GB (4 free). Ends at ")
    assert "when your 40 GPU hours this week are used up." in told["sentence"]
    assert [line["limit"] for line in told["quota"]] == ["gpus", "gpu_hours", "gpu_hours", "cost"]
    ended(world, "more", minutes=5 * 60 - 1)
    assert "GPU hours: You asked for 1 GPU for 8 h" in refused(world, "check", "alice", 403, team="vision")


def test_a_workspace_says_what_it_was_charged_and_what_bounds_it(world):
    bound = LatestEnd(NOW + HOUR, "budget", "ends at 14:10, when your 40 GPU hours this week are used up", "each-user")
    runs(world, deadline_at=NOW + HOUR, latest_end=bound, warned_seconds=(3600.0,))
    (view,) = ask(world, "workspaces")["workspaces"]
    assert view["charged"] == {"gpu_hours": 1, "cost": 2}
    told = {"at": NOW + HOUR, "rule": "budget", "words": bound.words}
    assert view["latest_end"] == {**told, "entry": "each-user", "sentence": f"It {bound.words}."}
    assert view["warning"]["text"].startswith(f"This workspace {bound.words}. Save your work")
    assert f"It {bound.words}." in view["explained"]


@pytest.mark.postgresql
def test_use_is_summed_by_user_team_kind_and_day(world):
    ended(world, minutes=120)
    ended(world, "other", "bob", minutes=60)
    runs(world, minutes=30)
    mine = ask(world, "usage?since=2027-01-15&by=day")
    assert [(row["name"], row["charged_gpu_hours"], row["cost"]) for row in mine["rows"]] == [("2027-01-15", 2.5, 5)]
    assert (mine["charged_gpu_hours"], mine["cost"]) == (2.5, 5)
    assert (mine["since"], mine["until"]) == ("2027-01-15", "2027-01-15")
    of_all = ask(world, "usage?by=user&all=1", "admin")
    assert [(row["name"], row["charged_gpu_hours"]) for row in of_all["rows"]] == [("alice", 2.5), ("bob", 1)]
    assert of_all["since"] == "2027-01-01"
    for by, name in (("team", "no team"), ("kind", "a100")):
        (row,) = ask(world, f"usage?by={by}&all=1", "admin")["rows"]
        assert (row["name"], row["charged_gpu_hours"]) == (name, 3.5)
    assert ask(world, "usage?until=2027-01-14")["rows"] == []


def test_a_workspace_that_ends_while_its_use_is_read_counts_once(world, monkeypatch):
    runs(world)
    before, read = ask(world, "usage")["charged_gpu_hours"], world.parts.store.read

    async def read_after_the_end(step, *arguments, **named):
        if step == world.parts.store.ledger.sums:
            lease = world.parts.registry.get("runs")
            world.parts.allocator.commits.finish(lease, exits.stopped_by("alice", "a test"))
            await world.parts.registry.save(end(world.parts.registry.get("runs"), NOW))
        return await read(step, *arguments, **named)

    monkeypatch.setattr(world.parts.store, "read", read_after_the_end)
    assert ask(world, "usage")["charged_gpu_hours"] == before == 1


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("by=week", "by: You asked for 'week'"),
        ("since=yesterday", "is not a day"),
        ("since=2027-01-10&until=2027-01-09", "up to"),
    ],
)
def test_an_invalid_query_is_reported(world, query, words):
    assert words in refused(world, f"usage?{query}", "alice", method="GET")


def test_promise_9_others_use_and_grants_are_administrators(world):
    made = ask(world, "quota-grants", "admin", 201, "POST", user="bob", what="4 GPUs", until="3d", why="x")
    correction = {"user": "alice", "amount": "-3 GPU h", "why": "x"}
    for name in ("alice", "mallory", "robot"):
        for method, path, body in (
            ("GET", "quota-grants", {}),
            ("POST", "quota-grants", {"user": name, "what": "4 GPUs", "until": "3d", "why": "x"}),
            ("DELETE", f"quota-grants/{made['id']}", {"why": "x"}),
            ("POST", "usage/corrections", correction),
            ("GET", "usage?all=1", {}),
            ("GET", "quota?user=bob", {}),
        ):
            assert api(world, name, path, method, body).status_code == 403, (name, path)
    assert ask(world, "quota", "bob")["grants"][0]["id"] == made["id"]
    assert ask(world, "quota", "alice")["grants"] == []
    assert ask(world, "quota?user=bob", "admin")["user"] == "bob"


def test_a_quota_grant_counts_at_once_is_audited_and_expires(world):
    runs(world)
    made = ask(
        world, "quota-grants", "admin", 201, "POST", user="alice", what="+20 GPU h", until="this week", why="a paper"
    )
    assert made["words"] == "20 GPU h more for alice until Sun 17 Jan 24:00"
    assert (made["state"], made["by"], made["why"], made["note"]) == ("in force", "admin", "a paper", "")
    (week, *_), grants = (ask(world, "quota")[name] for name in ("budgets", "grants"))
    assert (week["hard"], week["soft"], week["granted"]) == (60, 30, 20)
    assert [one["id"] for one in grants] == [made["id"]]
    line = world.call(world.parts.store.audit_log.latest)[0]
    assert (line.actor, line.user, line.event.action) == ("admin", "alice", "quota granted")
    assert line.why == f"{made['words']}: a paper"
    world.clock.at = made["until"]
    assert ask(world, "quota")["budgets"][0]["hard"] == 40
    assert ask(world, "quota-grants", "admin")["grants"][0]["state"] == "over"
    assert "has ended already" in refused(world, f"quota-grants/{made['id']}", status=409, method="DELETE", why="x")


@pytest.mark.postgresql
def test_a_grant_gives_back_what_a_budget_cut_and_taking_it_back_ends_nothing(world):
    ended(world, minutes=38 * 60)
    bound = LatestEnd(NOW + HOUR, "budget", "ends", "each-user")
    runs(world, minutes=60, deadline_at=NOW + HOUR, latest_end=bound, warned_seconds=(3600.0,))
    made = ask(world, "quota-grants", "admin", 201, "POST", user="alice", what="3 h", until="3d", why="x")
    lease = world.lease("runs")
    assert lease.deadline_at == lease.latest_end.at == NOW + 4 * HOUR  # of the seven hours that are left of eight
    assert lease.warned_seconds == ()
    assert "extended" in [line.event.action for line in world.call(world.parts.store.audit_log.latest, "runs")]
    more = ask(world, "quota-grants", "admin", 201, "POST", user="alice", what="9 h", until="3d", why="x")
    assert (world.lease("runs").deadline_at, world.lease("runs").latest_end) == (NOW + 7 * HOUR, None)
    for one in (made, more):
        taken = ask(world, f"quota-grants/{one['id']}", "admin", method="DELETE", why="no longer needed")
        assert (taken["state"], taken["taken_back"]["by"]) == ("taken back", "admin")
    assert world.lease("runs").deadline_at == NOW + 7 * HOUR
    assert "has taken it back already" in refused(
        world, f"quota-grants/{more['id']}", status=409, method="DELETE", why="x"
    )
    assert ask(world, "quota")["budgets"][0]["left"] == 0
    assert "GPU hours" in refused(world, "check", "alice", 403, team="vision")
    extended = ask(world, "workspaces/runs/extend", "alice", 409, "POST")
    assert "when your 40 GPU hours this week are used up" in extended["error"]["message"]


def test_a_grant_that_is_stored_is_no_error_though_what_follows_from_it_cannot_be_stored(world, monkeypatch):
    world.call(world.parts.allocator.accounting.load)  # as at every start
    ended(world, minutes=38 * 60)
    bound = LatestEnd(NOW + HOUR, "budget", "ends", "each-user")
    runs(world, minutes=60, deadline_at=NOW + HOUR, latest_end=bound)

    def away(*_arguments):
        raise Unavailable("The store does not answer.")

    with monkeypatch.context() as patch:
        patch.setattr(world.parts.store, "save", away)
        made = ask(world, "quota-grants", "admin", 201, "POST", user="alice", what="3 h", until="3d", why="x")
    assert [one["id"] for one in ask(world, "quota-grants", "admin")["grants"]] == [made["id"]]
    assert world.lease("runs").deadline_at == NOW + HOUR
    world.call(world.parts.engine.tick)
    assert world.lease("runs").deadline_at == NOW + 4 * HOUR, "made up for"


def test_a_grant_that_many_take_back_at_one_moment_is_taken_back_once(world):
    made = ask(world, "quota-grants", "admin", 201, "POST", user="alice", what="3 h", until="3d", why="x")
    with ThreadPoolExecutor(8) as pool:
        answers = pool.map(
            lambda number: api(world, "admin", f"quota-grants/{made['id']}", "DELETE", {"why": f"{number}"}), range(8)
        )
    assert sorted(one.status_code for one in answers) == [200, *[409] * 7]
    assert len([one for one in world.parts.store.audit_log.latest() if isinstance(one.event, QuotaTakenBack)]) == 1


def test_a_grant_may_be_for_a_team_a_user_in_it_everybody_and_later(world):
    team = ask(world, "quota-grants", "admin", 201, "POST", team="vision", what="50 cost", until="this month", why="x")
    assert (team["words"], team["note"]) == ("50 of cost more for team vision until Sun 31 Jan 24:00", "")
    assert ask(world, "quota")["budgets"][2]["hard"] == 550
    both = ask(
        world, "quota-grants", "admin", 201, "POST", team="vision", user="alice", what="2 GPUs", until="3d", why="x"
    )
    assert both["words"].startswith("2 GPUs more for alice in vision until")
    assert "so it changes nothing now" in both["note"]  # no entry for each user of vision
    everybody = ask(world, "quota-grants", "admin", 201, "POST", everybody=True, what="1 GPU", until="3d", why="x")
    assert "for everybody" in everybody["words"]
    late = ask(
        world, "quota-grants", "admin", 201, "POST", user="alice", what="2 h", since="tomorrow", until="3d", why="x"
    )
    assert late["state"] == "to come"
    assert ask(world, "quota")["budgets"][0]["granted"] == 0
    assert len(ask(world, "quota-grants", "admin")["grants"]) == 4


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({}, "for whom: You asked for nobody. Allowed: user, team or everybody"),
        ({"user": "alice"}, "a reason of at most 500 letters"),
        ({"user": "alice", "why": "x"}, "Amount: Nothing was given. Allowed: a number with its unit"),
        ({"user": "alice", "why": "x", "what": "4 GPUs"}, "End: Nothing was given. Allowed: a day (Friday"),
        ({"user": "alice", "why": "x", "what": "4 GPUs", "until": "2020-01-01"}, "has passed"),
        ({"user": "alice", "why": "x", "what": "4 GPUs", "until": "2d", "since": "3d"}, "before until"),
        ({"user": "nobody", "why": "x", "what": "4 GPUs", "until": "2d"}, "users of the hub"),
        (
            {"team": "speech", "why": "x", "what": "4 GPUs", "until": "2d"},
            "Team: You asked for 'speech'. Allowed: vision",
        ),
        ({"user": 5, "why": "x", "what": "4 GPUs", "until": "2d"}, "a name"),
        ({"user": "alice", "why": "x", "what": "4 h100", "until": "2d"}, "the catalog's kinds are a100, t4"),
        ({"whom": "alice"}, "a field that does not exist"),
    ],
)
def test_a_grant_that_cannot_be_is_refused_with_what_would_be_right(world, body, words):
    world.created["nobody"] = None
    assert words in refused(world, "quota-grants", **body)
    assert ask(world, "quota-grants", "admin")["grants"] == []


COST_STAYS = "The cost stays as it was: correct it by an amount of cost."
TEAM_STAYS = "What team vision used stays as it was: name the team to correct both."


@pytest.mark.postgresql
def test_a_correction_is_a_line_of_its_own(world):
    ended(world, minutes=10 * 60)
    back = ask(world, "usage/corrections", "admin", 201, "POST", user="alice", amount="-3 GPU h", why="a broken image")
    assert (back["words"], back["note"]) == ("3 GPU h credited to alice", f"{COST_STAYS} {TEAM_STAYS}")
    more = {"user": "alice", "amount": "+5 cost", "team": "vision", "why": "storage"}
    assert ask(world, "usage/corrections", "admin", 201, "POST", **more)["note"] == ""
    answer = ask(world, "quota")
    assert answer["budgets"][0]["used"] == 7
    assert answer["budgets"][2]["used"] == 5
    (row,) = ask(world, "usage?by=user")["rows"]
    assert (row["charged_gpu_hours"], row["credited_gpu_hours"], row["cost"]) == (7, 3, 25)
    line = world.call(world.parts.store.audit_log.latest)[1]
    assert (line.event.action, line.why) == ("usage corrected", "3 GPU h credited to alice: a broken image")
    used = world.call(lambda: world.parts.allocator.bounds.balances().of(Requester("alice", "alice born")))[0].used
    world.call(world.parts.allocator.accounting.load)
    assert (
        world.call(lambda: world.parts.allocator.bounds.balances().of(Requester("alice", "alice born")))[0].used == used
    )
    assert "a user of the hub" in refused(world, "usage/corrections", team="vision", amount="1 h", why="x")
    assert "is not GPU hours or cost" in refused(world, "usage/corrections", user="alice", amount="4 GPUs", why="x")


def test_a_dry_run_shows_both_sides_and_changes_nothing(world):
    ended_for_vision(world)
    before = ask(world, "quota")
    body = {"user": "alice", "team": "vision", "amount": "-4 GPU h", "why": "x", "dry_run": True}
    shown = ask(world, "usage/corrections", "admin", 200, "POST", **body)
    assert [one["words"] for one in shown["sides"][:2]] == [
        "alice in Team vision: 10.0 GPU hours charged in January 2027, 6.0 GPU hours after it",
        "Team vision: 10.0 GPU hours charged in January 2027, 6.0 GPU hours after it",
    ]
    assert {(one["before"], one["after"]) for one in shown["sides"]} == {(10, 6)}
    assert len(shown["sides"]) > 2, "and the budgets of both"
    assert ask(world, "quota") == before
    done = ask(world, "usage/corrections", "admin", 201, "POST", **{**body, "dry_run": False})
    assert done == {**shown, "dry_run": False}
    assert ask(world, "usage?by=user")["charged_gpu_hours"] == 6


def ended_for_vision(world):
    """Ten hours that alice charged to the team."""
    lease = running("ended", minutes=600, rate=Rate(Fraction(1), Fraction(2)))
    world.save(replace(lease, request=replace(lease.request, team="vision")))
    world.call(world.parts.allocator.commits.finish, world.lease("ended"), exits.stopped_by("alice", "a test"))


def test_a_credit_is_bounded_by_what_was_charged_and_any_correction_by_a_typing_error(world):
    ended_for_vision(world)
    more = {"user": "alice", "why": "x"}
    words = refused(world, "usage/corrections", **more, amount="-11 GPU h")
    assert "alice was charged 10.0 GPU hours since 2026-01-01. Credit no more than that." in words
    assert "up to CHF 20.00" in refused(world, "usage/corrections", **more, team="vision", amount="-21 cost")
    assert "up to 100,000.0 GPU hours" in refused(world, "usage/corrections", **more, amount="+100001 GPU h")
    ask(world, "usage/corrections", "admin", 201, "POST", **more, amount="-10 GPU h")
    assert "was charged 0.0 GPU hours" in refused(world, "usage/corrections", **more, amount="-1 GPU h")


def test_of_credits_of_one_moment_no_more_is_credited_than_was_charged(world):
    ended_for_vision(world)
    body = {"user": "alice", "why": "x", "amount": "-6 GPU h"}
    with ThreadPoolExecutor(4) as pool:
        sent = pool.map(lambda _: api(world, "admin", "usage/corrections", "POST", body).status_code, range(4))
        assert sorted(sent) == [201, 400, 400, 400]


# The command line


cli = command_fixture("cli")


def test_the_command_line_says_the_same(world, cli):
    ended(world)
    runs(world)
    code, out, _ = cli("quota", name="alice")
    assert code == 0
    assert out.splitlines()[0] == "1 of 4 GPUs used"
    assert out.splitlines()[1] == ask(world, "quota")["budgets"][0]["words"]
    assert json.loads(cli("quota", "--json", name="alice")[1]) == ask(world, "quota")
    assert json.loads(cli("quota", "--user", "alice", "--json")[1])["budgets"] == ask(world, "quota")["budgets"]
    code, out, _ = cli("usage", "--by", "user", "--all")
    assert (
        out.splitlines()[0]
        == "GPU hours from 2027-01-01 to 2027-01-15, Europe/Zurich. Running workspaces count up to now."
    )
    assert out.splitlines()[1].split() == ["USER", "CHARGED", "CREDITED", "COST"]
    assert out.splitlines()[2].split() == ["alice", "3.0", "0.0", "6.00"]
    assert out.splitlines()[3].split() == ["all", "3.0", "0.0", "6.00"]
    assert json.loads(cli("usage", "--json", name="alice")[1]) == ask(world, "usage")
    assert cli("usage", "--until", "2027-01-02", name="bob")[1] == "No GPU was used from 2027-01-01 to 2027-01-02.\n"


def test_grants_are_given_listed_and_taken_back(world, cli):
    code, out, _ = cli("admin", "grant", "alice", "4 GPUs", "--until", "Friday", "--reason", "a paper")
    (made,) = ask(world, "quota-grants", "admin")["grants"]
    assert (code, out) == (0, f"4 GPUs more for alice until 24:00 (grant {made['id'][:8]}): in force.\n")
    code, out, _ = cli(
        "admin", "grant", "--team", "vision", "+20 h", "--until", "this month", "--reason", "y", "--json"
    )
    assert (code, json.loads(out)["team"], json.loads(out)["amount"]) == (0, "vision", 20)
    code, out, _ = cli("admin", "grant", "--list")
    assert (code, len(out.splitlines()), out.splitlines()[0].split()[0]) == (0, 3, "ID")
    assert json.loads(cli("admin", "grant", "--list", "--json")[1]) == ask(world, "quota-grants", "admin")
    code, out, _ = cli("admin", "grant", "--take-back", made["id"][:8], "--reason", "done")
    assert (code, out.rstrip().rpartition(": ")[2]) == (0, "taken back.")
    assert cli("admin", "grant", "--take-back", made["id"][:8], "--reason", "done")[0] == 2
    code, _, err = cli("admin", "grant", "--take-back", "zzz", "--reason", "done")
    assert (code, err) == (2, "No grant has an ID that begins with 'zzz'. See gpuspawner admin grant --list.\n")
    code, _, err = cli("admin", "grant", "alice", "4 GPUs", "--until", "Friday")
    assert (code, "Say why." in err) == (2, True)
    code, _, err = cli("admin", "grant", "alice", "4 GPUs", "--until", "Friday", "--reason", "x", name="bob")
    assert (code, "Only team leads and administrators" in err) == (2, True)
    ended(world, minutes=600)
    correct = ("admin", "correct", "alice", "-3 GPU h", "--reason", "a broken image")
    after = "  alice: 10.0 GPU hours charged in January 2027, 7.0 GPU hours after it.\n"
    code, out, _ = cli(*correct, "--dry-run")
    assert (code, out.startswith(f"3 GPU h credited to alice. Nothing was done yet.\n{after}")) == (0, True)
    assert "corrected" not in str(world.call(world.parts.store.audit_log.latest))
    code, out, _ = cli(*correct)
    assert code == 0
    assert out.startswith(f"3 GPU h credited to alice.\n{after}")
    assert out.endswith(f"\n{COST_STAYS} {TEAM_STAYS}\n")
    code, out, _ = cli("admin", "grant", "--everybody", "2 GPUs", "--until", "3d", "--reason", "x")
    assert "No quota of the catalog limits this for everybody" in out
    assert "Granted: 20 GPU h more for team vision" in cli("quota", name="alice")[1]


def test_corrected_usage_is_returned_as_json_too(world, cli):
    made = json.loads(cli("admin", "grant", "alice", "4 GPUs", "--until", "Friday", "--reason", "a paper", "--json")[1])
    code, out, _ = cli("admin", "grant", "--take-back", made["id"], "--reason", "done", "--json")
    told = json.loads(out)
    assert (code, told) == (0, ask(world, "quota-grants", "admin")["grants"][0])
    assert (told["state"], told["taken_back"]["by"], told["taken_back"]["why"]) == ("taken back", "admin", "done")
    code, out, _ = cli(
        "admin", "correct", "alice", "+10 cost", "--team", "vision", "--reason", "ran elsewhere", "--json"
    )
    told = json.loads(out)
    assert (code, told["user"], told["team"], told["limit"], told["amount"]) == (0, "alice", "vision", "cost", 10)


def test_nothing_to_show_is_said(make_web_world, monkeypatch, capsys):
    world = make_web_world()
    monkeypatch.setenv("GPUSPAWNER_TOKEN", world.token("admin"))
    for command, words in (
        (["quota"], "You have no limits."),
        (["admin", "grant", "--list"], "There are no grants."),
    ):
        assert main([*command, "--url", world.home.rstrip("/")]) == 0
        assert capsys.readouterr()[0] == f"{words}\n"
