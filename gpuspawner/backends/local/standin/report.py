"""The report of ``-q``, the default table and ``-L``."""

from __future__ import annotations

import time

from gpuspawner.backends.local.records import CUDA, DRIVER, FULL_WATTS, IDLE_WATTS, SAMPLE_SECONDS, Board, Worker

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

Node = tuple[str, "str | list[Node]"]
"""Label, and a value or the nodes below."""

NONE = "N/A"
SAMPLES = "GPU Utilization Samples"
"""The sample buffer, which is shown only with ``-d``."""
DISPLAYS = {
    "MEMORY": ("FB Memory Usage",),
    "UTILIZATION": ("Utilization", SAMPLES),
    "ECC": ("ECC Mode",),
    "TEMPERATURE": ("Temperature",),
    "POWER": ("GPU Power Readings",),
    "CLOCK": ("Clocks", "Max Clocks"),
    "COMPUTE": ("Compute Mode",),
    "PIDS": ("Processes",),
    "PERFORMANCE": ("Performance State",),
}
"""The parts that ``-d`` shows."""


def report(boards: tuple[Board, ...], displays: str | None) -> Iterator[str]:
    """Return the lines of ``-q``, or of the parts that ``-d`` names. Raises KeyError for an unknown name."""
    labels = None if displays is None else {x for one in displays.split(",") for x in DISPLAYS[one.strip().upper()]}
    yield ""
    yield "==============NVSMI LOG=============="
    yield ""
    yield _line(0, "Timestamp", time.strftime("%a %b %d %H:%M:%S %Y"))
    yield _line(0, "Driver Version", DRIVER)
    yield _line(0, "CUDA Version", CUDA)
    yield ""
    yield _line(0, "Attached GPUs", str(len(boards)))
    for board in boards:
        yield f"GPU {board.bus_id}"
        for node in [*_tree(board), _samples(board)]:
            if node[0] != SAMPLES if labels is None else node[0] in labels:
                yield from _as_text(node, 1)
        yield ""


def _tree(b: Board) -> list[Node]:
    return [*_identity(b), *_use(b), *_power_and_clocks(b), _processes(b)]


def _identity(b: Board) -> list[Node]:
    return [
        ("Product Name", b.gpu.name),
        ("Product Brand", "NVIDIA"),
        ("Persistence Mode", "Enabled"),
        ("MIG Mode", [("Current", "Disabled"), ("Pending", "Disabled")]),
        ("Accounting Mode", "Disabled"),
        ("Serial Number", NONE),
        ("GPU UUID", b.gpu.uuid),
        ("Minor Number", NONE),
        ("VBIOS Version", NONE),
        (
            "PCI",
            [
                ("Bus", f"0x{b.number + 1:02X}"),
                ("Device", "0x00"),
                ("Domain", "0x0000"),
                ("Bus Id", b.bus_id),
            ],
        ),
    ]


def _use(b: Board) -> list[Node]:
    return [
        ("Fan Speed", NONE),
        ("Performance State", "P0" if b.percent else "P8"),
        (
            "FB Memory Usage",
            [
                ("Total", f"{b.total_mib} MiB"),
                ("Reserved", "0 MiB"),
                ("Used", f"{b.used_mib} MiB"),
                ("Free", f"{b.free_mib} MiB"),
            ],
        ),
        ("Compute Mode", "Default"),
        (
            "Utilization",
            [
                ("GPU", f"{b.percent} %"),
                ("Memory", f"{b.memory_percent} %"),
                ("Encoder", "0 %"),
                ("Decoder", "0 %"),
                ("JPEG", "0 %"),
                ("OFA", "0 %"),
            ],
        ),
        ("ECC Mode", [("Current", "Disabled"), ("Pending", "Disabled")]),
        ("Temperature", [("GPU Current Temp", f"{b.celsius} C")]),
    ]


def _samples(b: Board) -> Node:
    samples = b.samples(time.monotonic())
    return (
        SAMPLES,
        [
            ("Duration", f"{len(samples) * SAMPLE_SECONDS:.2f} sec"),
            ("Number of Samples", str(len(samples))),
            ("Max", f"{max(samples)} %"),
            ("Min", f"{min(samples)} %"),
            ("Avg", f"{sum(samples) // len(samples)} %"),
        ],
    )


