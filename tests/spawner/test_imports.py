"""What a hub's configuration imports: the hub may lack the packages of other spawners."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize("package", ["kubernetes_asyncio", "kubespawner"])
def test_a_hub_without_kubernetes_packages_configures_gpuspawner(package):
    program = f"import sys; sys.modules[{package!r}] = None; from gpuspawner.spawner import configure"
    ran = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stderr
