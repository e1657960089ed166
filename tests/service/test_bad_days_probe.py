"""Failures of nvidia-smi: no workspace is stopped while it gives no readings, and all continues once it does again."""

from dataclasses import replace

from bad_machine import WELL

from gpuspawner.core.idle.verdicts import SampleKind
from gpuspawner.core.leases.exits import ExitReason
from gpuspawner.core.leases.lease import Phase

MIG_TABLE = """\
cat <<'TABLE'
| MIG devices:                                                                            |
+------------------+----------------------------------+-----------+-----------------------+
| GPU  GI  CI  MIG |              Shared Memory-Usage |        Vol|        Shared         |
|      ID  ID  Dev |                Shared BAR1-Usage | SM     Unc| CE ENC  DEC  OFA  JPG |
|==================+==================================+===========+=======================|
|  0    1   0   0  |              44MiB / 40448MiB    | 60      0 |  3   0    3    0    3 |
TABLE
"""
CELLS = "0, $GPUSPAWNER_GPUS, A100 80 GB (simulated)"
FAULTS = {
    "fails": ("exit 3", "exit code 3"),
    "NVML lost": ("echo 'Failed to initialize NVML: Unknown Error'; exit 255", "Failed to initialize NVML"),
    "no devices": ("echo 'No devices were found'; exit 6", "No devices were found"),
    "killed": ("kill -9 $$", "exit code 137"),
    "no such tool": ("exit 127", "nvidia-smi does not exist"),
    "silent": ("exit 0", "listed it 0 times"),
    "half a line": (f'printf %s "{CELLS}, Dis"', "not understood"),
    "[N/A]": (f'echo "{CELLS}, Disabled, [N/A], 0, 81920, 60.00"', "utilization: '[N/A]'"),
    "[Unknown Error]": (
        f'echo "{CELLS}, Disabled, [Unknown Error], 0, 81920, 60.00"',
        "utilization: '[Unknown Error]'",
    ),
    "needs a reset": (
        f'echo "{CELLS}, [GPU requires reset], [GPU requires reset], 0, 81920, 60.00"',
        "utilization: '[GPU requires reset]'",
    ),
    "MIG mode": (f'echo "{CELLS}, Enabled, [N/A], 44, 81920, 60.00"', "a GPU in MIG mode has no utilization"),
    "a table of MIG devices": (MIG_TABLE, "listed it 0 times"),
    "decimal commas": (f'echo "{CELLS}, Disabled, 0, 0, 81920, 60,00"', "not understood"),
    "another language": ("echo 'NVIDIA-SMI ist fehlgeschlagen: Treiber läuft nicht'; exit 9", "ist fehlgeschlagen"),
    "10 MB": (
        "yes 012345678901234567890123456789012345678901234567890123456789 | head -c 10485760",
        "more than 1048576",
    ),
    "bytes that are no text": (r"printf '\377\376\000\001,,,\n'", "listed it 0 times"),
    "other GPUs only": (
        'echo "0, GPU-ffffffff-0000-0000-0000-000000000000, A100, Disabled, 0, 0, 81920, 60.00"',
        "listed it 0 times",
    ),
}


async def test_in_its_grace_a_workspace_survives_every_fault_and_is_warned_again(machine):
    lease = await machine.up("alice")
    await machine.until_warned(lease)
    for fault, (script, said) in FAULTS.items():
        machine.tool(lease, script)
        await machine.go_on(60)
        assert machine.streak(lease).kind is SampleKind.UNKNOWN, fault
        assert said in machine.streak(lease).because, fault
    assert (machine.phase(lease), machine.hub.calls) == (Phase.RUNNING, [])
    assert machine.lives(lease)
    await recovers(machine, lease)


async def recovers(machine, lease):
    """After its tool is repaired the workspace is warned, then stopped, without help by an administrator."""
    warned = machine.did(lease).count("warned")
    machine.tool(lease, WELL)
    await machine.until_ended(lease)
    assert machine.did(lease).count("warned") == warned + 1
    assert machine.now_of(lease).reason is ExitReason.IDLE
    assert not machine.lives(lease)
    assert [call for call, *_ in machine.hub.calls] == ["stop"]


async def test_a_hanging_tool_is_unknown_and_stops_no_workspace(machine):
    lease = await machine.up("alice")
    await machine.until_warned(lease)
    machine.settings = replace(machine.settings, probe_deadline_seconds=1.0)
    machine.boot()
    machine.tool(lease, "sleep 61 & sleep 61")
    for _ in range(7):
        await machine.go_on(60)
        assert machine.streak(lease).because == "the workspace can't be read (the probe did not end within 1 s)"
    assert (machine.phase(lease), machine.hub.calls) == (Phase.RUNNING, [])
    machine.settings = replace(machine.settings, probe_deadline_seconds=20.0)
    machine.boot()
    await recovers(machine, lease)


async def test_an_nvidia_smi_that_fails_every_other_time_stops_no_workspace(machine):
    lease = await machine.up("alice")
    for _ in range(6):
        machine.tool(lease, "exit 9")
        await machine.go_on(60)
        machine.tool(lease, WELL)
        await machine.go_on(60)
    assert machine.phase(lease) is Phase.RUNNING
    assert machine.did(lease).count("warned") == 0, "half of the time is no 80 %"
    await recovers(machine, lease)


async def test_the_workspaces_language_changes_nothing(machine):
    """The probe asks for plain numbers, whatever the workspace's locale."""
    lease = await machine.up("alice")
    machine.tool(lease, f'[ "$LC_ALL" = C ] || exit 9; {WELL}')
    await machine.until_ended(lease)
    assert machine.did(lease).count("warned") == 1


async def test_one_busy_gpu_of_sixteen_keeps_the_workspace(make_machine):
    machine = make_machine(gpus=16)
    lease = await machine.up("alice", template="sixteen", count=16)
    assert len(lease.slots) == 16
    machine.tool(lease, f"{WELL} | sed 's/^15, \\(.*\\), 0, 0, 81920/15, \\1, 31, 900, 81920/'".replace("exec ", ""))
    for _ in range(5):
        await machine.go_on(60)
    assert (machine.phase(lease), machine.streak(lease).kind) == (Phase.RUNNING, SampleKind.BUSY)
    assert "GPU 15 at 31 %" in machine.streak(lease).because
    await recovers(machine, lease)


async def test_a_reading_of_an_unleased_gpu_makes_the_sample_unknown(make_machine):
    machine = make_machine(gpus=16)
    lease = await machine.up("alice", template="sixteen", count=16)
    seventeenth = "16, GPU-ffffffff-0000-0000-0000-000000000000, A100, Disabled, 0, 0, 81920, 60.00"
    machine.tool(lease, f"{WELL}; echo '{seventeenth}'".replace("exec ", ""))
    for _ in range(5):
        await machine.go_on(60)
    assert (machine.phase(lease), machine.streak(lease).kind) == (Phase.RUNNING, SampleKind.UNKNOWN)
    assert "GPU-ffffffff-0000-0000-0000-000000000000 is seen, not leased" in machine.streak(lease).because


async def test_a_broken_nvidia_smi_affects_only_its_own_workspace(make_machine):
    machine = make_machine(gpus=2)
    bad, fine = await machine.up("alice"), await machine.up("bob")
    machine.tool(bad, "exit 9")
    await machine.until_ended(fine)
    assert machine.phase(bad) is Phase.RUNNING
    assert machine.lives(bad)
