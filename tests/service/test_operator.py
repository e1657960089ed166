"""Requests that are custom resources, over a fake cluster: asked for once whenever the service dies, told in bounds."""

import asyncio
import contextlib
import json
from dataclasses import replace

import pytest
from page_world import running
from resource_world import SPEC, Cluster, OperatorProcess
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
def operator(world):
    world.hub.add("ada")
    return OperatorProcess(world, Cluster())


def leases_of(operator):
    return [lease for lease in operator.world.registry if lease.user == "ada"]


async def test_an_applied_request_starts_a_workspace_and_gets_a_status(operator):
    operator.cluster.apply("train")
    await operator.rounds()
    (lease,) = leases_of(operator)
    assert (lease.id, lease.unattended) == ("uidtrain", True)
    assert operator.world.did(lease)[0] == "asked"
    assert operator.status("train")["lease"] == "uidtrain"
    assert operator.world.hub.calls[0][:2] == ("start", "ada")


@pytest.mark.parametrize("kill_at", range(5))
@pytest.mark.parametrize("half", [False, True])
async def test_a_killed_operator_starts_and_stops_a_workspace_once(operator, kill_at, half):
    operator.cluster.apply("train")
    operator.boot(Life(kill_at, half=half))
    await operator.rounds()
    operator.boot()
    await operator.rounds()
    assert [lease.id for lease in leases_of(operator)] == ["uidtrain"]
    assert operator.status("train")["lease"] == "uidtrain"
    operator.cluster.change(operator.cluster.there["train"], deleting=True)
    operator.boot(Life(kill_at, half=half))
    await operator.rounds()
    operator.boot()
    await operator.rounds(10)
    assert operator.cluster.there == {}
    assert leases_of(operator) == []


@pytest.mark.parametrize("when", [{}, {"ready_at": {"time": "8:00"}}], ids=["now", "at a time"])
async def test_an_invalid_name_is_refused(operator, when):
    operator.cluster.apply("train", server="a\nb", **when)
    await operator.rounds()
    assert operator.status("train")["phase"] == "Refused"
    assert operator.status("train")["message"].startswith("Name: You asked for 'a")
    assert leases_of(operator) == []


async def test_a_renamed_user_keeps_the_workspace_under_a_new_request(operator):
    operator.cluster.apply("train")
    await operator.rounds(10)
    (lease,) = leases_of(operator)
    operator.world.hub.answer("ada")
    operator.world.hub.rename("ada", "eve")
    await operator.world.go_on(60, step=10)
    await operator.rounds()
    operator.cluster.told.clear()
    await operator.rounds(20)
    assert operator.world.now_of(lease).user == "eve"
    assert operator.cluster.told.count("train") == 0
    assert operator.status("train")["phase"] == "Ended"
    assert "belongs to another request" in operator.status("train")["message"]
    assert operator.cluster.there[f"ws-{lease.id[:12]}"].spec["user"] == "eve"
    operator.cluster.change(operator.cluster.there["train"], deleting=True)
    await operator.rounds()
    assert operator.world.now_of(lease).live, "what it stands for no more is not stopped by it"


async def test_changing_values_of_a_status_are_written_once_a_minute(operator):
    operator.cluster.apply("train")
    await operator.rounds()
    lease = await operator.world.up("bob")
    await operator.rounds()
    operator.cluster.told.clear()
    for _ in range(30):  # two minutes
        await operator.operator.round()
        while tasks := list(operator.operator._acts._tasks.values()):
            await asyncio.gather(*tasks)
        operator.world.clock.advance(4.0)
    assert operator.cluster.told.count(f"ws-{lease.id[:12]}") == 2


async def test_foreign_writes_to_the_status_are_overwritten(operator):
    operator.cluster.apply("train")
    await operator.rounds()
    operator.cluster.change(operator.cluster.there["train"], status={"phase": "Ended", "lease": "another"})
    await operator.rounds(2)
    assert operator.status("train")["lease"] == "uidtrain"


async def test_a_status_has_8_kib_at_most(operator):
    lease = await operator.world.up("bob")
    slots = tuple(Slot(f"{'n' * 253}/nvidia.com/gpu/{number}") for number in range(100))
    long = replace(lease, slots=slots, phase=Phase.STOPPING, reason=ExitReason.STOPPED, message="停止" * 5000)
    said = [{"type": LIFETIME, "status": "False", "message": "a" * 1000, "reason": "Refused"}]
    resource = Resource("r", "u", "1", "then", spec=SPEC, status={"conditions": said})
    status = status_of(operator.world.parts, resource, long)
    assert "停止" in status["message"]
    assert 7000 < len(json.dumps(status, ensure_ascii=False).encode()) < 8192


