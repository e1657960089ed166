"""The reference, made of the code: ``python -m tools.docs.reference`` writes these pages into docs/reference/."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tools.docs.reference.api import api
from tools.docs.reference.catalog import catalog
from tools.docs.reference.chart import chart
from tools.docs.reference.commands import commands
from tools.docs.reference.configuration import configuration
from tools.docs.reference.custom_resources import custom_resources
from tools.docs.reference.events import events

PAGES: dict[str, Callable[[], str]] = {
    "catalog": catalog,
    "command-line": commands,
    "configure": configuration,
    "chart": chart,
    "events": events,
    "custom-resources": custom_resources,
    "api": api,
}
"""The function that returns the Markdown of each page, by the page's name."""


def write_reference(folder: Path) -> None:
    """Write each page into ``folder``."""
    for name, make in PAGES.items():
        (folder / f"{name}.md").write_text(make())
