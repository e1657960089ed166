"""Tests are no package: what they share is found beside those of the core."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "core"))
