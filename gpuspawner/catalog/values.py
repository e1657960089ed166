"""The loaded catalog: frozen values, every default filled in, every reference resolved."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from gpuspawner.catalog.requests.menus import Menu
from gpuspawner.core.gpus.fleet import GpuKind
from gpuspawner.core.idle.policy import LifecyclePolicy
from gpuspawner.core.rules import Rules

NO_GPU = "none"
"""How form, link and REST write "without a GPU". No kind may have this name."""
ANY_GPU = "any"
"""How they write any GPU that is large enough. No kind may have this name either."""
SSH = "ssh"
PAGES = {"lab": "/lab", "vscode": "/vscode/"}
"""What a browser can open of a workspace, and where below its address."""
OPENS = (*PAGES, SSH)
"""What a template may say that its workspaces open."""


@dataclass(frozen=True)
class Bounds:
    """The least and the most that a request may ask, both included."""

    cpu_cores: tuple[float, float]
    memory_bytes: tuple[int, int]
    lifetime_seconds: tuple[int, int]
    """Already narrowed to what the template's policy allows."""


@dataclass(frozen=True)
class Defaults:
    """What a request gets that does not ask otherwise. ``count`` is 0 exactly when ``gpu`` is None."""

    gpu: str | None
    count: int
    cpu_cores: float
    memory_bytes: int
    lifetime_seconds: int


@dataclass(frozen=True)
class Guarantee:
    """Which part of the CPU and memory that a request asks is its own; it may use the rest where it is free."""

    cpu_percent: float = 100.0
    memory_percent: float = 100.0


def default_url(opens: Iterable[str]) -> str:
    """Return where below its address a workspace sends its browser; "" where the hub's configuration says it."""
    return next((PAGES[what] for what in opens if what in PAGES), "")


ON_STOP_SECONDS = 60.0
"""How long what runs before an end may take where the template does not say."""


@dataclass(frozen=True)
class Template:
    """What a workspace can be: DevGPUVMTemplate. ``gpus`` gives the least and the most of each kind it offers.

    A template without kinds never gets a GPU; one with kinds may also be asked without.
    """

    name: str
    title: str
    description: str
    policy: str
    gpus: Mapping[str, tuple[int, int]]
    bounds: Bounds
    default: Defaults
    image: str = ""
    """The container image of its workspaces; "" where the hub's configuration alone says it."""
    own_images: str = ""
    """The pattern that an image of a user's own must match as a whole; "" where they bring none."""
    profile: str = ""
    """The slug of the profile in KubeSpawner's ``profile_list`` that applies first; "" for its default one."""
    guarantee: Guarantee | None = None
    """None where all that is asked is guaranteed."""
    opens: tuple[str, ...] = ()
    """Of OPENS, the default first; empty where the hub's configuration alone says what its workspaces open."""
    groups: frozenset[str] = frozenset()
    """The hub's groups whose members it exists for; none for everybody."""
    priority: int = 0
    """A higher one goes first in the queue."""
    substitutes: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: MappingProxyType({}))
    """By kind, those that its users may take instead: each meets ``needs``."""
    needs_memory_bytes: int = 0
    needs_compute: str = ""
    data: tuple[str, ...] = ()
    """The data that it works on, as clusters have it."""
    tools: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: MappingProxyType({}))
    """Packages by the name of what its users may tick."""
    on_stop_command: str = ""
    """What runs before the end; "" for nothing but its user's own script."""
    on_stop_seconds: float = ON_STOP_SECONDS

    def default_count(self, gpu: str | None) -> int:
        """Return how many of ``gpu`` a request gets that names no number: the default moved into the kind's range."""
        if gpu is None:
            return 0
        least, most = self.gpus[gpu]
        return min(max(self.default.count, least), most)


