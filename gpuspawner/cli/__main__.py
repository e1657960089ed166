"""``python -m gpuspawner.cli``."""

import sys

from gpuspawner.cli.main import main

sys.exit(main())
