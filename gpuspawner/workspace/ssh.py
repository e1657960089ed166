"""SSH to the workspace: ``/gpuspawner/ssh`` takes public keys, ``/gpuspawner/ssh/connect`` connects to its sshd.

Both accept users of the Jupyter server whose authorizer allows terminals. Other users get no shell. They also accept a
ticket that the GPU service gave to the workspace's user, who signed in there.

sshd runs once for each connection, on its standard input and output. It does not listen: connections come only through
the Jupyter server, which authenticates its users. So sshd's rules for a home need not hold (a volume's group may write
to it), and nothing is saved in it: host key and authorized keys exist as long as the server, in a separate folder.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import json
import os
import pwd
import re
import shutil
import subprocess
import tempfile
from asyncio.subprocess import PIPE, Process
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from jupyter_server.auth import User
from jupyter_server.base.handlers import APIHandler, JupyterHandler
from jupyter_server.base.websocket import WebSocketMixin
from jupyter_server.utils import ensure_async
from tornado import web
from tornado.websocket import WebSocketClosedError, WebSocketHandler

from gpuspawner.workspace.service import SBIN, ServiceClient

MAX_KEYS = 100
LONGEST_KEY = 16_384
"""Characters. An RSA key of 16,384 bits has 2,800."""
LENGTH_BYTES = 4
SET_BY_SSHD = frozenset({"HOME", "LOGNAME", "MAIL", "OLDPWD", "PWD", "SHELL", "SHLVL", "TERM", "USER", "_"})
KIND = re.compile(r"[a-z0-9@.-]+")
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
CONFIG = """\
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/authorized_keys
# Its parents are those of a temporary folder, which anybody may write to; the folder itself is its user's alone.
StrictModes no
AuthenticationMethods publickey
UsePAM no
PidFile none
PrintMotd no
Subsystem sftp {sftp}
SetEnv {variables}
"""
SESSION = """\
#!/bin/sh
# Sessions begin in the home of the workspace, which need not be the one that the system knows of its user.
cd "$HOME" || exit 1
if [ -n "$SSH_ORIGINAL_COMMAND" ]; then exec "$SHELL" -c "$SSH_ORIGINAL_COMMAND"; fi
exec "$SHELL" -l
"""
SFTP = ("/usr/lib/openssh", "/usr/libexec/openssh", "/usr/lib/ssh", "/usr/libexec")
"""Folders of sftp-server, by distribution."""


class BadKeyError(Exception):
    """The input is no public key. The message says what is wrong and what is expected."""


class NoSshdError(Exception):
    """No sshd can run here. The message is the reason."""


class Sshd:
    """The common parts of all connections: host key, authorized keys, configuration. Made for the first user.

    Args:
        environ: The environment of a session: that of a terminal of this server, without tokens.
    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        """Keep the environment. Nothing is made yet."""
        self._environ = environ
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._keys: dict[str, None] = {}
        self.host_key = ""
        self.command: list[str] = []

    def user(self) -> str:
        """Return the user name for sign-in: the name of the server's own user, the only one.

        Raises:
            NoSshdError: It has no name.
        """
        try:
            return pwd.getpwuid(os.getuid()).pw_name
        except KeyError:
            raise NoSshdError(
                f"User {os.getuid()} of this workspace has no name, and sshd accepts only users with a name. "
                "Its image must give it one when it starts, as the one in images/workspace does."
            ) from None

    def authorize(self, keys: Iterable[object]) -> None:
        """Accept these public keys until the server ends.

        Raises:
            BadKeyError: A key is invalid. Then no key is added.
            NoSshdError: No sshd can run here.
        """
        added = dict.fromkeys(public_key(key) for key in keys)
        if not added:
            raise BadKeyError('No public key was sent. Send {"keys": ["ssh-ed25519 ..."]}.')
        if len(self._keys | added) > MAX_KEYS:
            raise BadKeyError(f"{MAX_KEYS} keys are authorized already. Start the workspace again to remove them.")
        folder = self._ensure()
        self._keys |= added
        new = folder / "authorized_keys.new"
        new.write_text("".join(f"{key}\n" for key in self._keys))
        new.replace(folder / "authorized_keys")

    def _ensure(self) -> Path:
        """Make host key and configuration once."""
        if self._folder is not None:
            return Path(self._folder.name)
        self.user()
        path = os.pathsep.join((self._environ.get("PATH", os.defpath), *SBIN))
        sshd, keygen = shutil.which("sshd", path=path), shutil.which("ssh-keygen", path=path)
        if not sshd or not keygen:
            raise NoSshdError("There is no sshd in this workspace: its image needs OpenSSH's server.")
        if os.getuid() == 0:
            Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # root's sshd wants it; its system service makes it
        held = tempfile.TemporaryDirectory(prefix="gpuspawner-sshd-")
        folder = Path(held.name)
        subprocess.run(  # noqa: S603 - found above
            [keygen, "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", folder / "host_key"], check=True
        )
        (folder / "sshd_config").write_text(self._config(folder))
        self.host_key = (folder / "host_key.pub").read_text().strip()
        self.command = [str(Path(sshd).resolve()), "-i", "-e", "-f", f"{folder}/sshd_config"]
        self._folder = held
        return folder

    def _config(self, folder: Path) -> str:
        """Return the configuration. If the workspace has its own home, every session begins there."""
        home, variables = self._environ.get("HOME", ""), set_env(self._environ)
        if not home or Path(home) == Path(pwd.getpwuid(os.getuid()).pw_dir):
            return CONFIG.format(folder=folder, sftp="internal-sftp", variables=variables)
        variables = f"{variables} {set_env({'HOME': home}, frozenset())}"
        server = shutil.which("sftp-server", path=os.pathsep.join(SFTP))
        if server is None:  # sshd's internal server cannot be run by our command
            return CONFIG.format(folder=folder, sftp=f"internal-sftp -d {quoted(home)}", variables=variables)
        session = folder / "session"
        session.write_text(SESSION)
        session.chmod(0o700)
        config = CONFIG.format(folder=folder, sftp=server, variables=variables)
        return f"{config}ForceCommand {session}\n"


