"""Checks of GPU kinds, clusters, policies, hours, holds, quotas and schedulers together with other entries."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace
from fractions import Fraction
from typing import Any

from gpuspawner.catalog.cluster_models import SchedulerChoice
from gpuspawner.catalog.document import Issue, Loc
from gpuspawner.catalog.quota_models import QuotaLimits
from gpuspawner.catalog.validation import CheckedFile, Entry
from gpuspawner.core.errors import did_you_mean, quoted
from gpuspawner.core.gpus.fleet import GpuKind
from gpuspawner.core.gpus.vendors import NVIDIA, VENDORS, mig_fraction, spot_labels
from gpuspawner.core.idle.policies import LifecyclePolicy
from gpuspawner.core.rules import LimitedResource, Quota, QuotaScope
from gpuspawner.core.units import show_bytes, show_cpu, show_duration

PRODUCT = "nvidia.com/gpu.product"
"""The label by which a pod asks for a node of NVIDIA's GPUs, as GPU Feature Discovery sets it."""
CLAIM_DRIVER = "gpu.nvidia.com"
"""NVIDIA's DRA driver."""
_OTHER_VENDORS = tuple(f"{vendor.domain}/" for vendor in VENDORS if vendor is not NVIDIA)


def build_kind(name: str, checked: CheckedFile) -> GpuKind:
    """Return a GPU kind with its defaults. A share takes what it does not write from the kind that it divides."""
    own, written = checked.file.gpus[name], checked.written_at("gpus", name)
    whole = checked.file.gpus.get(own.of or "", GpuKind())
    price, counts = own.price_per_hour, _counts(own)
    if price is None and whole.price_per_hour is not None:
        price = whole.price_per_hour / own.shares
    changes = own.price_changes
    if own.price_per_hour is None and not changes:
        changes = tuple((day, each / own.shares) for day, each in whole.price_changes)
    if counts is None and (of_whole := _counts(whole)) is not None:
        counts = of_whole / own.shares
    autoscale = own.autoscale
    if autoscale is not None and not autoscale.labels and own.match:
        autoscale = replace(autoscale, labels=((PRODUCT, own.match.replace(" ", "-")),))
    return replace(
        own,
        name=name,
        title=own.title or name,
        memory_bytes=own.memory_bytes or whole.memory_bytes // own.shares,
        compute=own.compute or whole.compute,
        driver=own.driver or whole.driver,
        cuda=own.cuda or whole.cuda,
        claim=own.claim and replace(own.claim, selectors=(*own.claim.selectors, *_version_selectors(own))),
        price_per_hour=price,
        price_changes=changes,
        resource=own.claim.counted_as(name) if own.claim else own.resource or whole.resource,
        autoscale=autoscale,
        groups=own.groups if "groups" in written else whole.groups,  # an empty list opens a share to everybody
        counts=counts,
        spot=own.spot if "spot" in written else whole.spot,
    )


def _version_selectors(kind: GpuKind) -> Iterator[str]:
    """Yield the CEL expressions by which claims ask for a driver, by the attributes of NVIDIA's DRA driver."""
    for attribute, version in (("driverVersion", kind.driver), ("cudaDriverVersion", kind.cuda)):
        if version:
            major, minor, patch = [*map(int, version.split(".")), 0, 0][:3]
            semantic = f"semver('{major}.{minor}.{patch}')"
            yield f"device.attributes['{CLAIM_DRIVER}'].{attribute}.compareTo({semantic}) >= 0"


def _counts(kind: GpuKind) -> Fraction | None:
    """Return how much one GPU counts, as written or by its MIG profile, or None if neither says so."""
    part = mig_fraction(kind.resource, kind.match)
    return part if kind.counts is None and part < 1 else kind.counts


