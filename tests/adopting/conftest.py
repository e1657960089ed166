import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "backends"))  # tests are no package: `from kube_api import ...`
sys.path.insert(0, str(Path(__file__).parents[1] / "hub"))
sys.path.insert(0, str(Path(__file__).parents[1] / "core"))
sys.path.insert(0, str(Path(__file__).parents[1] / "service"))
sys.path.insert(0, str(Path(__file__).parent))

import pytest


@pytest.fixture(autouse=True)
def no_other_hubs(monkeypatch):
    """Hubs of other tests run on this machine, too."""
    for module in ("gpuspawner.adoption.init", "gpuspawner.adoption.doctor.command"):
        monkeypatch.setattr(f"{module}.running_hubs", lambda: ())
