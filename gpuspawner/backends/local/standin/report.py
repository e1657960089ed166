"""The report of ``-q``, the default table and ``-L``."""

from __future__ import annotations

import time

from gpuspawner.backends.local.standin.board import CUDA, DRIVER, FULL_WATTS, IDLE_WATTS, SAMPLE_SECONDS, Board, Worker

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

Node = tuple[str, str, "str | list[Node]"]
"""Label, tag, and a value or the nodes below."""

NONE = "N/A"
SAMPLES_TAG = "gpu_utilization_samples"
"""The sample buffer, which is shown only with ``-d``."""
DISPLAYS = {
    "MEMORY": ("fb_memory_usage",),
    "UTILIZATION": ("utilization", SAMPLES_TAG),
    "ECC": ("ecc_mode",),
    "TEMPERATURE": ("temperature",),
    "POWER": ("gpu_power_readings",),
    "CLOCK": ("clocks", "max_clocks"),
    "COMPUTE": ("compute_mode",),
    "PIDS": ("processes",),
    "PERFORMANCE": ("performance_state",),
}
"""The parts that ``-d`` shows."""


def report(boards: tuple[Board, ...], displays: str | None) -> Iterator[str]:
    """Return the lines of ``-q``, or of the parts that ``-d`` names. Raises KeyError for an unknown name."""
    tags = None if displays is None else {tag for one in displays.split(",") for tag in DISPLAYS[one.strip().upper()]}
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
            if node[1] != SAMPLES_TAG if tags is None else node[1] in tags:
                yield from _as_text(node, 1)
        yield ""


def xml(boards: tuple[Board, ...]) -> Iterator[str]:
    """Return the lines of ``-q -x``."""
    yield '<?xml version="1.0" ?>'
    yield '<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v13.dtd">'
    yield "<nvidia_smi_log>"
    for node in (
        ("", "timestamp", time.strftime("%a %b %d %H:%M:%S %Y")),
        ("", "driver_version", DRIVER),
        ("", "cuda_version", CUDA),
        ("", "attached_gpus", str(len(boards))),
    ):
        yield from _as_xml(node, 1)
    for board in boards:
        yield f'\t<gpu id="{board.bus_id}">'
        for tree_node in _tree(board):
            yield from _as_xml(tree_node, 2)
        yield "\t</gpu>"
    yield "</nvidia_smi_log>"


def _tree(b: Board) -> list[Node]:
    return [*_identity(b), *_use(b), *_power_and_clocks(b), _processes(b)]


def _identity(b: Board) -> list[Node]:
    return [
        ("Product Name", "product_name", b.gpu.name),
        ("Product Brand", "product_brand", "NVIDIA"),
        ("Persistence Mode", "persistence_mode", "Enabled"),
        ("MIG Mode", "mig_mode", [("Current", "current_mig", "Disabled"), ("Pending", "pending_mig", "Disabled")]),
        ("Accounting Mode", "accounting_mode", "Disabled"),
        ("Serial Number", "serial", NONE),
        ("GPU UUID", "uuid", b.gpu.uuid),
        ("Minor Number", "minor_number", NONE),
        ("VBIOS Version", "vbios_version", NONE),
        (
            "PCI",
            "pci",
            [
                ("Bus", "pci_bus", f"0x{b.number + 1:02X}"),
                ("Device", "pci_device", "0x00"),
                ("Domain", "pci_domain", "0x0000"),
                ("Bus Id", "pci_bus_id", b.bus_id),
            ],
        ),
    ]


def _use(b: Board) -> list[Node]:
    return [
        ("Fan Speed", "fan_speed", NONE),
        ("Performance State", "performance_state", "P0" if b.percent else "P8"),
        (
            "FB Memory Usage",
            "fb_memory_usage",
            [
                ("Total", "total", f"{b.total_mib} MiB"),
                ("Reserved", "reserved", "0 MiB"),
                ("Used", "used", f"{b.used_mib} MiB"),
                ("Free", "free", f"{b.free_mib} MiB"),
            ],
        ),
        ("Compute Mode", "compute_mode", "Default"),
        (
            "Utilization",
            "utilization",
            [
                ("GPU", "gpu_util", f"{b.percent} %"),
                ("Memory", "memory_util", f"{b.memory_percent} %"),
                ("Encoder", "encoder_util", "0 %"),
                ("Decoder", "decoder_util", "0 %"),
                ("JPEG", "jpeg_util", "0 %"),
                ("OFA", "ofa_util", "0 %"),
            ],
        ),
        ("ECC Mode", "ecc_mode", [("Current", "current_ecc", "Disabled"), ("Pending", "pending_ecc", "Disabled")]),
        ("Temperature", "temperature", [("GPU Current Temp", "gpu_temp", f"{b.celsius} C")]),
    ]


