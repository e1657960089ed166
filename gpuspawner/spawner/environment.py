"""The variables that a request and its template add to a server's environment. Pure."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

from gpuspawner.catalog import SSH, default_url
from gpuspawner.catalog.models import Template
from gpuspawner.catalog.pod_models import Volume
from gpuspawner.catalog.requests.start_options import variables_in
from gpuspawner.core.leases.request import Request

SSH_VARIABLE = "GPUSPAWNER_SSH"
"""Set in workspaces whose template allows SSH. Without it `gpuspawner.workspace` refuses each connection."""
REPOSITORY_VARIABLE = "GPUSPAWNER_REPOSITORY"
"""The repository that `gpuspawner.workspace` clones into the home."""
SCRIPT_VARIABLE = "GPUSPAWNER_SCRIPT"
"""The script that `gpuspawner.workspace` runs once the server has started."""
TOOLS_VARIABLE = "GPUSPAWNER_TOOLS"
"""The packages of which `gpuspawner.workspace` makes kernels, as JSON: the template's name and packages by tool."""
FOLDERS_VARIABLE = "GPUSPAWNER_FOLDERS"
"""The folders of this machine that `gpuspawner.workspace` links into the home, as JSON: the folder by its link."""


def variables_of(
    request: Request, template: Template | None, volumes: Mapping[str, Volume], own_page: str
) -> dict[str, str]:
    """Return the template's variables, and those for the user's own choices.

    Args:
        request: the request of the lease.
        template: its template, None if the catalog no longer has it.
        volumes: the volumes that the template adds for this user, by name.
        own_page: the hub's ``default_url``. A page within the opened tool, for example /lab/tree/first.ipynb, is kept.
    """
    opens = request.opens or ()
    page = default_url(opens)
    offered = template.tools if template else {}
    tools = {name: offered[name] for name in request.tools if name in offered}  # a template may lose a tool
    folders = {one.mount: one.folder for one in volumes.values() if one.folder}
    found = {**dict(template.environment if template else ()), **variables_in(request.variables)}
    # In JupyterHub's own variable: `default_url` would remain for the next start, which may have no tool.
    if page and not own_page.startswith(page):
        found = {"JUPYTERHUB_DEFAULT_URL": page, **found}
    if SSH in opens:
        found = {SSH_VARIABLE: "1", **found}
    if request.repository:
        found[REPOSITORY_VARIABLE] = request.repository
    if request.script:
        found[SCRIPT_VARIABLE] = request.script
    if folders:
        found[FOLDERS_VARIABLE] = json.dumps(folders)
    if tools:
        found[TOOLS_VARIABLE] = json.dumps({"template": request.template, "tools": tools})
    return found


def with_patch(environment: Mapping[str, str], patch: Mapping[str, Any]) -> dict[str, str]:
    """Return the environment with the variables and the program folder of a lease's patch."""
    found: dict[str, str] = {**environment, **patch.get("environment", {})}
    if prefix := patch.get("path_prefix", ""):
        path = found.get("PATH") or os.environ.get("PATH", os.defpath)
        found["PATH"] = f"{prefix}{os.pathsep}{path}"
    return found
