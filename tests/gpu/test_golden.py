"""Every form of nvidia-smi's output that is read, taken from this machine: a golden file, its identifiers replaced."""

import os
import re
import subprocess

from gpu_machine import real_gpus

from gpuspawner.backends.local import nvidia

FORMS = {
    "probe": [
        (
            "--query-gpu=index,uuid,name,mig.mode.current,utilization.gpu,memory.used,memory.total,persistence_mode"
            ",utilization.encoder,utilization.decoder"
        ),
        "--format=csv,noheader,nounits",
    ],
    "buffer": ["-q", "-d", "UTILIZATION"],
    "fleet": [
        "--query-gpu=index,uuid,name,mig.mode.current,memory.total,memory.used,ecc.errors.uncorrected.volatile.total",
        "--format=csv,noheader,nounits",
    ],
    "compute-processes": ["--query-compute-apps=gpu_uuid,pid", "--format=csv,noheader,nounits"],
    "list": ["-L"],
    "report": ["-q"],
    "table": [],
}
MASKED = (
    (re.compile(r"\b(GPU|MIG)-[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b"), "uuid"),
    (re.compile(r"(?<=: )[0-9]{10,}(?=\n)"), "serial"),
)


def masked(text):
    """Replace what names this very machine, the same by the same."""
    known = {}

    def instead(match):
        number = known.setdefault(match[0], len(known))
        return f"{match[1]}-{number:08x}-0000-0000-0000-{number:012x}" if match.re.groups else f"{number:013d}"

    for pattern, _ in MASKED:
        text = pattern.sub(instead, text)
    return text


def test_machine_names_are_replaced_consistently():
    one, two = "GPU-b1a18a7c-4f9e-cdc0-93ab-90a4c7941210", "MIG-332f6052-f83a-f0de-ed38-73f9b4941d19"
    text = masked(f"{one}, {two}, {one}\n    Serial Number       : 1654922003371\n    Minor Number        : 3\n")
    first, second = "GPU-00000000-0000-0000-0000-000000000000", "MIG-00000001-0000-0000-0000-000000000001"
    assert text == f"{first}, {second}, {first}\n    Serial Number       : 0000000000002\n    Minor Number        : 3\n"


async def test_every_form_is_taken_and_read(machine, golden):
    lease = await machine.up("alice")
    machine.load("train", lease)
    environment = {**machine.environments[lease.id], "LC_ALL": "C"}
    for name, arguments in FORMS.items():
        run = subprocess.run(
            ["nvidia-smi", *arguments], env=environment, capture_output=True, text=True, check=True, timeout=60
        )
        (golden / f"{name}.txt").write_text(masked(run.stdout), encoding="utf-8")
    uuid = lease.slots[0].gpu
    taken = {path.stem: path.read_text(encoding="utf-8") for path in golden.glob("*.txt")}
    assert set(FORMS) <= set(taken)
    assert not any(uuid in text for text in taken.values())
    for name in ("probe", "fleet", "list", "compute-processes"):
        assert "GPU-00000000-0000-0000-0000-000000000000" in taken[name], name
    rows = await nvidia.listing(nvidia.find()) if real_gpus() else ()
    assert [row.uuid in {gpu.id for gpu in machine.parts.scheduler.fleet.gpus} for row in rows] == [True] * len(rows)
    await machine.go_on(60)
    (reading,) = machine.parts.store.readings.of_lease(lease.id)[-1:]
    assert (reading.utilization_percent is not None, reading.holders) == (True, 1), os.linesep + reading.because