def check_kinds(checked: CheckedFile) -> Iterator[Issue]:
    """Yield everything that is wrong with GPU kinds and ``simulated``."""
    matches: dict[Any, str] = {}
    kinds = checked.file.gpus
    for name, kind in kinds.items():
        loc = ("gpus", name)
        if kind.autoscale is not None:
            yield from _check_autoscale(loc, kind, checked)
        if kind.claim is not None and checked.is_right(*loc, "claim", "device_class"):
            yield from _check_claim(name, kind, checked)
        if not (checked.is_right(*loc, "of") and checked.is_right(*loc, "shares")):
            continue  # it is not known whether this is a share
        if kind.of or kind.shares > 1:
            yield from _check_share(loc, kind, checked)
            continue
        yield from _check_whole(name, kind, checked)
        matched = kind.match, kind.resource, kind.claim, kind.spot, kind.driver, kind.cuda
        if any(matched[:3]) and matches.setdefault(matched, name) != name:
            key = "match" if kind.match else "resource" if kind.resource else "claim"
            right = "let each GPU match one kind; divide a kind with of and shares"
            right += "; a kind of spot nodes has spot: true" if kind.match and not kind.spot else ""
            yield Issue((*loc, key), f"the same as in `{matches[matched]}`", right)
    for name in checked.file.simulated:
        yield from checked.check_name(("simulated", name), "GPU kind", name, "gpus")
        if (of := kinds[name].of if name in kinds else None) is not None:
            yield Issue(("simulated", name), "a share is not simulated by itself", f"simulate `{of}`, which it divides")


def _check_whole(name: str, kind: GpuKind, checked: CheckedFile) -> Iterator[Issue]:
    loc = ("gpus", name)
    if not kind.memory_bytes and checked.is_right(*loc, "memory"):
        yield Issue(loc, "memory is missing", "add the memory of one GPU, for example memory: 80GiB")
    found = kind.match or kind.resource or kind.claim or name in checked.file.simulated
    knows_found = all(checked.is_right(*loc, key) for key in ("match", "resource", "claim"))
    if not found and knows_found and checked.is_right("simulated", name):
        right = (
            "add match: with the name nvidia-smi shows, for example match: NVIDIA A100*; "
            "on Kubernetes also resource: or claim: with its device_class"
        )
        yield Issue(loc, "without match, no GPU is ever of this kind", right)


def _check_autoscale(kind_loc: Loc, kind: GpuKind, checked: CheckedFile) -> Iterator[Issue]:
    loc, nodes = (*kind_loc, "autoscale"), kind.autoscale
    assert nodes is not None, "only such kinds are checked"
    if kind.of is not None:
        right = f"remove it; in `{kind.of}` autoscale starts nodes for whole GPUs"
        yield Issue(loc, "no node is started for a share", right)
        return
    if nodes.each > nodes.most and checked.is_right(*loc, "max") and checked.is_right(*loc, "each"):
        yield Issue((*loc, "each"), f"{nodes.each} on one node are more than {nodes.most} in all", "raise max")
    others = [label for label, _ in nodes.labels if label.startswith(_OTHER_VENDORS)]
    if others and not kind.resource and kind.claim is None and checked.is_right(*kind_loc, "resource"):
        right = "add resource: with what its nodes call their GPUs, for example resource: amd.com/gpu"
        yield Issue(loc, f"`{others[0]}` is not a label of NVIDIA nodes, but pods would request NVIDIA GPUs", right)
    if not checked.is_right(*loc, "labels"):
        return
    if spot_labels(dict(nodes.labels)) and not kind.spot and checked.is_right(*kind_loc, "spot"):
        right = "add spot: true, and a price of its own; users then get it only if they choose it"
        yield Issue((*loc, "labels"), "these are spot nodes, which the cloud may take back at any time", right)
    if kind.spot and not nodes.labels:
        right = "add labels: as the spot pool's nodes have them, for example labels: {karpenter.sh/capacity-type: spot}"
        yield Issue(loc, "the labels of spot nodes are missing", right)
    if kind.match and not kind.spot and not nodes.labels and set(kind.match) & set("*?["):
        right = f"add labels: as the pool's nodes have them, for example labels: {{{PRODUCT}: Tesla-T4}}"
        yield Issue(loc, f"{quoted(kind.match)} does not say which nodes to start", right)


