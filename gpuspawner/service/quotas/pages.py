"""The pages of quotas: the reader's own, and for administrators all of them and the extra quota."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from types import SimpleNamespace
from typing import Any, NamedTuple

from gpuspawner.core.errors import Conflict
from gpuspawner.core.quotas.ledger import show_grant
from gpuspawner.core.rules import LimitedResource, QuotaGrant
from gpuspawner.core.units import GIBIBYTE
from gpuspawner.service.parts import Parts
from gpuspawner.service.preemption.claims import give_up, present_claim
from gpuspawner.service.quotas.models import Grant
from gpuspawner.service.quotas.own_usage import UsagePage
from gpuspawner.service.quotas.presenter import grantee, present_grant
from gpuspawner.service.quotas.rules_page import entry_words, rules_of
from gpuspawner.service.quotas.snapshot import standings_of_all
from gpuspawner.service.quotas.standing import (
    FULL,
    NEAR,
    OVER,
    Standing,
    rule_id,
)
from gpuspawner.service.web.admin_page import FORMS, AdminPage, ListPage
from gpuspawner.service.web.lists import Column, Filter, Row, Table, list_part, parse_list_state, select_rows
from gpuspawner.service.web.permissions import Permission

CLAIMS_SHOWN, GRANTS_SHOWN = 20, 20


# The admin page of all quotas

QUOTAS = Table(
    "quotas",
    (
        Column("whose", "Team or user", "person"),
        Column("entry", "Rule", exported_only=True),
        Column("what", "Quota"),
        Column("used", "Used", "amount", absent="none"),
        Column("reserved", "Reserved", "amount", absent="none"),
        Column("waiting", "Waiting", "amount", absent="none"),
        Column("share", "Share", "amount", absent="none"),
        Column("limit", "Limit", "amount", absent="none"),
        Column("left", "Left", "amount", absent="no limit"),
        Column("percent", "Used of quota", "bar", absent="no limit"),
        Column("state", "State", "state"),
        Column("lasts_until", "Lasts until", "time", absent="until it resets"),
        Column("resets_at", "Resets", "time", absent="never"),
    ),
    (
        Filter("find", "Team, user or rule", within=("whose", "entry")),
        Filter("what", "Quota", within=("what",)),
        Filter("of", "Teams and people", (("teams", "Teams"), ("people", "People"))),
        Filter("state", "Any state", ((FULL, "Used up"), (OVER, "Above the share"), (NEAR, "Over 80 %"))),
    ),
    sort="-percent",
)
EXTRA_QUOTA = Table(
    "extra-quota",
    (
        Column("whom", "For"),
        Column("what", "Extra quota"),
        Column("state", "State", "state"),
        Column("since", "From", "time"),
        Column("until", "Until", "time"),
        Column("why", "Reason", "words"),
        Column("by", "By"),
        Column("made_at", "Given", "time"),
        Column("taken_back_by", "Taken back by"),
        Column("taken_back_why", "Reason for taking it back", "words"),
    ),
    (
        Filter("find", "User, team or administrator", within=("whom", "by")),
        Filter("state", "Any state", tuple((x, x.capitalize()) for x in ("in force", "to come", "over", "taken back"))),
    ),
    sort="-made_at",
)
VIEWS = (("console/quotas", "Quotas"), ("console/extra-quota", "Extra quota"))


def present_quota_row(one: Standing) -> Row:
    """Return the row of a limit or budget. Memory is in GiB."""
    is_memory = one.limit == LimitedResource.MEMORY.value

    def amount(number: float | None) -> float | None:
        return number / GIBIBYTE if is_memory and number is not None else number

    return SimpleNamespace(
        id=f"{one.entry} {one.whose} {one.what}",
        of="teams" if one.is_shared else "people",
        whose=one.whose,
        user=one.user,
        entry=one.entry,
        what=f"GiB {one.what}" if is_memory else one.what,
        used=amount(one.used) or 0.0,
        reserved=amount(one.set_aside),
        waiting=amount(one.waiting),
        share=amount(one.soft),
        limit=amount(one.hard),
        left=amount(one.left),
        percent=one.percent,
        state=one.state,
        lasts_until=one.lasts_until,
        resets_at=one.renews_at,
        bar=tuple(one.bar_parts),
        share_percent=one.share_percent,
    )


class EntryRule(NamedTuple):
    """An entry of ``quotas`` in a sentence. ``users`` is how many limits and budgets it has now."""

    id: str
    name: str
    words: str
    users: int


class ExtraQuota(NamedTuple):
    """Extra quota that is in force or to come."""

    grant: Grant
    whom: str
    amount: str


class QuotasPage(ListPage):
    """GET: the limits and budgets of everybody, the extra quota, and the rules."""

    tab, table, title, template = "quotas", QUOTAS, "Quotas", "admin_quotas.html"
    empty = "The catalog has no quotas, or no usage of them yet."

    async def rows(self) -> Sequence[Row]:
        """Return the rows of the table. With thousands of rows they are some seconds old."""
        return [present_quota_row(one) for one in await self._standings()]

    async def _standings(self) -> list[Standing]:
        whose, found = self.whose(), await standings_of_all(self.parts)
        return [one for one in found if not isinstance(whose, frozenset) or one.team in whose]

    async def get(self, form: str) -> None:
        """Answer in the wanted form."""
        state, wanted = self.parts, parse_list_state(self.table, self.arguments_of_address())
        rows = await self.rows()
        if form:
            self.export(form, wanted, select_rows(rows, wanted), len(rows))
            return
        claims = await state.preemptions.last(CLAIMS_SHOWN) if self.viewer().reach(Permission.SEE_CLAIMS) else []
        # From here on nothing is awaited, so the page shows one moment.
        now, whose = state.clock.now(), self.whose()
        seen = (one for one in reversed(state.accounting.all_grants()) if whose is None or one.account.team in whose)
        grants = [one for one in seen if one.is_live(now)]
        self.show_list(
            list_part(rows, wanted),
            numbers={of: len({row.whose for row in rows if row.of == of}) for of in ("teams", "people")},
            grants=[_extra_quota(state, one) for one in grants[:GRANTS_SHOWN]],
            more_grants=max(0, len(grants) - GRANTS_SHOWN),
            claims=[present_claim(state, one) for one in claims if one.over_at is None],
            claims_over=[present_claim(state, one) for one in claims if one.over_at is not None],
            entries=_entry_rules(state, rows),
            rules=list(rules_of(state.catalog, (), now)),
            currency=state.catalog.rules.currency,
        )


def _entry_rules(state: Parts, rows: Sequence[Row]) -> list[EntryRule]:
    counted: dict[str, set[str]] = {}
    for row in rows:
        counted.setdefault(row.entry, set()).add(row.whose)
    return [
        EntryRule(rule_id(one.name), one.name, entry_words(one, state.catalog), len(counted.get(one.name, ())))
        for one in state.catalog.rules.quotas
    ]


def _extra_quota(state: Parts, grant: QuotaGrant) -> ExtraQuota:
    return ExtraQuota(present_grant(state, grant), grantee(grant), show_grant(grant))


class GiveUpPage(AdminPage):
    """POST: give a claim on GPUs up."""

    tab = "quotas"

    async def get(self, _claim: str) -> None:
        """Go to the page. A form was sent to this address."""
        self.redirect(f"{self.parts.prefix.rstrip('/')}/console/quotas")

    async def post(self, claim: str) -> None:
        """Do it and go back. A claim that is over already stays as it is."""
        with suppress(Conflict):
            await give_up.act(self.actor("the console"), claim)
        self.redirect(f"{self.parts.prefix.rstrip('/')}/console/quotas#claims", status=303)


# Extra quota


class ExtraQuotaPage(ListPage):
    """GET: all extra quota that was ever given, the newest first."""

    tab, table, title, views = "quotas", EXTRA_QUOTA, "Extra quota", VIEWS
    empty = "Nobody has got extra quota yet. Quotas has the button for it."

    async def rows(self) -> Sequence[Row]:
        """Return it."""
        now, whose = self.parts.clock.now(), self.whose()
        return [
            SimpleNamespace(**{**vars(one), "whom": grantee(one), "what": show_grant(one), "state": one.state(now)})
            for one in reversed(self.parts.accounting.all_grants())
            if whose is None or one.account.team in whose
        ]


ROUTES: list[Any] = [
    (r"/quota/?", UsagePage),
    (rf"/console/quotas{FORMS}", QuotasPage),
    (r"/console/claims/([^/]+)/give-up", GiveUpPage),
    (rf"/console/extra-quota{FORMS}", ExtraQuotaPage),
]
