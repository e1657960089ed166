"""Tests are no package. Their shared modules are in the folders of the core and the backends."""

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1] / folder) for folder in ("core", "backends", "schedulers")]
