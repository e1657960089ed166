import sys
from pathlib import Path

sys.path.insert(
    0, str(Path(__file__).parents[1] / "backends")
)  # tests are no package: `from cluster_objects import ...`
sys.path.insert(0, str(Path(__file__).parent))
