"""The pages of quotas: the reader's own, and for administrators all of them, with their lists and forms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from gpuspawner.catalog import teams_of, visible
from gpuspawner.core.errors import Conflict, RequestRefused
from gpuspawner.core.quotas.ledger import show_grant
from gpuspawner.core.quotas.limits import entries_in_force
from gpuspawner.core.rules import LimitedResource, Quota
from gpuspawner.core.units import GIBIBYTE
from gpuspawner.service.administration.people import person_page
from gpuspawner.service.preemption.claims import give_up, present_claim
from gpuspawner.service.quotas.api import correct_usage, grant_quota, take_grant_back
from gpuspawner.service.quotas.models import AnyBound
from gpuspawner.service.quotas.presenter import (
    grantee,
    present_grant,
    present_quota,
    present_standing,
    present_usage_this_month,
)
from gpuspawner.service.quotas.rules_page import entry_words, rules_view
from gpuspawner.service.quotas.snapshot import QuotaSnapshot, names_of
from gpuspawner.service.quotas.standing import FULL, NEAR, OVER, Standing, part_of, percent_of, rule_id, state_of
from gpuspawner.service.web.actor import Actor
from gpuspawner.service.web.admin_page import FORMS, NAVIGATION, ListPage
from gpuspawner.service.web.base import PageHandler
from gpuspawner.service.web.endpoint import Endpoint
from gpuspawner.service.web.lists import Column, Filter, Row, Table
from gpuspawner.service.web.permissions import Permission

PAST_SHOWN, CLAIMS_SHOWN, USERS_SHOWN = 50, 20, 20
UNITS = (
    ("GPUs", "GPUs at once"),
    ("workspaces", "workspaces at once"),
    ("CPU", "CPU cores at once"),
    ("GiB", "GiB of memory at once"),
)
BUDGETS = (("GPU h", "GPU hours"), ("cost", "cost"))
FIELDS = {"for whom": "user", "what": "amount"}
"""The form field that shows the error of an API field, where the names differ."""
SWITCH = (("quotas", "Entries and rules"), ("console/limits", "All limits"), ("console/grants", "All grants"))


class QuotaPage(PageHandler):
    """GET: the reader's limits and budgets, what is left of them, and the rules in sentences."""

    async def get(self) -> None:
        """Answer the page."""
        state, person = self.parts, self.viewer()
        groups, rules = await self.groups_shown(), state.catalog.rules
        use = await present_usage_this_month(state, "kind", person.owner)
        # From here on nothing is awaited: the page shows one moment.
        teams = teams_of(rules, groups)
        quota = present_quota(state, person.name, person.owner, teams)
        binding = [entry for team in teams or ("",) for entry in entries_in_force(rules.quotas, person.name, team)]
        order = {entry.name: number for number, entry in enumerate(rules.quotas)}
        self.render_page(
            "quota.html",
            rows=sorted([*quota.limits, *quota.budgets], key=lambda one: order[one.entry]),
            grants=quota.grants,
            contact=rules.contact,
            timezone=rules.timezone,
            rules=rules_view(
                visible(state.catalog, groups), tuple(one for one in rules.quotas if one in binding), quota.now
            ),
            use=use,
            currency=rules.currency,
        )


class EntryRows(NamedTuple):
    """An entry of ``quotas`` with its sentence and the rows of its users or teams. ``more`` users are not shown."""

    name: str
    id: str
    words: str
    rows: list[AnyBound]
    more: int


def _entry_rows(snapshot: QuotaSnapshot, entry: Quota) -> EntryRows:
    found = [snapshot.standings(entry, asker, whose) for asker, whose in snapshot.counted(entry)]
    found.sort(key=lambda rows: -max((part_of(row) or 0.0 for row in rows), default=0.0))
    state, now = snapshot.state, snapshot.balances.now
    rows = [present_standing(state, row, now) for rows in found[:USERS_SHOWN] for row in rows]
    words, more = entry_words(entry, state.catalog), max(0, len(found) - USERS_SHOWN)
    return EntryRows(entry.name, rule_id(entry.name), words, rows, more)