@dataclass(frozen=True)
class Exporter:
    """A Prometheus that scrapes DCGM exporter, and the names of its metrics there.

    ``activity`` is a ratio averaged over ``interval_seconds``, how often the exporter collects. ``utilization``,
    ``encoder`` and ``decoder`` are percentages of an instant; ``energy`` is a counter. "" leaves a metric out.
    """

    url: str
    activity: str = "DCGM_FI_PROF_GR_ENGINE_ACTIVE"
    utilization: str = "DCGM_FI_DEV_GPU_UTIL"
    encoder: str = "DCGM_FI_DEV_ENC_UTIL"
    decoder: str = "DCGM_FI_DEV_DEC_UTIL"
    energy: str = "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION"
    interval_seconds: float = 30.0
    token_file: str = ""


@dataclass(frozen=True)
class HttpSchedulerAddress:
    """Where the batch scheduler is that owns the queue; ``callback`` is where it reaches us, "" for nowhere."""

    url: str
    token_file: str = ""
    timeout_seconds: float = 5.0
    callback: str = ""


@dataclass(frozen=True)
class Route:
    """By what the hub's proxy reaches another cluster's workspaces, at ``url``: an ingress controller, or a Gateway.

    ``class_name`` is the IngressClass, "" for the default one. ``gateway`` "" is no Gateway, and ``namespace`` "" is
    where workspaces are.
    """

    url: str
    class_name: str = ""
    gateway: str = ""
    namespace: str = ""


@dataclass(frozen=True)
class Cluster:
    """A cluster in which workspaces may start; ``kubeconfig`` "" is the hub's own, which needs no addresses."""

    name: str
    title: str
    kubeconfig: str = ""
    context: str = ""
    price_factor: float = 1.0
    data: frozenset[str] = frozenset()
    hub: str = ""
    """Where its workspaces reach the hub."""
    nodes: str = ""
    """Where the hub's proxy reaches its nodes."""
    route: Route | None = None
    """What it reaches instead; with neither, it reaches the pods themselves."""
    scheduler: KueueQueues | PodQueues | None = field(default=None, hash=False)
    """Who owns its queue; None where that is gpuspawner, with one queue for all such clusters."""


@dataclass(frozen=True)
class KueueQueues:
    """Kueue owns the queue: the LocalQueue of whom, and where.

    ``queue`` is that of all that are not in ``teams`` or ``users``. ``namespace`` is where they are, "" for that of the
    workspaces. ``priority_class`` is the WorkloadPriorityClass of all, "" for none: then templates' priorities count.
    """

    queue: str
    teams: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    users: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    namespace: str = ""
    priority_class: str = ""

    @property
    def title(self) -> str:
        """What people call who owns it."""
        return "Kueue"


@dataclass(frozen=True)
class PodQueues:
    """A scheduler of the cluster owns the queue, in which pods wait: the queue and the PriorityClass of whom.

    ``system`` is "volcano" or "kai". ``queue`` and ``priority_class`` are those of all that are in none of the maps, by
    team or user; "" for its default, and for none. A pod waits there for ``wait_seconds`` at most.
    """

    system: str
    queue: str = ""
    teams: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    users: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    priority_class: str = ""
    priority_classes: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    wait_seconds: float = 1800.0

    @property
    def title(self) -> str:
        """What people call who owns it."""
        return {"volcano": "Volcano", "kai": "KAI"}[self.system]

    def shortened(self, factor: float) -> PodQueues:
        """Return the same with what a pod waits divided by ``factor``."""
        return replace(self, wait_seconds=self.wait_seconds / factor)


