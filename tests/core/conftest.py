"""Tests are not a package. This lets them import the modules that they share."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
