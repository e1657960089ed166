"""``--query-gpu`` and ``--query-compute-apps``: fields, units and the CSV format."""

from __future__ import annotations

import time
from collections import namedtuple

from gpuspawner.backends.local.records import DRIVER, FULL_WATTS, IDLE_WATTS, Board, Worker

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable

NOT_AVAILABLE = "[N/A]"
DEPRECATED = "[Requested functionality has been deprecated]"


class Field(namedtuple("Field", "unit value")):
    """A field: its unit ("" for none) and a function that returns its value."""

    __slots__ = ()
    unit: str
    value: Callable[[Board, int], object]


class UnknownFieldError(ValueError):
    """A field that nvidia-smi does not know."""


def _table(text: str, value: Callable[[Board, int], object]) -> dict[str, Field]:
    """Return fields with one value. ``text`` has their names, each ``name`` or ``name[unit]``."""
    pairs = (word.rstrip("]").partition("[") for word in text.split())
    return {name: Field(unit, value) for name, _, unit in pairs}


FIELDS: dict[str, Field] = {
    "timestamp": Field("", lambda _b, _n: timestamp()),
    "driver_version": Field("", lambda _b, _n: DRIVER),
    "count": Field("", lambda _b, count: count),
    "name": Field("", lambda b, _n: b.gpu.name),
    "uuid": Field("", lambda b, _n: b.gpu.uuid),
    "index": Field("", lambda b, _n: b.number),
    "pci.bus_id": Field("", lambda b, _n: b.bus_id),
    "pci.domain": Field("", lambda _b, _n: "0x0000"),
    "pci.bus": Field("", lambda b, _n: f"0x{b.number + 1:02X}"),
    "pci.device": Field("", lambda _b, _n: "0x00"),
    "pstate": Field("", lambda b, _n: "P0" if b.percent else "P8"),
    "compute_cap": Field("", lambda b, _n: b.gpu.compute or NOT_AVAILABLE),
    "compute_mode": Field("", lambda _b, _n: "Default"),
    "memory.total": Field("MiB", lambda b, _n: b.total_mib),
    "memory.reserved": Field("MiB", lambda _b, _n: 0),
    "memory.used": Field("MiB", lambda b, _n: b.used_mib),
    "memory.free": Field("MiB", lambda b, _n: b.free_mib),
    "utilization.gpu": Field("%", lambda b, _n: b.percent),
    "utilization.memory": Field("%", lambda b, _n: b.memory_percent),
    "temperature.gpu": Field("", lambda b, _n: b.celsius),
    "edpp_multiplier": Field("%", lambda _b, _n: "100.00"),
    "clocks.current.graphics": Field("MHz", lambda b, _n: b.clock_mhz),
    "clocks.current.sm": Field("MHz", lambda b, _n: b.clock_mhz),
    "clocks.current.memory": Field("MHz", lambda _b, _n: 1593),
    "clocks.current.video": Field("MHz", lambda b, _n: b.clock_mhz),
    "clocks.max.memory": Field("MHz", lambda _b, _n: 1593),
    **_table("clocks.max.graphics[MHz] clocks.max.sm[MHz]", lambda _b, _n: 1410),
    **_table("power.draw[W] power.draw.average[W] power.draw.instant[W]", lambda b, _n: f"{b.watts:.2f}"),
    **_table(
        "power.limit[W] enforced.power.limit[W] power.default_limit[W] power.max_limit[W]",
        lambda _b, _n: f"{FULL_WATTS:.2f}",
    ),
    "power.min_limit": Field("W", lambda _b, _n: f"{IDLE_WATTS:.2f}"),
    **_table("persistence_mode", lambda _b, _n: "Enabled"),
    **_table(
        "display_active accounting.mode mig.mode.current mig.mode.pending ecc.mode.current ecc.mode.pending c2c.mode"
        " gsp.mode.current gsp.mode.default",
        lambda _b, _n: "Disabled",
    ),
    **_table("display_attached", lambda _b, _n: "No"),
    **_table("addressing_mode gpu_recovery_action", lambda _b, _n: "None"),
    **_table(
        "display_mode power.management clocks.applications.graphics[MHz] clocks.applications.memory[MHz]"
        " clocks.default_applications.graphics[MHz] clocks.default_applications.memory[MHz]",
        lambda _b, _n: DEPRECATED,
    ),
    **_table(
        "clocks_event_reasons.gpu_idle clocks_event_reasons.applications_clocks_setting"
        " clocks_event_reasons.sw_power_cap clocks_event_reasons.hw_slowdown"
        " clocks_event_reasons.hw_thermal_slowdown clocks_event_reasons.hw_power_brake_slowdown"
        " clocks_event_reasons.sw_thermal_slowdown clocks_event_reasons.sync_boost",
        lambda _b, _n: "Not Active",
    ),
    **_table("clocks_event_reasons.supported clocks_event_reasons.active", lambda _b, _n: f"0x{0:016X}"),
    **_table(
        "accounting.buffer_size encoder.stats.sessionCount encoder.stats.averageFps encoder.stats.averageLatency"
        " utilization.encoder[%] utilization.decoder[%] utilization.jpeg[%] utilization.ofa[%]"
        " protected_memory.total[MiB] protected_memory.used[MiB] protected_memory.free[MiB]",
        lambda _b, _n: 0,
    ),
    # Fields of the real tool that a simulated board does not have.
    **_table(
        "serial vbios_version inforom.img inforom.oem inforom.ecc inforom.pwr inforom.checksum_validation hostname"
        " driver_model.current driver_model.pending gom.current gom.pending fan.speed[%] temperature.memory"
        " temperature.gpu.tlimit dramEncryption.mode.current dramEncryption.mode.pending pci.baseClass pci.subClass"
        " pci.device_id pci.sub_device_id pcie.link.gen.current pcie.link.gen.gpucurrent pcie.link.gen.max"
        " pcie.link.gen.gpumax pcie.link.gen.hostmax pcie.link.width.current pcie.link.width.max"
        " retired_pages.single_bit_ecc.count retired_pages.double_bit.count retired_pages.pending"
        " remapped_rows.correctable remapped_rows.uncorrectable remapped_rows.pending remapped_rows.failure"
        " module.power.draw.average[W] module.power.draw.instant[W] module.power.limit[W]"
        " module.enforced.power.limit[W] module.power.default_limit[W] module.power.min_limit[W]"
        " module.power.max_limit[W] fabric.state fabric.status fabric.cliqueId fabric.clusterUuid"
        " ecc.errors.corrected.volatile.total ecc.errors.corrected.aggregate.total"
        " ecc.errors.corrected.volatile.dram ecc.errors.corrected.volatile.sram"
        " ecc.errors.corrected.volatile.device_memory ecc.errors.corrected.aggregate.device_memory"
        " ecc.errors.uncorrected.volatile.total ecc.errors.uncorrected.aggregate.total"
        " ecc.errors.uncorrected.volatile.dram ecc.errors.uncorrected.volatile.sram"
        " ecc.errors.uncorrected.volatile.device_memory ecc.errors.uncorrected.aggregate.device_memory",
        lambda _b, _n: NOT_AVAILABLE,
    ),
}
SHORT = {
    "gpu_name": "name",
    "gpu_uuid": "uuid",
    "gpu_serial": "serial",
    "gpu_bus_id": "pci.bus_id",
    "inforom.image": "inforom.img",
    "inforom.power": "inforom.pwr",
    "clocks.gr": "clocks.current.graphics",
    "clocks.sm": "clocks.current.sm",
    "clocks.mem": "clocks.current.memory",
    "clocks.video": "clocks.current.video",
    "clocks.max.gr": "clocks.max.graphics",
    "clocks.max.mem": "clocks.max.memory",
}
"""Other names of fields. The header shows the long names, like the real tool."""

