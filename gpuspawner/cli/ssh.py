"""``gpuspawner ssh``: the machine's own ``ssh``, through the hub's proxy, into a workspace.

The proxy accepts a token of the hub, or a ticket of the GPU service for a login. sshd accepts the user's own key, which
is sent ahead. The workspace's host key comes the same authenticated way, so ssh does not ask whether to trust it.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import shlex
import shutil
import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import click

from gpuspawner.cli import base
from gpuspawner.cli.client import call, expect_service_answers
from gpuspawner.cli.errors import AwayError, InvalidError, RefusedError
from gpuspawner.cli.logins import read_token
from gpuspawner.cli.output import say_lines
from gpuspawner.cli.workspaces import RUNNING_PHASES

DEFAULT_SERVER = "-"
"""The name of the server without a name, as ``list`` and pages show it."""
HOST_ALIAS = "workspace"
FORBIDDEN = 403
LOGIN_TOKEN = "gpucli-"  # noqa: S105 - the beginning of a kind of token, not a token
"""The beginning of tokens that ``gpuspawner login`` gets."""
USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._@-]*")
KEY = re.compile(r"[a-z0-9@.-]+ [A-Za-z0-9+/=]+( [^\s]*)?")
WORDLESS = "it answered {status}. Its image needs the package gpuspawner, in this version."


@dataclass(frozen=True)
class Target:
    """The workspace that the user names, and the files of their key and token."""

    url: str
    name: str
    key: Path | None = None
    token_file: Path | None = None


@dataclass(frozen=True)
class Reached:
    """A workspace that lets its user in. ``address`` is that of its server, with a slash at the end."""

    name: str
    address: str
    user: str
    known_hosts: Path
    scheme: str
    credential: str
    """A token of the hub, or a ticket of the service for the next minute."""


@base.command(
    "ssh",
    context_settings={"allow_interspersed_args": False},  # what follows the name is for ssh
    examples="""\
gpuspawner ssh train nvidia-smi
gpuspawner ssh train -L 6006:localhost:6006
gpuspawner ssh --config train >> ~/.ssh/config
scp model.pt gpu-train:""",
)
@click.option("--config", is_flag=True, help="Print the lines for ~/.ssh/config instead.")
@click.option("--proxy", is_flag=True, help="Be the ProxyCommand of ssh: pass its bytes on.")
@click.option("--key", type=base.PATH, metavar="FILE", help="Your key. Default: every ~/.ssh/id_*.pub.")
@click.option(
    "--token-file",
    type=base.PATH,
    metavar="FILE",
    help="A file with your hub token. Default: $GPUSPAWNER_TOKEN or login.",
)
@base.url_option
@base.name_argument()
@click.argument("rest", metavar="[ARGUMENT]...", nargs=-1, type=click.UNPROCESSED)
def ssh(url: str, name: str, rest: tuple[str, ...], *, config: bool, proxy: bool, **files: Path | None) -> None:
    """Open a shell in a workspace with ssh, through the hub.

    Words after the name go to ssh unchanged: a command, or options. For scp, rsync and VS Code Remote, add the
    workspace to ~/.ssh/config with --config. Its host is then gpu-NAME.
    """
    program = shutil.which("ssh")
    if program is None:
        raise InvalidError("This machine has no ssh. Install OpenSSH (Debian: apt-get install openssh-client).")
    if config and proxy:
        raise click.UsageError("Write either --config or --proxy.")
    wanted = Target(url, name, **files)
    with expect_service_answers(url):
        workspace = reach(wanted, read_token(wanted.token_file, url))
    if proxy:
        from gpuspawner.cli.ssh_relay import relay  # noqa: PLC0415 - tornado, which only the ProxyCommand needs

        signal.signal(signal.SIGINT, signal.SIG_DFL)  # ssh gets Ctrl-C, too, and this process ends with it
        asyncio.run(relay(f"{workspace.address}gpuspawner/ssh/connect", workspace.credential, workspace.scheme))
        return
    host, settings = f"gpu-{alias(workspace.name)}", ssh_settings(workspace, wanted)
    if config:
        say_lines("\n".join([f"Host {host}", *(f"    {name} {value}" for name, value in settings)]))
    else:
        flags = [word for name, value in settings for word in ("-o", f"{name}={value}")]
        os.execv(program, [program, *flags, host, *rest])  # noqa: S606 - the user asks for ssh


def reach(wanted: Target, token: str) -> Reached:
    """Find a workspace, send it the user's public keys, and write its host key where ssh looks for it.

    Raises:
        RefusedError: no workspace of this name lets the user in.
        AwayError: the service or the workspace does not answer.
    """
    service = wanted.url.rstrip("/")
    user = str(call(f"{service}/api/v1/", token)["user"])
    owner, slash, server = wanted.name.rpartition("/")
    name = "" if server == DEFAULT_SERVER else server
    if slash and owner != user:
        # A token of the hub acts as its user everywhere. The other user could read it and use it.
        raise RefusedError(
            f"You are {user}, and workspace `{wanted.name}` is another user's: your token is not sent there. Run "
            "gpuspawner login as its user, or name a workspace of your own as gpuspawner list shows it."
        )
    found = _find(call(f"{service}/api/v1/workspaces", token)["workspaces"], name)
    scheme, credential = "token", token
    if token.startswith(LOGIN_TOKEN):
        answer = call(f"{service}/api/v1/workspaces/{found['id']}/ssh", token, "POST")
        scheme, credential = "ticket", str(answer["ticket"])
    keys = public_keys(wanted.key)
    base_url = service.rpartition("/services/")[0]
    address = f"{base_url}/user/{quote(user, safe='@~')}/" + (f"{quote(name, safe='@~')}/" if name else "")
    sent = _send(f"{address}gpuspawner/ssh", credential, keys, scheme, called=f"`{wanted.name}`")
    login, host_key = (sent.get(name) for name in ("user", "host_key"))
    # The workspace's answer goes into files that ssh trusts.
    if not (isinstance(login, str) and USER.fullmatch(login) and isinstance(host_key, str) and KEY.fullmatch(host_key)):
        raise RefusedError(f"Workspace `{wanted.name}` did not name the user of its SSH server. Start it again.")
    return Reached(wanted.name, address, login, _write_known_hosts(address, host_key), scheme, credential)


def _find(workspaces: list[dict[str, Any]], name: str) -> dict[str, Any]:
    """Return the workspace of a name. Raises RefusedError if it does not run or does not open SSH."""
    called = f"`{name or DEFAULT_SERVER}`"
    found = next((workspace for workspace in workspaces if workspace["server"] == name), None)
    if found is None:
        names = ", ".join(workspace["server"] or DEFAULT_SERVER for workspace in workspaces)
        others = (
            f"Your workspaces: {names}."
            if names
            else "Start one with gpuspawner start, or on the hub's page /hub/spawn."
        )
        raise RefusedError(f"You have no workspace {called}. {others}")
    if found["phase"] not in RUNNING_PHASES:
        queue = found["queue"] or {}
        of = f" of {queue['of']}" if queue.get("of") else ""
        place = f" (place {queue['place']}{of})" if queue.get("place") else ""
        raise RefusedError(f"Workspace {called} is not running: {found['words']}{place}. Try again when it runs.")
    if "ssh" not in found["opens"]:
        template = found["request"]["template"]
        raise RefusedError(
            f"Workspace {called} does not open SSH: its template {template} has no ssh in `opens`, or its image has "
            "no sshd. Choose another template, or ask your administrator."
        )
    return found


def _send(address: str, credential: str, keys: list[str], scheme: str, called: str) -> Mapping[str, Any]:
    try:
        return call(address, credential, "POST", {"keys": keys}, wordless=WORDLESS, scheme=scheme)
    except RefusedError as error:
        if error.status != FORBIDDEN:
            raise RefusedError(f"Workspace {called} does not open SSH: {error}", error.status) from error
        raise RefusedError(
            f"Refused (403): your token may not open workspace {called}. Run gpuspawner login as its user, or use "
            "a token of that user from the hub's page Token.",
            FORBIDDEN,
        ) from error
    except AwayError as error:
        raise AwayError(f"Workspace {called} does not answer. Is it still running? See gpuspawner list.") from error


def _write_known_hosts(address: str, host_key: str) -> Path:
    """Write the workspace's host key into a file of its own for ssh, and return the path."""
    folder = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state") / "gpuspawner"
    known_hosts = folder / f"known-host-{hashlib.sha256(address.encode()).hexdigest()[:16]}"
    new = known_hosts.with_suffix(f".{os.getpid()}")
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        new.write_text(f"{HOST_ALIAS} {host_key}\n")
        new.replace(known_hosts)
    except OSError as error:
        raise RefusedError(f"{folder} keeps the host key and cannot be written ({error.strerror}).") from error
    return known_hosts


