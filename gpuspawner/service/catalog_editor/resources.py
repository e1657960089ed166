"""Changes of catalog entries that are custom resources. They are written to the cluster, guarded by their version."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace

from gpuspawner.backends.custom_resources.base import EntryRefused, Resource
from gpuspawner.catalog.document import read_text
from gpuspawner.catalog.requests.visibility import with_prices_of
from gpuspawner.catalog.resources.definitions import BY_SECTION
from gpuspawner.catalog.resources.merging import Spec
from gpuspawner.catalog.watched_file import fingerprint_of
from gpuspawner.core.errors import Conflict, RequestRefused
from gpuspawner.core.events import CatalogChanged
from gpuspawner.service.catalog_editor.editor import Draft, check_base, next_number, today_of, why_switched_off
from gpuspawner.service.catalog_editor.models import CatalogChange, CatalogProblem, CatalogResource
from gpuspawner.service.custom_resources.entries import Entries
from gpuspawner.service.custom_resources.history import entry_of, text_of
from gpuspawner.service.parts import Parts
from gpuspawner.service.store import AuditLine
from gpuspawner.service.store.administration import CatalogVersion
from gpuspawner.service.web.actor import Actor

OUTSIDE = (
    "This custom resource was just changed in the cluster. Nothing was saved. Wait some seconds, and load the catalog "
    "again."
)
NO_RIGHT = (
    "The service may not write custom resources. Set customResources.edit of the chart to true, or change this one "
    "with kubectl."
)
MAX_TARGET_LETTERS = 255
"""The longest target of an audit entry. The name of a resource may have as many letters without its section."""
WHOLE_CLUSTER = "It applies to each hub of the cluster. Change it with kubectl."


def section_and_name(entry: str) -> tuple[str, str]:
    """Return the section and the name of an entry."""
    section, _, name = entry.partition(".")
    return section, name


def is_resource(state: Parts, entry: str) -> bool:
    """Return whether an entry is a custom resource of the last look."""
    return state.entries is not None and state.entries.find(*section_and_name(entry)) is not None


async def may_write(state: Parts) -> bool:
    """Return whether the console may write custom resources at all."""
    has_entries = state.entries is not None and state.entries.seen is not None
    if state.entries is None or not has_entries or why_switched_off(state):
        return False
    return await state.entries.resources.may_write_entries()


def why_not_editable(state: Parts, resource: Resource | None, *, may: bool) -> str:
    """Return why the console may not change a resource, or add one, and where to change it. "" if it may."""
    if why := why_switched_off(state):
        return why
    if resource is not None and resource.managed_by:
        tool = resource.managed_by
        return f"{tool} manages this custom resource and would undo a change. Change it where {tool} reads it."
    if resource is not None and resource.cluster_wide:
        return WHOLE_CLUSTER
    return "" if may else NO_RIGHT


async def list_resources(state: Parts, *, may: bool) -> list[CatalogResource]:
    """Return the entries that are custom resources, in the order of their names."""
    entries = state.entries
    if entries is None or not entries.seen:
        return []
    numbers = await state.store.read(state.store.catalog_versions.newest_numbers)
    found = {entry_of(one): one for one in sorted(entries.seen, key=lambda one: not one.cluster_wide)}
    return [_present(state, one, numbers.get(entry, 0), entries, may=may) for entry, one in sorted(found.items())]


def _present(state: Parts, one: Resource, number: int, entries: Entries, *, may: bool) -> CatalogResource:
    why_not = why_not_editable(state, one, may=may)
    return CatalogResource(
        entry=entry_of(one),
        kind=BY_SECTION[one.section, one.cluster_wide].name,
        text=text_of(one.spec),
        version=0 if one.cluster_wide else number,
        editable=not why_not,
        why_not=why_not,
        refused=entries.why_refused(one),
    )


async def draft_of_resource(state: Parts, change: CatalogChange, entry: str) -> Draft:
    """Return the catalog with a change of a custom resource, checked by the service and by the cluster.

    Raises:
        Conflict: it can't be changed here, or was changed since it was loaded.
        RequestRefused: the text is no YAML of a mapping.
    """
    entries, (section, name) = state.entries, section_and_name(entry)
    assert entries is not None, "the caller has found the entry"
    found = await entries.fetch(section, name)
    if why_not := why_not_editable(state, found, may=await may_write(state)):
        raise Conflict(why_not)
    newest = await state.store.read(state.store.catalog_versions.newest, entry)
    base = newest or CatalogVersion(0, 0.0, "", "", "", "", "", entry)
    check_base(base, change.base)
    if ("" if found is None else text_of(found.spec)) != base.text:
        raise Conflict(OUTSIDE)
    spec = await _spec_of(state, change)
    draft = await asyncio.to_thread(_checked, state, base, await next_number(state), entry, spec)
    if draft.catalog is not None and draft.text != base.text:
        try:
            await entries.resources.write_entry(section, name, spec, found, dry_run=True)
        except EntryRefused as error:
            return replace(draft, catalog=None, problems=(_problem(entry, str(error)),))
    return replace(draft, resource=found)


async def _spec_of(state: Parts, change: CatalogChange) -> Spec | None:
    """Return the spec of a change, None to delete the resource."""
    text = change.text
    if change.version is not None:
        earlier = await state.store.read(state.store.catalog_versions.get, change.version)
        text = None if earlier is None or not earlier.text else earlier.text
    if text is None:
        return None
    document = read_text(text)
    issue = next(iter(document.issues), None)
    if issue is not None:
        raise RequestRefused("text", issue.wrong, "YAML of one entry", f"{issue.right[:1].upper()}{issue.right[1:]}.")
    if not isinstance(document.data, dict) or not document.data:
        raise RequestRefused("text", "no keys", "YAML of one entry", "Write its keys, or remove the entry.")
    return document.data


def _checked(state: Parts, base: CatalogVersion, number: int, entry: str, spec: Spec | None) -> Draft:
    entries = state.entries
    assert entries is not None, "the caller has found the entry"
    made, refused = entries.check(*section_and_name(entry), spec)
    text = "" if spec is None else text_of(spec)
    if refused:
        return Draft(base, number, state.catalog, text, None, problems=(_problem(entry, refused),))
    catalog, waits = made.prepared
    after = with_prices_of(catalog, today_of(state))
    return Draft(base, number, state.catalog, text, after, waits)


def _problem(entry: str, words: str) -> CatalogProblem:
    wrong, _, right = words.rstrip(".").partition(". ")
    return CatalogProblem(line=None, entry=entry, wrong=wrong, right=f"{right}." if right else "")


async def save_resource(
    actor: Actor, draft: Draft, changes: str, reason: str, store_answer: Callable[[CatalogVersion], None]
) -> CatalogVersion:
    """Write a custom resource to the cluster, and store its version.

    The cluster is written first. If the version can't be stored then, it is stored as a change by others.
    ``store_answer`` keeps the answer for a repetition of the request, with the version.

    Raises:
        Conflict: it was changed meanwhile. Nothing was saved.
        RequestRefused: the cluster does not accept it.
    """
    entries, entry, now = actor.state.entries, draft.entry, actor.now
    assert entries is not None, "the draft is of a resource"
    section, name = section_and_name(entry)
    spec = read_text(draft.text).data if draft.text else None
    async with entries.history.writing:
        try:
            written = await entries.resources.write_entry(section, name, spec, draft.resource, dry_run=False)
        except EntryRefused as error:
            raise RequestRefused("text", entry, "what the cluster accepts", str(error)) from error
        text = "" if written is None else text_of(written.spec)

        def numbered(number: int) -> tuple[CatalogVersion, Sequence[AuditLine]]:
            event = CatalogChanged(changes, number, reason)
            version = CatalogVersion(
                number, now, actor.person.name, reason, changes, fingerprint_of(text.encode()), text, entry
            )
            store_answer(version)
            return version, [actor.audit_entry(event, target=entry[:MAX_TARGET_LETTERS])]

        version = await entries.history.add(numbered)
        entries.history.keep(entry, written, draft.resource)
    return version
