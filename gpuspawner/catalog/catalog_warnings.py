"""Warnings about a catalog that can be used: entries without effect, or not right on every hub."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from gpuspawner.catalog.document import Document, Issue, read_file
from gpuspawner.catalog.load import DICT_NAME, problems
from gpuspawner.catalog.models import Catalog
from gpuspawner.catalog.visibility import MAKE_IT, NOBODY_IN_IT, missing_groups
from gpuspawner.core.errors import Problem
from gpuspawner.core.rules import BudgetUnit
from gpuspawner.core.text_fields import did_you_mean
from gpuspawner.core.units import show_duration

Source = str | Path | Mapping[str, object]

_SAY_WHERE = "write data: in a cluster that has it"
OF_PODS = ("image", "profile", "guarantee", "resources", "init", "sidecars", "priority_class")
"""Keys of a template that only KubeSpawner supports."""


def needing_pods(source: Source, catalog: Catalog) -> tuple[Problem, ...]:
    """Return the entries that need KubeSpawner. ``catalog`` was loaded from ``source``."""
    right = "remove it if c.JupyterHub.spawner_class is not 'kubespawner'"
    found = [
        Issue(("templates", name, key), "needs KubeSpawner; other hubs do not start with it", right)
        for name, template in catalog.templates.items()
        for key in OF_PODS
        if getattr(template, key)
    ]
    found += [
        Issue(("templates", name, "volumes", volume), "needs KubeSpawner; other hubs do not start with it", right)
        for name, template in catalog.templates.items()
        for volume, one in template.volumes.items()
        if not one.folder
    ]
    if catalog.clusters:
        found.append(Issue(("clusters",), "needs KubeSpawner; other hubs do not start with it", right))
    return _located(source, found)


def needing_this_machine(source: Source, catalog: Catalog) -> tuple[Problem, ...]:
    """Return the entries that pods cannot have. ``catalog`` was loaded from ``source``."""
    right = "use claim, nfs or csi if c.JupyterHub.spawner_class is 'kubespawner'"
    found = [
        Issue(("templates", name, "volumes", volume, "folder"), "is a folder of one machine, not of a pod", right)
        for name, template in catalog.templates.items()
        for volume, one in template.volumes.items()
        if one.folder
    ]
    return _located(source, found)


def refused(source: Source, catalog: Catalog, *, makes_pods: bool) -> tuple[Problem, ...]:
    """Return the entries that a hub cannot have, because its workspaces are pods or are not."""
    return needing_this_machine(source, catalog) if makes_pods else needing_pods(source, catalog)


def without_effect(source: Source, catalog: Catalog) -> tuple[Problem, ...]:
    """Return the entries that have no effect, and a warning if there is no quota.

    ``catalog`` was loaded from ``source``.
    """
    found = [*_of_quotas(catalog), *_of_data(catalog)]
    for name, policy in catalog.policies.items():
        start_up, lifetime = policy.idle.start_up_seconds, policy.lifetime_seconds[1]
        if start_up >= lifetime:
            wrong = f"{show_duration(start_up)} is not less than the longest lifetime, {show_duration(lifetime)}"
            right = "shorten it, because no workspace of this policy is ever idle"
            found.append(Issue(("policies", name, "idle", "start_up"), wrong, right))
    return _located(source, found)


def held_beyond(source: Source, catalog: Catalog, there: Mapping[str, int]) -> tuple[Problem, ...]:
    """Return the holds of more GPUs than there are. ``there`` has the number of GPUs of each kind that is known."""
    found = [
        Issue(
            ("holds", number, "count"),
            f"{hold.count} {hold.kind} are reserved, but there are only {there[hold.kind]}",
            f"write at most {there[hold.kind]}",
        )
        for number, hold in enumerate(catalog.rules.holds)
        if hold.count > there.get(hold.kind, hold.count)
    ]
    return _located(source, found)


def unknown_groups(source: Source, catalog: Catalog, there: frozenset[str]) -> tuple[Problem, ...]:
    """Return the groups that the catalog names and a hub with the groups ``there`` does not have."""
    found = missing_groups(catalog, there).items()
    return _located(source, [Issue(entry, NOBODY_IN_IT.format(group=group), MAKE_IT) for group, entry in found])


def _of_quotas(catalog: Catalog) -> Iterator[Issue]:
    quotas = catalog.rules.quotas
    if not quotas:
        right = "write one, for example each-user: {each: user, gpus: {hard: 4}}"
        yield Issue(("quotas",), "there is no quota, so every user may take all GPUs", right)
    if any(kind.price_per_hour for kind in catalog.gpus.values()):
        return
    for quota in quotas:
        if any(budget.what is BudgetUnit.COST for budget in quota.budgets):
            yield Issue(
                ("quotas", quota.name, "cost"), "no GPU kind has a price, so this limits nothing", "add price: to gpus"
            )


def _of_data(catalog: Catalog) -> Iterator[Issue]:
    there = frozenset[str]().union(*(one.data for one in catalog.clusters.values()))
    for name, template in catalog.templates.items() if catalog.clusters else ():
        for missing in sorted(set(template.data) - there):
            right = did_you_mean(missing, sorted(there)) if there else _SAY_WHERE
            yield Issue(("templates", name, "data"), f"no cluster has `{missing}`, so it selects no cluster", right)


def _located(source: Source, found: list[Issue]) -> tuple[Problem, ...]:
    if isinstance(source, Mapping):
        return problems(Document(issues=found), DICT_NAME)
    return problems(Document(lines=read_file(Path(source)).lines, issues=found), str(source))
