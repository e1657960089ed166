"""Requests that are custom resources, over a fake cluster: asked for once whenever the service dies, told in bounds."""

import asyncio
import contextlib
import json
from dataclasses import replace

import pytest
from page_world import running
from resource_world import SPEC, Cluster, OperatorRun
from service_world import Killed, Life

from gpuspawner.backends.custom_resources.base import LIFETIME, Resource
from gpuspawner.catalog.resources.definitions import OF_REQUEST
from gpuspawner.core.errors import Superseded, Unavailable
from gpuspawner.core.gpus.fleet import Slot
from gpuspawner.core.leases.exits import ExitReason
from gpuspawner.core.leases.lease import EndNotice, Phase
from gpuspawner.service.custom_resources.status import LONGEST_MESSAGE_BYTES, headline, phase_of, short, status_of
from gpuspawner.service.web.permissions import Person
from gpuspawner.service.workspaces.actions import act


@pytest.fixture
def door(world):
    world.hub.add("ada")
    return OperatorRun(world, Cluster())


def leases_of(door):
    return [lease for lease in door.world.registry if lease.user == "ada"]


async def test_it_is_asked_for_by_the_path_of_all_and_told(door):
    door.cluster.apply("train")
    await door.rounds()
    (lease,) = leases_of(door)
    assert (lease.id, lease.unattended) == ("uidtrain", True)
    assert door.world.did(lease)[0] == "asked"
    assert door.status("train")["lease"] == "uidtrain"
    assert door.world.hub.calls[0][:2] == ("start", "ada")


@pytest.mark.parametrize("kill_at", range(5))
@pytest.mark.parametrize("half", [False, True])
async def test_killed_at_any_effect_it_is_asked_for_once_and_stopped_once(door, kill_at, half):
    door.cluster.apply("train")
    door.boot(Life(kill_at, half=half))
    await door.rounds()
    door.boot()
    await door.rounds()
    assert [lease.id for lease in leases_of(door)] == ["uidtrain"]
    assert door.status("train")["lease"] == "uidtrain"
    door.cluster.change(door.cluster.there["train"], deleting=True)
    door.boot(Life(kill_at, half=half))
    await door.rounds()
    door.boot()
    await door.rounds(10)
    assert door.cluster.there == {}
    assert leases_of(door) == []


@pytest.mark.parametrize("when", [{}, {"ready_at": {"time": "8:00"}}], ids=["now", "at a time"])
async def test_a_name_that_no_other_door_takes_is_refused_here_too(door, when):
    door.cluster.apply("train", server="a\nb", **when)
    await door.rounds()
    assert door.status("train")["phase"] == "Refused"
    assert door.status("train")["message"].startswith("Name: You asked for 'a")
    assert leases_of(door) == []


async def test_a_user_who_is_renamed_keeps_the_workspace_and_the_old_request_is_told_so_once(door):
    door.cluster.apply("train")
    await door.rounds(10)
    (lease,) = leases_of(door)
    door.world.hub.answer("ada")
    door.world.hub.rename("ada", "eve")
    await door.world.go_on(60, step=10)
    await door.rounds()
    door.cluster.told.clear()
    await door.rounds(20)
    assert door.world.now_of(lease).user == "eve"
    assert door.cluster.told.count("train") == 0
    assert door.status("train")["phase"] == "Ended"
    assert "has another request" in door.status("train")["message"]
    assert door.cluster.there[f"ws-{lease.id[:12]}"].spec["user"] == "eve"
    door.cluster.change(door.cluster.there["train"], deleting=True)
    await door.rounds()
    assert door.world.now_of(lease).live, "what it stands for no more is not stopped by it"


async def test_moving_values_are_sent_once_a_minute(door):
    door.cluster.apply("train")
    await door.rounds()
    lease = await door.world.up("bob")
    await door.rounds()
    door.cluster.told.clear()
    for _ in range(30):  # two minutes
        await door.operator.round()
        while tasks := list(door.operator._acts._tasks.values()):
            await asyncio.gather(*tasks)
        door.world.clock.advance(4.0)
    assert door.cluster.told.count(f"ws-{lease.id[:12]}") == 2


