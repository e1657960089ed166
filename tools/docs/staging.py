"""The pages as the site has them: those of docs/, and some of the repository's own.

A link that leaves the pages, to a file of the repository, becomes one to a copy of that file in the site.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

from tools.docs import diagrams
from tools.install import ROOT

DOCS = ROOT / "docs"
FROM_ROOT = {
    "CHANGELOG.md": "changelog.md",
    "CODE_OF_CONDUCT.md": "code-of-conduct.md",
    "CONTRIBUTING.md": "contributing.md",
    "RELEASE.md": "release.md",
    "SECURITY.md": "security.md",
    "tests/README.md": "tests.md",
    "tests/cluster/README.md": "tests-cluster.md",
}
"""The repository's own pages, and how the site calls them."""
FILES = Path("files")
"""Where the site has copies of the repository's files that pages link to."""
LINK = re.compile(r"(!?\[[^\]\n]*\]\()([^)#\s:]+)(#[^)\s]*)?\)")


class BrokenLink(Exception):
    """A link to a file that is not there; says in which page."""


def stage(folder: Path) -> None:
    """Write all pages into an empty folder.

    Raises:
        BrokenLink: a page links to a file that is not there.
    """
    pages = {path: path.relative_to(DOCS) for path in sorted(DOCS.rglob("*.md"))}
    pages |= {ROOT / name: Path(called) for name, called in FROM_ROOT.items()}
    for path, called in pages.items():
        target = folder / called
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(_linked(_drawn(path.read_text(), path), path, pages, folder))


def _drawn(text: str, page: Path) -> str:
    """Return a page's text with its diagrams as pictures, which a script of mermaid's would draw elsewhere."""

    def put(found: re.Match[str]) -> str:
        file = diagrams.file_of(page, found[1])
        if not file.is_file():
            raise BrokenLink(f"{page.relative_to(ROOT)}: a diagram changed: run python -m tools.docs.diagrams MERMAID")
        heading = re.findall(r"^#+ (.+)$", text[: found.start()], re.MULTILINE)[-1]
        return f"![{heading}, as a diagram]({os.path.relpath(file, page.parent)})\n"

    return diagrams.BLOCK.sub(put, text)


def _linked(text: str, page: Path, called: dict[Path, Path], folder: Path) -> str:
    """Return a page's text with each link to where the site has what it means."""

    def put(found: re.Match[str]) -> str:
        linked = (page.parent / found[2]).resolve()
        here = called.get(linked) or _copied(linked, page, folder)
        return f"{found[1]}{os.path.relpath(here, called[page].parent)}{found[3] or ''})"

    return LINK.sub(put, text)


def _copied(linked: Path, page: Path, folder: Path) -> Path:
    """Copy a file of the repository into the site, or of a folder the one that describes it; return where it is."""
    if linked.is_dir():
        described = (linked / name for name in ("README.md", "Chart.yaml", "Dockerfile"))
        linked = next((path for path in described if path.is_file()), linked)
    if not linked.is_file() or not linked.is_relative_to(ROOT):
        raise BrokenLink(f"{page.relative_to(ROOT)}: no file {os.path.relpath(linked, ROOT)}")
    inside_docs = linked.is_relative_to(DOCS)
    target = linked.relative_to(DOCS) if inside_docs else FILES / linked.relative_to(ROOT)
    (folder / target).parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(linked, folder / target)
    return target
