"""The API of the catalog editor: read, compare, preview and save the catalog, and go back to an earlier version.

A preview names the workspaces, requests, presets, schedules and quotas that a change affects.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from functools import partial
from typing import Any

from tornado.web import HTTPError

from gpuspawner.catalog import Catalog, Template, resolve
from gpuspawner.catalog.watched_file import changes_words, fingerprint_of
from gpuspawner.core.errors import RequestRefused
from gpuspawner.core.events import CatalogChanged
from gpuspawner.core.gpus.fleet import GpuKind
from gpuspawner.core.leases.lease import HOLDING, UP, WAITING, Lease
from gpuspawner.core.rules import Budget, Limit, LimitedResource, Quota, QuotaScope
from gpuspawner.core.units import show_count, show_money
from gpuspawner.service.administration.restriction_effects import lease_title
from gpuspawner.service.catalog_editor.editor import (
    Draft,
    compare,
    draft_of,
    newest_version,
    why_not_editable,
    write_source,
)
from gpuspawner.service.catalog_editor.models import (
    LAST_NUMBER,
    CatalogChange,
    CatalogEffect,
    CatalogPreview,
    CatalogSave,
    CatalogState,
    ComparisonQuery,
    EffectKind,
    Version,
    VersionList,
    VersionsQuery,
    VersionText,
)
from gpuspawner.service.catalog_editor.resources import (
    draft_of_resource,
    is_resource,
    list_resources,
    may_write,
    save_resource,
    section_and_name,
)
from gpuspawner.service.custom_resources.history import text_of
from gpuspawner.service.parts import Parts
from gpuspawner.service.quotas.rules_page import entry_words
from gpuspawner.service.rules.policies import policy_of
from gpuspawner.service.store.administration import CatalogVersion
from gpuspawner.service.web.actor import Actor
from gpuspawner.service.web.endpoint import Router
from gpuspawner.service.web.permissions import Permission

NAMES_SHOWN = 3
Offered = Template | GpuKind


async def effects_of(state: Parts, before: Catalog, after: Catalog, waits: Sequence[str]) -> list[CatalogEffect]:
    """Return the effects of another catalog, those on workspaces first.

    Args:
        state: the parts of the service.
        before: the present catalog.
        after: the other catalog.
        waits: sentences about its changes that need a restart.
    """
    presets = await state.store.read(state.store.presets.of_hub, state.hub_id)
    schedules = await state.store.read(state.store.schedules.of_hub, state.hub_id)
    names = {lease.key.owner: lease.user for lease in state.registry}
    kept = [(f"preset {one.name} of {names.get(owner, 'a user')}", one.options) for owner, one in presets]
    kept += [(f"schedule of {one.user} / {one.server or 'default workspace'}", one.options) for _, one in schedules]
    return [
        *_running(state, before, after),
        *_waiting(state, after),
        *_offers(before.templates, after.templates),
        *_offers(before.gpus, after.gpus),
        *_choices(kept, before, after),
        *_quotas(state, before, after),
        *_prices(before, after),
        *(_effect("info", sentence) for sentence in waits),
    ]


def _effect(kind: EffectKind, words: str) -> CatalogEffect:
    return CatalogEffect(kind=kind, words=words)


def _running(state: Parts, before: Catalog, after: Catalog) -> Iterator[CatalogEffect]:
    up, now = [lease for lease in state.registry if lease.phase in UP], state.clock.now()
    judged = [one for one in up if policy_of(before, one, now) != policy_of(after, one, now)]
    gone = [
        one
        for one in up
        if state.allocator.offered_no_more(one, after) and not state.allocator.offered_no_more(one, before)
    ]
    same = len(up) - len({one.id for one in (*judged, *gone)})
    if same:
        yield _effect(
            "good", f"{show_count(same, 'running workspace')} {_verb(same, 'goes', 'go')} on without a change."
        )
    if judged:
        words = (
            f"{show_count(len(judged), 'running workspace')} {_verb(len(judged), 'follows', 'follow')} another policy"
        )
        yield _effect("warn", f"{words}: {_listed(map(lease_title, judged))}. Idle time counts from now on.")
    if gone:
        words = (
            f"{show_count(len(gone), 'running workspace')} {_verb(len(gone), 'goes', 'go')} on, but can't start again"
        )
        yield _effect("warn", f"{words}: {_listed(map(lease_title, gone))}.")


def _waiting(state: Parts, after: Catalog) -> Iterator[CatalogEffect]:
    waiting = [lease for lease in state.registry if lease.phase in WAITING]
    ends = {one.user: why for one in waiting if (why := state.allocator.offered_no_more(one, after))}
    for user, why in list(ends.items())[:NAMES_SHOWN]:
        yield _effect("bad", f"The waiting request of {user} ends. {why}")
    if (more := len(ends) - NAMES_SHOWN) > 0:
        yield _effect("bad", f"The waiting requests of {show_count(more, 'more user')} end.")
    if stay := len(waiting) - len(ends):
        yield _effect("good", f"{show_count(stay, 'waiting request')} {_verb(stay, 'keeps its', 'keep their')} place.")


def _offers(before: Mapping[str, Offered], after: Mapping[str, Offered]) -> Iterator[CatalogEffect]:
    """Yield the templates or GPU kinds that other people may choose."""
    for name in dict.fromkeys([*before, *after]):
        was, now = before.get(name), after.get(name)
        if was is None and now is not None:
            yield _effect("good", f"{now.title or name} is offered to {_members(now.groups)}.")
        elif was is not None and now is None:
            yield _effect("warn", f"{was.title or name} is not offered any more.")
        elif was is not None and now is not None and was.groups != now.groups:
            whom = f"{_members(now.groups)} instead of {_members(was.groups)}"
            yield _effect("warn", f"{now.title or name} is offered to {whom}.")


def _members(groups: Iterable[str]) -> str:
    named = _listed(sorted(groups))
    return f"members of {named}" if named else "everybody"


def _choices(kept: Iterable[tuple[str, Mapping[str, Any]]], before: Catalog, after: Catalog) -> Iterator[CatalogEffect]:
    """Yield the presets and schedules that can't start any more."""
    refused = [name for name, options in kept if not _problem(before, options) and _problem(after, options)]
    if refused:
        yield _effect("warn", f"{show_count(len(refused), 'saved choice')} can't start any more: {_listed(refused)}.")