async def test_foreign_writes_to_the_status_are_overwritten(door):
    door.cluster.apply("train")
    await door.rounds()
    door.cluster.change(door.cluster.there["train"], status={"phase": "Ended", "lease": "another"})
    await door.rounds(2)
    assert door.status("train")["lease"] == "uidtrain"


async def test_a_status_has_8_kib_at_most(door):
    lease = await door.world.up("bob")
    slots = tuple(Slot(f"{'n' * 253}/nvidia.com/gpu/{number}") for number in range(100))
    long = replace(lease, slots=slots, phase=Phase.STOPPING, reason=ExitReason.STOPPED, message="停止" * 5000)
    said = [{"type": LIFETIME, "status": "False", "message": "a" * 1000, "reason": "Refused"}]
    resource = Resource("r", "u", "1", "then", spec=SPEC, status={"conditions": said})
    status = status_of(door.world.parts, resource, long)
    assert "停止" in status["message"]
    assert 7000 < len(json.dumps(status, ensure_ascii=False).encode()) < 8192


def test_a_reason_is_cut_between_two_letters_and_half_of_a_pair_breaks_nothing():
    assert short("停" * 400) == "停" * (LONGEST_MESSAGE_BYTES // 3)
    assert short("a\ud800b") == "a?b"


LONG = "GPU: You asked for 't4'. Allowed: a100, h100 or none. Choose one of them."


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        ("Running on 2 A100", "Running on 2 A100"),
        ("Next ready Mon 08:00. It is asked for early enough.", "Next ready Mon 08:00."),
        (LONG, "GPU: You asked for 't4'. Allowed: a100, h100 or none."),
        ("one two, " * 20, "one two, one two, one two, one two, one two, one two, one…"),
        ("停" * 400, "停" * 59 + "…"),
        ("", ""),
    ],
)
def test_the_column_reason_has_the_first_sentence_or_60_letters_of_it(message, reason):
    assert headline(message) == reason
    assert len(headline(message)) <= OF_REQUEST["properties"]["reason"]["maxLength"]


@pytest.mark.parametrize("lifetime", ["banana", "-3h", ["8h"], None])
async def test_a_lifetime_that_cannot_be_read_says_which_key_and_value_and_what_is_allowed(door, lifetime):
    door.cluster.apply("train")
    await door.rounds()
    await door.world.up("ada", template="pytorch", lifetime="8h")
    await door.rounds()
    door.cluster.apply("train", lifetime=lifetime)
    await door.rounds()
    told = door.cluster.there["train"].condition(LIFETIME)
    if lifetime is None:
        assert told == {}, "the one that was written is taken out: nothing is asked"
        return
    assert (told["status"], told["reason"]) == ("False", "Refused")
    assert told["message"].startswith(f"Run time: You asked for {lifetime!r}. Allowed: ")
    assert " to " in told["message"].partition("Allowed: ")[2]
    assert told["message"].endswith("The workspace keeps the lifetime that it has.")


@pytest.mark.parametrize("public_url", ["", "https://hub.example.org/services/gpu"])
async def test_the_address_of_the_page_is_public_or_absent(door, public_url):
    door.operator._parts = replace(door.world.parts, page_url=public_url)
    door.cluster.apply("train")
    await door.rounds()
    page = f"{public_url}/workspaces/uidtrain" if public_url else None
    assert door.status("train").get("page") == page


async def test_nothing_stops_where_all_are_deleted_together(door):
    door.cluster.apply("train")
    await door.rounds()
    door.cluster.is_going = True
    door.cluster.change(door.cluster.there["train"], deleting=True)
    await door.rounds()
    assert door.cluster.there == {}
    assert [lease.id for lease in leases_of(door)] == ["uidtrain"]


