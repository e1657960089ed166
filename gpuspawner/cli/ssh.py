"""``gpuspawner ssh``: the machine's own ``ssh``, through the hub's proxy, into a workspace.

A login lets in by a ticket of the GPU service, a token of the hub by itself. sshd lets in by the user's own key, which
is sent ahead. The workspace's host key comes by the same authenticated way: nobody is asked whether to trust it.
"""

from __future__ import annotations

import argparse
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

from gpuspawner.cli.asking import call, token_of
from gpuspawner.cli.errors import AwayError, InvalidError, RefusedError
from gpuspawner.cli.ssh_relay import relay
from gpuspawner.core.leases.lease import UP

DEFAULT_SERVER = "-"
"""What ``list`` and pages call the server without a name."""
HOST_ALIAS = "workspace"
FORBIDDEN = 403
OWN_TOKEN = "gpucli-"  # noqa: S105 - it marks a kind of token, and is none
"""Begins the tokens that ``gpuspawner login`` gets."""
USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._@-]*")
KEY = re.compile(r"[a-z0-9@.-]+ [A-Za-z0-9+/=]+( [^\s]*)?")
WORDLESS = "it answered {status}. Its image needs the package gpuspawner, in this version."


@dataclass(frozen=True)
class Reached:
    """A workspace that lets its user in: ``address`` is its server's, with a slash at its end."""

    name: str
    address: str
    user: str
    known_hosts: Path
    scheme: str
    credential: str
    """What lets in there: a token of the hub, or a ticket of the service for the next minute."""


def ssh(arguments: argparse.Namespace) -> int:
    """Run ssh in this process's place; or print its configuration; or be its ProxyCommand."""
    program = shutil.which("ssh")
    if program is None:
        raise InvalidError("There is no ssh on this machine. Install OpenSSH (Debian: apt-get install openssh-client).")
    token = token_of(arguments.token_file, arguments.url)
    workspace = reach(arguments, token)
    if arguments.proxy:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C is ssh's: this ends with it, without a word
        asyncio.run(relay(f"{workspace.address}gpuspawner/ssh/connect", workspace.credential, workspace.scheme))
        return 0
    host, settings = f"gpu-{alias(workspace.name)}", options(workspace, arguments)
    if arguments.config:
        print("\n".join([f"Host {host}", *(f"    {name} {value}" for name, value in settings)]))
    else:
        flags = [word for name, value in settings for word in ("-o", f"{name}={value}")]
        os.execv(program, [program, *flags, host, *arguments.rest])  # noqa: S606 - it is what was asked for
    return 0


def reach(arguments: argparse.Namespace, token: str) -> Reached:
    """Find a workspace, send it the user's public keys, and keep its host key where ssh will look for it.

    Raises:
        RefusedError: there is none of this name that lets this user in; says why.
        AwayError: the service or the workspace does not answer.
    """
    service = arguments.url.rstrip("/")
    asker = str(call(f"{service}/api/v1/", token)["user"])
    owner, slash, server = arguments.name.rpartition("/")
    name, owner = ("" if server == DEFAULT_SERVER else server), (owner if slash else asker)
    scheme, credential = "token", token
    if owner == asker:
        found = _checked(call(f"{service}/api/v1/workspaces", token)["workspaces"], name)
        if token.startswith(OWN_TOKEN):
            told = call(f"{service}/api/v1/workspaces/{found['id']}/ssh", token, "POST")
            scheme, credential = "ticket", str(told["ticket"])
    elif token.startswith(OWN_TOKEN):
        raise RefusedError("By a login you open your own workspaces. Name one as gpuspawner list shows it.")
    keys = public_keys(arguments.key)
    base = service.rpartition("/services/")[0]
    address = f"{base}/user/{quote(owner, safe='@~')}/" + (f"{quote(name, safe='@~')}/" if name else "")
    answer = _send(f"{address}gpuspawner/ssh", credential, keys, scheme, called=f"`{arguments.name}`")
    user, host_key = (answer.get(name) if isinstance(answer, dict) else None for name in ("user", "host_key"))
    # A workspace says them, and they go into files that ssh believes.
    if not (isinstance(user, str) and USER.fullmatch(user) and isinstance(host_key, str) and KEY.fullmatch(host_key)):
        raise RefusedError(f"Workspace `{arguments.name}` did not say whom ssh should sign in as. Start it again.")
    return Reached(arguments.name, address, user, _known_hosts(address, host_key), scheme, credential)


