"""What the GPU monitor in a workspace proves: work, and nothing by its absence."""

from __future__ import annotations

from gpuspawner.core.idle.policy import IdlePolicy
from gpuspawner.core.idle.readings import Sample


def by_monitor(sample: Sample, policy: IdlePolicy) -> dict[str, str]:
    """Return in words what the workspace's own monitor saw of work, by GPU.

    It follows whole devices: on one that others compute on too it says nothing of this workspace.
    """
    if sample.problem or policy.monitor_seconds <= 0:
        return {}
    names = {gpu: f"GPU {index}" for index, gpu in enumerate(dict.fromkeys(sample.leased))}
    return {
        one.gpu: f"{names[one.gpu]} at {one.monitor.percent:g} % by the workspace's monitor"
        for one in sample.gpus
        if one.gpu in names and not one.shared and one.monitor is not None and one.monitor.percent is not None
        if policy.below_percent <= one.monitor.percent <= 100  # noqa: PLR2004 - a percentage; NaN is none
    }
