"""What bounds somebody at one time, a line for each limit: how much of it is used, and how much may be."""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from typing import Any

from gpuspawner.catalog import Catalog
from gpuspawner.catalog.groups import team_title
from gpuspawner.core.queue.bounds import Bound, Who
from gpuspawner.core.queue.quotas import Tally
from gpuspawner.core.rules import Account, Limit, Quota, What, Whom
from gpuspawner.core.units import show_bytes
from gpuspawner.service.parts import Parts
from gpuspawner.service.tell.sentences import gpu_title


def quota_lines(parts: Parts, askers: Iterable[Who]) -> list[dict[str, Any]]:
    """Return every limit that binds somebody, for each team that they may charge: what is used of it, and in words."""
    tally = Tally(parts.allocator.observed.snapshot())
    bounds = {bound.bucket: bound for who in askers for bound in tally.bounds(who)}
    return [limit_view(parts, bound, tally.used(bound)) for bound in bounds.values()]


def limit_view(parts: Parts, bound: Bound, used: Fraction) -> dict[str, Any]:
    """Return one limit: what is used of it now, and in words. Memory is in bytes."""
    limit, catalog = bound.limit, parts.catalog
    left = None if bound.hard is None else max(Fraction(0), bound.hard - used)
    numbers = {"soft": bound.soft, "hard": bound.hard, "used": used, "left": left}
    return {
        "entry": bound.entry.name,
        "whose": whose(bound.entry, bound.bucket.account, catalog),
        "limit": limit.what.value,
        "kind": limit.kind or None,
        "unit": unit(limit, catalog),
        **{name: None if value is None else float(value) for name, value in numbers.items()},
        "shown": {name: None if value is None else amount(limit, value) for name, value in numbers.items()},
        "words": limit_words(bound, used, catalog),
    }


def whose(entry: Quota, account: Account, catalog: Catalog) -> str:
    """Return whom an entry counts, as people read it: ``you``, ``you in Vision``, ``team Vision``, ``everybody``."""
    if entry.whom is Whom.EVERYBODY:
        return "everybody"
    title = team_title(catalog, account.team)
    if entry.whom is Whom.TEAM:
        return f"team {title}"
    return f"you in {title}" if title else "you"


def limit_words(bound: Bound, used: Fraction, catalog: Catalog) -> str:
    """Return a limit in words: ``1 of 2 GPUs used or waited for (up to 4 while free)``; of a team, what it uses."""
    entry, limit, account = bound.entry, bound.limit, bound.bucket.account
    most = bound.hard if bound.soft is None else bound.soft
    of = f"{amount(limit, used)} of {amount(limit, most or Fraction(0))} {unit(limit, catalog, most)}"
    if bound.of_all:
        words = f"{whose(entry, account, catalog)}: {of} used"
    else:
        words = f"{of} used or waited for" + (f" in {team_title(catalog, account.team)}" if account.team else "")
    if bound.soft is None:
        return words
    return f"{words} ({'more' if bound.hard is None else f'up to {amount(limit, bound.hard)}'} while free)"


def amount(limit: Limit, number: Fraction) -> str:
    """Return an amount as people read it, memory with its unit."""
    if limit.what is What.MEMORY:
        return show_bytes(float(number))
    return f"{float(number):.3f}".rstrip("0").rstrip(".")


def unit(limit: Limit, catalog: Catalog, number: Fraction | None = None) -> str:
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