class QuotasPage(PageHandler):
    """GET: every entry of the catalog, the grants, and claims, for administrators. POST: one of the page's forms."""

    async def get(self, *_address: str) -> None:
        """Answer the page. An address that a form was sent to only shows it."""
        if self.request.path.rstrip("/") != f"{self.parts.prefix.rstrip('/')}/quotas":
            self.redirect(f"{self.parts.prefix.rstrip('/')}/quotas")
            return
        await self.show()

    async def post(self, *path: str) -> None:
        """Do what the form is for, as the API does; where it can't be done, say why and keep what was typed."""
        *target, name = path
        section, endpoint = _FORMS[name]
        sent = "-".join((section, *target))
        try:
            await endpoint.act(self.actor(), *target, values=_values_of(endpoint, self.typed()))
        except RequestRefused as error:
            told = f"{error.remedy} Allowed: {error.limit}."
            await self.show(error.status, told, sent, {FIELDS.get(error.field, error.field): told})
        except Conflict as error:
            await self.show(409, str(error), sent)
        else:
            self.redirect(f"{self.parts.prefix.rstrip('/')}/quotas#{section}", status=303)

    def actor(self) -> Actor:
        """Return the reader as an actor."""
        return Actor(self.parts, self.viewer(), "the console")

    def typed(self) -> dict[str, str]:
        """Return the values of the form."""
        return {name: self.get_body_argument(name, "") for name in self.request.body_arguments if name != "_xsrf"}

    async def show(
        self, status: int = 200, problem: str = "", form: str = "", errors: Mapping[str, str] | None = None
    ) -> None:
        """Answer the page. ``form`` names the form that was sent. Its values are kept, with what is wrong in it."""
        state, catalog = self.parts, self.parts.catalog
        self.actor().require(Permission.SEE_ALL_QUOTAS)
        claims = await state.preemptions.last(CLAIMS_SHOWN)
        names = await names_of(state)
        use = [await present_usage_this_month(state, by, None, names) for by in ("team", "user")]
        snapshot = await QuotaSnapshot.take(state)
        # From here on nothing is awaited: the page shows one moment.
        now = state.clock.now()
        grants = list(reversed(state.accounting.all_grants()))
        teams = teams_of(catalog.rules, None)
        self.render_page(
            "quotas.html",
            status,
            tabs=NAVIGATION,
            tab="quotas",
            switch=SWITCH,
            entries=[_entry_rows(snapshot, entry) for entry in catalog.rules.quotas],
            teams=[(team, catalog.rules.teams[team].title if team in catalog.rules.teams else "") for team in teams],
            grants=[present_grant(state, one) for one in grants if one.is_live(now)],
            past=[present_grant(state, one) for one in grants if not one.is_live(now)][:PAST_SHOWN],
            claims=[present_claim(state, one) for one in claims if one.over_at is None],
            claims_over=[present_claim(state, one) for one in claims if one.over_at is not None],
            units=[*UNITS, *((name, f"{kind.title} at once") for name, kind in catalog.gpus.items()), *BUDGETS],
            budget_units=BUDGETS,
            use=use,
            currency=catalog.rules.currency,
            timezone=catalog.rules.timezone,
            rules=rules_view(catalog, (), now),
            problem=problem,
            form=form,
            typed=self.typed(),
            errors=errors or {},
        )


def _values_of(endpoint: Endpoint, typed: Mapping[str, str]) -> dict[str, Any]:
    """Return the values of a form as the API takes them. Empty fields are left out."""
    number, unit = typed.get("number", ""), typed.get("unit", "")
    amount = f"{number}GiB" if unit == "GiB" else f"{number} {unit}"
    values: dict[str, Any] = {**typed, "what": amount, "amount": amount, "everybody": bool(typed.get("everybody"))}
    return {name: values[name] for name in endpoint.body.model_fields if values.get(name)}


_FORMS: Mapping[str, tuple[str, Endpoint]] = {
    "grants": ("grants", grant_quota),
    "take-back": ("grants", take_grant_back),
    "corrections": ("correct", correct_usage),
    "give-up": ("claims", give_up),
}
"""The section of each form of the page, and its endpoint, by the last part of the form's address."""


