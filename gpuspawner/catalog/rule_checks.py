"""Policies, hours, holds, quotas and schedulers: what is wrong with values together, and names that do not exist."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from fractions import Fraction

from gpuspawner.catalog.cluster_models import SchedulerChoice
from gpuspawner.catalog.document import Issue, Loc
from gpuspawner.catalog.entries import CheckedFile, Entry
from gpuspawner.catalog.quota_models import QuotaLimits
from gpuspawner.core.idle.policies import LifecyclePolicy
from gpuspawner.core.rules import LimitedResource, Quota, QuotaScope
from gpuspawner.core.text_fields import did_you_mean
from gpuspawner.core.units import show_bytes, show_cpu, show_duration

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
    loc, subjects = ("quotas", name), ("each", "group", "user", "everybody")
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
    if quota.whom is None and all(checked.is_right(*loc, key) for key in (*subjects, "namespace")):
        written = " and ".join(key for key in subjects if getattr(quota, key))
        wrong = f"it limits {written} at once" if written else "the users that it limits are missing"
        right = "write each: user, each: user with group:, group:, user: or everybody: true"
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
        right = "write kueue, volcano or kai, or use http without clusters"
        yield Issue((*loc, "http"), "an http scheduler decides about one cluster only", right)
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
