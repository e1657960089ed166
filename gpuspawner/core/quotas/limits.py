"""The quotas that bind a user, the amount of each that a request takes, and the sentences about it.

A limit bounds the usage of its entry's account, without the usage that a more specific entry binds. Grants raise soft
and hard limits.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fractions import Fraction
from math import floor, inf
from typing import NamedTuple

from gpuspawner.core.errors import RequestRefused
from gpuspawner.core.gpus.fleet import GpuKind, Kinds, catalog_kind_name
from gpuspawner.core.gpus.placement import quota_weight
from gpuspawner.core.leases.lease import Lease
from gpuspawner.core.leases.request import Request
from gpuspawner.core.queue.snapshot import Claim
from gpuspawner.core.rules import Account, BudgetUnit, Limit, LimitedResource, Quota, QuotaGrant, QuotaScope, Rules
from gpuspawner.core.units import ordinal, show_bytes, show_cpu, show_time

# --- entries in force


_OF_USERS = (QuotaScope.USER, QuotaScope.EACH_OF_TEAM, QuotaScope.EACH_USER)
"""The scopes of user quotas, the most specific first."""


def entries_in_force(quotas: Iterable[Quota], user: str, team: str) -> tuple[Quota, ...]:
    """Return the entries that bind a user in a team ("" for none), in the catalog's order.

    One user quota applies: the most specific one. The quotas of the team and of everybody also apply.
    """
    binding = [one for one in quotas if _binds(one, user, team)]
    of_users = next((whom for whom in _OF_USERS if any(one.whom is whom for one in binding)), None)
    return tuple(one for one in binding if one.whom is of_users or one.whom not in _OF_USERS)


def _binds(entry: Quota, user: str, team: str) -> bool:
    if entry.whom is QuotaScope.USER:
        return entry.subject == user
    return entry.whom in {QuotaScope.EACH_USER, QuotaScope.EVERYBODY} or entry.subject == team


def counted_account(entry: Quota, user_created: str, team: str) -> Account:
    """Return the account whose usage an entry counts for a user that it binds.

    An entry for each user of a team counts the user's usage in that team. Other entries for users count all of their
    usage that no other entry binds (:func:`accounts_bound_elsewhere`).
    """
    if entry.whom is QuotaScope.EVERYBODY:
        return Account()
    if entry.whom is QuotaScope.TEAM:
        return Account(team=team)
    return Account(team if entry.whom is QuotaScope.EACH_OF_TEAM else "", user_created)


def accounts_bound_elsewhere(quotas: Iterable[Quota], entry: Quota, user_created: str) -> tuple[Account, ...]:
    """Return the parts of an entry's account that other entries bind instead.

    The usage in a team with an entry for each of its users does not count in the entry for each user.
    """
    if entry.whom is not QuotaScope.EACH_USER:
        return ()
    teams = {one.subject for one in quotas if one.whom is QuotaScope.EACH_OF_TEAM}
    return tuple(Account(team, user_created) for team in sorted(teams))


def accounts_of(user_created: str, team: str) -> tuple[Account, ...]:
    """Return all accounts that count a user's usage."""
    return tuple({Account(which, who): None for which in (team, "") for who in (user_created, "")})


def granted_amount(
    grants: Sequence[QuotaGrant], account: Account, what: LimitedResource | BudgetUnit, at: float, kind: str = ""
) -> Fraction:
    """Return the sum of grants to the limits or budgets of an account at a time.

    A grant to a user raises the user quotas in every team. A grant to a user in a team raises only those that count the
    usage in that team. A grant to a team raises the quotas of the team.
    """
    return sum(
        (
            one.amount
            for one in grants
            if (one.what, one.kind) == (what, kind) and one.since <= at < one.until and _raises(one.account, account)
        ),
        Fraction(0),
    )


def _raises(grant: Account, account: Account) -> bool:
    if grant == account:
        return True
    return not grant.team and bool(grant.user_created) and grant.user_created == account.user_created


# --- limits


SHARED_SUBJECTS = frozenset({QuotaScope.TEAM, QuotaScope.EVERYBODY})
Amount = Fraction | int
"""An amount of a resource. Whole numbers are ints, because fractions are slow."""


class Requester(NamedTuple):
    """The user of a request or a lease, with the team that is charged."""

    user: str
    user_created: str
    team: str = ""


class LimitKey(NamedTuple):
    """One limit of an entry, and the account that it counts."""

    entry: str
    account: Account
    what: LimitedResource
    kind: str


class EffectiveLimit(NamedTuple):
    """One limit of an entry in force. ``soft`` and ``hard`` contain the amounts of grants."""

    entry: Quota
    limit: Limit
    limit_key: LimitKey
    soft: Amount | None
    hard: Amount | None

    @property
    def of_all(self) -> bool:
        """Whether several users share it: a limit of a team or of everybody."""
        return self.entry.whom in SHARED_SUBJECTS


