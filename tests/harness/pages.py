"""Pages of the documentation, as tests read them."""

import re
import textwrap
from pathlib import Path

REPO = Path(__file__).parents[2]
DOCS = REPO / "docs"
FENCE = re.compile(r"^( *)```(\w+)\n(.*?)^\1```$", re.DOTALL | re.MULTILINE)


def page(name):
    """Return the text of a page, by its path below docs/ without its ending."""
    return (DOCS / f"{name}.md").read_text()


def blocks(text, language):
    """Return the fenced blocks of a language, without the indent of the list that they are in."""
    return [textwrap.dedent(block) for _, named, block in FENCE.findall(text) if named == language]


def commands(text):
    """Return each command of the ``bash`` blocks, continued lines as one."""
    shell = "".join(blocks(text, "bash")).replace("\\\n", " ")
    return [line for line in shell.splitlines() if line and not line.startswith("#")]


def section(text, heading):
    """Return the text below a heading, up to the next heading of its level or above."""
    found = re.search(rf"^(#+) {re.escape(heading)}\n", text, re.MULTILINE)
    assert found, heading
    rest = text[found.end() :]
    ends = re.search(rf"^#{{1,{len(found[1])}}} ", rest, re.MULTILINE)
    return rest[: ends.start()] if ends else rest
