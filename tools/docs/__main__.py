"""`make docs`: install the generator, build the site, and say where it is."""

from __future__ import annotations

import os
import sys

from tools.check import check
from tools.install import ROOT, ensure
from tools.progress import Steps, reports_failures, say

SITE = ROOT / "site"
BUILD = "import sys; from pathlib import Path; from tools.docs.site import main; sys.exit(main(Path(sys.argv[1])))"
"""By the Python of `.venv`: the one that runs this may lack what was just installed."""


@reports_failures
def main() -> int:
    """Build into site/; 0 when every page and link is right."""
    steps = Steps()
    python = ensure(steps, ["docs"])
    check(steps, "Pages", [python, "-c", BUILD, SITE], os.environ)
    say(f"\n{SITE}/index.html")
    return 0


if __name__ == "__main__":
    sys.exit(main())
