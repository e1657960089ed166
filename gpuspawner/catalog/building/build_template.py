"""One template: its GPU kinds, its bounds, and defaults that fit them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from types import MappingProxyType
from typing import TypeVar

from gpuspawner.catalog.building.build_substitutes import build_substitutes, check_substitutes
from gpuspawner.catalog.building.extends import Flat, Named
from gpuspawner.catalog.document import Issue, Loc
from gpuspawner.catalog.models import GuaranteeEntry, PolicyEntry, TemplateEntry
from gpuspawner.catalog.names import did_you_mean
from gpuspawner.catalog.rules.quotas import most_gpus
from gpuspawner.catalog.values import NO_GPU, ON_STOP_SECONDS, Bounds, Defaults, Guarantee, Template
from gpuspawner.core.gpus.fleet import GpuKind
from gpuspawner.core.idle.policy import LifecyclePolicy
from gpuspawner.core.rules import Rules
from gpuspawner.core.units import GIBIBYTE, show_bytes, show_cpu, show_duration

T = TypeVar("T", int, float)

DEFAULT_POLICY = "default"
CPU_BOUNDS = (1.0, 8.0)
MEMORY_BOUNDS = (GIBIBYTE, 32 * GIBIBYTE)
LIFETIME_BOUNDS = (1800, 86400)
"""What a template allows that writes no bounds. Arbitrary: a workstation's size, and half an hour to a day."""
CPU, MEMORY, LIFETIME = 2.0, 8 * GIBIBYTE, 8 * 3600
"""What a request gets where neither it nor its template says. Arbitrary: a notebook's use for a working day."""

MOST_TOOLS = 20
"""Of one template. Arbitrary: more is not read in a form."""

Found = tuple[Issue, tuple[Loc, ...]]
"""What is wrong, and the paths within the template from which that follows."""


@dataclass(frozen=True)
class Surroundings:
    """What a template refers to."""

    named: Named
    kinds: Mapping[str, GpuKind]
    policies: Mapping[str, LifecyclePolicy]
    flat_policies: Mapping[str, Flat[PolicyEntry]]
    rules: Rules

    def over_quota(self, kind: str, count: int) -> str:
        """Return by what so many of a kind are more than anybody may hold, "" where they are not."""
        most, one = most_gpus(self.rules.quotas), self.kinds.get(kind)
        each = Fraction(1) if one is None else one.share if one.counts is None else one.counts
        if most is None or count * each <= most:
            return ""
        counted = "" if each == 1 else f", which count as {show_cpu(float(count * each))}"
        return f"{count}{counted}, but the quota allows a user {show_cpu(float(most))}"


def build_template(name: str, flat: Flat[TemplateEntry], around: Surroundings, issues: list[Issue]) -> Template:
    """Return a template with every default filled in, adding an issue for each reference or value that is wrong."""
    entry = flat.entry
    policy = entry.policy or DEFAULT_POLICY
    _check_references(name, flat.own, around, issues)
    found: list[Found] = []
    bounds = Bounds(
        cpu_cores=entry.bounds.cpu or CPU_BOUNDS,
        memory_bytes=entry.bounds.memory or MEMORY_BOUNDS,
        lifetime_seconds=_lifetimes(name, flat, policy, around, found),
    )
    template = Template(
        name=name,
        title=entry.title or name,
        description=entry.description or "",
        image=entry.image or "",
        own_images=entry.own_images or "",
        profile=entry.profile or "",
        guarantee=_guarantee(entry.guarantee),
        opens=tuple(entry.opens or ()),
        policy=policy,
        gpus=MappingProxyType(dict(entry.gpus)),
        bounds=bounds,
        default=_defaults(name, flat, bounds, found),
        groups=frozenset(entry.groups or ()),
        priority=entry.priority or 0,
        substitutes=build_substitutes(flat, around.kinds),
        needs_memory_bytes=entry.needs.memory or 0,
        needs_compute=entry.needs.compute or "",
        data=tuple(entry.data or ()),
        on_stop_command=entry.on_stop.command or "",
        on_stop_seconds=entry.on_stop.timeout or ON_STOP_SECONDS,
        tools=MappingProxyType({tool: tuple(packages) for tool, packages in entry.tools.items()}),
    )
    if len(flat.own.tools) > MOST_TOOLS:
        wrong = f"{len(flat.own.tools)} tools are more than {MOST_TOOLS}"
        issues.append(Issue(("templates", name, "tools"), wrong, "join some, or write another template"))
    issues.extend(check_substitutes(name, flat, around.kinds, around.named))
    # What follows from a part that is wrong itself would be said twice.
    issues.extend(issue for issue, keys in found if flat.knows(*keys))
    return template


def _guarantee(entry: GuaranteeEntry) -> Guarantee | None:
    if entry.cpu is None and entry.memory is None:
        return None
    return Guarantee(entry.cpu or 100.0, entry.memory or 100.0)


