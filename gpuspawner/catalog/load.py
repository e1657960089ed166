"""Load a catalog: read it, check all of it, and either return it or refuse it with everything that is wrong.

Warnings are about a catalog that can be used.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import chain
from pathlib import Path

from gpuspawner.catalog.checks import (
    build_kind,
    check_clusters,
    check_kinds,
    check_policy,
    check_rules,
    check_scheduler,
)
from gpuspawner.catalog.derived import spread_over_clusters
from gpuspawner.catalog.document import Document, Issue, read_bytes, read_file, read_mapping, read_text
from gpuspawner.catalog.models import Catalog
from gpuspawner.catalog.requests.visibility import MAKE_IT, NOBODY_IN_IT, charging_teams, missing_groups
from gpuspawner.catalog.template_checks import OtherEntries, build_template
from gpuspawner.catalog.validation import CheckedFile, Entry, flatten, validate
from gpuspawner.core.errors import SHOWN_CHARACTERS, CatalogError, Problem, did_you_mean, quoted
from gpuspawner.core.idle.policies import LifecyclePolicy
from gpuspawner.core.rules import BudgetUnit
from gpuspawner.core.units import show_duration

DICT_NAME = "configure(catalog=...)"
"""The name in messages of a catalog that is given as a dict."""


def load_catalog(source: object) -> Catalog:
    """Load a catalog from a YAML file (``str`` or ``Path``), or from a dict of the same form.

    Raises:
        CatalogError: it cannot be used. The error has everything that is wrong, in the order of the file.
    """
    if isinstance(source, Mapping):
        return _load(read_mapping(source), DICT_NAME)
    if not isinstance(source, (str, Path)):
        wrong = f"{quoted(source)} is neither a path nor a dict"
        return _load(Document(issues=[Issue(("catalog",), wrong, "name the catalog's YAML file")]), DICT_NAME)
    return _load(read_file(Path(source)), str(source))


def load_text(text: str, name: str = "catalog") -> Catalog:
    """Load a catalog from YAML text. ``name`` is the name of its file in messages.

    Raises:
        CatalogError: as :func:`load_catalog`.
    """
    return _load(read_text(text), name)


def load_raw(raw: bytes | Document, name: str) -> Catalog:
    """Load a catalog from what ``document.read_raw`` returned for its file. ``name`` is its name in messages.

    Raises:
        CatalogError: as :func:`load_catalog`.
    """
    return _load(read_bytes(raw) if isinstance(raw, bytes) else raw, name)


def check(source: object) -> tuple[Problem, ...]:
    """Return everything that is wrong with a catalog, or nothing if it can be used."""
    try:
        load_catalog(source)
    except CatalogError as error:
        return error.problems
    return ()


def _load(document: Document, file: str) -> Catalog:
    could_be_read = all(issue.loc != ("catalog",) for issue in document.issues)
    catalog = load_document(document) if could_be_read else None
    if catalog is None:
        raise CatalogError(problems(document, file))
    return catalog


def load_document(document: Document) -> Catalog | None:
    """Return the catalog of a document. If something is wrong, add its issues to the document and return None."""
    is_empty = document.data is None
    checked, missing = validate(document)
    of_file = [issue for issue in missing if len(issue.loc) == 1]
    document.issues += of_file
    catalog = _build(checked, document.issues, is_empty=is_empty)
    document.issues += [issue for issue in missing if issue not in of_file]
    return None if document.issues else spread_over_clusters(catalog)


def _build(checked: CheckedFile, issues: list[Issue], *, is_empty: bool) -> Catalog:
    """Return the catalog of a file, adding an issue for everything that entries get wrong together."""
    file, rules = checked.file, checked.file.rules()
    if not file.templates and checked.is_right("templates"):
        wrong = "the catalog is empty" if is_empty else "missing, or without a template"
        right = "write at least one, for example templates: {lab: {gpus: {a100: 1}}}"
        issues.append(Issue(("templates",), wrong, right))
    issues += check_kinds(checked)
    policies: dict[str, tuple[LifecyclePolicy, Entry]] = {}
    with_default = {"default": LifecyclePolicy(), **file.policies}
    for name, (policy, entry) in flatten("policies", with_default, checked, issues).items():
        policies[name] = policy.with_name(name), entry
        issues += check_policy(policies[name][0], entry)
    issues += check_rules(checked, policies)
    kinds = {name: build_kind(name, checked) for name in file.gpus}
    others = OtherEntries(checked, kinds, policies, rules.quotas)
    flat = flatten("templates", file.templates, checked, issues)
    templates = {name: build_template(template, entry, others, issues) for name, (template, entry) in flat.items()}
    issues += check_clusters(checked)
    teams = charging_teams(rules)
    for name, one in file.clusters.items():
        issues += check_scheduler(one.scheduler_choice, ("clusters", name, "scheduler"), checked, teams)
    issues += check_scheduler(file.scheduler, ("scheduler",), checked, teams)
    return Catalog(
        gpus=kinds,
        templates=templates,
        policies={name: policy for name, (policy, _) in policies.items()},
        simulated=file.simulated,
        rules=rules,
        exporter=file.readings,
        scheduler=file.scheduler.scheduler,
        console=file.console,
        clusters={name: replace(one, name=name, title=one.title or name) for name, one in file.clusters.items()},
    )


def problems(document: Document, file: str) -> tuple[Problem, ...]:
    """Return the issues of a document with their lines, in the order of the file."""
    found = [
        Problem(
            _shown(file),
            issue.line or document.line_of(issue.loc),
            _entry(issue),
            issue.wrong,
            as_sentence(issue.right),
        )
        for issue in document.issues
    ]
    return tuple(sorted(found, key=lambda problem: problem.line or 0))


def _entry(issue: Issue) -> str:
    return ".".join(_shown(str(part)) for part in issue.loc) or "catalog"


def _shown(text: str) -> str:
    return text if text.isprintable() and len(text) <= 4 * SHOWN_CHARACTERS else quoted(text)


def as_sentence(text: str) -> str:
    """Return the remedy of an issue as a sentence."""
    text = text[:1].upper() + text[1:]
    return text if text.endswith("?") else f"{text}."


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
    found += [
        Issue(("quotas", quota.name, "namespace"), "needs KubeSpawner; other hubs do not start with it", right)
        for quota in chain(*catalog.rules.quotas_of_namespaces.values())
    ]
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
    quotas = [*catalog.rules.quotas, *chain(*catalog.rules.quotas_of_namespaces.values())]
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
