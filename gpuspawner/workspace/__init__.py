"""What runs inside a workspace: an extension of its Jupyter server, and one of its JupyterLab.

Belongs here: the meter, the time left and the warning with its Keep button, and the little server part that asks
the service for them with the workspace's own token.
Never here: anything else of gpuspawner (a workspace's image holds this package alone), a decision, a credential of
anyone but this workspace.
"""

from __future__ import annotations


def _jupyter_server_extension_points() -> list[dict[str, str]]:
    """Return where jupyter_server finds the extension; switched on by ``jupyter-config/gpuspawner.json``."""
    return [{"module": "gpuspawner.workspace.extension"}]