async def test_a_workspace_without_a_gpu_keeps_its_request_and_a_delete_stops_it(door):
    """``kubectl get`` lists the workspace as it goes on, under the request by which it was asked for."""
    door.cluster.apply("train", gpu="a100", count=1)
    await door.rounds()
    lease = await door.world.up("ada", **{key: value for key, value in SPEC.items() if key not in {"user", "server"}},
                                gpu="a100", count=1)  # fmt: skip
    assert lease.id == "uidtrain"
    for way, kinds in (("without-gpu", None), ("with-gpu", "a100")):
        await act(door.world.parts, Person("ada", lease.key.owner), lease, way, "its page")
        await door.rounds()
        after = door.world.registry.of_key(lease.key)
        assert (after.follows, after.request.gpu) == (lease.id, kinds)
        assert list(door.cluster.there) == ["train"]
        assert door.status("train")["lease"] == after.id
        assert door.status("train")["phase"] in {"Queued", "Starting"}
        if way == "without-gpu":
            again = await door.world.ask("ada", "", **after.options)
            await door.world.create(again)
            door.world.hub.answer("ada", "")
            await door.rounds(1)
            lease = door.world.registry.get(after.id)
    door.cluster.change(door.cluster.there["train"], deleting=True)
    await door.rounds(10)
    assert door.cluster.there == {}
    assert leases_of(door) == []


async def test_of_two_operators_the_newer_leads_and_the_older_touches_nothing(door, monkeypatch):
    """The older one does not know what was started since, and would let its requests go."""
    door.cluster.apply("train")
    await door.rounds()
    older, left = door.operator, door.world.parts
    with monkeypatch.context() as undisturbed:
        undisturbed.setattr(door.world, "crash", lambda: None)
        door.boot()
    lease = await door.world.up("bob")
    door.cluster.apply("second", server="second")
    await door.rounds()
    there, told = dict(door.cluster.there), len(door.cluster.told)
    assert set(there) == {"train", "second", f"ws-{lease.id[:12]}"}
    left.engine.observer.has_looked = True
    with pytest.raises(Superseded):
        await older.round()
    await asyncio.gather(*older._acts._tasks.values(), return_exceptions=True)
    left.store.close()
    assert (door.cluster.there, len(door.cluster.told)) == (there, told)
    door.cluster.change(door.cluster.there["train"], deleting=True)
    await door.rounds(10)
    assert set(door.cluster.there) == {"second", f"ws-{lease.id[:12]}"}, "it took over what the older one asked for"


async def test_refusals_are_told_and_not_tried_again(door):
    door.cluster.apply("kind", gpu="t4")
    door.cluster.apply("who", user="nobody")
    await door.rounds()
    assert (door.status("kind")["phase"], door.status("who")["phase"]) == ("Refused", "Refused")
    assert "t4" in door.status("kind")["message"]
    assert "The hub has no user nobody" in door.status("who")["message"]
    told = len(door.cluster.told)
    await door.rounds()
    assert len(door.cluster.told) == told
    assert leases_of(door) == []


@pytest.mark.parametrize("when", [{}, {"ready_at": {"time": "8:00"}}], ids=["now", "at a time"])
async def test_all_errors_of_a_request_are_reported_at_once(door, when):
    door.cluster.apply("wrong", count=99, memory="1 box", **when)
    await door.rounds()
    told = door.status("wrong")
    assert told["phase"] == "Refused"
    assert "GPUs: You asked for '99'" in told["message"] or "GPUs: You asked for 99" in told["message"]
    assert "Memory: You asked for '1 box'" in told["message"]
    assert told["conditions"][0]["message"] == told["message"]


async def test_a_policy_that_is_not_there_refuses_new_ones_alone(door):
    door.cluster.apply("old")
    await door.rounds()
    door.cluster.refusal = "no policy"
    door.cluster.apply("new", server="second")
    await door.rounds()
    assert (door.status("new")["phase"], door.status("new")["message"]) == ("Pending", "no policy")
    assert [lease.id for lease in leases_of(door)] == ["uidold"]
    door.cluster.refusal = ""
    await door.rounds()
    assert len(leases_of(door)) == 2


async def test_resources_that_are_not_seen_are_told_once_and_nothing_is_done(door, caplog, monkeypatch):
    async def unseen():
        raise Unavailable("not seen: install the chart")

    door.cluster.apply("train")
    monkeypatch.setattr(door.cluster, "requests", unseen)
    await door.rounds()
    assert [one.getMessage() for one in caplog.records if "not seen" in one.getMessage()] == [
        "not seen: install the chart"
    ]
    assert leases_of(door) == []