def _problem(catalog: Catalog, options: Mapping[str, Any]) -> str:
    try:
        resolve(catalog, {**options, "team": ""}, "", groups=None)
    except RequestRefused as error:
        return str(error)
    return ""


def _quotas(state: Parts, before: Catalog, after: Catalog) -> Iterator[CatalogEffect]:
    old, new = ({one.name: one for one in catalog.rules.quotas} for catalog in (before, after))
    for name in dict.fromkeys([*old, *new]):
        was, now = old.get(name), new.get(name)
        if was == now:
            continue
        earlier = "" if was is None else entry_words(was, before)
        if now is None:
            yield _effect("good", f"This limit ends: {earlier}")
            continue
        words = f"{entry_words(now, after)} Before: {earlier or 'no such limit.'}"
        if above := _above(state, now):
            uses, goes = _verb(len(above), "uses", "use"), _verb(len(above), "goes", "go")
            words += f" {_listed(above)} {uses} more GPUs now and {goes} on."
        yield _effect("warn" if _is_tighter(was, now) else "good", words)


def _hard_bounds(quota: Quota | None) -> dict[tuple[object, str], Fraction]:
    """Return the hard limits of a quota by what they limit, with the GPU kind or the period."""
    parts: Sequence[Limit | Budget] = () if quota is None else (*quota.limits, *quota.budgets)
    found = {(one.what, one.kind if isinstance(one, Limit) else one.per.value): one.hard for one in parts}
    return {key: hard for key, hard in found.items() if hard is not None}


