"""Models of the templates in a catalog: bounds, defaults, needs, and the ways into their workspaces."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated

from gpuspawner.catalog.pod_models import Container, Port, Resources, Variables, Volume
from gpuspawner.core.errors import quoted
from gpuspawner.core.fields import Internal, Reader, section, write_nothing
from gpuspawner.core.number_fields import (
    Bytes,
    BytesRange,
    ComputeCapability,
    Cores,
    CoresRange,
    CudaVersion,
    DriverVersion,
    Flag,
    GpuCount,
    GpuCountRange,
    GuaranteedPercent,
    LifetimeRange,
    OnStopTimeout,
    Priority,
    Seconds,
)
from gpuspawner.core.text_fields import (
    NAME,
    PICTURE,
    ClusterPlace,
    DataNames,
    GroupNames,
    Icon,
    Image,
    ImagePattern,
    KindName,
    KindNames,
    LongText,
    Name,
    ObjectName,
    Packages,
    Title,
    Topology,
)
from gpuspawner.core.units import GIBIBYTE, BadValue

NO_GPU = "none"
"""The name of "no GPU" in forms, links and the API. No GPU kind may have this name."""
ANY_GPU = "any"
"""The name of "any GPU that is large enough" there. No GPU kind may have this name either."""
SSH = "ssh"
PAGES = {"lab": "/lab", "vscode": "/vscode/"}
"""The pages of a workspace that a browser can open, with their path below the workspace's address."""
OPENS = (*PAGES, SSH)
"""Every way into a workspace that a template may offer."""
MONITOR = "monitor"
"""The GPU monitor in a workspace, as an image may lack it."""


def _read_opens(value: object) -> tuple[str, ...]:
    right = "write a list of lab, vscode and ssh, the default first, for example [lab, vscode, ssh]"
    if not isinstance(value, list) or not value:
        raise BadValue(f"{quoted(value)} is not a way to open a workspace", right)
    for item in value:
        if item not in OPENS:
            raise BadValue(f"{quoted(item)} is not a way to open a workspace", right)
        if value.count(item) > 1:
            raise BadValue(f"{item} is written twice", right)
    if value == [SSH]:
        raise BadValue("ssh alone leaves nothing for the browser to open", "write opens: [lab, ssh]")
    return tuple(value)


_OPENS_SCHEMA = {"type": "array", "items": {"type": "string", "enum": list(OPENS)}, "maxItems": len(OPENS)}
Opens = Annotated[
    tuple[str, ...], Reader(_read_opens, "a list of `lab`, `vscode` and `ssh`", _OPENS_SCHEMA, write_nothing)
]


@dataclass(frozen=True)
class Bounds:
    """The least and the most that users may ask for."""

    __pydantic_config__ = section()
    cpu_cores: CoresRange = (1.0, 8.0)
    """CPU cores."""
    memory_bytes: BytesRange = (GIBIBYTE, 32 * GIBIBYTE)
    """Memory."""
    lifetime_seconds: LifetimeRange = (1800, 86400)
    """The lifetime of a workspace. The policy may narrow it."""


@dataclass(frozen=True)
class Defaults:
    """The values that users get if they do not choose."""

    __pydantic_config__ = section()
    gpu: Annotated[str | None, NAME] = None
    """The GPU kind, or `none` for no GPU. Default: the first of `gpus`."""
    count: GpuCount = 0
    """The number of GPUs. Default: the least that `gpus` allows."""
    cpu_cores: Cores = 2.0
    """CPU cores."""
    memory_bytes: Bytes = 8 * GIBIBYTE
    """Memory."""
    lifetime_seconds: Seconds = 8 * 3600
    """The lifetime of a workspace."""


@dataclass(frozen=True)
class Guarantee:
    """The part of its CPU and memory that a workspace is guaranteed. It may use the rest while that is free."""

    __pydantic_config__ = section()
    cpu_percent: GuaranteedPercent = 100.0
    """The guaranteed part of the CPU cores."""
    memory_percent: GuaranteedPercent = 100.0
    """The guaranteed part of the memory."""


@dataclass(frozen=True)
class Needs:
    """The least that each GPU of a workspace must have, of any kind."""

    __pydantic_config__ = section()
    memory_bytes: Bytes = 0
    """Memory of one GPU."""
    compute: ComputeCapability = ""
    """Compute capability of the GPU."""
    driver: DriverVersion = ""
    """The oldest driver. Its kinds must say `driver`."""
    cuda: CudaVersion = ""
    """The CUDA version that the driver must support. Its kinds must say `cuda`."""
    memory_isolated: Flag = False
    """Whether no other workspace may use the memory of its GPU. Then every share needs `memory_enforced`."""


@dataclass(frozen=True)
class OnStop:
    """Commands that run before the service ends a workspace: this one, then `~/.gpuspawner/on-stop` of its user."""

    __pydantic_config__ = section(timeout_seconds="timeout")
    command: LongText = ""
    """A shell command that runs in the home as the workspace's user. Default: no command."""
    timeout_seconds: OnStopTimeout = 60.0
    """How long both commands may take together, up to 10m. The workspace may end later by this time."""


