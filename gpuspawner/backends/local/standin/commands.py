"""The commands ``nvidia-smi`` and ``amd-smi``: the supported options of the real tools, and their exit codes."""

from __future__ import annotations

import os
import sys
import time
from collections import namedtuple

from gpuspawner.backends.local.records import CUDA, DRIVER, Board, boards, select_boards
from gpuspawner.backends.local.standin import query, report

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

HELP = f"""\
NVIDIA System Management Interface -- v{DRIVER}, stand-in for simulated GPUs

It shows the simulated GPUs of this workspace in the forms of the real tool, and changes nothing.

    -h,   --help                Print usage information and exit.
          --version             Print version information and exit.
    -L,   --list-gpus           Display a list of GPUs connected to the system.
    <no arguments>              Show a summary of GPUs connected to the system.
    -q,   --query               Display GPU info.
    -d,   --display=            Display only selected information, with -q: {", ".join(report.DISPLAYS)}
          --query-gpu=          Information about GPU, by fields.
          --query-compute-apps= List of currently active compute processes, by fields.
          --format=             csv, with noheader and nounits after commas.
    -i,   --id=                 Target specific GPUs: index, UUID or bus id.
    -l,   --loop=               Probe until Ctrl+C at specified second interval.
    -lms, --loop-ms=            Probe until Ctrl+C at specified millisecond interval.
"""
VERSION = f"""\
NVIDIA-SMI version  : {DRIVER} (simulated)
NVML version        : {DRIVER.rpartition(".")[0]}
DRIVER version      : {DRIVER}
CUDA Version        : {CUDA}
"""
LONG = {
    "--help": "-h", "--list-gpus": "-L", "--query": "-q", "--display": "-d", "--id": "-i",
    "--loop": "-l", "--loop-ms": "-lms",
}  # fmt: skip
VALUED = ("--query-gpu", "--query-compute-apps", "--format", "-d", "-i", "-lms", "-l")
FLAGS = ("-h", "--version", "-L", "-q")
INVALID, NO_DEVICE = 2, 6
"""Exit codes of the real tool."""


class Refusal(namedtuple("Refused", "text code")):
    """An error message and exit code."""

    __slots__ = ()
    text: str
    code: int


