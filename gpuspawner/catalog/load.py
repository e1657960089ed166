"""Load a catalog: read it, check all of it, and either return it or refuse it with everything that is wrong."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from gpuspawner.catalog.clusters import check_clusters, spread_over_clusters
from gpuspawner.catalog.document import Document, Issue, read_bytes, read_file, read_mapping, read_text
from gpuspawner.catalog.entries import CheckedFile, Entry, flatten
from gpuspawner.catalog.kind_checks import build_kind, check_kinds
from gpuspawner.catalog.models import Catalog
from gpuspawner.catalog.rule_checks import check_policy, check_rules, check_scheduler
from gpuspawner.catalog.template_checks import OtherEntries, build_template
from gpuspawner.catalog.validation import validate
from gpuspawner.catalog.visibility import charging_teams
from gpuspawner.core.errors import SHOWN_CHARACTERS, CatalogError, Problem, quoted
from gpuspawner.core.idle.policies import LifecyclePolicy

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
            _shown(file), issue.line or document.line_of(issue.loc), _entry(issue), issue.wrong, _sentence(issue.right)
        )
        for issue in document.issues
    ]
    return tuple(sorted(found, key=lambda problem: problem.line or 0))


def _entry(issue: Issue) -> str:
    return ".".join(_shown(str(part)) for part in issue.loc) or "catalog"


def _shown(text: str) -> str:
    return text if text.isprintable() and len(text) <= 4 * SHOWN_CHARACTERS else quoted(text)


def _sentence(text: str) -> str:
    text = text[:1].upper() + text[1:]
    return text if text.endswith("?") else f"{text}."
