"""Bad days of time: the wall clock jumps an hour either way, the machine sleeps, the service was away."""

import json
import time

import page_world
import pytest
from bad_machine import BUSY
from service_process import SERVE
from service_world import PREFIX, SECRET
from tornado.httpclient import HTTPRequest
from tornado.httpserver import HTTPServer
from tornado.simple_httpclient import SimpleAsyncHTTPClient
from tornado.testing import bind_unused_port

from gpuspawner.backends.base import ProbeResult
from gpuspawner.backends.fake import probe_text
from gpuspawner.cli import main
from gpuspawner.core.authentication import sign_ticket
from gpuspawner.core.idle.verdicts import SampleKind
from gpuspawner.core.leases.exits import ExitReason
from gpuspawner.core.leases.lease import Phase
from gpuspawner.service.app import application
from gpuspawner.service.clock import BREAK_SECONDS, SteadyClock, WallWatch
from gpuspawner.service.fake import HandClock

HOUR = 3600.0
STEPS_BACK = SERVE.replace(
    "asyncio.run(",
    """
import time
wall = time.time
time.time = lambda: wall() - 3600 * os.path.exists(os.environ["SET_BACK"])
asyncio.run(""",
)
JUMPS = pytest.mark.parametrize("jump_seconds", [HOUR, -HOUR], ids=["ahead", "back"])


@JUMPS
def test_the_service_clock_ignores_jumps_of_the_wall_clock(monkeypatch, jump_seconds):
    clock, wall = SteadyClock(), time.time
    before = clock.now()
    monkeypatch.setattr(time, "time", lambda: wall() + jump_seconds)
    assert 0 <= clock.now() - before < HOUR / 2
    assert abs(clock.wall() - before - jump_seconds) < HOUR / 2


def test_the_service_clock_knows_since_when_it_ran_without_a_break(monkeypatch):
    at = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: at)
    clock = SteadyClock()
    begun = clock.now()
    for _ in range(100):
        at += BREAK_SECONDS
        assert clock.awake_since() == begun
    at += BREAK_SECONDS + 1
    back = clock.now()
    at += 1
    assert clock.awake_since() == back


def test_a_clock_set_back_is_reported_once():
    clock = HandClock()
    watch = WallWatch(clock)
    told = []
    for ahead_seconds in (0.0, -1.0, HOUR, HOUR - 1, 0.0, 0.0, -30.0):
        clock.wall_ahead_seconds = ahead_seconds
        clock.advance(0.5)
        told.append(round(watch.set_back_seconds()))
    assert told == [0, 0, 0, 0, HOUR - 1, 0, 0]


def test_the_log_says_what_a_clock_that_was_set_back_does_to_the_hub(serve, tmp_path, monkeypatch):
    monkeypatch.setenv("SET_BACK", str(tmp_path / "back"))
    service = serve(script=STEPS_BACK)
    service.says("serving ")
    (tmp_path / "back").touch()
    service.says("This machine's time was set back by 1 h. JupyterHub waits by it: for as long it may not look")
    service.says("Restart the hub: workspaces run on.")


@JUMPS
async def test_keep_on_the_hubs_page_works_while_the_wall_has_jumped(world, monkeypatch, jump_seconds):
    """The hub signs the page's ticket by the wall: by the service's own time it would be over, or never end."""
    for name in ("API_URL", "API_TOKEN", "CLIENT_ID", "BASE_URL", "SERVICE_PREFIX", "OAUTH_CALLBACK_URL"):
        monkeypatch.setenv(f"JUPYTERHUB_{name}", "http://127.0.0.1:9/hub/api" if name == "API_URL" else "x")
    lease = await world.up("alice")
    server = HTTPServer(application(world.parts))
    socket, port = bind_unused_port()
    server.add_socket(socket)
    world.clock.wall_ahead_seconds = jump_seconds
    ticket = sign_ticket(SECRET, "alice", world.hub.add("alice"), world.clock.wall())
    url = f"http://127.0.0.1:{port}{PREFIX}api/v1/workspaces/{lease.id}/keep"
    client = SimpleAsyncHTTPClient(force_instance=True)
    try:
        request = HTTPRequest(url, "POST", {"Authorization": f"ticket {ticket}"}, "")
        response = await client.fetch(request, raise_error=False)
        assert response.code == 200, json.loads(response.body)
    finally:
        client.close()
        server.stop()
        await server.close_all_connections()
    assert world.now_of(lease).kept_until == world.clock.now() + HOUR