def _check_claim(name: str, kind: GpuKind, checked: CheckedFile) -> Iterator[Issue]:
    loc = ("gpus", name)
    for key, right in (
        ("match", "remove match; add selectors to claim if not every device of its class is of this kind"),
        ("resource", "keep resource if pods request a resource, or claim if they claim devices"),
        ("of", "remove of and shares; divide GPUs by capacity of claim, or by a DeviceClass of their parts"),
    ):
        if getattr(kind, key):
            yield Issue((*loc, key), "not allowed together with claim", right)
    clusters = [one for one in checked.file.clusters.values() if one.gpus is None or name in one.gpus]
    choices = [checked.file.scheduler, *(one.scheduler_choice for one in clusters)]
    for key, title in (("kueue", "Kueue"), ("volcano", "Volcano"), ("kai", "KAI")):
        if any(getattr(choice, key) is not None for choice in choices):
            right = "write match or resource instead"
            yield Issue((*loc, "claim"), f"with {title}, claimed devices would count in no quota", right)


def _check_share(loc: Loc, kind: GpuKind, checked: CheckedFile) -> Iterator[Issue]:
    whole = checked.file.gpus.get(kind.of or "")
    if kind.match:
        yield Issue((*loc, "match"), "a share has the GPUs of the kind it divides", "remove match")
    if whole is not None and whole.claim is not None:
        right = "give this kind a claim of its own, with the capacity of its part"
        yield Issue((*loc, "of"), f"`{kind.of}` has a claim, and a share cannot divide claimed devices", right)
    if kind.of is None:
        yield Issue((*loc, "shares"), "of is missing", "add of: with the kind whose GPUs are divided")
        return
    if kind.shares == 1:
        yield Issue((*loc, "of"), "shares is missing", "add shares: 2 or more")
    yield from checked.check_name((*loc, "of"), "GPU kind", kind.of, "gpus")
    if whole is None:
        return
    if whole.of is not None:
        yield Issue((*loc, "of"), f"`{kind.of}` is itself a share", "divide a kind that has GPUs of its own")
    elif whole.memory_bytes and kind.memory_bytes * kind.shares > whole.memory_bytes:
        wrong = f"{kind.shares} shares of {show_bytes(kind.memory_bytes)} are more than `{kind.of}` has"
        right = f"write at most {show_bytes(whole.memory_bytes / kind.shares)}, or leave it out"
        yield Issue((*loc, "memory"), wrong, right)


CLAIM_SAMPLES = 4
"""Two samples until the warning, and two between the warning and the end."""
FOR_ONE_USER = (QuotaScope.EACH_USER, QuotaScope.EACH_OF_TEAM, QuotaScope.USER)
"""Quotas that only the user's own workspaces fill."""


def check_policy(policy: LifecyclePolicy, entry: Entry) -> Iterator[Issue]:
    """Yield the times of a policy that do not fit together."""
    idle, extend, sample = policy.idle, policy.extend, show_duration(policy.idle.sample_seconds)
    if idle.for_seconds < idle.sample_seconds:
        wrong = f"{show_duration(idle.for_seconds)} is less than one sample, {sample}"
        issue = Issue((*entry.loc, "idle"), wrong, "let `for` last several samples")
        yield from entry.report(issue, ("idle", "for"), ("idle", "sample"))
    if policy.claim_seconds < (least := CLAIM_SAMPLES * idle.sample_seconds):
        wrong = f"{show_duration(policy.claim_seconds)} is less than {CLAIM_SAMPLES} samples, one each {sample}"
        right = f"write at least {show_duration(least)}, so that users can be warned"
        issue = Issue((*entry.loc, "claim"), wrong, right)
        yield from entry.report(issue, ("claim",), ("idle", "sample"), written=(("claim",),))
    activity = policy.activity
    if activity is not None and activity.none_for_seconds < idle.sample_seconds:
        wrong = f"{show_duration(activity.none_for_seconds)} is less than one sample, {sample}"
        issue = Issue((*entry.loc, "activity"), wrong, "let `none_for` last several samples")
        written = (("activity",), ("idle", "sample"))
        yield from entry.report(issue, ("activity", "none_for"), ("idle", "sample"), written=written)
    if 0 < extend.total_seconds < extend.each_seconds:
        each, total = show_duration(extend.each_seconds), show_duration(extend.total_seconds)
        wrong = f"each extension, {each}, is more than the total, {total}"
        issue = Issue((*entry.loc, "extend"), wrong, "raise total, or lower each")
        yield from entry.report(issue, ("extend", "each"), ("extend", "total"))


