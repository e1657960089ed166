"""Our side: the real sampler over the real Kubernetes backend, in a process of its own. Prints its figures as JSON.

With ``alone`` the probes run at the same rate without judgement and store: what an exec by itself costs.
"""

from __future__ import annotations

import asyncio
import json
import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from sampler import PERIOD_SECONDS, lease, parts  # bench/sampler.py

from gpuspawner.backends.base import ProbeResult
from gpuspawner.backends.kubernetes.backend import KubernetesBackend
from gpuspawner.backends.kubernetes.settings import ClusterSettings
from gpuspawner.core.errors import Unavailable
from gpuspawner.core.gpus.fleet import GpuKind
from gpuspawner.service.clock import SteadyClock

HUB, NAMESPACE = "h" * 32, "bench"
DEADLINE_SECONDS = 20.0


class Counted(KubernetesBackend):
    """Notes when each probe began, and what came of it."""

    def __init__(self, kubeconfig: str) -> None:
        kinds = [GpuKind("a100", "A100", 80 * 2**30, match="NVIDIA-A100*")]
        super().__init__(kinds, HUB, ClusterSettings(NAMESPACE, kubeconfig))
        self.began: dict[str, float] = {}
        self.forget()

    def forget(self) -> None:
        """Count from now on."""
        self.late: list[float] = []
        self.problems: list[str] = []
        self.well = 0
        self.since, self.cpu_since = time.monotonic(), cpu_seconds()

    async def probe(self, lease_id: str, attempt: int, leased: tuple[str, ...], deadline_seconds: float) -> ProbeResult:
        now = time.monotonic()
        if lease_id in self.began:
            self.late.append(now - self.began[lease_id] - PERIOD_SECONDS)
        self.began[lease_id] = now
        result = await super().probe(lease_id, attempt, leased, deadline_seconds)
        if result.problem:
            self.problems.append(result.problem)
        else:
            self.well += 1
        return result

    def figures(self) -> dict[str, Any]:
        late = sorted(self.late) or [0.0]
        return {
            "well": self.well,
            "problems": self.problems[:3],
            "failed": len(self.problems),
            "seconds": time.monotonic() - self.since,
            "cpu_seconds": cpu_seconds() - self.cpu_since,
            "memory_mib": highest_rss_mib(),
            "late_seconds": [late[len(late) // 2], late[int(0.99 * len(late))], late[-1]],
        }


def cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def highest_rss_mib() -> float:
    status = Path("/proc/self/status").read_text()  # getrusage() counts the parent's, from before exec
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


async def sampled(backend: Counted, count: int, seconds: float) -> dict[str, Any]:
    """Run the sampler: over one period it spreads its probes, then they are counted."""
    with tempfile.TemporaryDirectory() as folder:
        clock = SteadyClock()
        wired = parts(folder, backend, clock)
        for begin in range(0, count, 1000):
            wired.store.save([lease(number, clock.now()) for number in range(begin, min(count, begin + 1000))])
        await wired.registry.load()
        for lasts_seconds in (PERIOD_SECONDS + 5.0, seconds):
            backend.forget()
            while time.monotonic() - backend.since < lasts_seconds:
                wired.sampler.start_due()
                await asyncio.sleep(wired.settings.tick_seconds)
        found = backend.figures()
        await wired.sampler.close()
        wired.store.close()
        return found


async def alone(backend: Counted, count: int, seconds: float) -> dict[str, Any]:
    """Run the probes alone, at the rate at which the sampler would."""
    backend.forget()
    probes = []
    for number in range(int(count * seconds / PERIOD_SECONDS)):
        await asyncio.sleep(backend.since + number * PERIOD_SECONDS / count - time.monotonic())
        probes.append(asyncio.create_task(backend.probe(f"{number % count:06}", 1, ("GPU-0",), DEADLINE_SECONDS)))
    await asyncio.gather(*probes)
    return backend.figures()


async def main(kubeconfig: str, count: int, seconds: float, how: str) -> None:
    backend = Counted(kubeconfig)
    while True:
        try:
            if len(await backend.workspaces()) >= count:
                break
        except Unavailable:
            await asyncio.sleep(0.5)
    print(json.dumps(await (alone if how == "alone" else sampled)(backend, count, seconds)))
    await backend.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), sys.argv[4]))