def _check_references(name: str, own: TemplateEntry, around: Surroundings, issues: list[Issue]) -> None:
    for kind, (least, _) in own.gpus.items():
        loc = ("templates", name, "gpus", kind)
        if not around.named.has("gpus", kind):
            issues.append(Issue(loc, f"no GPU kind is called `{kind}`", did_you_mean(kind, around.kinds)))
        elif over := around.over_quota(kind, least):
            issues.append(Issue(loc, f"at least {over}", "lower it, or raise the quota"))
    usual, gpu = own.default.count, own.default.gpu or next(iter(own.gpus), "")
    if usual is not None and (over := around.over_quota(gpu, usual)):
        issues.append(Issue(("templates", name, "default", "count"), over, "lower it, or raise the quota"))
    if own.policy is not None and own.policy not in around.policies and not around.named.has("policies", own.policy):
        wrong = f"no policy is called `{own.policy}`"
        issues.append(Issue(("templates", name, "policy"), wrong, did_you_mean(own.policy, around.policies)))


def _lifetimes(
    name: str, flat: Flat[TemplateEntry], policy: str, around: Surroundings, found: list[Found]
) -> tuple[int, int]:
    """Return the lifetimes a request may ask: the template's, else the policy's; never beyond the policy's."""
    if policy not in around.policies or not around.flat_policies[policy].knows(("lifetime",)):
        return flat.entry.bounds.lifetime or LIFETIME_BOUNDS
    allowed = around.policies[policy].lifetime_seconds
    written = around.flat_policies[policy].entry.lifetime
    least, most = flat.entry.bounds.lifetime or written or LIFETIME_BOUNDS
    narrowed = max(least, allowed[0]), min(most, allowed[1])
    is_own = flat.own.bounds.lifetime is not None
    if narrowed[0] > narrowed[1] or (is_own and narrowed != (least, most)):
        wrong = f"{_shown(least, most, show_duration)} is not within its policy's {_shown(*allowed, show_duration)}"
        loc = ("templates", name, "bounds", "lifetime") if is_own else ("templates", name, "policy")
        issue = Issue(loc, wrong, f"shorten it, or write lifetime: in policies.{policy}")
        found.append((issue, (("bounds", "lifetime"), ("policy",))))
        return least, most
    return narrowed


def _defaults(name: str, flat: Flat[TemplateEntry], bounds: Bounds, found: list[Found]) -> Defaults:
    entry, own = flat.entry.default, flat.own.default.model_fields_set
    loc = ("templates", name, "default")

    def fitted(key: str, written: T | None, otherwise: T, ends: tuple[T, T], show: Callable[[T], str]) -> T:
        value = otherwise if written is None else written
        if key in own and not ends[0] <= value <= ends[1]:
            wrong = f"{show(value)} is outside the bounds, {_shown(*ends, show)}"
            issue = Issue((*loc, key), wrong, f"write a value within them, or widen bounds: {{{key}: ...}}")
            found.append((issue, (("bounds", key), *((("policy",),) if key == "lifetime" else ()))))
        return min(max(value, ends[0]), ends[1])

    gpu = _default_gpu(flat, (*loc, "gpu"), found)
    count = 0
    if gpu is None and "count" in own:
        issue = Issue((*loc, "count"), "a count without a GPU", "remove it, or add gpus")
        found.append((issue, (("gpus",), ("default", "gpu"))))
    if gpu is not None:
        least, most = flat.entry.gpus[gpu]
        count = min(max(entry.count or least, least), most)
        if "count" in own and entry.count != count:
            wrong = f"{entry.count} is outside {gpu}'s {_shown(least, most, str)}"
            issue = Issue((*loc, "count"), wrong, f"write a value within it, or widen gpus: {{{gpu}: ...}}")
            of_all = () if entry.gpu == gpu else (("gpus",),)  # the first of those that are right may not be the first
            found.append((issue, (("gpus", gpu), ("default", "gpu"), *of_all)))
    return Defaults(
        gpu=gpu,
        count=count,
        cpu_cores=fitted("cpu", entry.cpu, CPU, bounds.cpu_cores, show_cpu),
        memory_bytes=fitted("memory", entry.memory, MEMORY, bounds.memory_bytes, show_bytes),
        lifetime_seconds=fitted("lifetime", entry.lifetime, LIFETIME, bounds.lifetime_seconds, show_duration),
    )


def _default_gpu(flat: Flat[TemplateEntry], loc: tuple[str, ...], found: list[Found]) -> str | None:
    gpus, written = flat.entry.gpus, flat.entry.default.gpu
    if written == NO_GPU:
        return None
    if written in gpus:
        return written
    if written is not None and "gpu" in flat.own.default.model_fields_set:
        wrong = f"`{written}` is not among this template's gpus"
        found.append((Issue(loc, wrong, did_you_mean(written, [*gpus, NO_GPU])), (("gpus", written),)))
    return next(iter(gpus), None)


def _shown(least: T, most: T, show: Callable[[T], str]) -> str:
    return show(least) if least == most else f"{show(least)} to {show(most)}"
