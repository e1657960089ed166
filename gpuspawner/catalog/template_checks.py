"""Templates: defaults that fit their bounds, and what is wrong with a template together with other entries.

One rule for ``extends``: a value that a template writes itself must fit. An inherited value that no longer fits, for
example a default count or a longest lifetime, is moved to the nearest value that does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TypeVar

from gpuspawner.catalog.checks import most_gpus
from gpuspawner.catalog.document import Issue
from gpuspawner.catalog.pod_models import SOURCES, Volume
from gpuspawner.catalog.requests.gpu_choice import range_words
from gpuspawner.catalog.template_models import NO_GPU, Template
from gpuspawner.catalog.validation import CheckedFile, Entry
from gpuspawner.core.errors import did_you_mean
from gpuspawner.core.gpus.fleet import GpuKind, is_at_least
from gpuspawner.core.idle.policies import LifecyclePolicy
from gpuspawner.core.rules import Quota
from gpuspawner.core.text_fields import CHEAPEST
from gpuspawner.core.units import show_bytes, show_cpu, show_duration

T = TypeVar("T", int, float)

MOST_TOOLS = 20
"""Tools of one template. Arbitrary: a form with more is hard to read."""
VERSIONS = {"compute": "compute capability", "driver": "driver", "cuda": "CUDA"}
"""Keys of needs that are versions, with their names in messages. A GPU kind has the same keys."""
NEEDED_KEYS = ("memory", "memory_enforced", "of", "shares", *VERSIONS)
"""Keys of a GPU kind that decide whether it meets the needs of a template."""


@dataclass(frozen=True)
class OtherEntries:
    """The entries that templates refer to."""

    checked: CheckedFile
    kinds: Mapping[str, GpuKind]
    policies: Mapping[str, tuple[LifecyclePolicy, Entry]]
    quotas: tuple[Quota, ...]

    def over_quota(self, kind: str, count: int) -> str:
        """Return how ``count`` GPUs of a kind exceed what any user may hold, or "" if they do not."""
        most, one = most_gpus(self.quotas), self.kinds.get(kind)
        each = Fraction(1) if one is None else one.share if one.counts is None else one.counts
        if most is None or count * each <= most:
            return ""
        counted = "" if each == 1 else f", which count as {show_cpu(float(count * each))}"
        return f"{count}{counted}, but the quota allows a user {show_cpu(float(most))}"

    def lacking(self, kind: str, template: Template) -> str:
        """Return the need of a template that a kind does not meet, or "" if it meets all or that is not known."""
        one, needs = self.kinds.get(kind), template.needs
        if one is None or not all(self.checked.is_right("gpus", kind, key) for key in NEEDED_KEYS):
            return ""
        memory = f"needs says {show_bytes(needs.memory_bytes)}" if needs.memory_bytes else ""
        own = memory or ("needs says memory_isolated" if needs.memory_isolated else "")
        if own and not one.own_memory_bytes:
            return f"nothing enforces the memory of the share `{kind}` (memory_enforced), and {own}"
        if one.memory_bytes < needs.memory_bytes:
            return f"`{kind}` has {show_bytes(one.memory_bytes)}, and {memory}"
        for key, called in VERSIONS.items():
            has, needed = getattr(one, key), getattr(needs, key)
            if not is_at_least(has, needed):
                says = f"has {called} {has}" if has else f"does not say {key}"
                return f"`{kind}` {says}, and needs says {needed}"
        return ""


def build_template(inherited: Template, entry: Entry, others: OtherEntries, issues: list[Issue]) -> Template:
    """Return a template whose defaults fit, adding an issue for everything that is wrong with it.

    Args:
        inherited: the template with what it extends.
        entry: where it is written.
        others: the entries that it may refer to.
        issues: the errors of the file so far.
    """
    found: list[Issue] = []
    lifetimes = _lifetimes(inherited, entry, others, found)
    template = replace(
        inherited,
        title=inherited.title or inherited.name,
        bounds=replace(inherited.bounds, lifetime_seconds=lifetimes),
        substitutes={
            kind: tuple(one for one in offered if one in others.kinds)
            for kind, offered in inherited.substitutes.items()
            if kind in inherited.gpus
        },
    )
    template = _with_defaults(template, entry, found)
    issues += _check_references(template.name, entry, others)
    issues += _check_needs(template, entry, others)
    issues += _check_topology(template, entry, others)
    issues += _check_place(template, entry, others)
    issues += check_pods(entry)
    issues += found
    return template


def _lifetimes(template: Template, entry: Entry, others: OtherEntries, issues: list[Issue]) -> tuple[int, int]:
    """Return the lifetimes that a request may ask for: the template's, or else the policy's, within the policy's."""
    bounds = template.bounds.lifetime_seconds
    if template.policy not in others.policies:
        return bounds
    policy, policy_entry = others.policies[template.policy]
    if not policy_entry.is_right(("lifetime",)):
        return bounds
    allowed = policy.lifetime_seconds
    if policy_entry.chain_writes("lifetime") and not entry.chain_writes("bounds", "lifetime"):
        bounds = allowed
    narrowed = max(bounds[0], allowed[0]), min(bounds[1], allowed[1])
    is_own = entry.writes("bounds", "lifetime")
    if narrowed[0] <= narrowed[1] and (narrowed == bounds or not is_own):
        return narrowed
    if entry.is_right(("bounds", "lifetime"), ("policy",)):
        wrong = (
            f"{range_words(*bounds, show_duration)} is not within its policy's {range_words(*allowed, show_duration)}"
        )
        loc = (*entry.loc, "bounds", "lifetime") if is_own else (*entry.loc, "policy")
        issues.append(Issue(loc, wrong, f"shorten it, or change lifetime in policies.{template.policy}"))
    return bounds


