"""Quotas: whom each entry limits, and by how much."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import NamedTuple

from gpuspawner.catalog.building.extends import Named
from gpuspawner.catalog.document import Issue, Loc
from gpuspawner.catalog.entry import Entry
from gpuspawner.catalog.models import CatalogEntry
from gpuspawner.catalog.names import did_you_mean
from gpuspawner.catalog.rules.models import CostBudgetEntry, HoursBudgetEntry, QuotaEntry
from gpuspawner.core.rules import Budget, Limit, Quota, Used, What, Whom
from gpuspawner.core.units import show_bytes, show_cpu

OF_ONE = (Whom.EACH_USER, Whom.EACH_OF_TEAM, Whom.USER)
"""Whom only what they hold themselves fills."""
NAMES_WHOM = ("each", "group", "user", "everybody")
_SAYS_WHOM = "write each: user, each: user with group:, group:, user: or everybody: true"


class _Bound(NamedTuple):
    """One pair of limits as written, the path to it within its entry, and how its amounts are shown."""

    keys: Loc
    soft: Fraction | None
    hard: Fraction | None
    what: What | None = None
    kind: str = ""

    def shown(self, amount: Fraction) -> str:
        """Return an amount as people read it."""
        if self.what is What.MEMORY:
            return show_bytes(float(amount))
        return show_cpu(float(amount))


def build_quotas(entries: CatalogEntry, named: Named, issues: list[Issue]) -> tuple[Quota, ...]:
    """Return every quota that says whom it limits, adding an issue for each thing wrong."""
    quotas: list[Quota] = []
    for name, entry in entries.quotas.items():
        issues.extend(_check_limits(name, entry, entries, named))
        whom = _whom(name, entry, named, issues)
        if whom is None:
            continue
        subject = (entry.group or "") if whom in {Whom.TEAM, Whom.EACH_OF_TEAM} else entry.user or ""
        limits, budgets = _limits(entry), _budgets(entry)
        waits = True if entry.full is None else entry.full
        if entry.full is not None and whom in OF_ONE:
            right = "remove it: what they have themselves is all that counts, and more is refused"
            issues.append(Issue(("quotas", name, "full"), "nobody else fills what one user may have", right))
        same = next((q for q in quotas if (q.whom, q.subject) == (whom, subject)), None)
        if same is not None and whom in OF_ONE:
            right = "write all that limits them in one of the two"
            issues.append(Issue(("quotas", name), f"for the same users as `{same.name}`", right))
        quotas.append(Quota(name, whom, subject, limits, budgets, waits))
    return tuple(quotas)


def _whom(name: str, entry: QuotaEntry, named: Named, issues: list[Issue]) -> Whom | None:
    said = tuple(key for key in NAMES_WHOM if getattr(entry, key) is not None)
    found = {
        ("each",): Whom.EACH_USER,
        ("each", "group"): Whom.EACH_OF_TEAM,
        ("group",): Whom.TEAM,
        ("user",): Whom.USER,
        ("everybody",): Whom.EVERYBODY,
    }.get(said)
    if found is None and named.knows("quotas", name, *((key,) for key in (*NAMES_WHOM, "namespace"))):
        wrong = f"it limits {' and '.join(said)} at once" if said else "whom it limits is not said"
        issues.append(Issue(("quotas", name), wrong, _SAYS_WHOM))
    return found


def _bounds(entry: QuotaEntry) -> Iterator[_Bound]:
    """Yield every pair of limits of an entry, as written."""

    def bound(keys: Loc, pair: Entry, what: What | None = None, kind: str = "") -> _Bound:
        ends = (getattr(pair, end) for end in ("soft", "hard"))
        soft, hard = (None if end is None else Fraction(str(end)) for end in ends)
        return _Bound(keys, soft, hard, what, kind)

    yield bound(("gpus",), entry.gpus, What.GPUS)
    for kind, pair in entry.types.items():
        yield bound(("types", kind), pair, What.KIND, kind)
    yield bound(("workspaces",), entry.workspaces, What.WORKSPACES)
    yield bound(("cpu",), entry.cpu, What.CPU)
    yield bound(("memory",), entry.memory, What.MEMORY)
    yield bound(("gpu_hours",), entry.gpu_hours)
    yield bound(("cost",), entry.cost)


def _limits(entry: QuotaEntry) -> tuple[Limit, ...]:
    written = (bound for bound in _bounds(entry) if bound.soft is not None or bound.hard is not None)
    return tuple(Limit(bound.what, bound.kind, bound.soft, bound.hard) for bound in written if bound.what is not None)


def _budgets(entry: QuotaEntry) -> tuple[Budget, ...]:
    written: tuple[tuple[Used, HoursBudgetEntry | CostBudgetEntry], ...] = (
        (Used.GPU_HOURS, entry.gpu_hours),
        (Used.COST, entry.cost),
    )
    return tuple(
        Budget(used, pair.per, pair.soft, pair.hard)
        for used, pair in written
        if pair.per is not None and (pair.soft is not None or pair.hard is not None)
    )


def _check_limits(name: str, entry: QuotaEntry, entries: CatalogEntry, named: Named) -> Iterator[Issue]:
    loc = ("quotas", name)
    limits = False
    for bound in _bounds(entry):
        here = (*loc, *bound.keys)
        limits |= bound.soft is not None or bound.hard is not None
        if bound.soft is not None and bound.hard is not None and bound.soft > bound.hard:
            wrong = f"soft, {bound.shown(bound.soft)}, is more than hard, {bound.shown(bound.hard)}"
            yield Issue((*here, "soft"), wrong, "lower it, or raise hard")
        if bound.kind and not named.has("gpus", bound.kind):
            yield Issue(here, f"no GPU kind is called `{bound.kind}`", did_you_mean(bound.kind, entries.gpus))
    for key, pair in (("gpu_hours", entry.gpu_hours), ("cost", entry.cost)):
        written = pair.model_fields_set or named.is_wrong(*loc, key)
        if written and pair.per is None and named.knows("quotas", name, (key, "per")):
            yield Issue((*loc, key), "for how long is not said", "add per: day, week or month")
    if not limits and named.knows("quotas", name, *((key,) for key in QuotaEntry.model_fields)):
        yield Issue(loc, "it limits nothing", "add gpus: {hard: 4}")


def most_gpus(quotas: tuple[Quota, ...]) -> Fraction | None:
    """Return the most GPUs that any user may ever hold at once, as kinds count; None where somebody has no bound."""
    each = [_hard_gpus(quota) for quota in quotas if quota.whom in OF_ONE]
    bounds = [_hard_gpus(quota) for quota in quotas if quota.whom is Whom.EVERYBODY]
    if any(quota.whom is Whom.EACH_USER for quota in quotas) and None not in each:
        bounds.append(max(hard for hard in each if hard is not None))
    return min((hard for hard in bounds if hard is not None), default=None)


def _hard_gpus(quota: Quota) -> Fraction | None:
    return next((limit.hard for limit in quota.limits if limit.what is What.GPUS), None)
