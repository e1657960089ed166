"""Workspaces stopped while in use, GPU hours recovered, time from idle to freed: ours and each peer's rule.

All over the same generated sessions (gpuspawner.simulate.sessions), whose truth is known. Figures do not depend on the
machine. ``--families`` replays what people do and the generator does not draw, with each source and each peer's rule.
``--sensitivity`` varies what is arbitrary. ``--docs`` writes the picture and tables of docs/measurements.
"""

from __future__ import annotations

import argparse
import re
import subprocess
from pathlib import Path

from figures import HEAD, figures, markdown, table
from peers import PEERS
from picture import picture
from sensitivity import SENSITIVITY_HEAD, sensitivity
from sources import FAMILIES_HEAD, RULES_HEAD, families

from gpuspawner.simulate.sessions import sessions

DOCS = Path(__file__).parents[2] / "docs" / "measurements"
PAGES = {"figures": "idle-stops.md", "families": "idle-families.md", "rules": "idle-families.md"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hours", type=float, default=4000.0, help="session hours (default: %(default)g)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--sensitivity", type=float, metavar="HOURS", help="vary each parameter, over so many hours")
    parser.add_argument("--families", type=int, metavar="COUNT", help="so many sessions of each family, alone")
    parser.add_argument("--only", action="append", default=[], metavar="WORDS", help="families whose name has them")
    parser.add_argument("--docs", action="store_true", help="write the picture and the tables of the documentation")
    asked = parser.parse_args()
    if asked.families:
        found = families(asked.seed, asked.families, asked.only)
        print(table(found.families, FAMILIES_HEAD), table(found.rules, RULES_HEAD), sep="\n\n")
        if asked.docs:
            command = f"`python bench/idleness --families {asked.families} --seed {asked.seed}`, commit {commit()}"
            said = f"{asked.families} sessions of each family, {found.hours:,.0f} session hours ({command})."
            write("families", f"{said}\n\n" + markdown(found.families, FAMILIES_HEAD))
            write("rules", markdown(found.rules, RULES_HEAD))
        return
    rows = figures(sessions(asked.seed, asked.hours), PEERS)
    said = f"{rows[0].totals.session_hours:,.0f} session hours, {rows[0].totals.workspaces:,} workspaces"
    print(f"{said}; stopped in use: per 100,000 session hours")
    print(table(row.cells() for row in rows))
    if asked.sensitivity:
        print(f"\nours, one thing changed, {asked.sensitivity:,.0f} session hours each")
        print(table(sensitivity(asked.seed, asked.sensitivity), SENSITIVITY_HEAD))
    if asked.docs:
        (DOCS / "idleness.svg").write_text(picture(rows, said), encoding="utf-8")
        command = f"`python bench/idleness --hours {asked.hours:g} --seed {asked.seed}`, commit {commit()}"
        write("figures", f"{said} ({command}).\n\n" + markdown((row.cells() for row in rows), HEAD))


def commit() -> str:
    """Return the commit of this checkout."""
    told = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=DOCS, capture_output=True, text=True, check=True)
    return told.stdout.strip()


def write(name: str, table: str) -> None:
    """Put a table between its two markers in the page that has them."""
    page = DOCS / PAGES[name]
    text = page.read_text(encoding="utf-8")
    marked = re.compile(f"(<!-- {name} -->\n).*?(<!-- end -->)", re.DOTALL)
    assert marked.search(text), f"{page} has no place for {name}"
    page.write_text(marked.sub(lambda found: f"{found[1]}\n{table}\n\n{found[2]}", text), encoding="utf-8")


if __name__ == "__main__":
    main()