def check_rules(checked: CheckedFile, policies: Collection[str]) -> Iterator[Issue]:
    """Yield everything that is wrong with hours, holds and quotas together with other entries."""
    file = checked.file
    for number, one in enumerate(file.hours):
        for key, name in (("policy", one.policy), ("instead_of", one.instead_of)):
            if checked.is_right("hours", number, key) and name not in policies:
                yield from checked.check_name(("hours", number, key), "policy", name, "policies", policies)
        if one.policy == one.instead_of and checked.is_right("hours", number):
            yield Issue(
                ("hours", number, "instead_of"),
                "both policies are the same",
                "write the policy that applies at other times",
            )
    for number, hold in enumerate(file.holds):
        if checked.is_right("holds", number, "gpu"):
            yield from checked.check_name(("holds", number, "gpu"), "GPU kind", hold.gpu, "gpus")
    seen: dict[tuple[QuotaScope, str], str] = {}
    for name, quota in file.quotas.items():
        yield from _check_quota(name, quota, checked)
        if quota.whom in FOR_ONE_USER:
            first = seen.setdefault((quota.whom, quota.group or quota.user), name)
            if first != name:
                right = "write all their limits in one of the two"
                yield Issue(("quotas", name), f"it limits the same users as `{first}`", right)


def _check_quota(name: str, quota: QuotaLimits, checked: CheckedFile) -> Iterator[Issue]:
    loc, subjects = ("quotas", name), ("each", "group", "user", "everybody", "namespace")
    bounds = list(quota.bounds())
    for bound in bounds:
        if bound.soft is not None and bound.hard is not None and bound.soft > bound.hard:
            show = show_bytes if bound.what is LimitedResource.MEMORY else show_cpu
            wrong = f"soft, {show(float(bound.soft))}, is more than hard, {show(float(bound.hard))}"
            yield Issue((*loc, *bound.path, "soft"), wrong, "lower it, or raise hard")
        if bound.kind:
            yield from checked.check_name((*loc, *bound.path), "GPU kind", bound.kind, "gpus")
    if not bounds and checked.is_right(*loc):
        yield Issue(loc, "it limits nothing", "add gpus: {hard: 4}")
    if quota.whom is None and all(checked.is_right(*loc, key) for key in subjects):
        written = " and ".join(key for key in subjects if getattr(quota, key))
        wrong = f"it limits {written} at once" if written else "the users that it limits are missing"
        right = "write each: user, each: user with group:, group:, user:, namespace: or everybody: true"
        yield Issue(loc, wrong, right)
    if quota.whom in FOR_ONE_USER and checked.written_at(*loc, "full") is not None:
        right = "remove full, because a request above this quota is always refused"
        yield Issue((*loc, "full"), "only the user's own workspaces count in this quota", right)