@dataclass(frozen=True)
class Catalog:
    """Everything the administrator wrote. ``policies`` always has ``default``; the order of all is as written."""

    gpus: Mapping[str, GpuKind]
    templates: Mapping[str, Template]
    policies: Mapping[str, LifecyclePolicy]
    simulated: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    """How many GPUs of each kind to simulate where the machine has none."""
    menus: Mapping[str, Menu] = field(default_factory=lambda: MappingProxyType({}))
    """What the hub's profiles let people choose, by template: KubeSpawner's setting, which no catalog file holds."""
    rules: Rules = field(default_factory=Rules)
    """Teams, quotas, budgets, class holds, hours."""
    exporter: Exporter | None = None
    """Who else measures GPUs; None where nobody does."""
    scheduler: HttpSchedulerAddress | KueueQueues | PodQueues | None = None
    """Who owns the queue; None where that is gpuspawner."""
    clusters: Mapping[str, Cluster] = field(default_factory=lambda: MappingProxyType({}))
    """Where workspaces may start; none where the hub's own cluster is not named."""
    fast: float | None = None
    """The factor by which all times were shortened (:func:`scaled`), for pages to say so; None when they were not."""

    def policy_of(self, template: str) -> LifecyclePolicy:
        """Return the lifecycle policy of a template of this catalog."""
        return self.policies[self.templates[template].policy]


def scaled(catalog: Catalog, factor: float) -> Catalog:
    """Return the catalog with every time divided by ``factor``, at least 1: to watch an hour in two minutes.

    Percentages, counts, budgets of use and hours of the day stay. Lifetimes stay whole seconds, at least one.
    """
    if not 1 <= factor <= 3600:  # noqa: PLR2004 - beyond it an hour is less than a second
        raise ValueError(f"times can be shortened by a factor from 1 to 3600, not {factor}")
    make_room, scheduler = catalog.rules.make_room, catalog.scheduler
    if isinstance(scheduler, PodQueues):
        scheduler = scheduler.shortened(factor)
    clusters = {
        name: replace(one, scheduler=one.scheduler.shortened(factor)) if isinstance(one.scheduler, PodQueues) else one
        for name, one in catalog.clusters.items()
    }
    if make_room is not None:
        make_room = replace(make_room, after_seconds=make_room.after_seconds / factor)
    return replace(
        catalog,
        policies=MappingProxyType({name: _scaled_policy(p, factor) for name, p in catalog.policies.items()}),
        templates=MappingProxyType({name: _scaled_template(t, factor) for name, t in catalog.templates.items()}),
        rules=replace(catalog.rules, make_room=make_room),
        scheduler=scheduler,
        clusters=MappingProxyType(clusters),
        fast=factor * (catalog.fast or 1.0),
    )


def _whole(seconds: float, factor: float) -> int:
    return max(1, round(seconds / factor))


def _scaled_policy(policy: LifecyclePolicy, factor: float) -> LifecyclePolicy:
    idle, extend, activity = policy.idle, policy.extend, policy.activity
    return replace(
        policy,
        activity=activity
        and replace(
            activity,
            none_for_seconds=activity.none_for_seconds / factor,
            grace_seconds=activity.grace_seconds / factor,
        ),
        idle=replace(
            idle,
            for_seconds=idle.for_seconds / factor,
            sample_seconds=idle.sample_seconds / factor,
            grace_seconds=idle.grace_seconds / factor,
            start_up_seconds=idle.start_up_seconds / factor,
            soft_seconds=idle.soft_seconds / factor,
        ),
        keep=replace(policy.keep, each_seconds=policy.keep.each_seconds / factor),
        extend=replace(
            extend,
            each_seconds=extend.each_seconds / factor,
            total_seconds=extend.total_seconds / factor,
            warn_seconds=tuple(before / factor for before in extend.warn_seconds),
        ),
        lifetime_seconds=(_whole(policy.lifetime_seconds[0], factor), _whole(policy.lifetime_seconds[1], factor)),
        protected_seconds=policy.protected_seconds / factor,
        notice_seconds=policy.notice_seconds / factor,
        claim_seconds=policy.claim_seconds / factor,
        longest_wait_seconds=policy.longest_wait_seconds / factor,
    )


def _scaled_template(template: Template, factor: float) -> Template:
    least, most = template.bounds.lifetime_seconds
    default = template.default
    return replace(
        template,
        bounds=replace(template.bounds, lifetime_seconds=(_whole(least, factor), _whole(most, factor))),
        default=replace(default, lifetime_seconds=_whole(default.lifetime_seconds, factor)),
    )
