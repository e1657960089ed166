"""The part inside a workspace: extensions of its Jupyter server and of JupyterLab.

Belongs here: the meter, the time left and the warning with its Keep button, and the server extension that gets them
from the service with the workspace's own token.
Never here: anything else of gpuspawner (a workspace's image contains only this package), a decision, another credential
than the workspace's own.
"""

from __future__ import annotations


def _jupyter_server_extension_points() -> list[dict[str, str]]:
    """Return the place of the extension for jupyter_server. ``jupyter-config/gpuspawner.json`` enables it."""
    return [{"module": "gpuspawner.workspace.extension"}]
