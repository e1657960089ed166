"""The default table and ``-L``."""

from __future__ import annotations

import time

from gpuspawner.backends.local.standin.board import CUDA, DRIVER, FULL_WATTS, Board

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

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