def public_keys(key: Path | None) -> list[str]:
    """Return the public key of ``key``, or without it all public keys with the names that ssh-keygen gives.

    Raises:
        RefusedError: there is no key.
    """
    files = _key_files() if key is None else [key if key.suffix == ".pub" else Path(f"{key}.pub")]
    try:
        keys = [file.expanduser().read_text().strip() for file in files]
    except (OSError, ValueError) as error:
        raise RefusedError(f"{files[0]} cannot be read as a public key ({error}).") from error
    if not keys:
        words = f"There is no SSH key in {Path.home() / '.ssh'}. Make one with ssh-keygen, or name yours with --key."
        raise RefusedError(words)
    return keys


def _key_files() -> list[Path]:
    return sorted((Path.home() / ".ssh").glob("id_*.pub"))


def ssh_settings(workspace: Reached, wanted: Target) -> list[tuple[str, str]]:
    """Return ssh's settings for a workspace in their order. A name may occur several times."""
    proxy_options: list[str] = ["--url", wanted.url]
    for flag, file in (("--key", wanted.key), ("--token-file", wanted.token_file)):
        proxy_options += [flag, str(file.expanduser().absolute())] if file else []
    proxy = [sys.executable, "-m", "gpuspawner.cli", "ssh", "--proxy", *proxy_options, workspace.name]
    # ssh itself tries only a few names, in the home that the system knows instead of $HOME.
    identities = [wanted.key.expanduser().absolute()] if wanted.key else [k.with_suffix("") for k in _key_files()]
    return [
        ("User", workspace.user),
        ("ProxyCommand", shlex.join(proxy).replace("%", "%%")),
        ("HostKeyAlias", HOST_ALIAS),
        ("UserKnownHostsFile", f'"{workspace.known_hosts}"'),
        ("GlobalKnownHostsFile", "/dev/null"),
        ("StrictHostKeyChecking", "yes"),
        *(("IdentityFile", f'"{identity}"') for identity in identities),
        *([("IdentitiesOnly", "yes")] if wanted.key else []),
    ]


def alias(name: str) -> str:
    """Return a workspace's name as a host name for ssh."""
    return "default" if name == DEFAULT_SERVER else re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-")