def _is_tighter(was: Quota | None, now: Quota) -> bool:
    bounds = _hard_bounds(was)
    return any(key not in bounds or hard < bounds[key] for key, hard in _hard_bounds(now).items())


def _above(state: Parts, quota: Quota) -> list[str]:
    """Return the users or teams that hold more GPUs now than the quota allows."""
    hard = next((one.hard for one in quota.limits if one.what is LimitedResource.GPUS), None)
    held: dict[str, Fraction] = {}
    for lease in state.registry:
        if lease.phase in HOLDING and _is_limited(quota, lease):
            name = {QuotaScope.TEAM: quota.subject, QuotaScope.EVERYBODY: "Everybody"}.get(quota.whom, lease.user)
            held[name] = held.get(name, Fraction(0)) + sum((slot.share for slot in lease.slots), Fraction(0))
    return [name for name, gpus in held.items() if hard is not None and gpus > hard]


def _is_limited(quota: Quota, lease: Lease) -> bool:
    if quota.whom is QuotaScope.USER:
        return lease.user == quota.subject
    return quota.whom in {QuotaScope.EACH_USER, QuotaScope.EVERYBODY} or lease.request.team == quota.subject


def _prices(before: Catalog, after: Catalog) -> Iterator[CatalogEffect]:
    for name, kind in after.gpus.items():
        was = before.gpus.get(name)
        if was is None or was.price_per_hour == kind.price_per_hour:
            continue
        old, new = (
            "nothing" if one.price_per_hour is None else show_money(one.price_per_hour, after.rules.currency)
            for one in (was, kind)
        )
        yield _effect(
            "info", f"{kind.title} costs {new} instead of {old} per hour for workspaces that start from now on."
        )


def _verb(number: int, one: str, several: str) -> str:
    return one if number == 1 else several


def _listed(names: Iterable[str]) -> str:
    found = list(dict.fromkeys(names))
    more = f" and {len(found) - NAMES_SHOWN} more" if len(found) > NAMES_SHOWN else ""
    return ", ".join(found[:NAMES_SHOWN]) + more


router = Router()

PROBLEMS_SHOWN = 5


@router.get("/api/v1/admin/catalog", Permission.SEE_CATALOG)
async def read_catalog(actor: Actor) -> CatalogState:
    """Return the newest version with its text, and whether it can be changed here."""
    state = actor.state
    newest = await state.store.read(state.store.catalog_versions.newest)
    why_not, may = why_not_editable(state), await may_write(state)
    return CatalogState(
        version=None if newest is None else (await _present_versions(state, [newest]))[0],
        text="" if newest is None else newest.text,
        editable=not why_not and newest is not None,
        why_not=why_not,
        kept_in=state.catalog.console.kept_in,
        resources=await list_resources(state, may=may),
        adds_resources=may,
    )


@router.get("/api/v1/admin/catalog/versions", Permission.SEE_CATALOG)
async def list_versions(actor: Actor, *, query: VersionsQuery) -> VersionList:
    """Return versions, the newest first, and as ``next`` the ``before`` of those that follow."""
    state = actor.state
    found = await state.store.read(state.store.catalog_versions.below, query.before, query.limit + 1)
    following = found[query.limit - 1].number if len(found) > query.limit else None
    versions = await _present_versions(state, found[: query.limit])
    return VersionList(versions=versions, next=following, now=actor.now)


@router.get("/api/v1/admin/catalog/versions/{number}", Permission.SEE_CATALOG)
async def read_version(actor: Actor, number: str, *, query: ComparisonQuery) -> VersionText:
    """Return a version with its text, and its comparison with the version before or another one."""
    version, versions = await find_version(actor.state, number), actor.state.store.catalog_versions
    asked = query.against
    if asked is None:
        before = await actor.state.store.read(versions.below, version.number, 1, version.entry)
        asked = before[0].number if before else 0
    other = await actor.state.store.read(versions.get, asked)
    if other is None and query.against is not None:
        raise HTTPError(404, reason=f"Version {asked} of the catalog does not exist or is not kept any more.")
    return VersionText(
        version=(await _present_versions(actor.state, [version]))[0],
        text=version.text,
        against=None if other is None else other.number,
        diff=[] if other is None else await asyncio.to_thread(compare, other.text, version.text),
    )


