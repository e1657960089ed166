"""What people read about a quota: both quantities and the next step."""

from __future__ import annotations

from fractions import Fraction
from math import floor, inf
from typing import NamedTuple

from gpuspawner.core.errors import RequestRefused
from gpuspawner.core.gpus.fleet import Kinds
from gpuspawner.core.quotas.limits import Amount, Bound
from gpuspawner.core.rules import Limit, What, Whom
from gpuspawner.core.units import ordinal, show_bytes, show_cpu, show_time

OF_GPUS = frozenset({What.GPUS, What.KIND})
WHOSE = {
    Whom.EACH_USER: "per user",
    Whom.EACH_OF_TEAM: "for each user of team {}",
    Whom.USER: "for {}",
    Whom.TEAM: "for team {}",
    Whom.EVERYBODY: "for everybody together",
}
HOLDERS = {Whom.TEAM: "team {} has", Whom.EVERYBODY: "all workspaces together have"}

LINES = {Whom.TEAM: "team {}: ", Whom.EVERYBODY: "all together: "}


class Use(NamedTuple):
    """How a limit is used at an instant.

    ``own`` is what the asker has of it, ``others`` what others hold, ``next_end`` when the first of these ends.
    """

    asked: Amount
    own: Amount = 0
    others: Amount = 0
    next_end: float = inf
    now: float = 0.0


def number(amount: Amount) -> str:
    """Return ``4`` or ``0.5``."""
    return f"{float(amount):.4g}" if amount.denominator > 1 else str(amount.numerator)


def shown(limit: Limit, amount: Amount, kinds: Kinds) -> str:
    """Return ``4 GPUs``, ``2 A100 80 GB``, ``1 workspace``, ``8 CPU`` or ``64 GiB memory``."""
    if limit.what is What.CPU:
        return f"{_plain(limit, amount)} CPU"
    if limit.what is What.MEMORY:
        return f"{_plain(limit, amount)} memory"
    if limit.what is What.KIND:
        return f"{number(amount)} {kinds[limit.kind].title_anywhere if limit.kind in kinds else limit.kind}"
    unit = "workspace" if limit.what is What.WORKSPACES else "GPU"
    return f"{number(amount)} {unit}{'' if amount == 1 else 's'}"


def refusal(bound: Bound, use: Use, count: int, kinds: Kinds, contact: str) -> RequestRefused:
    """Return the refusal of what is beyond a hard limit; ``count`` GPUs were asked for, which count ``use.asked``."""
    limit, hard = bound.limit, bound.hard or 0
    whose, has = WHOSE[bound.entry.whom].format(bound.entry.subject), use.own + use.others
    if bound.entry.whom in HOLDERS:
        of_which = f"of which {_plain(limit, has)} {'is' if has == 1 else 'are'} in use"
    else:
        of_which = f"of which you use or wait for {_plain(limit, has)}"
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
    field = "count" if limit.what in OF_GPUS else limit.what.value
    allowed = f"{_bare(limit, hard, kinds)} {whose}, {of_which}"
    remedy = f"{told[:1].upper()}{told[1:]}.{raising}"
    return RequestRefused(field, _bare(limit, use.asked, kinds), allowed, remedy, status=403)


def held_back_words(bound: Bound, use: Use, count: int, kinds: Kinds, contact: str) -> str:
    """Return the sentence of a request that others of a limit, or its user's own workspaces, leave no room for."""
    limit, hard, held = bound.limit, bound.hard or 0, use.own + use.others
    holder = HOLDERS.get(bound.entry.whom, "you have").format(bound.entry.subject)
    less = _less(limit, max(0, hard - held), use.asked, count, kinds)
    other = "a colleague" if bound.entry.whom in HOLDERS else "another of your workspaces"
    until = "" if use.next_end == inf else f" (next end {show_time(use.next_end, use.now)})"
    step = f"wait until {other} stops{until}"
    step = f"{less}, or {step}" if less else step
    raising = f" Raising it: {contact}." if contact else ""
    asked = f"{shown(limit, use.asked, kinds)} asked; {holder} {_plain(limit, held)} of {_plain(limit, hard)} in use."
    return f"{asked} {step[:1].upper()}{step[1:]}.{raising}"


def behind_words(rule: str) -> str:
    """Return the sentence of a request that lets another of the same rule go first."""
    return f"Another request, which goes first, waits for what the {rule} leaves."


def share_words(bound: Bound, use: Use, kinds: Kinds) -> str:
    """Return the sentence of what goes beyond a soft limit: ``This is your 3rd GPU; your share is 2.``."""
    limit, soft, held = bound.limit, bound.soft or 0, use.own + use.others
    if bound.entry.whom in HOLDERS:
        holder = f"team {bound.entry.subject}" if bound.entry.whom is Whom.TEAM else "all together"
        return f"With this {holder} would have {shown(limit, held + use.asked, kinds)}; the share is {number(soft)}."
    if limit.what is What.GPUS and use.asked == 1 and held.denominator == 1:
        return f"This is your {ordinal(int(held) + 1)} GPU; your share is {number(soft)}."
    return f"With this you would have {shown(limit, held + use.asked, kinds)}; your share is {_plain(limit, soft)}."


def line_words(bound: Bound, held: Amount, waiting: Amount, kinds: Kinds) -> str:
    """Return what is held of a limit, as a form shows it: ``1 of 2 GPUs (up to 4 while free), 3 waited for``.

    A limit for users is told to its user, who knows whose it is.
    """
    limit, soft, hard = bound.limit, bound.soft, bound.hard
    most = hard if soft is None else soft
    if most is None:
        return ""
    more = " (more while free)" if hard is None else ""
    if soft is not None and hard is not None and hard > soft:
        more = f" (up to {_plain(limit, hard)} while free)"
    whose = LINES.get(bound.entry.whom, "").format(bound.entry.subject)
    in_team = f" for team {bound.entry.subject}" if bound.entry.whom is Whom.EACH_OF_TEAM else ""
    line = f"{whose}{_plain(limit, held)} of {shown(limit, most, kinds)}{in_team}{more}"
    return f"{line}, {_plain(limit, waiting)} waited for" if waiting else line


def _plain(limit: Limit, amount: Amount) -> str:
    """Return an amount without its unit, memory with it."""
    if limit.what is What.MEMORY:
        return show_bytes(float(amount)) if amount else "none"
    return show_cpu(float(amount)) if limit.what is What.CPU and amount else number(amount)


def _bare(limit: Limit, amount: Amount, kinds: Kinds) -> str:
    """Return an amount in a refusal, which begins with ``GPUs:`` where they are counted."""
    return number(amount) if limit.what is What.GPUS else shown(limit, amount, kinds)


def _less(limit: Limit, left: Amount, asked: Amount, count: int, kinds: Kinds) -> str:
    """Return what could be asked for instead, "" where nothing could."""
    if limit.what is What.WORKSPACES:
        return ""
    if limit.what in OF_GPUS:
        left = floor(Fraction(left) * count / asked)  # whole GPUs of the kind that is asked for
        return f"ask for {number(left)}" if left >= 1 else ""
    return f"ask for {shown(limit, left, kinds)}" if left >= 1 else ""
