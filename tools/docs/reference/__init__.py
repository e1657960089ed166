"""The reference, made of the code each time: no page of it is written by hand."""

from __future__ import annotations

from collections.abc import Callable

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
"""By the page's name: what makes its Markdown."""