APP_FIELDS: dict[str, tuple[str, Callable[[Board, Worker], object]]] = {
    "timestamp": ("", lambda _b, _w: timestamp()),
    "gpu_name": ("", lambda b, _w: b.gpu.name),
    "gpu_bus_id": ("", lambda b, _w: b.bus_id),
    "gpu_serial": ("", lambda _b, _w: NOT_AVAILABLE),
    "gpu_uuid": ("", lambda b, _w: b.gpu.uuid),
    "pid": ("", lambda _b, w: w.pid),
    "process_name": ("", lambda _b, w: w.name),
    "used_gpu_memory": ("MiB", lambda _b, w: w.memory_mib),
}
APP_SHORT = {"name": "process_name", "used_memory": "used_gpu_memory"}


def timestamp() -> str:
    """Return the time in the CSV format."""
    now = time.time()
    return f"{time.strftime('%Y/%m/%d %H:%M:%S', time.localtime(now))}.{int(now % 1 * 1000):03d}"


def query_gpu(names: str, boards: tuple[Board, ...], options: set[str]) -> Iterable[str]:
    """Return the lines of ``--query-gpu``."""
    fields = [_full_name(name.replace("clocks_throttle", "clocks_event"), SHORT, FIELDS) for name in names.split(",")]
    rows = [[(FIELDS[name].unit, FIELDS[name].value(board, len(boards))) for name in fields] for board in boards]
    return _lines([(name, FIELDS[name].unit) for name in fields], rows, options)


def query_apps(names: str, boards: tuple[Board, ...], options: set[str]) -> Iterable[str]:
    """Return the lines of ``--query-compute-apps``."""
    fields = [_full_name(name, APP_SHORT, APP_FIELDS) for name in names.split(",")]
    rows = [
        [(APP_FIELDS[name][0], APP_FIELDS[name][1](board, worker)) for name in fields]
        for board in boards
        for worker in board.workers
    ]
    return _lines([(name, APP_FIELDS[name][0]) for name in fields], rows, options)


def _full_name(name: str, short: dict[str, str], known: Container[str]) -> str:
    name = short.get(name.strip(), name.strip())
    if name not in known:
        raise UnknownFieldError(name)
    return name


def _lines(header: list[tuple[str, str]], rows: list[list[tuple[str, object]]], options: set[str]) -> Iterable[str]:
    if "noheader" not in options:
        yield ", ".join(f"{name} [{unit}]" if unit else name for name, unit in header)
    for row in rows:
        yield ", ".join(_cell(unit, str(value), "nounits" in options) for unit, value in row)


def _cell(unit: str, value: str, nounits: bool) -> str:
    return value if nounits or not unit or value.startswith("[") else f"{value} {unit}"