@dataclass(frozen=True)
class Template:
    """A kind of workspace that users can choose."""

    __pydantic_config__ = section()
    name: Annotated[str, Internal] = ""
    extends: Name = ""
    """Another template. Every key that is not written here is taken from it."""
    title: Title = ""
    """The title that users read. Default: the name of the template."""
    description: LongText = ""
    """The description in the form, for example with the versions of its software: `PyTorch 2.9, CUDA 13`."""
    icon: Icon = ""
    """The picture in front of its title: an icon, or a small picture. Default: `layers` with GPUs, else `notebook`."""
    image: Image = ""
    """The container image. Default: the image in the hub's configuration."""
    own_images: ImagePattern = ""
    """On Kubernetes: the images of their own that users may start, as a pattern for whole names with the registry.
    Default: no images."""
    profile: Title = ""
    """The slug of a profile in KubeSpawner's `profile_list`. Its settings apply first."""
    opens: Opens = ()
    """The ways to open a workspace, the default first. Default: the page in `c.Spawner.default_url`."""
    policy: Name = "default"
    """The policy for its workspaces."""
    gpus: Mapping[KindName, GpuCountRange] = field(default_factory=dict)
    """The GPU kinds that users may choose, and how many of each. Default: no GPUs."""
    data: DataNames = ()
    """The data that its workspaces use. Clusters that have all of it are offered first. Default: no data."""
    bounds: Bounds = field(default_factory=Bounds)
    """The bounds of CPU, memory and lifetime."""
    default: Defaults = field(default_factory=Defaults)
    """The values that users get if they do not choose."""
    guarantee: Guarantee | None = None
    """On Kubernetes: the guaranteed part of CPU and memory."""
    groups: GroupNames = frozenset()
    """The groups of the hub that may use it. For other users it does not exist. Default: everybody."""
    priority: Priority = 0
    """Requests with a higher priority go first in the queue."""
    substitutes: Mapping[KindName, KindNames] = field(default_factory=dict)
    """For each GPU kind, other kinds that the form offers instead, in this order. Users get them only if they agree."""
    needs: Needs = field(default_factory=Needs)
    """The least that each of its GPUs must have."""
    place: ClusterPlace = ""
    """With several clusters, which of those that a user accepts a workspace gets, and which comes first in the form.
    `cheapest` is the lowest `price_factor` with free GPUs. `nearest` is the first with free GPUs that has the `data`,
    then the first of `clusters`. `soonest` is the first with free GPUs, before one where a node must start. Default:
    the one that the user chose, if its GPUs are free."""
    topology: Topology = ""
    """Whether several GPUs of one workspace share an NVLink or NUMA domain of their node. With `prefer` they do if such
    GPUs are free. With `require` the workspace waits for them. Default: any GPUs of one node."""
    on_stop: OnStop = field(default_factory=OnStop)
    """Commands that run before a workspace ends."""
    tools: Mapping[Name, Packages] = field(default_factory=dict)
    """Lists of packages that users may tick, by name. Each becomes a kernel with its own environment in the home.
    Default: no tools."""
    ports: Mapping[Name, Port] = field(default_factory=dict)
    """Pages of programs in the workspace that the workspace's page links to, for example TensorBoard. Default: none."""
    environment: Variables = ()
    """Variables of the workspace. Default: none."""
    volumes: Mapping[Name, Volume] = field(default_factory=dict)
    """Volumes in addition to the home. Default: none."""
    resources: Resources = ()
    """On Kubernetes: other resources of the node that the workspace gets, for example `rdma/hca: 1`. Default: none."""
    init: Mapping[Name, Container] = field(default_factory=dict)
    """On Kubernetes: containers that run before the workspace, in this order. Default: none."""
    sidecars: Mapping[Name, Container] = field(default_factory=dict)
    """On Kubernetes: containers that run next to the workspace. Default: none."""
    priority_class: ObjectName = ""
    """On Kubernetes: the PriorityClass of the pods. Default: the one in the hub's configuration."""

    @property
    def shown_icon(self) -> str:
        """The name of the icon that pages show in front of its title. A picture of its own has the template's name."""
        if self.picture:
            return f"template-{self.name}"
        return self.icon or ("layers" if self.gpus else "notebook")

    @property
    def picture(self) -> str:
        """The address of a picture of its own, "" for one of the icons of all pages."""
        return self.icon if self.icon.startswith(PICTURE) else ""

    def default_count(self, gpu: str | None) -> int:
        """Return how many of ``gpu`` a request gets by default, within the kind's range."""
        if gpu is None:
            return 0
        least, most = self.gpus[gpu]
        return min(max(self.default.count, least), most)


def default_url(opens: Iterable[str]) -> str:
    """Return the path of the first page that workspaces open, or "" if the hub's configuration decides."""
    return next((PAGES[what] for what in opens if what in PAGES), "")