# Lists of the console


LIMITS = Table(
    "limits",
    (
        Column("who", "Whose", "link"),
        Column("entry", "Entry"),
        Column("what", "Of what"),
        Column("used", "Used", "amount", absent="none"),
        Column("set_aside", "Set aside", "amount", absent="none"),
        Column("waiting", "Waited for", "amount", absent="none"),
        Column("share", "Share", "amount", absent="none"),
        Column("most", "At most", "amount", absent="none"),
        Column("left", "Left", "amount", absent="none"),
        Column("percent", "Taken", "percent", absent="no end"),
        Column("state", "State"),
        Column("lasts_until", "Lasts until", "time", absent="it is not used up before it renews"),
        Column("renews_at", "Renews", "time", absent="never"),
    ),
    (
        Filter("find", "Whose, entry", within=("who", "entry")),
        Filter("what", "Of what", within=("what",)),
        Filter("state", "State", tuple((state, state) for state in (FULL, OVER, NEAR))),
    ),
    sort="-percent",
)
GRANTS = Table(
    "grants",
    (
        Column("what", "What is added"),
        Column("whom", "For whom"),
        Column("state", "State"),
        Column("since", "From", "time"),
        Column("until", "Until", "time"),
        Column("by", "By"),
        Column("made_at", "Made", "time"),
        Column("taken_back_by", "Taken back by"),
        Column("why", "Why", "words"),
        Column("taken_back_why", "Why it was taken back", "words"),
    ),
    (
        Filter("find", "For whom, by whom", within=("whom", "by")),
        Filter("state", "State", tuple((x, x) for x in ("in force", "to come", "over", "taken back"))),
    ),
    sort="-made_at",
)


class LimitsPage(ListPage):
    """GET: every limit and budget of each user and team, how full it is, and until when it lasts."""

    here, table, title, switch = "quotas", LIMITS, "What is taken of each quota", SWITCH
    empty = "The catalog has no quotas, or nobody uses anything of them."

    async def rows(self) -> Sequence[Row]:
        """Return them. With thousands of rows they are some seconds old."""
        return await self.parts.queue.seldom_beside("limits", self._rows)

    async def _rows(self) -> list[Row]:
        snapshot = await QuotaSnapshot.take(self.parts)
        return [self._row(one) for one in await snapshot.all_standings()]

    def _row(self, one: Standing) -> Row:
        is_memory = one.limit == LimitedResource.MEMORY.value
        numbers = {"used": one.used, "waiting": one.waiting, "share": one.soft, "most": one.hard, "left": one.left}
        return {
            **{name: x / GIBIBYTE if is_memory and x is not None else x for name, x in numbers.items()},
            "id": f"{one.entry} {one.whose} {one.what}",
            "who": one.whose,
            "page": person_page(self.parts, one.user) if one.user else "",
            "entry": one.entry,
            "what": f"GiB {one.what}" if is_memory else one.what,
            "set_aside": one.set_aside,
            "percent": percent_of(one),
            "state": state_of(one),
            "lasts_until": one.lasts_until,
            "renews_at": one.renews_at,
        }


class GrantsPage(ListPage):
    """GET: every grant, the newest first."""

    here, table, title, switch = "quotas", GRANTS, "Grants", SWITCH
    empty = "Nothing was granted yet. Quotas and grants has the form for it."

    async def rows(self) -> Sequence[Row]:
        """Return them."""
        now = self.parts.clock.now()
        return [
            {**vars(one), "page": "", "what": show_grant(one), "whom": grantee(one), "state": one.state(now)}
            for one in reversed(self.parts.accounting.all_grants())
        ]


ROUTES: list[Any] = [
    (r"/quota/?", QuotaPage),
    (r"/quotas/?", QuotasPage),
    (r"/quotas/(grants|corrections)", QuotasPage),
    (r"/quotas/(?:grants|claims)/([^/]+)/(take-back|give-up)", QuotasPage),
    (rf"/console/limits{FORMS}", LimitsPage),
    (rf"/console/grants{FORMS}", GrantsPage),
]
