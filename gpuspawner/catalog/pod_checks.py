"""What is wrong with the volumes, ports and containers of a template together."""

from __future__ import annotations

from collections.abc import Iterator

from gpuspawner.catalog.document import Issue
from gpuspawner.catalog.entries import Entry
from gpuspawner.catalog.pod_models import SOURCES, Volume

ONLY_WITH = {"storage_class": "per_user", "access": "per_user", "size": "empty"}
"""Keys of a volume that belong to one source."""
SERVER = "notebook"
"""The container of the server in KubeSpawner's pods."""


def check_pods(entry: Entry) -> Iterator[Issue]:
    """Yield an issue for each volume, port and container of a template that contradicts itself or another."""
    template = entry.checked.file.templates[entry.chain[0]]
    mounts: dict[str, str] = {}
    for name, volume in template.volumes.items():
        loc = (*entry.loc, "volumes", name)
        if not entry.checked.is_right(*loc):
            continue
        yield from _check_volume(entry, name, volume)
        if (other := mounts.setdefault(volume.mount, name)) != name:
            yield Issue((*loc, "mount"), f"`{other}` is also mounted at {volume.mount}", "mount one of them elsewhere")
    ports: dict[int, str] = {}
    for name, port in template.ports.items():
        if (other := ports.setdefault(port.port, name)) != name:
            yield Issue(
                (*entry.loc, "ports", name, "port"), f"`{other}` also has port {port.port}", "remove one of them"
            )
    for name in template.sidecars:
        if name in template.init:
            yield Issue((*entry.loc, "sidecars", name), f"`{name}` is also in init", "give one of them another name")
    for key, containers in (("init", template.init), ("sidecars", template.sidecars)):
        if SERVER in containers:
            wrong = f"`{SERVER}` is the container of the server"
            yield Issue((*entry.loc, key, SERVER), wrong, "give it another name")


def _check_volume(entry: Entry, name: str, volume: Volume) -> Iterator[Issue]:
    loc, sources = (*entry.loc, "volumes", name), volume.sources
    if not sources:
        yield Issue(loc, "nothing says what it contains", f"add one of {', '.join(SOURCES)}")
        return
    if len(sources) > 1:
        yield Issue(loc, f"{' and '.join(sources)} contradict each other", "keep one of them")
        return
    (source,) = sources
    for key, needed in ONLY_WITH.items():
        if source != needed and entry.writes("volumes", name, key):
            yield Issue((*loc, key), f"{key} means nothing without {needed}", "remove it")
    if (source == "folder") != volume.mount.startswith("~/"):
        right = (
            "write a path below the home, for example ~/data" if source == "folder" else "write a path from the root"
        )
        yield Issue((*loc, "mount"), f"{source} cannot be mounted at {volume.mount}", right)
