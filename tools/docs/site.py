"""Builds the site by Sphinx. Each warning is an error, for example a link to a missing heading."""

from __future__ import annotations

import re
import shutil
import tempfile
from io import StringIO
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx
from sphinx.util.docutils import docutils_namespace, patch_docutils

from gpuspawner import __version__
from tools.docs.staging import BrokenLink, stage
from tools.progress import say

SETTINGS: dict[str, Any] = {
    "project": "gpuspawner",
    "version": __version__,
    "release": __version__,
    "extensions": ["myst_parser"],
    "myst_heading_anchors": 3,
    "html_theme": "furo",
    "html_title": "gpuspawner",
    "html_copy_source": False,
    "html_show_copyright": False,
    "html_show_sphinx": False,
    "highlight_language": "text",
    "exclude_patterns": ["files"],
}
"""No fonts, scripts or pictures from elsewhere: furo has its own."""

COLOURS = re.compile(r"\x1b\[[0-9;]*m")


def build(folder: Path) -> list[str]:
    """Build the site into a folder, which is replaced; return what is wrong, a line each."""
    with tempfile.TemporaryDirectory() as work:
        source, made = Path(work, "pages"), Path(work, "site")
        source.mkdir()
        try:
            stage(source)
        except BrokenLink as error:
            return [str(error)]
        warnings = StringIO()
        with patch_docutils(), docutils_namespace():  # else it warns at a second build of the same process
            trees = Path(work, "trees")
            Sphinx(source, None, made, trees, "html", SETTINGS, status=None, warning=warnings).build()
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(made, folder, ignore=shutil.ignore_patterns(".buildinfo", "objects.inv"))
        told = COLOURS.sub("", warnings.getvalue()).replace(f"{source}/", "docs/")
        return [line for line in told.splitlines() if line]


def main(folder: Path) -> int:
    """Build, and say what is wrong; 0 where nothing is."""
    wrong = build(folder)
    for line in wrong:
        say(line)
    return 1 if wrong else 0
