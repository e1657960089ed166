"""The folder ``data_dir``: the hub's ID and secret, made at the first start."""

from __future__ import annotations

import os
import re
import secrets
import uuid
from collections.abc import Callable
from pathlib import Path

SECRET_BYTES = 32


def data_folder(data: Path) -> Path:
    """Return the folder's absolute path. Create the folder if it does not exist."""
    data = data.absolute()
    try:
        data.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise SystemExit(f"gpuspawner: data_dir {data} cannot be made ({error.strerror}). Name another.") from None
    return data


def write_whole(path: Path, content: bytes) -> None:
    """Write a file with mode 0600 whole or not at all. Raises OSError."""
    half = path.with_name(f"{path.name}.{os.getpid()}.half")
    with os.fdopen(os.open(half, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(content)
    half.replace(path)


def written_once(path: Path, make: Callable[[], str]) -> str:
    """Return the text of a 0600 file. The first start writes it whole, or not at all."""
    try:
        text = path.read_text(encoding="ascii", errors="replace").strip() if path.exists() else ""
        if not text:  # new, or left empty when the disk was full
            text, half = make(), path.with_name(f"{path.name}.{os.getpid()}.half")
            with os.fdopen(os.open(half, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
                file.write(text + "\n")
            try:
                os.link(half, path)  # hub and service may write at once: the first one counts
            except FileExistsError:
                if path.stat().st_size:
                    text = path.read_text(encoding="ascii", errors="replace").strip()
                else:
                    half.replace(path)
            half.unlink(missing_ok=True)
    except OSError as error:
        raise SystemExit(
            f"gpuspawner: {path} cannot be read or written ({error.strerror}). Give data_dir to the hub's user."
        ) from None
    return text


def made_identity(data: Path, hub_id: str | None = None) -> tuple[str, str]:
    """Return the secret and the hub ID of a folder. Make those that do not exist."""
    take_hub_id(data, hub_id)
    found = written_once(data / "hub-id", lambda: uuid.uuid4().hex)
    secret = written_once(data / "secret", lambda: secrets.token_hex(SECRET_BYTES))
    check_secret(data / "secret", secret)
    return secret, found


def take_hub_id(data: Path, hub_id: str | None) -> None:
    """Give a new folder the hub's ID. A folder with another ID is unchanged, because its leases carry that one."""
    if hub_id is None:
        return
    if not isinstance(hub_id, str) or not re.fullmatch("[0-9a-f]{32}", hub_id):
        raise SystemExit(
            f"gpuspawner: configure(hub_id={hub_id!r}) is no hub id. Give the 32 hexadecimal digits that the service's "
            "log told, or that the label gpuspawner.io/hub of its pods has; or take hub_id out."
        )
    found = written_once(data / "hub-id", lambda: hub_id)
    if found != hub_id:
        raise SystemExit(
            f"gpuspawner: configure(hub_id={hub_id!r}), but data_dir {data} belongs to the hub id {found}. If that one "
            "was created after data_dir was lost, name a new, empty data_dir. Otherwise take hub_id out."
        )


def check_secret(path: Path, text: str) -> None:
    """Refuse a secret that is too short. With the secret one can act for every user."""
    if not re.fullmatch(f"[0-9a-f]{{{2 * SECRET_BYTES},}}", text):
        raise SystemExit(
            f"gpuspawner: {path} holds no secret of {SECRET_BYTES} bytes in hexadecimal. Remove it: the next start "
            "makes a new one, and workspaces that run go on."
        )
