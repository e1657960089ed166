"""The Zero to JupyterHub chart: what its values are called whose settings the hub's start names.

The chart's own module ``z2jh`` is loaded where its configuration runs. Names are those of version 4, in its
files/hub/jupyterhub_config.py.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator

VALUES = {
    "mem_limit": "memory.limit",
    "mem_guarantee": "memory.guarantee",
    "cpu_limit": "cpu.limit",
    "cpu_guarantee": "cpu.guarantee",
    "extra_resource_limits": "extraResource.limits",
    "extra_resource_guarantees": "extraResource.guarantees",
    "environment": "extraEnv",
    "profile_list": "profileList",
    "init_containers": "initContainers",
    "extra_containers": "extraContainers",
    "extra_pod_config": "extraPodConfig",
    "pod_name_template": "podNameTemplate",
    "volumes": "storage.extraVolumes",
    "volume_mounts": "storage.extraVolumeMounts",
}
"""Settings of KubeSpawner, and the chart's values below ``singleuser`` that set them."""

CALLED = re.compile(r"\bconfigure\(\s*c\b")
"""The line of configure() in a text of hub.extraConfig."""


def is_here() -> bool:
    """Whether the chart's configuration is what runs."""
    return "z2jh" in sys.modules


def value_of(setting: str) -> str:
    """Return, to follow a setting's name, the chart's value that sets it; "" where it has none or is not here."""
    return f" (singleuser.{VALUES[setting]} of the chart)" if is_here() and setting in VALUES else ""


def unjudged() -> Iterator[str]:
    """Yield a sentence for configuration of the chart that runs after configure(), and so was not judged."""
    if not is_here():
        return
    extra = sys.modules["z2jh"].get_config("hub.extraConfig", {}) or {}
    ours = [key for key, text in sorted(extra.items()) if CALLED.search(str(text))]
    later = [key for key in sorted(extra) if ours and key > ours[-1]]
    if later:
        yield (
            f"hub.extraConfig of the chart runs {', '.join(later)} after {ours[-1]}, which calls configure(): what is "
            f"set there is not checked. Rename {ours[-1]} so that it sorts last, for example zz-gpuspawner."
        )