def public_key(text: object) -> str:
    """Return a public key as in ``authorized_keys``: type and key, without options and comment.

    Raises:
        BadKeyError: The text is no public key.
    """
    parts = text.split() if isinstance(text, str) and len(text) <= LONGEST_KEY else []
    kind = parts[0] if parts else ""
    try:
        decoded = base64.b64decode(parts[1], validate=True)
    except (IndexError, binascii.Error, ValueError):
        decoded = b""
    length = len(kind).to_bytes(LENGTH_BYTES, "big")
    inside = length + kind.encode(errors="replace")  # the type is repeated inside the key
    if not KIND.fullmatch(kind) or not decoded.startswith(inside):
        raise BadKeyError(
            f"{str(text)[:40]!r} is no public key. Send one as ssh-keygen writes it into a file that ends in .pub."
        )
    return f"{kind} {parts[1]}"


def set_env(environ: Mapping[str, str], left_out: Collection[str] = SET_BY_SSHD) -> str:
    """Return an environment for sshd's ``SetEnv`` on one line: only the first line counts.

    Without ``left_out``, which sshd sets itself, without tokens, and without values that do not fit on a line.
    """
    told = []
    for name, value in sorted(environ.items()):
        known = name in left_out or "TOKEN" in name or not VARIABLE.fullmatch(name)
        if not known and value.isprintable():
            told.append(quoted(f"{name}={value}"))
    return " ".join(told)


def quoted(text: str) -> str:
    """Return a text as one word of sshd's configuration."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


CHUNK_BYTES = 65_536
END_SECONDS = 10.0
"""Time limit of an sshd's end after its connection ended. Arbitrary: it needs milliseconds."""
RESOURCE = "terminals"
OK = 200


