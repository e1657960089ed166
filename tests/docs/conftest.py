"""Tests of the documentation are no package: `from facts import ...`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
