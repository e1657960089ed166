"""Volumes, ports, variables, resources and containers that a template adds to its workspaces."""

from __future__ import annotations

import json
import posixpath
import re
from dataclasses import dataclass
from typing import Annotated

from gpuspawner.core.errors import quoted
from gpuspawner.core.fields import (
    Reader,
    Required,
    SortedPairs,
    choice_reader,
    list_reader,
    pattern_reader,
    section,
    text_reader,
    whole_number_reader,
    write_nothing,
)
from gpuspawner.core.gpus.vendors import exposes_gpus
from gpuspawner.core.number_fields import Bytes, Cores, Flag
from gpuspawner.core.text_fields import (
    QUANTITY,
    FilePath,
    GroupNames,
    Image,
    ObjectName,
    Title,
)
from gpuspawner.core.units import BadValue

LONGEST_VALUE = 4096
"""Characters of a variable. Arbitrary: a long list of paths has fewer."""
LONGEST_OBJECT = 10_000
"""Characters of an object that only a driver understands. Arbitrary."""
RESERVED_VARIABLES = (
    "CUDA_VISIBLE_DEVICES",
    "NVIDIA_VISIBLE_DEVICES",
    "NVIDIA_DRIVER_CAPABILITIES",
    "CPU_LIMIT",
    "CPU_GUARANTEE",
    "MEM_LIMIT",
    "MEM_GUARANTEE",
)
RESERVED_PREFIXES = ("GPUSPAWNER_", "JUPYTERHUB_")
RESERVED_PATHS = ("/", "/dev", "/proc", "/sys", "/etc", "/usr", "/bin", "/lib", "/run/nvidia-container-devices")
"""Paths where a volume would hide what every container needs, or select GPUs. Folders below ``/etc`` and ``/usr`` are
allowed."""
WHOLE_TREES = ("/dev", "/proc", "/sys", "/run/nvidia-container-devices")
"""Reserved paths below which nothing may be mounted either."""

_VARIABLE = pattern_reader(
    "not the name of a variable",
    r"[A-Za-z_][A-Za-z0-9_]*",
    100,
    "use letters, digits and underscores, for example HF_HOME",
    "the name of a variable",
)


def _read_variable(value: object) -> str:
    name: str = _VARIABLE.read(value)
    if name in RESERVED_VARIABLES or name.startswith(RESERVED_PREFIXES):
        raise BadValue(f"{name} is set by the hub or by the lease", "choose another name")
    return name


def _read_text_value(value: object) -> str:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str) or len(value) > LONGEST_VALUE or "\0" in value:
        right = f"write at most {LONGEST_VALUE} characters of text; put true, false and null in quotes"
        raise BadValue(f"{quoted(value)} is not the value of a variable", right)
    return value


def _read_mount(value: object) -> str:
    right = "write a path from the root, for example /data, or below the home on one machine, for example ~/data"
    if not isinstance(value, str) or len(value) > LONGEST_VALUE or not value.isprintable() or ":" in value:
        raise BadValue(f"{quoted(value)} is not a path", right)
    path = posixpath.normpath(value)
    if not path.startswith(("/", "~/")) or ".." in path.split("/"):
        raise BadValue(f"{quoted(value)} is not a path from the root or from ~", right)
    path = f"/{path.lstrip('/')}" if path.startswith("/") else path
    if path in RESERVED_PATHS or any(path.startswith(f"{tree}/") for tree in WHOLE_TREES if path != "/dev/shm"):  # noqa: S108 - where programs look for shared memory
        raise BadValue(f"{quoted(value)} is a path that every container needs as it is", "mount it elsewhere")
    return path


def _read_nfs(value: object) -> str:
    found = value if isinstance(value, str) else ""
    server, colon, path = found.partition(":")
    if not server or not colon or not path.startswith("/") or len(found) > LONGEST_VALUE or not found.isprintable():
        raise BadValue(f"{quoted(value)} is not an NFS export", "write server:/path, for example nfs.example.org:/data")
    return found


def _read_csi(value: object) -> str:
    right = "write the csi: of a pod's volume, for example {driver: secrets-store.csi.k8s.io, volumeAttributes: {}}"
    if not isinstance(value, dict) or not isinstance(value.get("driver"), str):
        raise BadValue(f"{quoted(value)} has no driver", right)
    try:
        found = json.dumps(value, sort_keys=True)
    except (TypeError, ValueError):
        raise BadValue(f"{quoted(value)} cannot be written as JSON", right) from None
    if len(found) > LONGEST_OBJECT:
        raise BadValue("this volume is too long", f"write at most {LONGEST_OBJECT} characters")
    return found


_RESOURCE = pattern_reader(
    "not a resource of a node",
    r"(?![^/]*kubernetes\.io/)[a-z0-9](?:[a-z0-9.-]*[a-z0-9])?/[A-Za-z0-9](?:[-_.A-Za-z0-9]{0,61}[A-Za-z0-9])?",
    253,
    "write it as nodes show it, for example rdma/hca, hugepages-2Mi or ephemeral-storage",
    "a resource of a node",
)


