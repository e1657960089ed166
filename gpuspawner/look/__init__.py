"""The shared look of the hub's and the service's pages: style sheet, script, icons, macros and shell.

gs_macros.html says at its head how a page uses them.
"""

from pathlib import Path

LOOK = Path(__file__).parent
BROWSER_FILES = frozenset({"gs.css", "gs.js"})
"""The files of LOOK that browsers fetch. Those left over are templates."""
