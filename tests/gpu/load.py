"""Computes on a GPU as people's programs do: ``load.py train|burst|bursts|rest``. Prints LOAD once it has begun.

``train`` computes until it is ended, ``burst`` for a second (LOAD comes once it is over) and then rests, ``bursts``, on
a real GPU alone, for fractions of a second that it prints, ``rest`` holds memory and computes nothing. With torch or
cupy where they are installed, else through the driver alone; on a simulated GPU with its ``busy``.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import random
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

MEBIBYTE = 1024 * 1024
HELD_BYTES = 1024 * MEBIBYTE
BURST_SECONDS = 1.5
TINY_SECONDS = 0.5
"""The pause between two steps of ``tiny``. A step fills 1 GiB in half a millisecond on an H100."""


def torch_step() -> Callable[[], None]:
    """A training loop: a layer, its loss and its gradient."""
    import torch  # noqa: PLC0415 - where it is installed

    layer = torch.nn.Linear(4096, 4096).cuda()
    optimizer = torch.optim.SGD(layer.parameters(), lr=1e-3)
    batch, held = torch.randn(4096, 4096, device="cuda"), torch.zeros(HELD_BYTES // 4, device="cuda")

    def step() -> None:
        optimizer.zero_grad()
        layer(batch).square().mean().backward()
        optimizer.step()
        torch.cuda.synchronize()
        held[0] += 1

    return step


def cupy_step() -> Callable[[], None]:
    """Products of matrices."""
    import cupy  # noqa: PLC0415 - where it is installed

    matrix = cupy.random.rand(4096, 4096, dtype=cupy.float32)

    def step() -> None:
        cupy.matmul(matrix, matrix)
        cupy.cuda.runtime.deviceSynchronize()

    return step


def driver_step() -> Callable[[], None]:
    """Fill memory again and again through libcuda: needs nothing but the driver."""
    cuda = ctypes.CDLL("libcuda.so.1")

    def call(name: str, *arguments: object) -> None:
        code = getattr(cuda, name)(*arguments)
        if code:
            raise SystemExit(f"{name} failed with code {code}")

    device, context, memory = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
    call("cuInit", 0)
    call("cuDeviceGet", ctypes.byref(device), 0)
    call("cuCtxCreate_v2", ctypes.byref(context), 0, device)
    call("cuMemAlloc_v2", ctypes.byref(memory), ctypes.c_size_t(HELD_BYTES))

    def step() -> None:
        call("cuMemsetD32_v2", memory, 1, ctypes.c_size_t(HELD_BYTES // 4))
        call("cuCtxSynchronize")

    return step


def first_that_works() -> Callable[[], None]:
    """Return a function that computes on the GPU with a library of this environment."""
    for make in (torch_step, cupy_step):
        with contextlib.suppress(ImportError):
            return make()
    return driver_step()


def simulate(what: str) -> None:
    """Do it on a simulated GPU: held by a process that computes nothing, as a notebook's kernel holds a real one."""
    from gpuspawner.backends.local import busy, records  # noqa: PLC0415 - the real GPU needs nothing of it

    if os.environ.get("LOAD_GPU"):
        os.environ |= {"GPUSPAWNER_SIMULATED_DIR": os.environ["LOAD_FOLDER"], "GPUSPAWNER_GPUS": os.environ["LOAD_GPU"]}
    folder = Path(os.environ["GPUSPAWNER_SIMULATED_DIR"])
    percent = 20 if what == "train" else 0
    holds = threading.Thread(target=busy, args=(600, percent), daemon=True)
    holds.start()
    while not all(records.holders(folder, gpu.uuid) for gpu in records.own_gpus(os.environ)):
        time.sleep(0.05)
    if what == "burst":
        busy(BURST_SECONDS, percent=60)
    sys.stdout.write("\nLOAD\n")
    sys.stdout.flush()
    holds.join()


def compute(what: str) -> None:
    """Do it on a real one."""
    step = driver_step() if what == "tiny" else first_that_works()
    until = time.monotonic() + BURST_SECONDS
    while what == "burst" and time.monotonic() < until:
        step()
    sys.stdout.write("LOAD\n")
    sys.stdout.flush()
    while what == "train":
        step()
    while what == "tiny":
        step()
        time.sleep(TINY_SECONDS)
    while what == "bursts":
        time.sleep(random.uniform(1.0, 10.0))
        begin = time.clock_gettime(time.CLOCK_BOOTTIME)
        end = begin + random.uniform(0.05, 1.0)
        while (now := time.clock_gettime(time.CLOCK_BOOTTIME)) < end:
            step()
        sys.stdout.write(f"BURST {begin:.3f} {now:.3f}\n")
        sys.stdout.flush()
    time.sleep(600)


if __name__ == "__main__":
    is_simulated = os.environ.get("LOAD_FOLDER") or os.environ.get("GPUSPAWNER_SIMULATED_DIR")
    (simulate if is_simulated else compute)(sys.argv[1])