def _samples(b: Board) -> Node:
    samples = b.samples(time.monotonic())
    return (
        "GPU Utilization Samples",
        SAMPLES_TAG,
        [
            ("Duration", "duration", f"{len(samples) * SAMPLE_SECONDS:.2f} sec"),
            ("Number of Samples", "count", str(len(samples))),
            ("Max", "max", f"{max(samples)} %"),
            ("Min", "min", f"{min(samples)} %"),
            ("Avg", "avg", f"{sum(samples) // len(samples)} %"),
        ],
    )


def _power_and_clocks(b: Board) -> list[Node]:
    mhz, watts, limit = f"{b.clock_mhz} MHz", f"{b.watts:.2f} W", f"{FULL_WATTS:.2f} W"
    return [
        (
            "GPU Power Readings",
            "gpu_power_readings",
            [
                ("Average Power Draw", "average_power_draw", watts),
                ("Instantaneous Power Draw", "instant_power_draw", watts),
                ("Current Power Limit", "current_power_limit", limit),
                ("Requested Power Limit", "requested_power_limit", limit),
                ("Default Power Limit", "default_power_limit", limit),
                ("Min Power Limit", "min_power_limit", f"{IDLE_WATTS:.2f} W"),
                ("Max Power Limit", "max_power_limit", limit),
            ],
        ),
        (
            "Clocks",
            "clocks",
            [
                ("Graphics", "graphics_clock", mhz),
                ("SM", "sm_clock", mhz),
                ("Memory", "mem_clock", "1593 MHz"),
                ("Video", "video_clock", mhz),
            ],
        ),
        (
            "Max Clocks",
            "max_clocks",
            [
                ("Graphics", "graphics_clock", "1410 MHz"),
                ("SM", "sm_clock", "1410 MHz"),
                ("Memory", "mem_clock", "1593 MHz"),
                ("Video", "video_clock", "1410 MHz"),
            ],
        ),
    ]


def _processes(b: Board) -> Node:
    return ("Processes", "processes", [("", "process_info", _worker(worker)) for worker in b.workers] or "None")


def _worker(worker: Worker) -> list[Node]:
    return [
        ("GPU instance ID", "gpu_instance_id", NONE),
        ("Compute instance ID", "compute_instance_id", NONE),
        ("Process ID", "pid", str(worker.pid)),
        ("    Type", "type", "C"),
        ("    Name", "process_name", worker.name),
        ("    Used GPU Memory", "used_memory", f"{worker.memory_mib} MiB"),
    ]


def _line(depth: int, label: str, value: str, column: int = 55) -> str:
    return f"{'    ' * depth + label:<{column}}: {value}"


def _as_text(node: Node, depth: int) -> Iterator[str]:
    label, tag, content = node
    if isinstance(content, str):
        yield _line(depth, label, content)
        return
    if tag != "process_info":
        yield "    " * depth + label
    for below in content:
        if tag == "process_info" and isinstance(below[2], str):
            yield _line(depth, below[0], below[2], column=42)  # the real tool has a narrower column here
        else:
            yield from _as_text(below, depth + 1)


def _as_xml(node: Node, depth: int) -> Iterator[str]:
    _, tag, content = node
    indent = "\t" * depth
    if isinstance(content, str) and tag != "processes":
        yield f"{indent}<{tag}>{_escaped(content)}</{tag}>"
        return
    yield f"{indent}<{tag}>"
    for below in content if isinstance(content, list) else ():
        yield from _as_xml(below, depth + 1)
    yield f"{indent}</{tag}>"


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")  # xml.sax would double the start's time


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