def _with_defaults(template: Template, entry: Entry, issues: list[Issue]) -> Template:
    """Return a template with its defaults moved into its bounds. Add an issue for each default outside them."""
    bounds, default, loc = template.bounds, template.default, (*entry.loc, "default")

    def within(key: str, value: T, ends: tuple[T, T], show: Callable[[T], str]) -> T:
        if entry.writes("default", key) and not ends[0] <= value <= ends[1]:
            wrong = f"{show(value)} is outside the bounds, {range_words(*ends, show)}"
            issue = Issue((*loc, key), wrong, f"write a value within them, or widen bounds: {{{key}: ...}}")
            policy = (("policy",),) if key == "lifetime" else ()
            issues.extend(entry.report(issue, ("default", key), ("bounds", key), *policy))
        return min(max(value, ends[0]), ends[1])

    gpu = _default_gpu(template, entry, issues)
    fitting = replace(
        default,
        gpu=gpu,
        count=_default_count(template, gpu, entry, issues),
        cpu_cores=within("cpu", default.cpu_cores, bounds.cpu_cores, show_cpu),
        memory_bytes=within("memory", default.memory_bytes, bounds.memory_bytes, show_bytes),
        lifetime_seconds=within("lifetime", default.lifetime_seconds, bounds.lifetime_seconds, show_duration),
    )
    return replace(template, default=fitting)


def _default_gpu(template: Template, entry: Entry, issues: list[Issue]) -> str | None:
    gpus, written = template.gpus, template.default.gpu
    if written == NO_GPU:
        return None
    if written in gpus:
        return written
    if written is not None and entry.writes("default", "gpu"):
        wrong, right = f"`{written}` is not among this template's gpus", did_you_mean(written, [*gpus, NO_GPU])
        issue = Issue((*entry.loc, "default", "gpu"), wrong, right)
        issues.extend(entry.report(issue, ("default", "gpu"), ("gpus", written)))
    return next(iter(gpus), None)


def _default_count(template: Template, gpu: str | None, entry: Entry, issues: list[Issue]) -> int:
    written, loc = template.default.count, (*entry.loc, "default", "count")
    if gpu is None:
        issue = Issue(loc, "a count without a GPU", "remove it, or add gpus")
        if entry.writes("default", "count"):
            issues.extend(entry.report(issue, ("default", "count"), ("gpus",), ("default", "gpu")))
        return 0
    least, most = template.gpus[gpu]
    count = min(max(written or least, least), most)
    if entry.writes("default", "count") and written != count:
        wrong = f"{written} is outside {gpu}'s {range_words(least, most, str)}"
        issue = Issue(loc, wrong, f"write a value within it, or widen gpus: {{{gpu}: ...}}")
        first = () if template.default.gpu == gpu else (("gpus",),)  # which kind is first is known if all are right
        issues.extend(entry.report(issue, ("default", "count"), ("gpus", gpu), ("default", "gpu"), *first))
    return count


