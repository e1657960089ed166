"""The pages of quotas: one's own, and for administrators all, with what they grant, correct and take back."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from tornado.web import HTTPError

from gpuspawner.catalog import teams_of, visible
from gpuspawner.core.administering import acts
from gpuspawner.core.errors import Conflict, RequestRefused
from gpuspawner.core.quotas.entries import entries_in_force
from gpuspawner.service.administering.asking import Act
from gpuspawner.service.api.granting import CorrectionBody, GrantBody, Granting
from gpuspawner.service.api.preemptions import claim_line
from gpuspawner.service.rules.preemptions import whom_of
from gpuspawner.service.tell.rules.claim_views import claim_view
from gpuspawner.service.tell.rules.quota_view import grant_view, quota_view
from gpuspawner.service.tell.rules.rule_words import rules_view
from gpuspawner.service.web.base import PageHandler
from gpuspawner.service.web.console.base import NAVIGATION
from gpuspawner.service.web.console.ruled import SWITCH
from gpuspawner.service.web.home import used_this_month
from gpuspawner.service.web.quota_rows import entries_shown, rows_of

PAST_SHOWN = 50
CLAIMS_SHOWN = 20
UNITS = (
    ("GPUs", "GPUs at once"),
    ("workspaces", "workspaces at once"),
    ("CPU", "CPU cores at once"),
    ("GiB", "GiB of memory at once"),
)
BUDGETS = (("GPU h", "GPU hours"), ("cost", "cost"))
FIELDS = {"for whom": "user", "what": "amount"}
"""Fields of the API, and beside which field of a form their errors stand where that is another."""


class OwnQuota(PageHandler):
    """GET: what bounds who looks, what is left of it, and the rules in sentences."""

    async def get(self) -> None:
        """Answer the page."""
        parts, person = self.parts, self.viewer()
        groups = await self.groups_shown()
        rules = parts.catalog.rules
        teams = teams_of(rules, groups)
        view = quota_view(parts, person.name, person.owner, teams)
        binding = [entry for team in teams or ("",) for entry in entries_in_force(rules.quotas, person.name, team)]
        entries = tuple(entry for entry in rules.quotas if entry in binding)
        self.render_page(
            "quota.html",
            rows=rows_of(parts, view),
            grants=view["grants"],
            contact=rules.contact,
            timezone=rules.timezone,
            rules=rules_view(visible(parts.catalog, groups), entries, view["now"]),
            use=await used_this_month(parts, "kind", person.owner),
            currency=parts.catalog.rules.currency,
        )


class Quotas(PageHandler):
    """GET: every entry of the catalog, the grants, and stronger claims, for administrators."""

    async def get(self, *_address: str) -> None:
        """Answer the page. An address that a form was sent to only shows it."""
        if self.request.path.rstrip("/") != f"{self.parts.prefix.rstrip('/')}/quotas":
            self.redirect(f"{self.parts.prefix.rstrip('/')}/quotas")
            return
        await self.show()

    async def show(
        self, status: int = 200, problem: str = "", form: str = "", errors: dict[str, str] | None = None
    ) -> None:
        """Answer the page; ``form`` names the one that was sent, whose values are kept, and what is wrong with it."""
        parts = self.parts
        if not self.viewer().admin:
            raise HTTPError(403, reason="Only administrators (scope custom:gpu:admin) see everybody's quotas.")
        rows = [grant_view(parts, row) for row in reversed(parts.allocator.accounting.rows())]
        live = [row for row in rows if row["state"] in {"in force", "to come"}]
        found = await parts.preemptions.last(CLAIMS_SHOWN)
        claims = [{**claim_view(parts, one), "whom": whom_of(one)} for one in found]
        typed = {name: self.get_body_argument(name, "") for name in self.request.body_arguments if name != "_xsrf"}
        catalog = parts.catalog
        self.render_page(
            "quotas.html",
            status,
            tabs=NAVIGATION,
            tab="quotas",
            switch=SWITCH,
            entries=await entries_shown(parts),
            teams=[(team, catalog.rules.teams[team].title if team in catalog.rules.teams else "") for team in
                   teams_of(catalog.rules, None)],
            grants=live,
            past=[row for row in rows if row not in live][:PAST_SHOWN],
            claims=[one for one in claims if one["over_at"] is None],
            claims_over=[one for one in claims if one["over_at"] is not None],
            units=[*UNITS, *((name, f"{kind.title} at once") for name, kind in catalog.gpus.items()), *BUDGETS],
            budget_units=BUDGETS,
            use=[await used_this_month(parts, by, None) for by in ("team", "user")],
            currency=parts.catalog.rules.currency,
            timezone=catalog.rules.timezone,
            rules=rules_view(catalog, (), parts.clock.now()),
            problem=problem,
            form=form,
            typed=typed,
            errors=errors or {},
        )  # fmt: skip


class Posted(Quotas, ABC):
    """What a form of the page does, as the API does; where it can't be done, the page says why and keeps the form."""

    form = ""

    async def post(self, *address: str) -> None:
        """Do it and return to the page."""
        try:
            await self.carry_out(*address)
        except RequestRefused as error:
            name = FIELDS.get(error.field, error.field)
            told = f"{error.remedy} Allowed: {error.limit}."
            await self.show(error.status, told, self.sent(*address), {name: told})
        except Conflict as error:
            await self.show(409, str(error), self.sent(*address))
        else:
            self.redirect(f"{self.parts.prefix.rstrip('/')}/quotas#{self.form}", status=303)

    @abstractmethod
    async def carry_out(self, *address: str) -> None:
        """Do what the form is for."""

    def sent(self, *address: str) -> str:
        """Return which form of the page was sent: of those for one thing each, the one for this."""
        return "-".join((self.form, *address))

    def granting(self) -> Granting:
        """Return what an administrator does. Raises 403 where who looks is none."""
        return Granting(self.parts, self.viewer(), "the console")

    def fields(self, *known: str) -> dict[str, Any]:
        """Return what the form holds of what the API knows; what was left empty is left out."""
        found: dict[str, Any] = {name: self.get_body_argument(name, "") for name in known}
        found["everybody"] = bool(found.get("everybody"))
        number, unit = self.get_body_argument("number", ""), self.get_body_argument("unit", "")
        for name in {"what", "amount"} & set(known):
            found[name] = f"{number}GiB" if unit == "GiB" else f"{number} {unit}"
        return {name: value for name, value in found.items() if value}


