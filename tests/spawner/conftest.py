"""Tests are no package: what they share is found beside them."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
