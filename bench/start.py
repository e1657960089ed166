"""Click to ready: a start through gpuspawner compared with the same start without it.

Two real hubs with the same tiny single-user server, one with ``configure()``, one without; starts in alternating
pairs, so that a noisy machine hits both alike. Printed: the medians, and their ratio. The difference is what the lease,
its acknowledgement and its patch cost.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "hub"))

import harness

PAIRS = int(os.environ.get("PAIRS", "15"))


class PlainHub(harness.RealHub):
    """The same hub without gpuspawner."""

    def config(self) -> str:
        text, _, _ = super().config().partition("from gpuspawner.spawner import configure")
        return text.replace('"custom:gpu:admin", ', "")


def click_to_ready(hub: harness.RealHub, user: str) -> float:
    begin = time.perf_counter()
    response = hub.begin(user)
    assert response.status_code in {201, 202}, response.text
    harness.eventually(lambda: (server := hub.server(user)) is not None and server["ready"], 60)
    taken = time.perf_counter() - begin
    hub.stop(user)
    harness.eventually(lambda: hub.server(user) is None, 60)
    return taken


def main() -> None:
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as two:
        # The API answers when the server is ready: no polling blurs the figure.
        ours = harness.RealHub(Path(one), gpus=8, slow_spawn_timeout=30)
        plain = PlainHub(Path(two), slow_spawn_timeout=30)
        try:
            ours.start()
            plain.start()
            for hub in (ours, plain):
                hub.add_user("alice")
                click_to_ready(hub, "alice")
            pairs = [(click_to_ready(ours, "alice"), click_to_ready(plain, "alice")) for _ in range(PAIRS)]
        finally:
            ours.close()
            plain.close()
    with_us, without = (statistics.median(column) for column in zip(*pairs, strict=True))
    ratios = sorted(a / b for a, b in pairs)
    print(f"click to ready, medians of {PAIRS} pairs: gpuspawner {with_us:.3f} s, plain {without:.3f} s")
    print(f"ratio of the medians {with_us / without:.2f} (pairs: {ratios[0]:.2f} to {ratios[-1]:.2f})")
    print(f"the lease costs {1e3 * (with_us - without):.0f} ms a start")


if __name__ == "__main__":
    main()
