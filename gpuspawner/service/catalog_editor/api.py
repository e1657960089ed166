"""The catalog's versions and changes: read, compare, preview, save, and go back to an earlier version."""

from __future__ import annotations

import asyncio
from functools import partial

from tornado.web import HTTPError

from gpuspawner.catalog.watched_file import changes_words, fingerprint_of
from gpuspawner.core.errors import RequestRefused
from gpuspawner.core.events import CatalogChanged
from gpuspawner.service.catalog_editor.editor import (
    Draft,
    compare,
    draft_of,
    newest_version,
    why_not_editable,
    write_source,
)
from gpuspawner.service.catalog_editor.effects import effects_of
from gpuspawner.service.catalog_editor.models import (
    LAST_NUMBER,
    CatalogChange,
    CatalogPreview,
    CatalogSave,
    CatalogState,
    ComparisonQuery,
    Version,
    VersionList,
    VersionsQuery,
    VersionText,
)
from gpuspawner.service.parts import Parts
from gpuspawner.service.store.catalog_versions import CatalogVersion
from gpuspawner.service.web.actor import Actor
from gpuspawner.service.web.endpoint import Router
from gpuspawner.service.web.permissions import Permission

router = Router()

PROBLEMS_SHOWN = 5


@router.get("/api/v1/admin/catalog", Permission.SEE_CATALOG)
async def read_catalog(actor: Actor) -> CatalogState:
    """Return the newest version with its text, and whether it can be changed here."""
    state = actor.state
    newest = await state.store.read(state.store.catalog_versions.newest)
    why_not = why_not_editable(state)
    return CatalogState(
        version=None if newest is None else present_version(state, newest),
        text="" if newest is None else newest.text,
        editable=not why_not and newest is not None,
        why_not=why_not,
        kept_in=state.catalog.console.kept_in,
    )


@router.get("/api/v1/admin/catalog/versions", Permission.SEE_CATALOG)
async def list_versions(actor: Actor, *, query: VersionsQuery) -> VersionList:
    """Return versions, the newest first, and as ``next`` the ``before`` of those that follow."""
    state = actor.state
    found = await state.store.read(state.store.catalog_versions.below, query.before, query.limit + 1)
    following = found[query.limit - 1].number if len(found) > query.limit else None
    versions = [present_version(state, one) for one in found[: query.limit]]
    return VersionList(versions=versions, next=following, now=actor.now)


@router.get("/api/v1/admin/catalog/versions/{number}", Permission.SEE_CATALOG)
async def read_version(actor: Actor, number: str, *, query: ComparisonQuery) -> VersionText:
    """Return a version with its text, and its comparison with the version before or another one."""
    version = await find_version(actor.state, number)
    asked = version.number - 1 if query.against is None else query.against
    other = await actor.state.store.read(actor.state.store.catalog_versions.get, asked)
    if other is None and query.against is not None:
        raise HTTPError(404, reason=f"Version {asked} of the catalog does not exist or is not kept any more.")
    return VersionText(
        version=present_version(actor.state, version),
        text=version.text,
        against=None if other is None else other.number,
        diff=[] if other is None else await asyncio.to_thread(compare, other.text, version.text),
    )


@router.post("/api/v1/admin/catalog/preview", Permission.EDIT_CATALOG, idempotent=False)
async def preview_catalog(actor: Actor, *, body: CatalogChange) -> CatalogPreview:
    """Return what a change would do, and what is wrong with it. Nothing is saved."""
    return await present_draft(actor.state, await draft_of(actor.state, body))


@router.post("/api/v1/admin/catalog", Permission.EDIT_CATALOG, status=201, audit="save catalog")
async def save_catalog(actor: Actor, *, body: CatalogSave) -> Version:
    """Save a change as a new version. It is in force some seconds later. A catalog with a problem is refused."""
    state, draft = actor.state, await draft_of(actor.state, body)
    if draft.catalog is None:
        shown = " ".join(one.words for one in draft.problems[:PROBLEMS_SHOWN])
        limit = "a catalog without problems"
        raise RequestRefused("text", f"a catalog with {len(draft.problems)} problems", limit, shown)
    if draft.text == draft.base.text:
        raise RequestRefused("text", "the catalog as it is", "a change", "Change something, and save then.")
    raw, changes = draft.text.encode(), changes_of(draft)
    number, author = draft.base.number + 1, actor.person.name
    version = CatalogVersion(number, actor.now, author, body.reason, changes, fingerprint_of(raw), draft.text)
    entry = actor.audit_entry(CatalogChanged(changes, number, body.reason), target=version.fingerprint)
    saved = present_version(state, version)
    actor.store_answer(saved)
    write = partial(write_source, state, draft.base.fingerprint, raw)
    await state.store.write(state.store.catalog_versions.add, version, [entry], write)
    return saved


async def find_version(state: Parts, number: str) -> CatalogVersion:
    """Return a version by its number, or the newest for "newest". Raises 404."""
    if number == "newest":
        return await newest_version(state)
    is_number = number.isascii() and number.isdigit() and len(number) <= len(str(LAST_NUMBER))
    found = await state.store.read(state.store.catalog_versions.get, int(number)) if is_number else None
    if found is None:
        raise HTTPError(404, reason=f"Version {number[:20]} of the catalog does not exist or is not kept any more.")
    return found


def present_version(state: Parts, one: CatalogVersion) -> Version:
    """Return a version without its text."""
    return Version(
        number=one.number,
        saved_at=one.at,
        by=one.author,
        reason=one.reason,
        changes=one.changes,
        fingerprint=one.fingerprint,
        in_force=one.fingerprint == state.in_force.version,
    )


async def present_draft(state: Parts, draft: Draft) -> CatalogPreview:
    """Return what a change would do."""
    catalog = draft.catalog
    return CatalogPreview(
        number=draft.base.number + 1,
        changes=changes_of(draft),
        problems=list(draft.problems),
        effects=[] if catalog is None else await effects_of(state, draft.before, catalog, draft.waits),
        diff=await asyncio.to_thread(compare, draft.base.text, draft.text),
        text=draft.text,
    )


def changes_of(draft: Draft) -> str:
    """Return the entries that differ from the base, "" if the text is the same."""
    if draft.text == draft.base.text or draft.catalog is None:
        return ""
    return changes_words(draft.before, draft.catalog)