def test_a_long_reason_is_cut_at_a_whole_letter():
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
def test_the_reason_column_has_the_first_sentence_up_to_60_letters(message, reason):
    assert headline(message) == reason
    assert len(headline(message)) <= OF_REQUEST["properties"]["reason"]["maxLength"]


@pytest.mark.parametrize("lifetime", ["banana", "-3h", ["8h"], None])
async def test_an_invalid_lifetime_is_reported_in_a_condition(operator, lifetime):
    operator.cluster.apply("train")
    await operator.rounds()
    await operator.world.up("ada", template="pytorch", lifetime="8h")
    await operator.rounds()
    operator.cluster.apply("train", lifetime=lifetime)
    await operator.rounds()
    told = operator.cluster.there["train"].condition(LIFETIME)
    if lifetime is None:
        assert told == {}, "the one that was written is taken out: nothing is asked"
        return
    assert (told["status"], told["reason"]) == ("False", "Refused")
    assert told["message"].startswith(f"Run time: You asked for {lifetime!r}. Allowed: ")
    assert " to " in told["message"].partition("Allowed: ")[2]
    assert told["message"].endswith("The workspace keeps the lifetime that it has.")


@pytest.mark.parametrize("public_url", ["", "https://hub.example.org/services/gpu"])
async def test_the_address_of_the_page_is_public_or_absent(operator, public_url):
    operator.operator._parts = replace(operator.world.parts, page_url=public_url)
    operator.cluster.apply("train")
    await operator.rounds()
    page = f"{public_url}/workspaces/uidtrain" if public_url else None
    assert operator.status("train").get("page") == page


async def test_deleting_all_resources_together_stops_nothing(operator):
    operator.cluster.apply("train")
    await operator.rounds()
    operator.cluster.is_going = True
    operator.cluster.change(operator.cluster.there["train"], deleting=True)
    await operator.rounds()
    assert operator.cluster.there == {}
    assert [lease.id for lease in leases_of(operator)] == ["uidtrain"]


async def test_a_workspace_without_a_gpu_keeps_its_request_and_a_delete_stops_it(operator):
    """``kubectl get`` lists the workspace as it goes on, under the request by which it was asked for."""
    operator.cluster.apply("train", gpu="a100", count=1)
    await operator.rounds()
    spec = {key: value for key, value in SPEC.items() if key not in {"user", "server"}}
    lease = await operator.world.up("ada", **spec, gpu="a100", count=1)
    assert lease.id == "uidtrain"
    for way, kinds in (("without-gpu", None), ("with-gpu", "a100")):
        await act(operator.world.parts, Person("ada", lease.key.owner), lease, way, "its page")
        await operator.rounds()
        after = operator.world.registry.of_key(lease.key)
        assert (after.follows, after.request.gpu) == (lease.id, kinds)
        assert list(operator.cluster.there) == ["train"]
        assert operator.status("train")["lease"] == after.id
        assert operator.status("train")["phase"] in {"Queued", "Starting"}
        if way == "without-gpu":
            again = await operator.world.ask("ada", "", **after.options)
            await operator.world.create(again)
            operator.world.hub.answer("ada", "")
            await operator.rounds(1)
            lease = operator.world.registry.get(after.id)
    operator.cluster.change(operator.cluster.there["train"], deleting=True)
    await operator.rounds(10)
    assert operator.cluster.there == {}
    assert leases_of(operator) == []


async def test_an_older_operator_changes_nothing(operator, monkeypatch):
    """The older one does not know what was started since, and would let its requests go."""
    operator.cluster.apply("train")
    await operator.rounds()
    older, left = operator.operator, operator.world.parts
    with monkeypatch.context() as undisturbed:
        undisturbed.setattr(operator.world, "crash", lambda: None)
        operator.boot()
    lease = await operator.world.up("bob")
    operator.cluster.apply("second", server="second")
    await operator.rounds()
    there, told = dict(operator.cluster.there), len(operator.cluster.told)
    assert set(there) == {"train", "second", f"ws-{lease.id[:12]}"}
    left.engine.observer.has_looked = True
    with pytest.raises(Superseded):
        await older.round()
    await asyncio.gather(*older._acts._tasks.values(), return_exceptions=True)
    left.store.close()
    assert (operator.cluster.there, len(operator.cluster.told)) == (there, told)
    operator.cluster.change(operator.cluster.there["train"], deleting=True)
    await operator.rounds(10)
    assert set(operator.cluster.there) == {"second", f"ws-{lease.id[:12]}"}, "it took over what the older one asked for"