def check_scheduler(choice: SchedulerChoice, loc: Loc, checked: CheckedFile, teams: Collection[str]) -> Iterator[Issue]:
    """Yield everything that is wrong with a choice of scheduler, of the whole file or of one cluster."""
    if len(choice.names) > 1:
        right = f"keep one of {', '.join(choice.names[:-1])} and {choice.names[-1]}"
        yield Issue(loc, "two schedulers can't own one queue", right)
    if choice.http is not None and loc[0] == "clusters":
        right = "write kueue, volcano or kai here, or scheduler: {http: ...} in addition to clusters"
        yield Issue((*loc, "http"), "an http scheduler decides about all clusters", right)
    elif choice.http is not None and choice.http.callback and not choice.http.token_file and checked.is_right(*loc):
        right = "add token_file; the scheduler signs its reports with that token"
        yield Issue((*loc, "http", "callback"), "without a token anybody could send a callback", right)
    if not (checked.is_right("teams") and checked.is_right("quotas")):
        return
    for system in ("kueue", "volcano", "kai"):
        for key in ("teams", "priority_classes"):
            for team in getattr(getattr(choice, system), key, ()):
                if team not in teams:
                    yield Issue((*loc, system, key, team), f"no team is called `{team}`", did_you_mean(team, teams))


def most_gpus(quotas: tuple[Quota, ...]) -> Fraction | None:
    """Return the most GPUs that any user may hold at once, or None if a user has no limit."""
    each = [_hard_gpus(quota) for quota in quotas if quota.whom in FOR_ONE_USER]
    bounds = [_hard_gpus(quota) for quota in quotas if quota.whom is QuotaScope.EVERYBODY]
    if any(quota.whom is QuotaScope.EACH_USER for quota in quotas) and None not in each:
        bounds.append(max(hard for hard in each if hard is not None))
    return min((hard for hard in bounds if hard is not None), default=None)


def _hard_gpus(quota: Quota) -> Fraction | None:
    return next((limit.hard for limit in quota.limits if limit.what is LimitedResource.GPUS), None)


def check_clusters(checked: CheckedFile) -> Iterator[Issue]:
    """Yield everything that is wrong with clusters together with other entries."""
    clusters = checked.file.clusters
    own = [name for name, one in clusters.items() if not one.kubeconfig]
    if clusters and checked.is_right("clusters") and len(own) != 1:
        wrong = "no cluster is the hub's own" if not own else f"{' and '.join(own)} have no kubeconfig"
        right = "leave kubeconfig out of exactly one cluster, the hub's own"
        yield Issue(("clusters",), wrong, right)
    names = set(checked.file.scheduler.names)
    if clusters and names - {"http"}:
        right = "write it in the cluster that has the queue, for example clusters: {us-east: {scheduler: ...}}"
        yield Issue(("scheduler",), "several clusters cannot share the queue of one scheduler", right)
    for name, one in clusters.items():
        loc = ("clusters", name)
        if one.scheduler_choice.names and "http" in names:
            right = "remove it, or remove scheduler: {http: ...}"
            yield Issue((*loc, "scheduler"), "the http scheduler decides about all clusters", right)
        if one.context and not one.kubeconfig and checked.is_right(*loc, "kubeconfig"):
            yield Issue((*loc, "context"), "kubeconfig is missing", "add kubeconfig: with its file")
        if name not in own and not one.hub and checked.is_right(*loc, "hub"):
            right = "add the address at which its workspaces reach the hub, for example hub: https://hub.example.org"
            yield Issue(loc, "hub is missing", right)
        ways = [way for way in ("nodes", "ingress", "gateway") if getattr(one, way)]
        if len(ways) > 1:
            right = f"keep one of {', '.join(ways[:-1])} and {ways[-1]}"
            yield Issue(loc, "the hub's proxy can't reach a workspace in two ways", right)
        for kind in one.gpus or ():
            whole = checked.file.gpus[kind].of if kind in checked.file.gpus else None
            yield from checked.check_name((*loc, "gpus"), "GPU kind", kind, "gpus")
            if whole is not None and whole not in (one.gpus or ()):
                yield Issue(
                    (*loc, "gpus"), f"`{kind}` divides `{whole}`, which this cluster does not have", f"add {whole}"
                )