@router.post("/api/v1/admin/catalog/preview", Permission.EDIT_CATALOG, idempotent=False)
async def preview_catalog(actor: Actor, *, body: CatalogChange) -> CatalogPreview:
    """Return the effects of a change, and its problems. Nothing is saved."""
    return await present_draft(actor.state, await _draft_of(actor.state, body))


async def _draft_of(state: Parts, change: CatalogChange) -> Draft:
    """Return a changed catalog: with another custom resource, or another file."""
    entry = change.entry
    if change.version is not None:
        version = await state.store.read(state.store.catalog_versions.get, change.version)
        entry = "" if version is None else version.entry
        is_of_resource = bool(entry)
    else:
        is_of_resource = is_resource(state, entry) or await _adds_resource(state, entry)
    return await draft_of_resource(state, change, entry) if is_of_resource else await draft_of(state, change)


async def _adds_resource(state: Parts, entry: str) -> bool:
    """Return whether a new entry becomes a custom resource, because the console can't write the file."""
    (section, name), catalog = section_and_name(entry), state.catalog
    present = {
        "templates": [*catalog.templates],
        "policies": [*catalog.policies],
        "quotas": [one.name for one in catalog.rules.quotas],
    }
    is_new = section in present and name and name not in present[section]
    return bool(is_new and why_not_editable(state)) and await may_write(state)


@router.post("/api/v1/admin/catalog", Permission.EDIT_CATALOG, status=201, audit="save catalog")
async def save_catalog(actor: Actor, *, body: CatalogSave) -> Version:
    """Save a change as a new version, which is in force some seconds later. A catalog with a problem is refused."""
    state, draft = actor.state, await _draft_of(actor.state, body)
    if draft.catalog is None:
        shown = " ".join(one.words for one in draft.problems[:PROBLEMS_SHOWN])
        limit = "a catalog without problems"
        raise RequestRefused("text", f"a catalog with {len(draft.problems)} problems", limit, shown)
    if draft.text == draft.base.text:
        raise RequestRefused("text", "the catalog as it is", "a change", "Change something, and save then.")
    raw, changes = draft.text.encode(), changes_of(draft)
    if draft.entry:

        def store_answer(version: CatalogVersion) -> None:
            actor.store_answer(_present_version(state, version, {}))

        return _present_version(state, await save_resource(actor, draft, changes, body.reason, store_answer), {})
    author, number = actor.person.name, draft.number
    version = CatalogVersion(number, actor.now, author, body.reason, changes, fingerprint_of(raw), draft.text)
    entry = actor.audit_entry(CatalogChanged(changes, number, body.reason), target=version.fingerprint)
    saved = _present_version(state, version, {})
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


async def _present_versions(state: Parts, versions: Iterable[CatalogVersion]) -> list[Version]:
    """Return versions without their texts."""
    numbers = await state.store.read(state.store.catalog_versions.newest_numbers)
    return [_present_version(state, one, numbers) for one in versions]


def _present_version(state: Parts, one: CatalogVersion, newest: Mapping[str, int]) -> Version:
    """Return a version without its text. ``newest`` are the numbers of the newest versions by entry."""
    in_force = {f"{x.section}.{x.name}": fingerprint_of(text_of(x.spec).encode()) for x in state.in_force.used}
    return Version(
        number=one.number,
        saved_at=one.at,
        by=one.author,
        reason=one.reason,
        changes=one.changes,
        fingerprint=one.fingerprint,
        in_force=one.fingerprint == (in_force.get(one.entry) if one.entry else state.in_force.version),
        entry=one.entry,
        newest=newest.get(one.entry, one.number),
    )


async def present_draft(state: Parts, draft: Draft) -> CatalogPreview:
    """Return the preview of a change."""
    catalog = draft.catalog
    return CatalogPreview(
        number=draft.number,
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
