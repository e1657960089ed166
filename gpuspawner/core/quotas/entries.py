"""Which entries of ``quotas`` bind a workspace, whose use each counts, and what a grant adds to it.

Quotas and budgets both take them from here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fractions import Fraction

from gpuspawner.core.rules import Account, Quota, QuotaGrant, Used, What, Whom

_OF_USERS = (Whom.USER, Whom.EACH_OF_TEAM, Whom.EACH_USER)
"""The most specific first."""


def entries_in_force(quotas: Iterable[Quota], user: str, team: str) -> tuple[Quota, ...]:
    """Return the entries that bind what a user has charged to a team ("" for none), in the catalog's order.

    Of those for users the most specific kind: for this one, else for each of the team, else for each. And all of the
    team, and all of everybody.
    """
    binding = [one for one in quotas if _binds(one, user, team)]
    of_users = next((whom for whom in _OF_USERS if any(one.whom is whom for one in binding)), None)
    return tuple(one for one in binding if one.whom is of_users or one.whom not in _OF_USERS)


def _binds(entry: Quota, user: str, team: str) -> bool:
    if entry.whom is Whom.USER:
        return entry.subject == user
    return entry.whom in {Whom.EACH_USER, Whom.EVERYBODY} or entry.subject == team


def account_of(entry: Quota, user_created: str, team: str) -> Account:
    """Return whose use an entry counts, for one whom it binds.

    An entry for each user of a team counts what they have charged to that team; others for users count all of theirs
    that no other entry binds (:func:`bound_elsewhere`).
    """
    if entry.whom is Whom.EVERYBODY:
        return Account()
    if entry.whom is Whom.TEAM:
        return Account(team=team)
    return Account(team if entry.whom is Whom.EACH_OF_TEAM else "", user_created)


def bound_elsewhere(quotas: Iterable[Quota], entry: Quota, user_created: str) -> tuple[Account, ...]:
    """Return whose use the account of an entry holds, and the entry does not count: another is in force for it.

    What somebody charges to a team that has an entry for each of its users does not count in that for each user.
    """
    if entry.whom is not Whom.EACH_USER:
        return ()
    teams = {one.subject for one in quotas if one.whom is Whom.EACH_OF_TEAM}
    return tuple(Account(team, user_created) for team in sorted(teams))


def accounts_of(user_created: str, team: str) -> tuple[Account, ...]:
    """Return every account that a user's use counts in, once each."""
    return tuple({Account(which, who): None for which in (team, "") for who in (user_created, "")})


def granted(grants: Sequence[QuotaGrant], account: Account, what: What | Used, at: float, kind: str = "") -> Fraction:
    """Return how much grants add, at a time, to the limits or budgets of an account.

    A grant to a user raises the entries for users that bind them, whichever team they charge; one to a user in a team
    those alone that count what is charged to that team; one to a team those of the team.
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