@JUMPS
async def test_a_workspace_warned_before_the_jump_and_a_restart_is_not_stopped_by_it(machine, jump_seconds):
    lease = await machine.up("alice")
    await machine.until_warned(lease)
    machine.crash()
    machine.clock.advance(jump_seconds)
    machine.boot()
    await machine.sample()
    assert (machine.phase(lease), machine.hub.calls) == (Phase.RECLAIMING, []), "none of its grace passed meanwhile"
    assert machine.streak(lease).grace_left_seconds > 0
    await machine.until_ended(lease)
    assert machine.now_of(lease).reason is ExitReason.IDLE
    assert machine.did(lease).count("warned") == 1


@pytest.mark.parametrize("mode", ["idle", "busy"])
@JUMPS
async def test_a_jump_and_a_restart_make_no_idle_time_of_the_hour(machine, jump_seconds, mode):
    lease = await machine.up("alice")
    if mode == "busy":
        machine.tool(lease, BUSY)
    await machine.go_on(120)
    before = machine.streak(lease)
    machine.crash()
    machine.clock.advance(jump_seconds)
    machine.boot()
    await machine.sample()
    after = machine.streak(lease)
    assert after.idle_seconds <= before.idle_seconds + 90
    assert (machine.phase(lease), machine.hub.calls) == (Phase.RUNNING, [])


async def test_after_the_clock_went_ahead_a_lifetime_still_ends_with_a_warning_of_ten_minutes(world):
    lease = await world.up("alice", lifetime="1h")
    world.shows(lease, 80)
    world.crash()
    world.clock.advance(HOUR)
    world.boot()
    await world.go_on(60)
    assert world.phase(lease) is Phase.RUNNING
    assert world.now_of(lease).deadline_at - world.clock.now() > 500
    await world.go_on(1200)
    assert world.now_of(lease).reason is ExitReason.EXPIRED


async def test_cpu_time_across_a_suspension_is_unknown(make_world):
    """Half a minute of work, spread over eight hours of the machine's own clock, would be none."""
    world = make_world(gpus=1)
    lease = await world.up("alice", gpu="half")
    gpu = lease.slots[0].gpu

    async def probed(clock_seconds, ticks):
        text = probe_text({gpu: 0}, clock_seconds=clock_seconds, cpu_ticks=ticks, holders=[gpu])
        world.backend.probes[lease.id] = [ProbeResult(text)]
        await world.go_on(60)
        return world.streak(lease).kind

    assert await probed(1000.0, 0) is SampleKind.UNKNOWN, "the first"
    assert await probed(1060.0, 10) is SampleKind.IDLE
    assert await probed(1120.0 + 8 * HOUR, 3010) is SampleKind.UNKNOWN
    assert "slept" in world.streak(lease).because
    assert await probed(1180.0 + 8 * HOUR, 6010) is SampleKind.BUSY
    assert await probed(1240.0 + 8 * HOUR, 6020) is SampleKind.IDLE


def test_the_command_line_counts_by_the_service_s_clock_as_the_pages_do(make_web_world, monkeypatch, capsys):
    """After a suspension it is hours behind the machine's own: a list told that every workspace ends in 0 s."""
    world = make_web_world()
    world.clock.at = time.time() - 8 * 3600
    world.save(page_world.running("runs", running_at=world.clock.at - 60, deadline_at=world.clock.at + 6 * 3600))
    monkeypatch.setenv("GPUSPAWNER_TOKEN", world.token("alice"))
    assert main(["list", "--url", world.home]) == 0
    assert "in 6 h" in capsys.readouterr().out