def _read_resource(value: object) -> str:
    if isinstance(value, str) and (value == "ephemeral-storage" or re.fullmatch(r"hugepages-[0-9]+[KMG]i", value)):
        return value
    if value in {"cpu", "memory"}:
        raise BadValue(f"{value} has a key of its own", f"write bounds: {{{value}: ...}} and default: {{{value}: ...}}")
    name: str = _RESOURCE.read(value)
    if exposes_gpus(name):
        raise BadValue(f"{name} is a GPU, and GPUs come from the lease alone", "remove it, and write the kind in gpus")
    return name


VARIABLES = SortedPairs(
    Reader(_read_variable, "the name of a variable"), Reader(_read_text_value, "text", {"type": "string"})
)
Variables = Annotated[tuple[tuple[str, str], ...], VARIABLES]
Resources = Annotated[tuple[tuple[str, str], ...], SortedPairs(Reader(_read_resource, _RESOURCE.accepts), QUANTITY)]
Words = Annotated[tuple[str, ...], list_reader(text_reader(LONGEST_VALUE), "words", "[sh, -c, echo]", convert=list)]
MountPath = Annotated[str, Reader(_read_mount, "a path from the root, or from `~` on one machine", write=write_nothing)]

SOURCES = ("claim", "per_user", "empty", "nfs", "csi", "config_map", "secret", "folder")
"""Keys of a volume that say where its content comes from. A volume has exactly one."""


@dataclass(frozen=True)
class Volume:
    """A volume that every container of the workspace mounts. It has one source."""

    __pydantic_config__ = section()
    mount: Annotated[MountPath, Required("/data", "add {key}: with the path in the workspace, for example {example}")]
    """The path in the workspace. Required."""
    claim: ObjectName = ""
    """An existing PersistentVolumeClaim in the namespace of the workspaces."""
    per_user_bytes: Bytes = 0
    """The size of a PersistentVolumeClaim that each user gets at the first start. It stays when workspaces end."""
    storage_class: ObjectName = ""
    """The storage class of `per_user`. Default: the cluster's default class."""
    access: Annotated[
        str,
        choice_reader(
            "not an access mode",
            "write one, many or many_read_only",
            {"one": "ReadWriteOnce", "many": "ReadWriteMany", "many_read_only": "ReadOnlyMany"},
        ),
    ] = "ReadWriteOnce"
    """Whether one node or many may mount the claim of `per_user`."""
    empty: Annotated[
        str, choice_reader("not a medium", "write disk or memory", {"disk": "disk", "memory": "memory"})
    ] = ""
    """An empty folder that ends with the workspace, on the node's disk or in its memory."""
    size_bytes: Bytes = 0
    """The most that an `empty` folder may hold. Default: no limit."""
    nfs: Annotated[str, Reader(_read_nfs, "an NFS export like `server:/path`")] = ""
    """An NFS export."""
    csi: Annotated[
        str,
        Reader(
            _read_csi,
            "the `csi` part of a pod's volume",
            {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
            write_nothing,
        ),
    ] = ""
    """A volume of a CSI driver."""
    config_map: ObjectName = ""
    """A ConfigMap in the namespace of the workspaces. Each key becomes a file."""
    secret: ObjectName = ""
    """A Secret in the namespace of the workspaces. Each key becomes a file."""
    folder: FilePath = ""
    """On one machine: a folder of the machine. The home gets a link to it at `mount`, which begins with `~/`."""
    read_only: Flag = False
    """Whether workspaces may only read it."""
    groups: GroupNames = frozenset()
    """The groups of the hub whose members get it. Default: everybody."""

    @property
    def sources(self) -> tuple[str, ...]:
        """The keys of its sources that are written."""
        return tuple(one for one in SOURCES if getattr(self, "per_user_bytes" if one == "per_user" else one))


@dataclass(frozen=True)
class Port:
    """A web page that a program in the workspace serves. The workspace's page links to it through the hub's proxy.

    The image needs jupyter-server-proxy.
    """

    __pydantic_config__ = section()
    port: Annotated[int, whole_number_reader(1, 65535), Required(6006)]
    """The port on which the program listens. Required."""
    title: Title = ""
    """The title of the link. Default: the name of the port."""


@dataclass(frozen=True)
class Container:
    """A container next to the server's, without GPUs. It mounts the template's volumes."""

    __pydantic_config__ = section()
    image: Annotated[Image, Required("registry.example.org/tools/sync:1.0")]
    """The container image. Required."""
    command: Words = ()
    """The command. Default: the image's own."""
    environment: Variables = ()
    """Its variables."""
    cpu_cores: Cores = 0.1
    """CPU cores."""
    memory_bytes: Bytes = 256 * 2**20
    """Memory."""
