"""The notice file in a workspace: it exists while an end is announced, and is removed afterwards."""

import asyncio
import json
import subprocess
from dataclasses import replace

import pytest
from service_world import IDLE_FOR

from gpuspawner.backends.base import ProbeResult
from gpuspawner.core.leases.lease import Phase
from gpuspawner.service.workspaces import notice_file as module
from gpuspawner.service.workspaces.notice_file import RETRY_SECONDS, Notices, notice_variables, write_script


def workspace(world, monkeypatch, home):
    """Run the notice scripts of a workspace here, with this folder as its home; return the scripts by attempt."""
    ran = []

    async def run_script(lease_id, attempt, script, _deadline_seconds):
        ran.append((lease_id, attempt))
        done = subprocess.run(["sh", "-s"], input=script, env={"HOME": str(home), "PATH": "/usr/bin:/bin"}, check=False)
        return ProbeResult(problem="it failed" if done.returncode else "")

    monkeypatch.setattr(world.backend, "run_script", run_script)
    return ran


async def test_the_notice_file_exists_as_long_as_the_warning(world, monkeypatch, tmp_path):
    ran, file = workspace(world, monkeypatch, tmp_path), tmp_path / ".gpuspawner" / "notice.json"
    file.parent.mkdir()
    file.write_text('{"ends_at": 1}')
    lease, notices = await world.up("alice"), Notices(world.parts, world.backend)
    await notices.look()
    assert (ran, file.exists()) == ([(lease.id, 1)], False), "it was the one of the workspace before"
    await world.go_on(IDLE_FOR + 120)
    warned = world.registry.get(lease.id)
    assert warned.phase is Phase.RECLAIMING
    await notices.look()
    told = json.loads(file.read_text())
    left_seconds = told["ends_at"] - world.clock.now()
    assert (told["kind"], 0 < left_seconds <= 180) == ("idle", True)
    assert "This workspace stops at" in told["words"]
    assert file.stat().st_mode & 0o777 == 0o600
    await notices.look()
    assert len(ran) == 2, "what has not changed is not written again"
    await world.parts.actions.keep(warned, "alice")
    await notices.look()
    assert not file.exists()
    assert len(ran) == 3


@pytest.mark.parametrize("why", ["", "Its node is being drained, for example for maintenance."])
async def test_a_pod_that_is_being_deleted_says_whether_the_cluster_ends_it(world, monkeypatch, tmp_path, why):
    """Its preStop hook waits for this: a server that a user stops is not kept, an evicted server is."""
    workspace(world, monkeypatch, tmp_path)
    lease, notices = await world.up("alice"), Notices(world.parts, world.backend)
    key = (lease.id, lease.attempt)
    ending = replace(world.backend.running[key], ending=True, disruption=why, ends_in_seconds=25.0)
    world.backend.running[key] = ending
    await world.round()
    await notices.look()
    told = json.loads((tmp_path / ".gpuspawner" / "notice.json").read_text())
    assert told["kind"] == ("preempted" if why else "stopped")
    assert told["ends_at"] == pytest.approx(world.clock.now() + 25, abs=3)


async def test_a_workspace_that_its_user_stops_is_told_so_until_its_pod_is_gone(world, monkeypatch, tmp_path):
    ran = workspace(world, monkeypatch, tmp_path)
    lease, notices = await world.up("alice"), Notices(world.parts, world.backend)
    await notices.look()
    await world.registry.save(replace(world.registry.get(lease.id), phase=Phase.STOPPING))
    await notices.look()
    assert len(ran) == 1, "nothing is said before its pod is being deleted"
    key = (lease.id, lease.attempt)
    gone = {"ending": True, "disruption": "Its node is being emptied.", "ends_in_seconds": 25.0}
    observer = world.parts.engine.observer
    observer.last_look = observer.last_look._replace(of_lease={lease.id: [replace(world.backend.running[key], **gone)]})
    await notices.look()
    assert json.loads((tmp_path / ".gpuspawner" / "notice.json").read_text())["kind"] == "stopped"


async def test_a_write_that_fails_is_tried_again_after_a_while(world, monkeypatch, tmp_path):
    (tmp_path / ".gpuspawner").write_text("no folder")
    ran = workspace(world, monkeypatch, tmp_path)
    lease, notices = await world.up("alice"), Notices(world.parts, world.backend)
    deadline_at = world.clock.now() + 600
    await world.registry.save(replace(world.registry.get(lease.id), deadline_at=deadline_at, warned_seconds=(900.0,)))
    for _ in range(3):
        await notices.look()
    assert len(ran) == 1
    (tmp_path / ".gpuspawner").unlink()
    world.clock.advance(RETRY_SECONDS + 1)
    await notices.look()
    told = json.loads((tmp_path / ".gpuspawner" / "notice.json").read_text())
    assert (told["kind"], told["ends_at"]) == ("expiry", round(deadline_at, 3))


async def test_a_hanging_workspace_delays_no_other_notice(world, monkeypatch, tmp_path):
    ran, answered = workspace(world, monkeypatch, tmp_path), asyncio.Event()
    silent, other = await world.up("alice"), await world.up("bob")
    run_script = world.backend.run_script

    async def run(lease_id, *how):
        if lease_id == silent.id:
            await answered.wait()
        return await run_script(lease_id, *how)

    monkeypatch.setattr(world.backend, "run_script", run)
    monkeypatch.setattr(module, "NOTICES_SECONDS", 0.1)
    notices = Notices(world.parts, world.backend)

    async def looks(writes):
        while len(ran) < writes:
            await notices.look()

    await asyncio.wait_for(looks(1), 30)
    ends_at = world.clock.now() + 600
    await world.registry.save(replace(world.registry.get(other.id), deadline_at=ends_at, warned_seconds=(900.0,)))
    await asyncio.wait_for(looks(2), 30)
    assert ran == [(other.id, 1)] * 2
    answered.set()
    await asyncio.wait_for(looks(3), 30)
    assert ran[2:] == [(silent.id, 1)]
    await notices.close()


def test_each_server_has_its_own_notice_file_and_no_text_is_executed(tmp_path):
    notice = {"ends_at": 1.0, "kind": "idle", "words": 'it\'s "$(touch owned)" `touch owned`\n\\n'}
    script = write_script("../a b'c", notice)
    subprocess.run(["sh", "-s"], input=script, env={"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}, check=True)
    (file,) = (tmp_path / ".gpuspawner").iterdir()
    assert file.name == "notice-..%2Fa%20b%27c.json"
    assert tmp_path / notice_variables("../a b'c")["GPUSPAWNER_NOTICE"] == file
    assert json.loads(file.read_text()) == notice
