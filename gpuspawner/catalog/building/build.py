"""From entries to the catalog: ``extends``, references, defaults, and what only two entries together can get wrong.

One rule for all that ``extends`` brings: what an entry writes itself must fit; what it inherits and no longer fits
(a default count, a longest lifetime) is moved to the nearest that does.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

from gpuspawner.catalog.building.build_clusters import across, build_clusters
from gpuspawner.catalog.building.build_gpus import build_kind, check_gpus
from gpuspawner.catalog.building.build_scheduler import build_scheduler
from gpuspawner.catalog.building.build_template import DEFAULT_POLICY, Surroundings, build_template
from gpuspawner.catalog.building.extends import Flat, Named, flattened
from gpuspawner.catalog.document import Issue
from gpuspawner.catalog.models import CatalogEntry, PolicyEntry, ReadingsEntry
from gpuspawner.catalog.rules.build import build_rules
from gpuspawner.catalog.rules.visible import charging_teams
from gpuspawner.catalog.values import Catalog, Exporter, Template
from gpuspawner.core.idle.policy import ActivityPolicy, ExtendPolicy, IdlePolicy, KeepPolicy, LifecyclePolicy
from gpuspawner.core.units import show_duration

CLAIM_SAMPLES = 4
"""Two until the warning, and two between it and the end."""


def build(entries: CatalogEntry, issues: list[Issue], *, empty: bool) -> Catalog:
    """Return the catalog, adding an issue for each thing wrong. With any issue the catalog is not to be used.

    Args:
        entries: what passed the schema.
        issues: what did not; nothing follows from an entry that is already known to be wrong.
        empty: whether the file held nothing at all.
    """
    named = Named.of(entries, issues)
    if entries.version is None and not named.is_wrong("version"):
        issues.append(Issue(("version",), "missing", "begin the file with version: 1"))
    if not entries.templates and not named.is_wrong("templates"):
        wrong = "the catalog is empty" if empty else "missing, or without a template"
        issues.append(
            Issue(("templates",), wrong, "write at least one, for example templates: {lab: {gpus: {a100: 1}}}")
        )
    issues.extend(check_gpus(entries, named))
    with_default = {DEFAULT_POLICY: PolicyEntry(), **entries.policies}
    flat_policies = flattened("policies", with_default, named, issues)
    policies = {name: _policy(name, flat, issues) for name, flat in flat_policies.items()}
    rules = build_rules(entries, named, policies, issues)
    gpus = {name: build_kind(name, entries.gpus) for name in entries.gpus}
    around = Surroundings(named, gpus, policies, flat_policies, rules)
    templates: dict[str, Template] = {}
    for name, template in flattened("templates", entries.templates, named, issues).items():
        templates[name] = build_template(name, template, around, issues)
    clusters = build_clusters(entries, named, charging_teams(rules), issues)
    catalog = Catalog(
        gpus=MappingProxyType(gpus),
        templates=MappingProxyType(templates),
        policies=MappingProxyType(policies),
        simulated=MappingProxyType(dict(entries.simulated)),
        rules=rules,
        exporter=_exporter(entries.readings, named, issues),
        scheduler=build_scheduler(entries.scheduler, named, charging_teams(rules), issues),
        clusters=clusters,
    )
    return catalog if issues else across(catalog, {name: one.gpus for name, one in entries.clusters.items()})


def _exporter(entry: ReadingsEntry, named: Named, issues: list[Issue]) -> Exporter | None:
    if entry.prometheus is None:
        if entry.model_fields_set and not named.is_wrong("readings"):
            right = "add prometheus: with its address, for example http://prometheus.monitoring:9090"
            issues.append(Issue(("readings",), "who measures is not said", right))
        return None
    written = {name: getattr(entry, name) for name in ReadingsEntry.model_fields}
    url, interval_seconds = written.pop("prometheus"), written.pop("interval")
    return Exporter(url, **_written(**written, interval_seconds=interval_seconds))


def _policy(name: str, flat: Flat[PolicyEntry], issues: list[Issue]) -> LifecyclePolicy:
    entry = flat.entry
    idle = _written(
        below_percent=entry.idle.below,
        for_seconds=entry.idle.for_,
        sample_seconds=entry.idle.sample,
        grace_seconds=entry.idle.grace,
        start_up_seconds=entry.idle.start_up,
        soft_seconds=entry.idle.soft,
        soft_names=None if entry.also_counts is None else tuple(entry.also_counts),
    )
    extend = _written(
        each_seconds=entry.extend.each,
        total_seconds=entry.extend.total,
        warn_seconds=None if entry.extend.warn is None else tuple(entry.extend.warn),
        others_wait=entry.extend.others_wait,
    )
    activity = None
    if "activity" in entry.model_fields_set:  # only then are workspaces without a GPU judged
        times = _written(none_for_seconds=entry.activity.none_for, grace_seconds=entry.activity.grace)
        activity = ActivityPolicy(**times)
    policy = LifecyclePolicy(
        name=name,
        idle=IdlePolicy(**idle),
        activity=activity,
        keep=KeepPolicy(**_written(times=entry.keep.times, each_seconds=entry.keep.each)),
        extend=ExtendPolicy(**extend),
        **_written(
            mode=entry.mode,
            lifetime_seconds=entry.lifetime,
            back_in_queue=entry.preemption.back_in_queue,
            protected_seconds=entry.preemption.protected,
            notice_seconds=entry.preemption.grace,
            longest_wait_seconds=entry.queue.wait,
            claim_seconds=entry.claim,
            ready_at=entry.ready_at,
        ),
    )
    _check_policy(name, flat, policy, issues)
    return policy


def _check_policy(name: str, flat: Flat[PolicyEntry], policy: LifecyclePolicy, issues: list[Issue]) -> None:
    own = flat.own
    every, none_for = ("idle", "sample"), ("activity", "none_for")
    if (
        flat.knows(every, ("idle", "for"))
        and own.idle.model_fields_set & {"for_", "sample"}
        and policy.idle.for_seconds < policy.idle.sample_seconds
    ):
        sample = show_duration(policy.idle.sample_seconds)
        wrong = f"{show_duration(policy.idle.for_seconds)} is less than one sample, {sample}"
        issues.append(Issue(("policies", name, "idle"), wrong, "let `for` last several samples"))
    if (
        flat.knows(every, ("claim",))
        and "claim" in own.model_fields_set
        and policy.claim_seconds < CLAIM_SAMPLES * policy.idle.sample_seconds
    ):
        sample = show_duration(policy.idle.sample_seconds)
        wrong = f"{show_duration(policy.claim_seconds)} is less than {CLAIM_SAMPLES} samples, one each {sample}"
        right = f"write at least {show_duration(CLAIM_SAMPLES * policy.idle.sample_seconds)}: nobody could be warned"
        issues.append(Issue(("policies", name, "claim"), wrong, right))
    said = flat.knows(every, none_for) and ("activity" in own.model_fields_set or "sample" in own.idle.model_fields_set)
    if said and policy.activity is not None and policy.activity.none_for_seconds < policy.idle.sample_seconds:
        sample = show_duration(policy.idle.sample_seconds)
        wrong = f"{show_duration(policy.activity.none_for_seconds)} is less than one sample, {sample}"
        issues.append(Issue(("policies", name, "activity"), wrong, "let `none_for` last several samples"))
    said = flat.knows(("extend", "each"), ("extend", "total")) and bool(own.extend.model_fields_set & {"each", "total"})
    if said and 0 < policy.extend.total_seconds < policy.extend.each_seconds:
        total = show_duration(policy.extend.total_seconds)
        wrong = f"each extension, {show_duration(policy.extend.each_seconds)}, is more than all together, {total}"
        issues.append(Issue(("policies", name, "extend"), wrong, "raise total, or lower each"))


def _written(**values: Any) -> dict[str, Any]:
    """Return what was written: for the rest the record's own defaults hold."""
    return {name: value for name, value in values.items() if value is not None}