async def test_a_running_workspace_is_no_end_while_its_lease_is_rebuilt(make_world, monkeypatch):
    """The store is lost. Until all leases are rebuilt, a request without a lease must not start, and stop it later."""
    old = OperatorRun(make_world(), Cluster())
    lease = await old.world.up("bob")
    await old.rounds()
    new = OperatorRun(make_world(), old.cluster)
    new.world.hub, new.world.backend = old.world.hub, old.world.backend
    new.boot()
    find, goes_on = new.world.registry.find, asyncio.Event()

    async def slow(name):
        await goes_on.wait()
        return await find(name)

    monkeypatch.setattr(new.world.registry, "find", slow)
    looks = asyncio.ensure_future(new.world.round())
    for _ in range(3):
        await asyncio.sleep(0)
        await new.operator.round()
    goes_on.set()
    await looks
    await new.rounds()
    assert new.world.registry.get(lease.id).phase is Phase.RUNNING
    assert [one.deleting for one in new.cluster.there.values()] == [False]


async def test_a_status_is_never_longer_than_the_api_server_takes(door):
    """Else none would be written of a workspace on a node with a long name, in a cluster with one."""
    lease = await door.world.up("bob")
    node = "europe-west4-production:" + "node-pool-of-large-gpus." * 8 + "internal"
    slots = tuple(Slot(f"{node}/nvidia.com/mig-1g.10gb/{n}") for n in range(2))
    long = replace(lease, slots=slots, given="a100-80gb-sxm4-of-the-second-generation@europe-west4-production-b")
    told = status_of(door.world.parts, Resource("r", "u", "1", "then", spec=SPEC), long)["allocation"]
    takes = OF_REQUEST["properties"]["allocation"]["properties"]
    assert [name for name in ("summary", "kind") if len(told[name]) > takes[name]["maxLength"]] == []
    assert all(len(gpu) <= takes["gpus"]["items"]["maxLength"] for gpu in told["gpus"])
    assert told["gpus"][1].endswith("internal/nvidia.com/mig-1g.10gb/1")


@pytest.mark.parametrize("at", ["before", "between"])
async def test_a_stop_while_it_is_extended_is_no_stop_undone(door, monkeypatch, at):
    """State that was read before an await is old. Saved, it would keep a stopping lease on GPUs that go to others."""
    world, registry = door.world, door.world.registry
    door.cluster.apply("train")
    await door.rounds()
    lease = await world.up("ada", template="pytorch", lifetime="8h")
    assert lease.id == "uidtrain"
    await door.rounds()
    stored, save = registry.stored, registry.save

    async def stop():
        monkeypatch.undo()
        await act(world.parts, Person("ada", lease.key.owner), registry.get(lease.id), "stop", "its page")

    async def stops_before(which):
        await stored(which)
        await stop()

    async def stops_after(*leases, **beside):
        await save(*leases, **beside)
        await stop()

    if at == "before":
        monkeypatch.setattr(registry, "stored", stops_before)
    else:
        monkeypatch.setattr(registry, "save", stops_after)
    door.cluster.apply("train", lifetime="10h")
    with contextlib.suppress(Killed):
        await door.operator.round()
    while tasks := list(door.operator._acts._tasks.values()):
        await asyncio.gather(*tasks, return_exceptions=True)
    assert world.now_of(lease).phase in {Phase.STOPPING, Phase.ENDED}


@pytest.mark.parametrize(
    ("phase", "preemption", "told"),
    [
        (Phase.RUNNING, "", "Running"),
        (Phase.RECLAIMING, "", "Reclaiming"),
        (Phase.RUNNING, "claim", "Preempting"),
        (Phase.STOPPING, "claim", "Stopping"),
    ],
)
def test_a_phase_names_a_workspace_that_is_taken_back(phase, preemption, told):
    notice = EndNotice(preemption, 60.0, "why", "admin")
    assert phase_of(running(phase=phase, notice=notice)) == told