def _checked(workspaces: list[dict[str, Any]], name: str) -> dict[str, Any]:
    """Return the workspace of a name, or say what is in the way, as far as the service knows it."""
    called = f"`{name or DEFAULT_SERVER}`"
    found = next((workspace for workspace in workspaces if workspace["server"] == name), None)
    if found is None:
        names = ", ".join(workspace["server"] or DEFAULT_SERVER for workspace in workspaces)
        others = f"Yours: {names}." if names else "You have none now: start one on the hub's page /hub/spawn."
        raise RefusedError(f"You have no workspace {called}. {others}")
    if found["phase"] not in {phase.value for phase in UP}:
        queue = found["queue"] or {}
        of = f" of {queue['of']}" if queue.get("of") else ""
        place = f" (place {queue['place']}{of})" if queue.get("place") else ""
        raise RefusedError(f"Workspace {called} does not run now: {found['words']}{place}. Try again when it does.")
    if "ssh" not in found["opens"]:
        template = found["request"]["template"]
        raise RefusedError(
            f"Workspace {called} does not open SSH: its template {template} has no ssh in `opens`, or its image no "
            "sshd. Choose one that has, or ask your administrator."
        )
    return found


def _send(address: str, credential: str, keys: list[str], scheme: str, called: str) -> Mapping[str, Any]:
    try:
        return call(address, credential, "POST", {"keys": keys}, wordless=WORDLESS, scheme=scheme)
    except RefusedError as error:
        if error.status != FORBIDDEN:
            raise RefusedError(f"Workspace {called} lets nobody in by SSH: {error}", error.status) from error
        raise RefusedError(
            f"Refused (403): your token may not open workspace {called}. Run gpuspawner login as its user, or take "
            "a token of theirs from the hub's page Token.",
            FORBIDDEN,
        ) from error
    except AwayError as error:
        raise AwayError(f"Workspace {called} does not answer. Does it still run? See gpuspawner list.") from error


def _known_hosts(address: str, host_key: str) -> Path:
    """Write the file by which ssh knows this workspace's host key, one for each workspace; return its path."""
    folder = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state") / "gpuspawner"
    known_hosts = folder / f"known-host-{hashlib.sha256(address.encode()).hexdigest()[:16]}"
    new = known_hosts.with_suffix(f".{os.getpid()}")
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        new.write_text(f"{HOST_ALIAS} {host_key}\n")
        new.replace(known_hosts)
    except OSError as error:
        raise RefusedError(f"{folder} cannot be written ({error.strerror}): the host key is kept there.") from error
    return known_hosts


def public_keys(key: Path | None) -> list[str]:
    """Return the user's public keys: that of ``key``, else all whose names are like those that ssh-keygen gives.

    Raises:
        RefusedError: there is none.
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


def options(workspace: Reached, arguments: argparse.Namespace) -> list[tuple[str, str]]:
    """Return ssh's settings for a workspace, in their order: a name may come again."""
    told_proxy: list[str] = ["--url", arguments.url]
    for flag, file in (("--key", arguments.key), ("--token-file", arguments.token_file)):
        told_proxy += [flag, str(file.expanduser().absolute())] if file else []
    proxy = [sys.executable, "-m", "gpuspawner.cli", "ssh", "--proxy", *told_proxy, workspace.name]
    # By name: ssh itself tries a few names only, and those in the home that the system knows, whatever $HOME says.
    identities = [arguments.key.expanduser().absolute()] if arguments.key else [k.with_suffix("") for k in _key_files()]
    return [
        ("User", workspace.user),
        ("ProxyCommand", shlex.join(proxy).replace("%", "%%")),
        ("HostKeyAlias", HOST_ALIAS),
        ("UserKnownHostsFile", f'"{workspace.known_hosts}"'),
        ("GlobalKnownHostsFile", "/dev/null"),
        ("StrictHostKeyChecking", "yes"),
        *(("IdentityFile", f'"{identity}"') for identity in identities),
        *([("IdentitiesOnly", "yes")] if arguments.key else []),
    ]


def alias(name: str) -> str:
    """Return a workspace's name as ssh takes it for a host."""
    return "default" if name == DEFAULT_SERVER else re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-")