def _check_references(name: str, entry: Entry, others: OtherEntries) -> Iterator[Issue]:
    checked, loc = entry.checked, entry.loc
    own = checked.file.templates[name]
    for kind, (least, _) in own.gpus.items():
        yield from checked.check_name((*loc, "gpus", kind), "GPU kind", kind, "gpus")
        if checked.has_name("gpus", kind) and (over := others.over_quota(kind, least)):
            yield Issue((*loc, "gpus", kind), f"at least {over}", "lower it, or raise the quota")
    usual = own.default.gpu or next(iter(own.gpus), "")
    if entry.writes("default", "count") and (over := others.over_quota(usual, own.default.count)):
        yield Issue((*loc, "default", "count"), over, "lower it, or raise the quota")
    if entry.writes("policy") and own.policy not in others.policies:
        yield from checked.check_name((*loc, "policy"), "policy", own.policy, "policies", others.policies)
    if len(own.tools) > MOST_TOOLS:
        wrong = f"{len(own.tools)} tools are more than {MOST_TOOLS}"
        yield Issue((*loc, "tools"), wrong, "join some, or write another template")


def _check_needs(template: Template, entry: Entry, others: OtherEntries) -> Iterator[Issue]:
    """Yield each kind that does not meet the needs, at the key of this template that makes it wrong."""
    loc, writes_needs = entry.loc, entry.writes("needs")
    knows_needs = entry.is_right(("needs",))
    if entry.writes("gpus") or writes_needs:
        for kind in template.gpus if knows_needs else ():
            if wrong := others.lacking(kind, template):
                at = (*loc, "gpus", kind) if entry.writes("gpus") else (*loc, "needs")
                yield Issue(at, wrong, "remove it, or lower needs")
    if entry.writes("substitutes"):
        yield from _check_substitutes(template, entry, others)
    elif writes_needs and knows_needs:
        for kind in dict.fromkeys(kind for offered in template.substitutes.values() for kind in offered):
            if wrong := others.lacking(kind, template):
                yield Issue((*loc, "needs"), wrong, "remove it from substitutes, or lower needs")


def _check_topology(template: Template, entry: Entry, others: OtherEntries) -> Iterator[Issue]:
    """Yield an issue if no workspace of the template can have several whole GPUs."""
    several = (kind for kind, (_, most) in template.gpus.items() if most > 1)
    if not any(others.kinds[kind].of is None for kind in several if kind in others.kinds):
        right = "remove it, or allow several whole GPUs, for example gpus: {a100: 1-4}"
        issue = Issue((*entry.loc, "topology"), "no workspace of this template has several whole GPUs", right)
        yield from entry.report(issue, ("topology",), ("gpus",), written=(("topology",),))


def _check_place(template: Template, entry: Entry, others: OtherEntries) -> Iterator[Issue]:
    """Yield an issue if there is no choice between clusters, or prices are missing for one."""
    loc, clusters = (*entry.loc, "place"), others.checked.file.clusters
    if entry.writes("place") and len(clusters) < 2 and others.checked.is_right("clusters"):  # noqa: PLR2004 - a choice
        yield Issue(loc, "there are not several clusters to choose from", "remove it, or add another cluster")
    elif template.place == CHEAPEST and len({one.price_factor for one in clusters.values()}) == 1:
        issue = Issue(loc, "all clusters cost the same", "add price_factor to the cheaper or the dearer clusters")
        yield from entry.report(issue, ("place",), written=(("place",),))


def _check_substitutes(template: Template, entry: Entry, others: OtherEntries) -> Iterator[Issue]:
    checked, knows_needs = entry.checked, entry.is_right(("needs",))
    for kind, offered in checked.file.templates[template.name].substitutes.items():
        loc = (*entry.loc, "substitutes", kind)
        if kind not in template.gpus and entry.is_right(("gpus",)):
            yield Issue(loc, f"`{kind}` is not among this template's gpus", did_you_mean(kind, template.gpus))
        for other in offered:
            if other == kind:
                yield Issue(loc, f"`{other}` cannot replace itself", "write only other kinds")
            if other == kind or not checked.has_name("gpus", other):
                yield from checked.check_name(loc, "GPU kind", other, "gpus")
                continue
            if knows_needs and (wrong := others.lacking(other, template)):
                yield Issue(loc, wrong, "remove it, or lower needs")
            counts, other_counts = template.gpus.get(kind), template.gpus.get(other)
            if counts and other_counts and (other_counts[1] < counts[0] or other_counts[0] > counts[1]):
                wrong = f"`{kind}` and `{other}` have no number of GPUs in common"
                yield Issue(loc, wrong, f"widen gpus: {{{other}: ...}}, or remove it")


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
