"""What another catalog does to workspaces, requests, presets, schedules and quotas: the preview of a change."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any

from gpuspawner.catalog import Catalog, resolve
from gpuspawner.core.errors import RequestRefused
from gpuspawner.core.leases.lease import HOLDING, UP, WAITING, Lease
from gpuspawner.core.rules import Budget, BudgetUnit, Limit, LimitedResource, Quota, QuotaScope
from gpuspawner.core.units import show_bytes, show_money
from gpuspawner.service.administration.restrictions import lease_title
from gpuspawner.service.catalog_editor.models import CatalogEffect, EffectKind
from gpuspawner.service.parts import Parts
from gpuspawner.service.rules.policies import policy_of

NAMES_SHOWN = 3
UNITS = {
    LimitedResource.GPUS: "GPUs at once",
    LimitedResource.WORKSPACES: "workspaces at once",
    LimitedResource.CPU: "CPU cores at once",
    LimitedResource.MEMORY: "of memory at once",
    BudgetUnit.GPU_HOURS: "GPU h",
}


async def effects_of(state: Parts, before: Catalog, after: Catalog, waits: Sequence[str]) -> list[CatalogEffect]:
    """Return what another catalog does, the workspaces first.

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
        yield _effect("good", f"{_count(same, 'running workspace')} {_verb(same, 'goes', 'go')} on without a change.")
    if judged:
        words = f"{_count(len(judged), 'running workspace')} {_verb(len(judged), 'follows', 'follow')} another policy"
        yield _effect("warn", f"{words}: {_listed(map(lease_title, judged))}. Idle time counts from now on.")
    if gone:
        words = f"{_count(len(gone), 'running workspace')} {_verb(len(gone), 'goes', 'go')} on, but can't start again"
        yield _effect("warn", f"{words}: {_listed(map(lease_title, gone))}.")


def _waiting(state: Parts, after: Catalog) -> Iterator[CatalogEffect]:
    waiting = [lease for lease in state.registry if lease.phase in WAITING]
    ends = {one.user: why for one in waiting if (why := state.allocator.offered_no_more(one, after))}
    for user, why in list(ends.items())[:NAMES_SHOWN]:
        yield _effect("bad", f"The waiting request of {user} ends. {why}")
    if (more := len(ends) - NAMES_SHOWN) > 0:
        yield _effect("bad", f"The waiting requests of {_count(more, 'more user')} end.")
    if stay := len(waiting) - len(ends):
        yield _effect("good", f"{_count(stay, 'waiting request')} {_verb(stay, 'keeps its', 'keep their')} place.")


def _choices(kept: Iterable[tuple[str, Mapping[str, Any]]], before: Catalog, after: Catalog) -> Iterator[CatalogEffect]:
    """Yield the presets and schedules that can't start any more."""
    refused = [name for name, options in kept if not _problem(before, options) and _problem(after, options)]
    if refused:
        yield _effect("warn", f"{_count(len(refused), 'saved choice')} can't start any more: {_listed(refused)}.")


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
        whom = _whom((now or was), after)  # type: ignore[arg-type]  # one of them exists
        bounds, others = _bounds(was), _bounds(now)
        for key in dict.fromkeys([*bounds, *others]):
            if bounds.get(key) == others.get(key):
                continue
            less = others.get(key) is not None and (bounds.get(key) is None or others[key] < bounds[key])
            words = (
                f"{whom}: {_amount(others.get(key), key, after)} instead of {_amount(bounds.get(key), key, before)}."
            )
            above = _above(state, now, key, others[key]) if less and now is not None else []
            if above:
                uses, goes = _verb(len(above), "uses", "use"), _verb(len(above), "goes", "go")
                words += f" {_listed(above)} {uses} more now and {goes} on."
            yield _effect("warn" if less else "good", words)


BoundKey = tuple[LimitedResource | BudgetUnit, str]


def _bounds(quota: Quota | None) -> dict[BoundKey, Fraction]:
    """Return the hard limits of a quota by what they limit, with the GPU kind or the period."""
    found: dict[BoundKey, Fraction] = {}
    parts: Sequence[Limit | Budget] = () if quota is None else (*quota.limits, *quota.budgets)
    for one in parts:
        if one.hard is not None:
            found[one.what, one.kind if isinstance(one, Limit) else one.per.value] = one.hard
    return found


def _amount(amount: Fraction | None, key: BoundKey, catalog: Catalog) -> str:
    what, more = key
    if amount is None:
        return "no limit"
    if what is LimitedResource.MEMORY:
        return f"{show_bytes(int(amount))} {UNITS[what]}"
    if what is BudgetUnit.COST:
        return f"{show_money(float(amount), catalog.rules.currency)} each {more}"
    if what is LimitedResource.KIND:
        return f"{float(amount):g} × {more} at once"
    return f"{float(amount):g} {UNITS[what]}{f' each {more}' if what is BudgetUnit.GPU_HOURS else ''}"


def _whom(quota: Quota, catalog: Catalog) -> str:
    team = catalog.rules.teams.get(quota.subject)
    title = team.title if team is not None else quota.subject
    return {
        QuotaScope.EACH_USER: "Each user",
        QuotaScope.EACH_OF_TEAM: f"Each member of {title}",
        QuotaScope.USER: quota.subject,
        QuotaScope.TEAM: title,
        QuotaScope.EVERYBODY: "All users together",
    }[quota.whom]


def _above(state: Parts, quota: Quota, key: BoundKey, hard: Fraction) -> list[str]:
    """Return the users or teams that hold more GPUs now than a limit of GPUs allows."""
    if key[0] is not LimitedResource.GPUS:
        return []
    held: dict[str, Fraction] = {}
    for lease in state.registry:
        if lease.phase in HOLDING and _is_limited(quota, lease):
            name = {QuotaScope.TEAM: quota.subject, QuotaScope.EVERYBODY: "Everybody"}.get(quota.whom, lease.user)
            held[name] = held.get(name, Fraction(0)) + sum((slot.share for slot in lease.slots), Fraction(0))
    return [name for name, gpus in held.items() if gpus > hard]


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


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _verb(number: int, one: str, several: str) -> str:
    return one if number == 1 else several


def _listed(names: Iterable[str]) -> str:
    found = list(dict.fromkeys(names))
    more = f" and {len(found) - NAMES_SHOWN} more" if len(found) > NAMES_SHOWN else ""
    return ", ".join(found[:NAMES_SHOWN]) + more