def nvidia_smi(arguments: list[str]) -> int:
    """Run ``nvidia-smi``: print the output, repeatedly if requested, and return the exit code."""
    options = parse_options(arguments)
    if isinstance(options, Refusal):
        sys.stdout.write(options.text + "\n")
        return options.code
    if "-h" in options or "--version" in options:
        sys.stdout.write(HELP if "-h" in options else VERSION)
        return 0
    pause_seconds = float(options.get("-l") or 5) if "-l" in options else float(options.get("-lms") or 5000) / 1000
    looping = "-l" in options or "-lms" in options
    try:
        while True:
            code = print_once(options)
            if not looping or code:
                return code
            time.sleep(pause_seconds)
    except (KeyboardInterrupt, BrokenPipeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # buffered output has no reader
        return 0


def parse_options(arguments: list[str]) -> dict[str, str] | Refusal:
    """Return the options by short name with their values, or an error."""
    options: dict[str, str] = {}
    rest = list(arguments)
    while rest:
        name, equals, value = rest.pop(0).partition("=")
        name = LONG.get(name, name)
        if name[:2] in {"-l", "-i"} and name[2:].isdigit():  # `-l1` is `-l 1`
            name, equals, value = name[:2], "=", name[2:]
        if name in FLAGS and not equals:
            options[name] = ""
        elif name in VALUED:
            if not equals:
                value = rest.pop(0) if rest and not rest[0].startswith("-") else ""
            options[name] = value
        else:
            return Refusal(f"ERROR: Option {name} is not recognized. Please run 'nvidia-smi -h'.\n", INVALID)
    queries = [name for name in ("--query-gpu", "--query-compute-apps") if name in options]
    words = {word.strip() for word in options.get("--format", "").split(",")} - {""}
    if bool(queries) != bool(words) or len(queries) > 1:
        return Refusal("Invalid combination of input arguments. Please run 'nvidia-smi -h' for help.\n", INVALID)
    if words and ("csv" not in words or words - {"csv", "noheader", "nounits"}):
        return Refusal(f"Option --format={options['--format']} is not supported: csv, noheader, nounits.\n", INVALID)
    for name in ("-l", "-lms"):
        if options.get(name) and not (options[name].isascii() and options[name].isdigit()):
            return Refusal(f"Option {name} takes a whole number above 0, not {options[name]!r}.\n", INVALID)
    return options


def print_once(options: dict[str, str]) -> int:
    """Print once and return the exit code."""
    shown = select_boards(boards(os.environ), options.get("-i"))
    if not shown:
        sys.stdout.write("No devices were found\n")
        return NO_DEVICE
    try:
        text = "".join(line + "\n" for line in _lines(options, shown))
    except query.UnknownFieldError as error:
        sys.stdout.write(f'Field "{error}" is not a valid field to query.\n\n')
        return INVALID
    except KeyError as error:
        sys.stdout.write(f"Option -d does not take {error}. Please run 'nvidia-smi -h'.\n")
        return INVALID
    sys.stdout.write(text)
    sys.stdout.flush()
    return 0


def _lines(options: dict[str, str], shown: tuple[Board, ...]) -> Iterable[str]:
    words = set(options.get("--format", "").replace(" ", "").split(","))
    if "--query-gpu" in options:
        return query.query_gpu(options["--query-gpu"], shown, words)
    if "--query-compute-apps" in options:
        return query.query_apps(options["--query-compute-apps"], shown, words)
    if "-L" in options:
        return report.listing(shown)
    if "-q" in options:
        return report.report(shown, options.get("-d"))
    return report.table(shown)


AMD_HELP = """\
AMD System Management Interface, stand-in for simulated GPUs

It shows the simulated GPUs of this workspace, and changes nothing.

    amd-smi list                                  Names of the GPUs.
    amd-smi monitor                               Utilization and memory.
    amd-smi metric --usage --mem-usage --csv      The same as CSV, in the real tool's columns.
"""
AMD_COLUMNS = (
    "gpu,gfx_activity,umc_activity,mm_activity,total_vram,used_vram,free_vram,"
    "total_visible_vram,used_visible_vram,free_visible_vram,total_gtt,used_gtt,free_gtt"
)
AMD_METRIC = {"--usage", "--mem-usage", "--csv"}
NO_AMD_DEVICE = 1
"""An arbitrary exit code other than 0 and INVALID."""


def amd_smi(arguments: list[str]) -> int:
    """Run ``amd-smi``: print a table or the CSV of probes, and return the exit code."""
    if not arguments or arguments[0] in {"-h", "--help", "help"}:
        sys.stdout.write(AMD_HELP)
        return 0
    own = boards(os.environ, "AMD")
    if not own:
        sys.stdout.write("ERROR: no AMD GPU was found\n")
        return NO_AMD_DEVICE
    if arguments == ["list"]:
        return _print(f"GPU: {board.number}\n    NAME: {board.gpu.name}\n    UUID: {board.gpu.uuid}" for board in own)
    if arguments == ["monitor"]:
        rows = (f"{b.number:>3}  {b.percent:>4} %  {b.used_mib:>8} / {b.total_mib} MB  {b.gpu.name}" for b in own)
        return _print(["GPU  GFX     VRAM", *rows])
    if arguments[0] == "metric" and set(arguments[1:]) == AMD_METRIC:
        return _print([AMD_COLUMNS, *map(_amd_row, own)])
    sys.stdout.write(f"ERROR: {' '.join(arguments)} is not known to this stand-in. Please run 'amd-smi --help'.\n")
    return INVALID


def _amd_row(board: Board) -> str:
    vram = f"{board.total_mib},{board.used_mib},{board.free_mib}"
    return f"{board.number},{board.percent},{board.memory_percent},N/A,{vram},{vram},0,0,0"


def _print(lines: Iterable[str]) -> int:
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    sys.stdout.flush()
    return 0