async def test_a_refused_request_is_reported_and_not_retried(operator):
    operator.cluster.apply("kind", gpu="t4")
    operator.cluster.apply("who", user="nobody")
    await operator.rounds()
    assert (operator.status("kind")["phase"], operator.status("who")["phase"]) == ("Refused", "Refused")
    assert "t4" in operator.status("kind")["message"]
    assert "The hub has no user nobody" in operator.status("who")["message"]
    told = len(operator.cluster.told)
    await operator.rounds()
    assert len(operator.cluster.told) == told
    assert leases_of(operator) == []


@pytest.mark.parametrize("when", [{}, {"ready_at": {"time": "8:00"}}], ids=["now", "at a time"])
async def test_all_errors_of_a_request_are_reported_at_once(operator, when):
    operator.cluster.apply("wrong", count=99, memory="1 box", **when)
    await operator.rounds()
    told = operator.status("wrong")
    assert told["phase"] == "Refused"
    assert "GPUs: You asked for '99'" in told["message"] or "GPUs: You asked for 99" in told["message"]
    assert "Memory: You asked for '1 box'" in told["message"]
    assert told["conditions"][0]["message"] == told["message"]


async def test_a_missing_policy_keeps_only_new_requests_pending(operator):
    operator.cluster.apply("old")
    await operator.rounds()
    operator.cluster.refusal = "no policy"
    operator.cluster.apply("new", server="second")
    await operator.rounds()
    assert (operator.status("new")["phase"], operator.status("new")["message"]) == ("Pending", "no policy")
    assert [lease.id for lease in leases_of(operator)] == ["uidold"]
    operator.cluster.refusal = ""
    await operator.rounds()
    assert len(leases_of(operator)) == 2


async def test_unreadable_resources_are_logged_once(operator, caplog, monkeypatch):
    async def unseen():
        raise Unavailable("not seen: install the chart")

    operator.cluster.apply("train")
    monkeypatch.setattr(operator.cluster, "requests", unseen)
    await operator.rounds()
    assert [one.getMessage() for one in caplog.records if "not seen" in one.getMessage()] == [
        "not seen: install the chart"
    ]
    assert leases_of(operator) == []


async def test_a_request_is_not_ended_while_its_lease_is_rebuilt(make_world, monkeypatch):
    """The store is lost. Until all leases are rebuilt, a request without a lease must not start, and stop it later."""
    old = OperatorProcess(make_world(), Cluster())
    lease = await old.world.up("bob")
    await old.rounds()
    new = OperatorProcess(make_world(), old.cluster)
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


async def test_a_status_is_never_longer_than_the_api_server_takes(operator):
    """Else none would be written of a workspace on a node with a long name, in a cluster with one."""
    lease = await operator.world.up("bob")
    node = "europe-west4-production:" + "node-pool-of-large-gpus." * 8 + "internal"
    slots = tuple(Slot(f"{node}/nvidia.com/mig-1g.10gb/{n}") for n in range(2))
    long = replace(lease, slots=slots, given="a100-80gb-sxm4-of-the-second-generation@europe-west4-production-b")
    told = status_of(operator.world.parts, Resource("r", "u", "1", "then", spec=SPEC), long)["allocation"]
    takes = OF_REQUEST["properties"]["allocation"]["properties"]
    assert [name for name in ("summary", "kind") if len(told[name]) > takes[name]["maxLength"]] == []
    assert all(len(gpu) <= takes["gpus"]["items"]["maxLength"] for gpu in told["gpus"])
    assert told["gpus"][1].endswith("internal/nvidia.com/mig-1g.10gb/1")


@pytest.mark.parametrize("at", ["before", "between"])
async def test_an_extension_does_not_undo_a_concurrent_stop(operator, monkeypatch, at):
    """State that was read before an await is old. Saved, it would keep a stopping lease on GPUs that go to others."""
    world, registry = operator.world, operator.world.registry
    operator.cluster.apply("train")
    await operator.rounds()
    lease = await world.up("ada", template="pytorch", lifetime="8h")
    assert lease.id == "uidtrain"
    await operator.rounds()
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
    operator.cluster.apply("train", lifetime="10h")
    with contextlib.suppress(Killed):
        await operator.operator.round()
    while tasks := list(operator.operator._acts._tasks.values()):
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
def test_the_phase_shows_a_preemption(phase, preemption, told):
    notice = EndNotice(preemption, 60.0, "why", "admin")
    assert phase_of(running(phase=phase, notice=notice)) == told
