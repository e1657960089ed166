"""``python -m tools.monitoring``: write dashboards and alert rules into helm/gpuspawner/files."""

from __future__ import annotations

import sys
from pathlib import Path

import yaml

from tools.install import ROOT
from tools.monitoring.alerts import rules
from tools.monitoring.drawn import drawn
from tools.monitoring.panels import DASHBOARDS

FILES = ROOT / "helm" / "gpuspawner" / "files"
GENERATED = "# Written by `python -m tools.monitoring`: change tools/monitoring/alerts.py instead.\n"


def files() -> dict[Path, str]:
    """Return the text of each file by its path under FILES."""
    made = {Path("dashboards", f"{one.name}.json"): drawn(one) for one in DASHBOARDS}
    made[Path("alerts.yaml")] = GENERATED + yaml.safe_dump(rules(), sort_keys=False, width=110)
    return made


def main() -> int:
    """Write each, and say so."""
    for path, text in files().items():
        (FILES / path).parent.mkdir(parents=True, exist_ok=True)
        (FILES / path).write_text(text)
        print((FILES / path).relative_to(ROOT))
    return 0


if __name__ == "__main__":
    sys.exit(main())
