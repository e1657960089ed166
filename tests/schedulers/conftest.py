"""Tests are no package: what they share is found beside those of the core and the backends."""

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1] / folder) for folder in ("core", "backends", "schedulers")]
