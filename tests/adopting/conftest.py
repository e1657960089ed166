import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "backends"))  # tests are no package: `from kube_api import ...`
sys.path.insert(0, str(Path(__file__).parents[1] / "hub"))
sys.path.insert(0, str(Path(__file__).parents[1] / "core"))
sys.path.insert(0, str(Path(__file__).parents[1] / "service"))
sys.path.insert(0, str(Path(__file__).parent))
