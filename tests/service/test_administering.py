"""Administrator actions over HTTP: rights, an accurate dry run, several actions at once, and their audit."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from fractions import Fraction

import pytest
from harness.waiting import eventually
from page_world import CATALOG, GPUS, NOW, Browser, api, in_grace, reclaimed, running, waiting

from gpuspawner.catalog import load_catalog
from gpuspawner.core.calendar import Per
from gpuspawner.core.errors import Unavailable
from gpuspawner.core.leases.exits import ExitReason
from gpuspawner.core.leases.lease import Phase
from gpuspawner.core.rules import Budget, BudgetUnit, Quota, QuotaScope, Rate, Rules
from gpuspawner.service.administration.overview import find_next_ends
from gpuspawner.service.administration.restriction_effects import refresh_class_members
from gpuspawner.service.notifications.messages import message_of

NODE = GPUS[0].node
WHY = "The driver is changed"


@pytest.fixture
def world(make_web_world):
    made = make_web_world()
    made.observe()
    made.save(running("runs", "alice", gpus=(0, 1)))
    made.save(running("other", "bob", gpus=(2,)))
    made.told = []
    made.parts.registry.on_stored = lambda lease, line: made.told.append(message_of(made.parts, lease, line))
    return made


def post(world, path, status=200, name="admin", **body):
    return api(world, name, f"admin/{path}", "POST", {"reason": WHY, **body}, status=status).json()


def restrict(world, what, status=201, **body):
    return post(world, "restrictions", status, what=what, **body)


def lift(world, made, status=200):
    (one,) = made["restrictions"]
    return api(world, "admin", f"admin/restrictions/{one['id']}", "DELETE", {"reason": "done"}, status=status).json()


def audit_of(world, lease=None):
    return [(x.actor, x.event.action, x.where, x.target) for x in world.call(world.parts.store.audit_log.latest, lease)]


def titles(world):
    return [one.title for one in world.told if one]


def give(world):
    world.call(world.parts.allocator.grant_waiting)


@pytest.mark.parametrize("name", ["alice", "robot", "mallory"])
def test_promise_9_only_administrators_act(world, name):
    made = restrict(world, "drain", node=NODE)["restrictions"][0]
    for method, path in (
        ("POST", "workspaces/stop"),
        ("POST", "workspaces/move"),
        ("POST", "workspaces/extend"),
        ("POST", "restrictions"),
        ("GET", "restrictions"),
        ("DELETE", f"restrictions/{made['id']}"),
    ):
        body = {"ids": ["runs"], "reason": WHY, "until": "3d", "what": "pause"}
        assert api(world, name, f"admin/{path}", method, body).status_code == 403
    assert world.lease("runs").notice is None
    assert len(world.call(world.parts.restrictions.in_force)) == 1


@pytest.mark.parametrize("action", ["stop", "without-gpu", "with-gpu"])
def test_another_persons_workspace_ends_only_with_a_reason(world, action):
    refused = api(world, "admin", f"workspaces/runs/{action}", "POST")
    assert (refused.status_code, "with a reason" in refused.json()["error"]["message"]) == (403, True)
    assert (world.lease("runs").phase, world.lease("runs").notice) == (Phase.RUNNING, None)
    page = Browser(world, "admin").look("workspaces/runs").text
    assert f"workspaces/runs/{action}" not in page
    assert "Stop with a reason…" in page


def test_a_workspace_about_to_restart_is_stopped_for_good(world):
    world.servers[""] = {"name": "", "started": "then", "ready": True, "pending": None, "url": "/"}
    post(world, "workspaces/move", ids=["runs"], now=True)
    assert world.lease("runs").reason is ExitReason.MOVED
    (stopped,) = post(world, "workspaces/stop", ids=["runs"])["affected"]
    assert stopped["words"] == "The workspace does not start again."
    assert (world.lease("runs").reason, WHY in world.lease("runs").message) == (ExitReason.STOPPED, True)


@pytest.mark.parametrize("action", ["stop", "move"])
def test_a_dry_run_says_what_is_done_then_with_notice(world, action):
    dry = post(world, f"workspaces/{action}", ids=["runs", "other", "runs"], dry_run=True)
    assert (dry["words"], world.lease("runs").notice) == (
        f"2 workspaces would be {DONE[action]}. Nothing was done.",
        None,
    )
    assert audit_of(world) == []
    done = post(world, f"workspaces/{action}", ids=["runs", "other"])
    assert (done["affected"], done["words"]) == (dry["affected"], f"2 workspaces are {DONE[action]}.")
    notice = world.lease("runs").notice
    assert (notice.at, notice.why, notice.by, notice.moves) == (NOW + 300, WHY, "admin", action == "move")
    assert done["affected"][0]["ends_at"] == NOW + 300
    assert audit_of(world, "runs") == [("admin", "end announced", "the API, as administrator", "")]
    assert titles(world) == ["Your workspace is about to be ended"] * 2
    warning = api(world, "alice", "workspaces/runs").json()["warning"]
    assert (warning["kind"], WHY in warning["text"], warning["ends_at"]) == ("claim", True, NOW + 300)
    again = post(world, f"workspaces/{action}", 409, ids=["runs"])
    assert "already" in again["error"]["message"]


DONE = {"stop": "stopped", "move": "moved", "extend": "extended"}


def test_an_announced_end_is_listed_and_limits_extensions(world):
    post(world, "workspaces/stop", ids=["runs"])
    (first, *_) = world.call(find_next_ends, world.parts)
    assert (first.at, first.why) == (world.lease("runs").notice.at, f"stopped by admin: {WHY}")
    refused = post(world, "workspaces/extend", 409, ids=["runs"], until="3d", dry_run=True)["error"]["message"]
    assert "as was announced" in refused


def test_an_announced_end_happens_in_time_and_a_moved_workspace_waits_at_its_old_place(world):
    post(world, "workspaces/move", ids=["runs"])
    post(world, "workspaces/stop", ids=["other"])
    asked_at = world.lease("runs").asked_at
    world.call(world.parts.engine.tick)
    assert world.lease("runs").phase is Phase.RUNNING
    world.clock.at += 300
    world.call(world.parts.engine.tick)
    moved, stopped = world.lease("runs"), world.lease("other")
    assert (moved.phase, moved.reason, moved.ended_by) == (Phase.STOPPING, ExitReason.MOVED, "admin")
    assert (stopped.reason, stopped.message) == (
        ExitReason.STOPPED,
        f"It was stopped by admin, from the API, as administrator: {WHY}.",
    )
    world.call(world.parts.engine.drive, "runs")
    world.call(world.parts.engine.drive, "runs")
    (back,) = [x for x in world.call(lambda: list(world.parts.registry)) if x.user == "alice"]
    assert (back.asked_at, back.tried_nodes, back.came_back) == (asked_at, (NODE,), True)
    assert audit_of(world, "runs")[0] == ("admin", "stop", "the API, as administrator", "")


def move_words(world):
    (planned,) = post(world, "workspaces/move", ids=["runs"], dry_run=True)["affected"]
    return planned["words"]


def test_a_move_names_its_target_and_is_refused_if_only_the_same_gpus_are_left(world):
    assert "perhaps on the same GPUs, since no other node has this kind." in move_words(world)
    made = [restrict(world, "quarantine", gpu=gpu.id) for gpu in GPUS[2:]]
    refused = post(world, "workspaces/move", 409, ids=["runs"])["error"]["message"]
    assert "It would get the same GPUs again: no other GPU of this kind can be granted." in refused
    assert world.lease("runs").notice is None
    made += [restrict(world, "quarantine", gpu=gpu.id) for gpu in GPUS[:2]]
    assert "at its old queue position, elsewhere." in move_words(world)
    for one in made:
        lift(world, one)
    world.backend.gpus = (*GPUS, replace(GPUS[0], id="GPU-spare", node="node-2"))
    world.observe()
    assert "on another node if one has room, else perhaps on the same GPUs." in move_words(world)


def test_a_stop_without_notice_ends_running_and_waiting_workspaces(world):
    world.save(waiting("waits", "carol"))
    done = post(world, "workspaces/stop", ids=["runs", "waits"], now=True)
    assert [one["words"][:22] for one in done["affected"]] == ["It ends now. Running k", "Its request is withdra"]
    assert world.lease("runs").phase in {Phase.STOPPING, Phase.ENDED}
    assert (world.lease("waits").phase, WHY in world.lease("waits").message) == (Phase.ENDED, True)
    assert titles(world).count("Your workspace was ended") == 2


def test_an_action_on_several_workspaces_skips_the_impossible_ones_with_the_reason(world):
    world.save(waiting("waits", "carol"))
    dry = post(world, "workspaces/move", ids=["runs", "waits"], now=True, dry_run=True)
    assert dry["words"] == "1 workspace would be moved. 1 can't be. Nothing was done."
    assert world.lease("runs").phase is Phase.RUNNING
    done = post(world, "workspaces/move", ids=["runs", "waits"], now=True)
    assert ([x["id"] for x in done["affected"]], done["words"]) == (["runs"], "1 workspace is moved. 1 can't be.")
    assert done["refused"] == dry["refused"]
    assert [(x["id"], x["words"]) for x in done["refused"]] == [("waits", "It does not run: there is nothing to move.")]
    assert world.lease("runs").phase is not Phase.RUNNING
    world.save(waiting("also", "dora"))
    none = post(world, "workspaces/move", 409, ids=["also", "waits"])["error"]["message"].splitlines()
    assert none[0] == "None of 2 workspaces can be moved."
    assert none[1].startswith("dora / default workspace: It does not run")
    assert post(world, "workspaces/stop", 404, ids=["runs", "none"])["error"]["message"].endswith("Nothing was done.")
    assert next(x[:2] for x in audit_of(world)) == ("admin", "refused")


@pytest.mark.parametrize(
    ("action", "body", "words"),
    [
        pytest.param("stop", {"ids": ["runs"], "reason": " "}, "reason", id="no reason"),
        pytest.param("stop", {"ids": []}, "1 to 200 ids", id="nothing chosen"),
        pytest.param("stop", {"ids": ["\ud800"]}, "1 to 200 ids", id="half of a letter"),
        pytest.param("stop", {"ids": ["runs"], "now": "yes"}, "true or false", id="no flag"),
        pytest.param("stop", {"ids": ["runs"], "until": "3d"}, "a field that does not exist", id="another's field"),
        pytest.param("extend", {"ids": ["runs"]}, "End: Nothing was given", id="no time"),
        pytest.param("extend", {"ids": ["runs"], "until": "yesterday"}, "is not a time", id="a wrong time"),
    ],
)
def test_unparsable_input_is_refused_with_an_example(world, action, body, words):
    refused = post(world, f"workspaces/{action}", 400, **body)["error"]["message"]
    assert words in refused
    assert world.lease("runs").notice is None


def test_an_administrator_extends_beyond_the_user_s_limit(world):
    dry = post(world, "workspaces/extend", ids=["runs"], until="3d", dry_run=True)
    done = post(world, "workspaces/extend", ids=["runs"], until="3d")
    lease = world.lease("runs")
    assert (done["affected"], lease.deadline_at) == (dry["affected"], NOW + 3 * 86400)
    assert lease.deadline_at == lease.running_at + lease.request.lifetime_seconds + lease.extended_seconds
    assert audit_of(world, "runs") == [("admin", "extended", "the API, as administrator", "")]
    assert titles(world) == ["Your workspace runs longer"]
    earlier = post(world, "workspaces/extend", 409, ids=["runs"], until="1h")["error"]["message"]
    assert "Name a later time" in earlier


def test_an_administrator_extension_survives_a_preemption_in_full(world):
    post(world, "workspaces/extend", ids=["runs"], until="3d")
    post(world, "workspaces/move", ids=["runs"], now=True)
    world.call(world.parts.engine.drive, "runs")
    (back,) = [x for x in world.call(lambda: list(world.parts.registry)) if x.user == "alice"]
    up = running(back.id, "alice", gpus=(3,), granted_until=back.granted_until)
    world.save(up)
    assert up.deadline_at < NOW + 86400
    world.call(world.parts.engine.tick)
    world.call(world.parts.registry.settled)  # the scheduler is asked outside the rounds
    lease = world.lease(back.id)
    assert (back.id != "runs", lease.deadline_at) == (True, NOW + 3 * 86400)
    assert lease.deadline_at == lease.running_at + lease.request.lifetime_seconds + lease.extended_seconds
    assert audit_of(world, back.id)[0] == ("gpuspawner", "extended", "", "")


def test_an_extension_of_several_workspaces_stays_within_the_budget(make_web_world):
    budget = Budget(BudgetUnit.GPU_HOURS, Per.MONTH, hard=Fraction(30))
    rules = Rules(quotas=(Quota("each-user", QuotaScope.EACH_USER, budgets=(budget,)),))
    world = make_web_world(replace(load_catalog(CATALOG), rules=rules))
    world.observe()
    for number, name in enumerate(("one", "two")):  # each has 8 h set aside
        world.save(running(name, "alice", gpus=(number,), server=name, rate=Rate(Fraction(1), Fraction(0))))
    for dry_run in (True, False):
        told = post(world, "workspaces/extend", ids=["one", "two"], until="17h", dry_run=dry_run)
        assert ([x["id"] for x in told["affected"]], [x["id"] for x in told["refused"]]) == (["one"], ["two"])
    assert [world.lease(name).deadline_at for name in ("one", "two")] == [NOW + 17 * 3600, NOW + 7 * 3600]


def test_budget_hours_taken_meanwhile_are_not_granted_twice(make_web_world):
    budget = Budget(BudgetUnit.GPU_HOURS, Per.MONTH, hard=Fraction(40))
    rules = Rules(quotas=(Quota("everybody", QuotaScope.EVERYBODY, budgets=(budget,)),))
    world = make_web_world(replace(load_catalog(CATALOG), rules=rules))
    world.observe()
    rate = {"rate": Rate(Fraction(1), Fraction(0))}
    for number, name in enumerate(("one", "two")):  # each has 8 h set aside
        world.save(running(name, "alice", gpus=(number,), server=name, **rate))
    scheduler = world.parts.scheduler

    async def extend(lease, until, before=scheduler.extend):
        if lease.id == "two":  # the first was stored meanwhile, and bob started something
            await world.parts.registry.save(running("third", "bob", gpus=(2,), **rate))
        await before(lease, until)

    scheduler.extend = extend
    (refused,) = post(world, "workspaces/extend", ids=["one", "two"], until="17h")["refused"]
    assert (refused["id"], refused["words"].startswith("It ends at")) == ("two", True)
    assert [world.lease(name).deadline_at for name in ("one", "two")] == [NOW + 17 * 3600, NOW + 7 * 3600]


def test_a_restriction_that_many_lift_at_one_moment_is_lifted_once(world):
    made = restrict(world, "pause", kind="a100", until="2h")
    with ThreadPoolExecutor(8) as pool:
        lifted = list(pool.map(lambda _: lift(world, made), range(8)))
    assert {one["state"] for one in lifted} == {"lifted"}
    assert [line[1] for line in audit_of(world)].count("lifted") == 1


def test_a_drained_node_gets_no_grants_its_users_are_notified_and_lifting_restores_it(world):
    world.save(waiting("waits", "carol", count=1))
    dry = restrict(world, "drain", 200, node=NODE, until="2h", dry_run=True)
    assert world.call(world.parts.restrictions.in_force) == ()
    made = restrict(world, "drain", node=NODE, until="2h")
    assert made["affected"] == dry["affected"]
    assert [(x["id"], x["words"]) for x in made["affected"]] == [
        ("runs", "The workspace goes on. Its user is told, and can move."),
        ("other", "The workspace goes on. Its user is told, and can move."),
    ]
    give(world)
    assert world.lease("waits").phase is Phase.PARKED
    assert titles(world) == ["The GPU of your workspace is taken out of service"] * 2
    warning = api(world, "alice", "workspaces/runs").json()["warning"]
    assert (warning["kind"], warning["actions"]) == ("closed", ["move"])
    offer = api(world, "alice", "offers").json()["offers"][0]
    assert (offer["free"], offer["total"]) == (0, 4)
    assert "End that first" in restrict(world, "drain", 409, node=NODE)["error"]["message"]
    lifted = lift(world, made)
    assert (lifted["state"], lifted["lifted"]["by"], lift(world, made)["state"]) == ("lifted", "admin", "lifted")
    give(world)
    assert world.lease("waits").phase is Phase.RESERVED
    assert [x for x in audit_of(world) if x[3]][:2] == [
        ("admin", "lifted", "the API, as administrator", NODE),
        ("admin", "drained", "the API, as administrator", NODE),
    ]


def test_a_workspace_that_ends_before_a_maintenance_is_not_concerned(world):
    assert world.lease("runs").deadline_at < NOW + 5 * 86400
    planned = restrict(world, "drain", node=NODE, begins="5d", until="6d")
    assert (planned["affected"], titles(world)) == ([], [])


def test_its_user_may_move_off_a_drained_node(world):
    restrict(world, "drain", node=NODE)
    assert api(world, "alice", "workspaces/runs/move", "POST").status_code == 200
    moved = world.lease("runs")
    assert (moved.reason, "node" in moved.message, "unhealthy" in moved.message) == (ExitReason.MOVED, True, False)


def test_a_restriction_expires_by_itself_and_survives_a_restart(world):
    world.save(waiting("waits", "carol", count=1))
    restrict(world, "quarantine", gpu=GPUS[3].id, until="2h")
    world.call(world.parts.restrictions.load)
    give(world)
    assert world.lease("waits").phase is Phase.PARKED
    listed = api(world, "admin", "admin/restrictions").json()["restrictions"]
    assert [(x["what"], x["target"], x["state"]) for x in listed] == [("quarantine", GPUS[3].id, "in force")]
    world.clock.at += 7200
    give(world)
    assert world.lease("waits").phase is Phase.RESERVED
    assert api(world, "admin", "admin/restrictions").json()["restrictions"] == []
    past = api(world, "admin", "admin/restrictions?past=1").json()["restrictions"]
    assert [x["state"] for x in past] == ["over"]


@pytest.mark.parametrize("kind", [{}, {"kind": "a100"}])
def test_a_paused_request_shows_who_paused_it_and_why(world, kind):
    world.save(waiting("waits", "carol", count=1))
    made = restrict(world, "pause", **kind)
    assert [x["id"] for x in made["affected"]] == ["waits"]
    give(world)
    told = api(world, "admin", "workspaces/waits").json()["queue"]
    assert "admin paused it (The driver is changed)" in told["sentence"]
    assert (told["wait_reason"]["rule"], told["unchanged_seconds"]) == ("paused", None)
    assert world.parts.queue.offer("a100").note == "paused"
    lift(world, made)
    assert world.parts.queue.offer("a100").note == ""
    assert world.lease("waits").phase is Phase.RESERVED


def test_reserved_gpus_go_only_to_their_user_until_the_end(world):
    world.save(waiting("waits", "carol", count=1))
    restrict(world, "reserve", kind="a100", count=4, user="dora", until="2h")
    give(world)
    assert world.lease("waits").phase is Phase.PARKED
    world.save(waiting("mine", "dora", count=1, asked_at=NOW))
    give(world)
    assert world.lease("mine").phase is Phase.RESERVED
    assert "End" in restrict(world, "reserve", 400, kind="a100", count=1, user="bob")["error"]["message"]
    over = restrict(world, "reserve", 400, kind="a100", count=9, user="bob", until="2h")["error"]["message"]
    assert "1 to 4" in over


@pytest.mark.parametrize("whom", [{"ids": ["warned"]}, {"user": "carol"}])
def test_an_exempt_workspace_is_not_judged_and_its_grace_ends(world, whom):
    world.save(in_grace("warned", user="carol", gpus=(3,)))
    made = restrict(world, "exempt", until="2h", **whom)
    assert [x["id"] for x in made["affected"]] == ["warned"]
    lease = world.lease("warned")
    assert (lease.phase, lease.streak.idle_seconds) == (Phase.RUNNING, 0.0)
    assert world.call(world.parts.actions.kept_until, lease) == NOW + 7200
    idle = api(world, "admin", "workspaces/warned").json()["idle"]
    assert (idle["state"], idle["kept_until"]) == ("kept", NOW + 7200)
    assert f"by admin: {WHY}" in idle["words"]
    assert idle["words"].startswith("exempt until ")
    (row,) = Browser(world, "admin").look("console/workspaces.json?state=exempt").json()["rows"]
    assert (row["user"], f"by admin: {WHY}" in row["because"]) == ("carol", True)
    lift(world, made)
    assert world.call(world.parts.actions.kept_until, world.lease("warned")) is None


def test_an_exemption_of_several_leaves_out_those_that_have_ended(world):
    world.save(reclaimed("over", user="dora"))
    made = restrict(world, "exempt", ids=["runs", "over"], until="2h")
    assert ([x["target"] for x in made["restrictions"]], [x["id"] for x in made["refused"]]) == (["runs"], ["over"])
    assert "has ended already" in restrict(world, "exempt", 409, ids=["over"], until="2h")["error"]["message"]


@pytest.mark.parametrize(
    ("what", "body", "words"),
    [
        pytest.param("drain", {"node": "nowhere"}, NODE, id="a node that is not there"),
        pytest.param("quarantine", {"gpu": "none"}, GPUS[0].id, id="a GPU that is not there"),
        pytest.param("pause", {"kind": "h100"}, "a100, t4", id="a kind that is none"),
        pytest.param("pause", {"node": NODE}, "does not take", id="a field of another"),
        pytest.param("reserve", {"kind": "a100", "count": 1, "until": "2h"}, "user, team or group", id="for nobody"),
        pytest.param("exempt", {"user": "alice"}, "End: Nothing was given", id="without an end"),
        pytest.param("exempt", {"user": "\ud800", "until": "2h"}, "Name one as the hub does", id="half of a letter"),
        pytest.param("break", {}, "drain, quarantine, pause, reserve, exempt", id="nothing we do"),
        pytest.param("\ud800", {}, "drain, quarantine, pause, reserve, exempt", id="no text at all"),
    ],
)
def test_an_unrestrictable_target_is_refused_with_the_possible_ones(world, what, body, words):
    assert words in restrict(world, what, 400, **body)["error"]["message"]
    assert world.call(world.parts.restrictions.in_force) == ()


def test_an_unstarted_grant_on_a_node_waits_again(world):
    world.save(waiting("waits", "carol", count=1))
    give(world)
    assert world.lease("waits").phase is Phase.RESERVED
    restrict(world, "drain", node=NODE)
    lease = world.lease("waits")
    assert (lease.phase, lease.slots) == (Phase.PARKED, ())


def test_a_reservation_says_first_that_what_its_team_uses_counts(world):
    dry = restrict(world, "reserve", 200, kind="a100", count=2, user="alice", until="2h", dry_run=True)["words"]
    assert dry.startswith("2 A100 80 GB are reserved for alice until ")
    assert "Alice has 2 " in dry
    assert "So no other GPU is reserved. To reserve 2 more, enter 4." in dry
    assert dry.endswith("Nothing was done yet.")
    assert world.call(world.parts.restrictions.live) == ()
    more = restrict(world, "reserve", kind="a100", count=4, user="alice", until="2h")["words"]
    assert "1 is free and reserved from then on. 1 is in use by others, and reserved once free." in more


def test_a_planned_restriction_takes_effect_at_its_begin(world):
    world.save(waiting("waits", "carol", count=1))
    made = restrict(world, "pause", begins="1h", until="3h")
    assert (made["restrictions"][0]["state"], made["restrictions"][0]["begins_at"]) == ("to come", NOW + 3600)
    assert " from " in made["restrictions"][0]["title"]
    (listed,) = api(world, "admin", "admin/restrictions").json()["restrictions"]
    assert listed["state"] == "to come"
    give(world)
    assert world.lease("waits").phase is Phase.RESERVED
    world.clock.at += 3600
    world.save(waiting("later", "dora", count=1))
    give(world)
    assert world.lease("later").phase is Phase.PARKED
    wrong = restrict(world, "drain", 400, node=NODE, begins="3h", until="2h")["error"]["message"]
    assert "after it begins" in wrong
    assert "has passed" in restrict(world, "drain", 400, node=NODE, begins="2001-01-01")["error"]["message"]


def test_a_check_names_a_coming_reservation_that_ends_the_workspace(world):
    restrict(world, "reserve", kind="a100", count=4, user="dora", begins="2h", until="5h")
    asked = {"gpu": "a100", "lifetime": "8h", "server": "second"}
    told = api(world, "alice", "check", "POST", asked).json()["sentence"]
    assert "are reserved for dora" in told
    assert "Ends at" in told


def held_up(world):
    """Have writes of restrictions wait until what is returned is set."""
    let_go, write = threading.Event(), world.parts.store.restrictions.write
    world.parts.store.restrictions.write = lambda *some, **named: let_go.wait(20) and write(*some, **named)
    return let_go


def closed(world):
    return world.call(lambda: {gpu.note for gpu in world.parts.allocator.observed.fleet.gpus if gpu.closed})


def test_promise_1_a_drain_counts_before_it_is_stored_and_its_end_only_after_it_is_stored(world):
    let_go = held_up(world)
    with ThreadPoolExecutor(1) as beside:
        made = beside.submit(restrict, world, "drain", node=NODE)
        eventually(lambda: closed(world))
        assert world.parts.store.restrictions.in_force(NOW) == []
        let_go.set()
        let_go = made.result() and held_up(world)
        lifting = beside.submit(lift, world, made.result())
        time.sleep(0.2)
        assert closed(world), "it holds until its end is stored"
        let_go.set()
        lifting.result()
    assert not closed(world)


def test_a_node_whose_drain_cannot_be_stored_is_not_closed(world):
    world.parts.store.restrictions.write = lambda *_, **__: (_ for _ in ()).throw(Unavailable("The disk is full."))
    restrict(world, "drain", 503, node=NODE)
    assert not closed(world)


THURSDAY = "Thu 09:00-11:00"


def test_a_dry_run_shows_the_conflicts_of_a_reservation_and_what_fits(world):
    asked = {"kind": "a100", "user": "dora", "begins": "2h"}
    restrict(world, "reserve", count=3, kind="a100", user="carol", begins="3h", until="4h")
    dry = restrict(world, "reserve", 200, count=3, until="6h", dry_run=True, **asked)
    (conflict,) = dry["conflicts"]
    assert (conflict["begins_at"], conflict["until"], conflict["left"]) == (NOW + 3 * 3600, NOW + 4 * 3600, 1)
    assert "1 of 4 A100 80 GB is left for the 3 of dora. 3 A100 80 GB are reserved for carol." in conflict["words"]
    fits = [(one["count"], one["begins_at"] - NOW, one["until"] - NOW) for one in dry["choices"]]
    assert fits == [(3, 4 * 3600, 6 * 3600), (1, 2 * 3600, 6 * 3600)]
    assert restrict(world, "reserve", 200, count=1, until="6h", dry_run=True, **asked)["conflicts"] == []
    weekly = restrict(world, "reserve", 200, count=4, every=THURSDAY, until="20d", dry_run=True, **asked)
    assert (weekly["conflicts"], weekly["restrictions"][0]["every"]) == ([], "Thu 09:00-11:00")


def test_workspaces_that_last_into_a_reservation_are_shown_before_it_is_made(world):
    world.save(replace(world.lease("runs"), deadline_at=NOW + 3 * 3600))
    world.save(replace(world.lease("other"), deadline_at=NOW + 3600))
    dry = restrict(world, "reserve", 200, kind="a100", count=4, user="dora", begins="2h", until="6h", dry_run=True)
    assert [one["id"] for one in dry["affected"]] == ["runs"]
    assert "It still runs when the reservation begins." in dry["affected"][0]["words"]


def test_maintenance_names_the_reservations_that_it_takes_gpus_from(world):
    restrict(world, "reserve", kind="a100", count=3, user="dora", begins="3h", until="5h")
    dry = restrict(world, "drain", 200, node=NODE, begins="4h", until="8h", dry_run=True)
    (conflict,) = dry["conflicts"]
    assert (conflict["begins_at"], conflict["until"]) == (NOW + 4 * 3600, NOW + 5 * 3600)
    assert f"left for the 3 of dora. {NODE} has maintenance." in conflict["words"]


def test_a_class_reservation_follows_the_members_of_its_hub_group(world):
    world.groups["carol"], world.created["carol"], world.created["dora"] = {"cs231"}, "carol born", "dora born"
    wrong = restrict(world, "reserve", 400, kind="a100", count=1, group="nobody", until="2h")["error"]["message"]
    assert "groups of the hub with members" in wrong
    made = restrict(world, "reserve", kind="a100", count=4, group="cs231", until="2h", every="Mon-Sun 00:00-24:00")
    assert made["restrictions"][0]["on"] == "4 A100 80 GB for class cs231"
    world.save(waiting("waits", "dora", count=1))
    give(world)
    assert world.lease("waits").phase is Phase.PARKED
    world.groups["dora"] = {"cs231"}
    world.call(refresh_class_members, world.parts)
    world.parts.restrictions._live = ()
    world.call(world.parts.restrictions.load)  # as after a restart
    give(world)
    assert world.lease("waits").phase is Phase.RESERVED