class GrantHere(Posted):
    """POST: grant more."""

    form = "grants"

    async def carry_out(self, *_address: str) -> None:
        """Grant it."""
        await self.granting().grant(self.fields(*GrantBody.model_fields))


class TakeBackHere(Posted):
    """POST: take a grant back."""

    form = "grants"

    async def carry_out(self, *address: str) -> None:
        """Take it back."""
        granting = self.granting()
        row = next((one for one in self.parts.allocator.accounting.rows() if one.id == address[0]), None)
        if row is None:
            raise HTTPError(404, reason="There is no such grant.")
        await granting.take_back(row, self.fields("why"))


class CorrectHere(Posted):
    """POST: correct what somebody is charged."""

    form = "correct"

    async def carry_out(self, *_address: str) -> None:
        """Correct it."""
        await self.granting().correct(self.fields(*CorrectionBody.model_fields))


class GiveUpHere(Posted):
    """POST: give a stronger claim up."""

    form = "claims"

    async def carry_out(self, *address: str) -> None:
        """Give it up."""
        act = Act(self.parts, self.viewer(), "the console")
        act.must_be_administrator()
        claim = await self.parts.preemptions.get(address[0])
        if claim is None:
            raise HTTPError(404, reason="There is no such claim.")
        await self.parts.preemptions.give_up(claim, [claim_line(act, claim, acts.ClaimGivenUp)])


ROUTES: list[Any] = [
    (r"/quota/?", OwnQuota),
    (r"/quotas/?", Quotas),
    (r"/quotas/grants", GrantHere),
    (r"/quotas/grants/([^/]+)/take-back", TakeBackHere),
    (r"/quotas/corrections", CorrectHere),
    (r"/quotas/claims/([^/]+)/give-up", GiveUpHere),
]
