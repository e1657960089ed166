"""What bounds somebody at one time, a line for each limit: how much of it is used, and how much may be."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from gpuspawner.catalog import Catalog
from gpuspawner.catalog.visibility import team_title
from gpuspawner.core.quotas.bounds import Amount, Who
from gpuspawner.core.quotas.quota_words import line_words
from gpuspawner.core.quotas.quotas import Taken, Tally
from gpuspawner.core.rules import Account, Limit, Quota, What, Whom
from gpuspawner.core.units import show_bytes
from gpuspawner.service.parts import Parts
from gpuspawner.service.tell.sentences import gpu_title


def quota_lines(parts: Parts, askers: Iterable[Who]) -> list[dict[str, Any]]:
    """Return every limit that binds somebody, for each team that they may charge: what is used of it, and in words."""
    tally = Tally(parts.allocator.observed.snapshot())
    uses = {one.bound.bucket: one for who in askers for one in tally.uses(who)}
    lines = (limit_view(parts, one) for one in uses.values())
    return [line for line in lines if line["words"]]


def limit_view(parts: Parts, taken: Taken) -> dict[str, Any]:
    """Return one limit: what is used of it now, what is waited for, and in words. Memory is in bytes."""
    bound, held, waiting = taken
    limit, catalog = bound.limit, parts.catalog
    left = None if bound.hard is None else max(0, bound.hard - held - waiting)
    numbers = {"soft": bound.soft, "hard": bound.hard, "used": held, "waiting": waiting, "left": left}
    return {
        "entry": bound.entry.name,
        "whose": whose(bound.entry, bound.bucket.account, catalog),
        "limit": limit.what.value,
        "kind": limit.kind or None,
        "unit": unit(limit, catalog),
        **{name: None if value is None else float(value) for name, value in numbers.items()},
        "shown": {name: None if value is None else amount(limit, value) for name, value in numbers.items()},
        "words": line_words(bound, held, waiting, catalog.gpus),
    }


def whose(entry: Quota, account: Account, catalog: Catalog) -> str:
    """Return whom an entry counts, as people read it: ``you``, ``you in Vision``, ``team Vision``, ``everybody``."""
    if entry.whom is Whom.EVERYBODY:
        return "everybody"
    title = team_title(catalog, account.team)
    if entry.whom is Whom.TEAM:
        return f"team {title}"
    return f"you in {title}" if title else "you"


def amount(limit: Limit, number: Amount) -> str:
    """Return an amount as people read it, memory with its unit."""
    if limit.what is What.MEMORY:
        return show_bytes(float(number))
    return f"{float(number):.3f}".rstrip("0").rstrip(".")


def unit(limit: Limit, catalog: Catalog, number: Amount | None = None) -> str:
    """Return of what a limit is, as it is read after so many."""
    if limit.what is What.KIND:
        return gpu_title(limit.kind, catalog)
    one = number == 1
    names = {
        What.GPUS: "GPU" if one else "GPUs",
        What.WORKSPACES: "workspace" if one else "workspaces",
        What.CPU: "CPU core" if one else "CPU cores",
        What.MEMORY: "memory",
    }
    return names[limit.what]
