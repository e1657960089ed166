"""The pages of requests for extra quota: the form for users, and the list for the people who answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from types import SimpleNamespace
from typing import Any, NamedTuple

from gpuspawner.catalog import teams_of
from gpuspawner.core.errors import Conflict, RequestRefused
from gpuspawner.core.quotas.quota_requests import LONGEST_SECONDS, QuotaRequest
from gpuspawner.core.rules import LimitedResource
from gpuspawner.core.units import GIBIBYTE
from gpuspawner.service.parts import Parts
from gpuspawner.service.quota_requests import models
from gpuspawner.service.quota_requests.api import send_request, withdraw_request
from gpuspawner.service.quota_requests.presenter import (
    UNITS,
    bounds_of,
    choices_of,
    cost_words,
    is_own,
    present_request,
    rule_words,
    rules_of_requests,
    sees,
    why_not_answer,
)
from gpuspawner.service.quotas.models import AnyBound
from gpuspawner.service.web.admin_page import FORMS, ListPage
from gpuspawner.service.web.base import PageHandler
from gpuspawner.service.web.inputs import MAX_REASON_LETTERS
from gpuspawner.service.web.lists import Column, Filter, ListPart, Row, Table, parse_list_state
from gpuspawner.service.web.permissions import Person

ORIGIN = "the page Request more"
EARLIER_SHOWN, ANSWERED_SHOWN = 20, 10
CONFLICT = 409
FIELDS = ("choice", "number", "since", "until", "why")


class RequestMorePage(PageHandler):
    """GET: the form, the reader's open requests and the answers to earlier ones. POST: send a request."""

    async def get(self) -> None:
        """Answer the page."""
        await self._show({name: self.get_query_argument(name, "") for name in FIELDS})

    async def post(self) -> None:
        """Send a request. If it is refused, the form says why and keeps its values."""
        typed = {name: " ".join(self.get_body_argument(name, "").split()) for name in FIELDS}
        try:
            await send_request.act(self.actor(ORIGIN), values=_values_of(typed))
        except RequestRefused as error:
            field = "number" if error.field == "what" else error.field
            await self._show(typed, error.status, errors={field: f"{error.remedy} Allowed: {error.limit}."})
        except Conflict as error:
            await self._show(typed, CONFLICT, problem=str(error))
        else:
            self.redirect(f"{self.parts.prefix.rstrip('/')}/quota/request#open", status=303)

    async def _show(
        self, typed: Mapping[str, str], status: int = 200, *, problem: str = "", errors: Mapping[str, str] | None = None
    ) -> None:
        state, person = self.parts, self.viewer()
        groups = await self.actor(ORIGIN).groups_shown()
        now, rules = state.clock.now(), state.catalog.rules
        own = [one for one in state.quota_requests.all() if is_own(person, one)]
        today = datetime.fromtimestamp(now, state.accounting.zone).date()
        usual = state.quota_requests.usual_answer_seconds()
        self.render_page(
            "request_more.html",
            status,
            choices=choices_of(state, person.name, person.owner.user_created, teams_of(rules, groups)),
            typed=typed,
            problem=problem,
            errors=errors or {},
            today=today.isoformat(),
            last_day=(today + timedelta(seconds=LONGEST_SECONDS)).isoformat(),
            longest=MAX_REASON_LETTERS,
            usual_seconds=usual,
            at_once=rule_words(state),
            open=[present_request(state, one, person) for one in own if one.is_open(now)],
            earlier=[present_request(state, one, person) for one in own if not one.is_open(now)][:EARLIER_SHOWN],
        )


def _values_of(typed: Mapping[str, str]) -> dict[str, Any]:
    """Return the values of the form as the API takes them."""
    unit, _, rest = typed["choice"].partition("/")
    team, _, whole = rest.rpartition("/")
    number = typed["number"]
    values = {"what": f"{number}GiB" if unit == "GiB" else f"{number} {unit}", "team": team, "why": typed["why"]}
    times = {name: typed[name] for name in ("since", "until") if typed[name]}
    return {**values, **times, **({"whole_team": True} if whole else {})}