def requester_of(one: Claim | Lease) -> Requester:
    """Return the user of a request or a lease."""
    created = one.user_created if isinstance(one, Claim) else one.key.user_created
    return Requester(one.user or one.request.user, created, one.request.team)


def effective_limits(
    who: Requester, rules: Rules, grants: Sequence[QuotaGrant], now: float
) -> tuple[EffectiveLimit, ...]:
    """Return the limits in force for a requester."""
    found = []
    for entry in entries_in_force(rules.quotas, who.user, who.team):
        account = counted_account(entry, who.user_created, who.team)
        for limit in entry.limits:
            more = granted_amount(grants, account, limit.what, now, limit.kind)
            soft, hard = (None if x is None else _short(x + more) for x in (limit.soft, limit.hard))
            found.append(
                EffectiveLimit(entry, limit, LimitKey(entry.name, account, limit.what, limit.kind), soft, hard)
            )
    return tuple(found)


def _short(amount: Fraction) -> Amount:
    return amount.numerator if amount.denominator == 1 else amount


def requested_amount(limit: Limit, request: Request, kind: GpuKind | None) -> Amount:
    """Return the amount of a limit that a request takes with this kind, None if it left the catalog."""
    if limit.what is LimitedResource.WORKSPACES:
        return 1
    if limit.what is LimitedResource.CPU:
        return _short(Fraction(str(request.cpu_cores)))
    if limit.what is LimitedResource.MEMORY:
        return request.memory_bytes
    if limit.what is LimitedResource.KIND:
        return request.count if limit.kind == catalog_kind_name(kind.name if kind else request.gpu or "") else 0
    if kind is None or (kind.counts is None and kind.shares == 1):
        return request.count
    return _short(quota_weight(kind) * request.count)


# --- sentences


GPU_RESOURCES = frozenset({LimitedResource.GPUS, LimitedResource.KIND})
LIMIT_SCOPES = {
    QuotaScope.EACH_USER: "per user",
    QuotaScope.EACH_OF_TEAM: "for each user of team {}",
    QuotaScope.USER: "for {}",
    QuotaScope.TEAM: "for team {}",
    QuotaScope.EVERYBODY: "for everybody together",
}
SHARED_HOLDERS = {QuotaScope.TEAM: "team {} has", QuotaScope.EVERYBODY: "all workspaces together have"}

SHARED_PREFIXES = {QuotaScope.TEAM: "team {}: ", QuotaScope.EVERYBODY: "all together: "}


class LimitUsage(NamedTuple):
    """The usage of a limit at an instant.

    ``own`` is the requester's usage, ``others`` that of others, ``next_end`` the first end of a workspace of others.
    """

    asked: Amount
    own: Amount = 0
    others: Amount = 0
    next_end: float = inf
    now: float = 0.0


def format_number(amount: Amount) -> str:
    """Return ``4`` or ``0.5``."""
    return f"{float(amount):.4g}" if amount.denominator > 1 else str(amount.numerator)


def show_amount(limit: Limit, amount: Amount, kinds: Kinds) -> str:
    """Return an amount for display: ``4 GPUs``, ``2 A100 80 GB``, ``1 workspace``, ``8 CPU`` or ``64 GiB memory``."""
    if limit.what is LimitedResource.CPU:
        return f"{_plain(limit, amount)} CPU"
    if limit.what is LimitedResource.MEMORY:
        return f"{_plain(limit, amount)} memory"
    if limit.what is LimitedResource.KIND:
        title = kinds[limit.kind].title_anywhere if limit.kind in kinds else limit.kind
        return f"{format_number(amount)} {title}"
    unit = "workspace" if limit.what is LimitedResource.WORKSPACES else "GPU"
    return f"{format_number(amount)} {unit}{'' if amount == 1 else 's'}"


def quota_refusal(bound: EffectiveLimit, use: LimitUsage, count: int, kinds: Kinds, contact: str) -> RequestRefused:
    """Return the refusal by a hard limit. ``count`` GPUs were requested, which count as ``use.asked``."""
    limit, hard = bound.limit, bound.hard or 0
    whose, has = LIMIT_SCOPES[bound.entry.whom].format(bound.entry.subject), use.own + use.others
    if bound.entry.whom in SHARED_HOLDERS:
        of_which = f"{_plain(limit, has)} {'is' if has == 1 else 'are'} in use"
    else:
        of_which = f"You use or wait for {_plain(limit, has)}"
    less = _less(limit, max(0, hard - has), use.asked, count, kinds)
    steps = [less] if less else []
    if use.others:
        until = "" if use.next_end == inf else f" (next end {show_time(use.next_end, use.now)})"
        steps.append(f"start when a colleague stops{until}")
    elif not less:
        steps.append("stop another of your workspaces first" if use.own else "ask for less")
    if not contact:
        steps.append("ask an administrator to raise the quota")
    told = ", or ".join(steps)
    raising = f" Raising it: {contact}." if contact else ""
    field = "count" if limit.what in GPU_RESOURCES else limit.what.value
    allowed = f"{_bare(limit, hard, kinds)} {whose}. {of_which}"
    remedy = f"{told[:1].upper()}{told[1:]}.{raising}"
    return RequestRefused(field, _bare(limit, use.asked, kinds), allowed, remedy, status=403)


