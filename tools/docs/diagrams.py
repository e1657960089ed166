"""Draws the diagrams of docs/ for the site: `python -m tools.docs.diagrams MERMAID`.

Each ```mermaid block of a page becomes a file of `docs/diagrams`, named by the page and what the block says, so that a
changed block has no file until it is drawn again. MERMAID is the file mermaid.min.js of the npm package;
chromium-headless-shell draws, as in the tests.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import sys
from pathlib import Path

from tools.install import ROOT

DOCS = ROOT / "docs"
DRAWN = DOCS / "diagrams"
BLOCK = re.compile(r"^```mermaid\n(.*?)^```$", re.MULTILINE | re.DOTALL)
DRAW = """
mermaid.initialize({startOnLoad: false, theme: "neutral", htmlLabels: false, flowchart: {htmlLabels: false}});
mermaid.render("drawn", %s).then(made => { document.body.innerHTML = made.svg; document.title = "drawn"; })
"""


def file_of(page: Path, text: str) -> Path:
    """Return where the diagram of a block is."""
    return DRAWN / f"{page.stem}-{hashlib.sha256(text.encode()).hexdigest()[:8]}.svg"


def main(mermaid: str) -> int:
    """Draw each that is not drawn yet, and remove those of blocks that are no more."""
    from playwright.sync_api import sync_playwright  # noqa: PLC0415 - of the tests alone

    blocks = {file_of(page, one): one for page in sorted(DOCS.rglob("*.md")) for one in BLOCK.findall(page.read_text())}
    DRAWN.mkdir(exist_ok=True)
    for old in set(DRAWN.glob("*.svg")) - set(blocks):
        old.unlink()
    with sync_playwright() as player:
        browser = player.chromium.launch(executable_path=shutil.which("chromium-headless-shell"), args=["--no-sandbox"])
        for file, text in blocks.items():
            page = browser.new_page()
            page.add_script_tag(path=mermaid)
            page.evaluate(DRAW % json.dumps(text))
            page.wait_for_function("document.title == 'drawn'", timeout=60_000)
            drawn = str(page.evaluate("new XMLSerializer().serializeToString(document.querySelector('svg'))"))
            on_white = drawn.replace('style="', 'style="background-color: white; ', 1)  # also on a dark page
            file.write_text(f"{on_white}\n")
            page.close()
        browser.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