class WithdrawPage(PageHandler):
    """POST: withdraw a request."""

    async def get(self, _request: str) -> None:
        """Go to the page. A form was sent to this address."""
        self._go()

    async def post(self, request: str) -> None:
        """Do it and go back. A request that is closed already stays as it is."""
        with suppress(Conflict):
            await withdraw_request.act(self.actor(ORIGIN), request)
        self._go()

    def _go(self) -> None:
        self.redirect(f"{self.parts.prefix.rstrip('/')}/quota/request", status=303)


REQUESTS = Table(
    "requests",
    (
        Column("user", "User", "person"),
        Column("team", "Team"),
        Column("what", "Asked for"),
        Column("state", "State", "state"),
        Column("since", "From", "time", absent="from the answer on"),
        Column("until", "Until", "time"),
        Column("why", "Reason", "words"),
        Column("made_at", "Sent", "time"),
        Column("answered_by", "Answered by"),
        Column("answered_at", "Answered", "time", absent="not answered"),
        Column("answer", "Answer", "words"),
    ),
    (Filter("find", "User or team", within=("user", "team")),),
    sort="-made_at",
    choices={"show": ("open", "answered")},
)


def _row_of(one: QuotaRequest, now: float) -> Row:
    shown = {"team": one.account.team, "what": one.words, "state": one.state(now).value, "request": one}
    return SimpleNamespace(**vars(one), **shown)


class RequestsPage(ListPage):
    """GET: the requests that the reader may answer, each with what an answer needs to know."""

    tab, table, title, template = "requests", REQUESTS, "Requests", "admin_requests.html"
    empty = "No request waits for an answer. Users send them from Usage, or by gpuspawner request."

    async def rows(self) -> Sequence[Row]:
        """Return the open requests, or those that are closed."""
        wants_open = parse_list_state(self.table, self.arguments_of_address()).kept.get("show", "open") == "open"
        now = self.parts.clock.now()
        return [_row_of(one, now) for one in self._seen() if one.is_open(now) is wants_open]

    def _seen(self) -> list[QuotaRequest]:
        return [one for one in self.parts.quota_requests.all() if sees(self.viewer(), one, self.parts)]

    def show_list(self, part: ListPart, status: int = 200, **values: Any) -> None:
        """Answer with the page."""
        state, now, person = self.parts, self.parts.clock.now(), self.viewer()
        seen = self._seen()
        answered = sorted((one for one in seen if one.answered_at is not None), key=lambda one: -(one.answered_at or 0))
        super().show_list(
            part,
            status,
            cards=[_card_of(state, row.request, person) for row in part.rows],
            open_number=sum(one.is_open(now) for one in seen),
            answered=[present_request(state, one, person) for one in answered[:ANSWERED_SHOWN]],
            rules=rules_of_requests(state),
            **values,
        )


class RequestCard(NamedTuple):
    """A request, the quota that it is about, its highest cost, and why the reader may not answer it.

    ``number`` and ``unit`` are the requested amount as a form has it.
    """

    request: models.QuotaRequest
    bounds: Sequence[AnyBound] = ()
    cost: str = ""
    why_not: str = ""
    number: str = ""
    unit: str = ""


def _card_of(state: Parts, one: QuotaRequest, person: Person) -> RequestCard:
    shown = present_request(state, one, person)
    if not one.is_open(state.clock.now()):
        return RequestCard(shown)
    what, kind, number = one.amount
    number = number / GIBIBYTE if what is LimitedResource.MEMORY else number
    unit = kind or UNITS[what.value][0]
    why_not = why_not_answer(person, one, state)
    return RequestCard(shown, bounds_of(state, one), cost_words(state, one), why_not, f"{float(number):g}", unit)


ROUTES: list[Any] = [
    (r"/quota/request", RequestMorePage),
    (r"/quota/request/([^/]+)/withdraw", WithdrawPage),
    (rf"/console/requests{FORMS}", RequestsPage),
]