def quota_wait_sentence(bound: EffectiveLimit, use: LimitUsage, count: int, kinds: Kinds, contact: str) -> str:
    """Return the sentence for a request that waits for a hard limit."""
    limit, hard, held = bound.limit, bound.hard or 0, use.own + use.others
    holder = SHARED_HOLDERS.get(bound.entry.whom, "you have").format(bound.entry.subject)
    less = _less(limit, max(0, hard - held), use.asked, count, kinds)
    other = "a colleague" if bound.entry.whom in SHARED_HOLDERS else "another of your workspaces"
    until = "" if use.next_end == inf else f" (next end {show_time(use.next_end, use.now)})"
    step = f"wait until {other} stops{until}"
    step = f"{less}, or {step}" if less else step
    raising = f" Raising it: {contact}." if contact else ""
    asked = f"You asked for {show_amount(limit, use.asked, kinds)}."
    in_use = f"{holder[0].upper()}{holder[1:]} {_plain(limit, held)} of {_plain(limit, hard)} in use."
    return f"{asked} {in_use} {step[:1].upper()}{step[1:]}.{raising}"


def behind_other_sentence(rule: str) -> str:
    """Return the sentence for a request that waits for another one under the same rule."""
    return f"A request ahead of yours waits for the same {rule}."


def share_sentence(bound: EffectiveLimit, use: LimitUsage, kinds: Kinds) -> str:
    """Return the sentence for a request beyond a soft limit: ``This is your 3rd GPU. Your share is 2.``."""
    limit, soft, held = bound.limit, bound.soft or 0, use.own + use.others
    if bound.entry.whom in SHARED_HOLDERS:
        holder = f"team {bound.entry.subject}" if bound.entry.whom is QuotaScope.TEAM else "all together"
        total = show_amount(limit, held + use.asked, kinds)
        return f"With this {holder} would have {total}. The share is {format_number(soft)}."
    if limit.what is LimitedResource.GPUS and use.asked == 1 and held.denominator == 1:
        return f"This is your {ordinal(int(held) + 1)} GPU. Your share is {format_number(soft)}."
    return (
        f"With this you would have {show_amount(limit, held + use.asked, kinds)}. Your share is {_plain(limit, soft)}."
    )


def limit_line(bound: EffectiveLimit, held: Amount, waiting: Amount, kinds: Kinds) -> str:
    """Return the usage of a limit for a form: ``1 of 4 GPUs used, share 2, 3 waiting``."""
    limit, soft, hard = bound.limit, bound.soft, bound.hard
    if soft is None and hard is None:
        return ""
    whose = SHARED_PREFIXES.get(bound.entry.whom, "").format(bound.entry.subject)
    in_team = f" for team {bound.entry.subject}" if bound.entry.whom is QuotaScope.EACH_OF_TEAM else ""
    used = show_amount(limit, held, kinds)
    if hard is not None and held <= hard:
        used = f"{_plain(limit, held)} of {show_amount(limit, hard, kinds)}"
    words = [f"{whose}{used} used{in_team}"]
    if hard is not None and held > hard:
        words.append(f"above the limit of {_plain(limit, hard)}")
    if soft is not None and soft != hard:
        words.append(f"share {_plain(limit, soft)}")
    if waiting:
        words.append(f"{_plain(limit, waiting)} waiting")
    return ", ".join(words)


def _plain(limit: Limit, amount: Amount) -> str:
    if limit.what is LimitedResource.MEMORY:
        return show_bytes(float(amount)) if amount else "none"
    return show_cpu(float(amount)) if limit.what is LimitedResource.CPU and amount else format_number(amount)


def _bare(limit: Limit, amount: Amount, kinds: Kinds) -> str:
    return format_number(amount) if limit.what is LimitedResource.GPUS else show_amount(limit, amount, kinds)


def _less(limit: Limit, left: Amount, asked: Amount, count: int, kinds: Kinds) -> str:
    if limit.what is LimitedResource.WORKSPACES:
        return ""
    if limit.what in GPU_RESOURCES:
        left = floor(Fraction(left) * count / asked)  # whole GPUs of the kind that is asked for
        return f"ask for {format_number(left)}" if left >= 1 else ""
    return f"ask for {show_amount(limit, left, kinds)}" if left >= 1 else ""
