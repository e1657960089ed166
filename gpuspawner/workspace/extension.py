"""The extension of the Jupyter server: ``/gpuspawner/state``, ``keep``, ``extend``, ``home`` and ``ssh``."""

from __future__ import annotations

import json
import os
from typing import Any

from jupyter_server.auth.decorator import authorized
from jupyter_server.base.handlers import APIHandler
from jupyter_server.utils import url_path_join
from tornado import web

from gpuspawner.workspace.home.own_files import Notes
from gpuspawner.workspace.home.session import ANSWERS, LastSession
from gpuspawner.workspace.home.start import LEASE_VARIABLE, begin
from gpuspawner.workspace.probe_reports import watch
from gpuspawner.workspace.service import Reply, ServiceClient, report_missing
from gpuspawner.workspace.ssh import ConnectHandler, KeysHandler, Sshd

SSH_VARIABLE = "GPUSPAWNER_SSH"
"""Set by the spawner if the workspace's template allows SSH."""
ABSENT = Reply(200, {"absent": True})
"""The answer of a server without a GPU service. The page then stops asking."""


class ServiceHandler(APIHandler):
    """Passes a request on to the service."""

    auth_resource = "gpuspawner"

    def initialize(self, client: ServiceClient | None) -> None:
        """Keep the client of the service, or None."""
        self.client = client

    def answer(self, reply: Reply) -> None:
        """Answer with the service's answer."""
        self.set_status(reply.status)
        self.finish(json.dumps(reply.body))


class StateHandler(ServiceHandler):
    """GET the workspace document, ``{"away": true}`` or ``{"absent": true}``."""

    # The page asks every few seconds by itself: this is no activity of its user.
    _track_activity = False

    @web.authenticated
    @authorized
    async def get(self) -> None:
        """Answer with the state of this workspace."""
        self.answer(await self.client.state() if self.client else ABSENT)


class ActHandler(ServiceHandler):
    """POST ``keep`` or ``extend``. Returns the service's answer."""

    @web.authenticated
    @authorized
    async def post(self, action: str) -> None:
        """Send the user's click to the service."""
        self.answer(await self.client.act(action) if self.client else ABSENT)


class HomeHandler(APIHandler):
    """GET the results of the user's variables, start-up script, repository and tools, and of the last session.

    POST ``{"install": "once"}``, ``always`` or ``never``: the user's choice for missing packages.
    """

    auth_resource = "gpuspawner"
    _track_activity = False

    def initialize(self, notes: Notes, last_session: LastSession | None) -> None:
        """Keep the notes. ``last_session`` is None in a server that is no workspace."""
        self.notes, self.last_session = notes, last_session

    @web.authenticated
    @authorized
    async def get(self) -> None:
        """Answer with the current step and a sentence for each part that was left out."""
        self.finish(json.dumps(self.notes.view()))

    @web.authenticated
    @authorized
    async def post(self) -> None:
        """Take the user's choice and answer with the new state."""
        body = self.get_json_body()
        how = body.get("install") if isinstance(body, dict) else None
        if how not in ANSWERS:
            raise web.HTTPError(400, f"install is one of {', '.join(ANSWERS)}")
        if self.last_session is not None:
            self.last_session.answer(how)
        self.finish(json.dumps(self.notes.view()))


def _load_jupyter_server_extension(server_app: Any) -> None:
    """Add the handlers to a Jupyter server, also under ``jupyterhub-singleuser``, and report its kernels."""
    watch(server_app)
    notes = Notes(server_app.log)
    last_session = LastSession(server_app, os.environ, notes) if os.environ.get(LEASE_VARIABLE) else None
    if last_session is not None:
        server_app.io_loop.add_callback(last_session.start)
    kernel_folders = getattr(server_app.kernel_spec_manager, "kernel_dirs", None)
    client = ServiceClient.from_environment(os.environ, server_app.log)
    server_app.io_loop.add_callback(begin, os.environ, notes, kernel_folders, client)
    if client is not None:
        server_app.io_loop.add_callback(report_missing, client, os.environ)
    sshd = Sshd(os.environ) if os.environ.get(SSH_VARIABLE) else None
    base = url_path_join(server_app.web_app.settings["base_url"], "gpuspawner")
    server_app.web_app.add_handlers(
        ".*$",
        [
            (url_path_join(base, "state"), StateHandler, {"client": client}),
            (url_path_join(base, "home"), HomeHandler, {"notes": notes, "last_session": last_session}),
            (url_path_join(base, "(keep|extend)"), ActHandler, {"client": client}),
            (url_path_join(base, "ssh"), KeysHandler, {"sshd": sshd, "client": client}),
            (url_path_join(base, "ssh/connect"), ConnectHandler, {"sshd": sshd, "client": client}),
        ],
    )