def _power_and_clocks(b: Board) -> list[Node]:
    mhz, watts, limit = f"{b.clock_mhz} MHz", f"{b.watts:.2f} W", f"{FULL_WATTS:.2f} W"
    return [
        (
            "GPU Power Readings",
            [
                ("Average Power Draw", watts),
                ("Instantaneous Power Draw", watts),
                ("Current Power Limit", limit),
                ("Requested Power Limit", limit),
                ("Default Power Limit", limit),
                ("Min Power Limit", f"{IDLE_WATTS:.2f} W"),
                ("Max Power Limit", limit),
            ],
        ),
        (
            "Clocks",
            [
                ("Graphics", mhz),
                ("SM", mhz),
                ("Memory", "1593 MHz"),
                ("Video", mhz),
            ],
        ),
        (
            "Max Clocks",
            [
                ("Graphics", "1410 MHz"),
                ("SM", "1410 MHz"),
                ("Memory", "1593 MHz"),
                ("Video", "1410 MHz"),
            ],
        ),
    ]


def _processes(b: Board) -> Node:
    return ("Processes", [("", _worker(worker)) for worker in b.workers] or "None")


def _worker(worker: Worker) -> list[Node]:
    return [
        ("GPU instance ID", NONE),
        ("Compute instance ID", NONE),
        ("Process ID", str(worker.pid)),
        ("    Type", "C"),
        ("    Name", worker.name),
        ("    Used GPU Memory", f"{worker.memory_mib} MiB"),
    ]


def _line(depth: int, label: str, value: str, column: int = 55) -> str:
    return f"{'    ' * depth + label:<{column}}: {value}"


def _as_text(node: Node, depth: int) -> Iterator[str]:
    label, content = node
    if isinstance(content, str):
        yield _line(depth, label, content)
        return
    if label:
        yield "    " * depth + label
    for below in content:
        if not label and isinstance(below[1], str):  # a process
            yield _line(depth, below[0], below[1], column=42)  # the real tool has a narrower column here
        else:
            yield from _as_text(below, depth + 1)


_WIDE = "+" + "-" * 89 + "+"
_RULE = "+-----------------------------------------+------------------------+----------------------+"


def listing(boards: tuple[Board, ...]) -> Iterator[str]:
    """Return the lines of ``-L``."""
    return (f"GPU {board.number}: {board.gpu.name} (UUID: {board.gpu.uuid})" for board in boards)


def table(boards: tuple[Board, ...]) -> Iterator[str]:
    """Return the lines of the default table."""
    now = time.localtime()
    yield f"{time.strftime('%a %b', now)} {now.tm_mday:2d} {time.strftime('%H:%M:%S %Y', now)}       "
    yield _WIDE
    yield f"| NVIDIA-SMI {DRIVER:<22} Driver Version: {DRIVER:<14} CUDA Version: {CUDA:<9}|"
    yield _RULE
    yield "| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |"
    yield "| Fan  Temp   Perf          Pwr:Usage/Cap |           Memory-Usage | GPU-Util  Compute M. |"
    yield "|                                         |                        |               MIG M. |"
    yield "|" + _RULE[1:-1].replace("-", "=") + "|"
    for b in boards:
        memory = f"{b.used_mib}MiB / {f'{b.total_mib}MiB':>9}"
        power = f"{b.watts:.0f}W / {f'{FULL_WATTS}W':>5}"
        yield f"|{b.number:>4}  {_short(b.gpu.name, 27):<27}    On  |   {b.bus_id} Off |{'N/A':>21} |"
        yield (
            f"| N/A{f'{b.celsius}C':>6}{'P0' if b.percent else 'P8':>6}{power:>24} |{memory:>23} |"
            f"{f'{b.percent}%':>8}{'Default':>13} |"
        )
        yield f"|{'':41}|{'':24}|{'Disabled':>21} |"
        yield _RULE
    yield ""
    yield _WIDE
    yield f"|{' Processes:':<89}|"
    yield f"|{'  GPU   GI   CI              PID   Type   Process name                        GPU Memory ':<89}|"
    yield f"|{'        ID   ID                                                               Usage      ':<89}|"
    yield "|" + "=" * 89 + "|"
    workers = [(board, worker) for board in boards for worker in board.workers]
    for board, worker in workers:
        name = _short(worker.name, 36)
        yield f"|{board.number:>5}   N/A  N/A{worker.pid:>16}      C   {name:<38}{f'{worker.memory_mib}MiB':>8} |"
    if not workers:
        yield f"|{'  No running processes found':<89}|"
    yield _WIDE


def _short(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 3] + "..."