class TicketHandler(JupyterHandler):
    """Accepts a ticket of the GPU service if one is sent. Otherwise the Jupyter server decides."""

    by_ticket = False

    def initialize(self, sshd: Sshd | None, client: ServiceClient | None) -> None:
        """Keep the sshd, None without SSH in the template, and the client of the service, or None."""
        self.sshd, self.client = sshd, client

    async def prepare(self, *args: Any, **kwargs: Any) -> None:
        """Identify the user."""
        ticket = self._ticket()
        if not ticket:
            await ensure_async(super().prepare(*args, **kwargs))
            return
        if not self.check_host() or self.client is None:
            raise web.HTTPError(403)
        reply = await self.client.check_ssh_ticket(ticket)
        if "away" in reply.body:
            raise web.HTTPError(503, reply.body["message"])
        if reply.status != OK:
            raise web.HTTPError(403, str(reply.body["error"]["message"]))
        self.by_ticket = True
        self.current_user = self._jupyter_current_user = User(str(reply.body["user"]))

    def check_xsrf_cookie(self) -> None:
        """Require no cookie with a ticket: no page of another site can send one."""
        if not self._ticket():
            super().check_xsrf_cookie()

    async def check_allowed(self) -> None:
        """Raise 403 if the user may open no terminal."""
        user = self.current_user
        if not user:
            raise web.HTTPError(403)
        if not self.by_ticket and not await ensure_async(
            self.authorizer.is_authorized(self, user, "execute", RESOURCE)
        ):
            raise web.HTTPError(403)

    def _ticket(self) -> str:
        scheme, _, ticket = self.request.headers.get("Authorization", "").partition(" ")
        return ticket if scheme.lower() == "ticket" else ""


class KeysHandler(TicketHandler, APIHandler):
    """POST ``{"keys": [...]}``: authorize these keys. Returns the user's name and the server's host key."""

    auth_resource = RESOURCE

    @web.authenticated
    async def post(self) -> None:
        """Authorize the keys until this server ends."""
        await self.check_allowed()
        body = self.get_json_body()
        keys = body.get("keys") if isinstance(body, dict) else None
        if self.sshd is None:
            self._refuse(404, "SSH is not on in this workspace: its template does not open it.")
            return
        try:
            self.sshd.authorize(keys if isinstance(keys, list) else [])
        except BadKeyError as error:
            self._refuse(400, str(error))
        except NoSshdError as error:
            self._refuse(404, str(error))
        else:
            self.finish(json.dumps({"user": self.sshd.user(), "host_key": self.sshd.host_key}))

    def _refuse(self, status: int, message: str) -> None:
        self.set_status(status)
        self.finish(json.dumps({"error": {"message": message}}))


class ConnectHandler(TicketHandler, WebSocketMixin, WebSocketHandler, JupyterHandler):
    """A WebSocket to its own sshd. Its bytes are those of the SSH connection."""

    auth_resource = RESOURCE

    def initialize(self, sshd: Sshd | None, client: ServiceClient | None) -> None:
        """Keep the sshd and the client of the service."""
        super().initialize(sshd, client)
        self._process: Process | None = None
        self._pump: asyncio.Task[None] | None = None

    async def get(self, *args: Any, **kwargs: Any) -> None:
        """Connect an accepted user whose key was sent."""
        await self.check_allowed()
        if self.sshd is None or not self.sshd.command:
            raise web.HTTPError(404)
        await ensure_async(super().get(*args, **kwargs))

    async def open(self, *args: Any, **kwargs: Any) -> None:
        """Start sshd. Its messages about a connection go to this server's log."""
        super().open(*args, **kwargs)
        self.set_nodelay(True)
        assert self.sshd is not None
        self._process = await asyncio.create_subprocess_exec(*self.sshd.command, stdin=PIPE, stdout=PIPE)
        self._pump = asyncio.create_task(self._send())

    async def on_message(self, message: str | bytes) -> None:
        """Pass bytes on. The next message is read when there is room for it."""
        assert self._process is not None
        assert self._process.stdin is not None
        if isinstance(message, str):
            self.close(1003, "SSH is bytes")
            return
        with contextlib.suppress(ConnectionError):  # it has ended: the pump closes
            self._process.stdin.write(message)
            await self._process.stdin.drain()

    async def _send(self) -> None:
        """Send sshd's output until it ends, also after the connection is lost, so that it can end."""
        assert self._process is not None
        assert self._process.stdout is not None
        while data := await self._process.stdout.read(CHUNK_BYTES):
            with contextlib.suppress(WebSocketClosedError):
                await self.write_message(data, binary=True)
        self.close()

    def on_close(self) -> None:
        """End sshd and its child processes, as a lost connection does."""
        super().on_close()
        if self._process is not None and self._pump is not None:
            self._end = asyncio.create_task(_end(self._process, self._pump))


async def _end(process: Process, pump: asyncio.Task[None]) -> None:
    assert process.stdin is not None
    process.stdin.close()
    try:
        await asyncio.wait_for(pump, END_SECONDS)
    except asyncio.TimeoutError:
        process.kill()
    await process.wait()
