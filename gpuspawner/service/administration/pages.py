"""The pages on which administrators act: a dialog for each act, the restrictions, and the audit.

A dialog works without JavaScript: it is filled in, shown by a dry run, then done.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from gpuspawner.catalog import teams_of
from gpuspawner.core.administration import LONGEST_CHARACTERS, RestrictionKind
from gpuspawner.core.errors import Conflict, RequestRefused
from gpuspawner.core.leases.lease import Lease
from gpuspawner.service.administration.audit import AUDIT, CURSOR, find_entries, parse_cursor, parse_filters
from gpuspawner.service.administration.bulk_actions import extend_workspaces, move_workspaces, stop_workspaces
from gpuspawner.service.administration.models import MEASURES, BulkResult, RestrictionResult
from gpuspawner.service.administration.restrictions import (
    LISTED,
    lease_title,
    lift_restriction,
    make_restriction,
    present_restriction,
)
from gpuspawner.service.announcements.api import message_users
from gpuspawner.service.web.actor import Actor
from gpuspawner.service.web.admin_page import FORMS, ConsolePage, ListPage
from gpuspawner.service.web.endpoint import Endpoint
from gpuspawner.service.web.lists import PAGE_ROWS, Column, Filter, Listing, Row, Table, csv_text, listed, read_wanted

ORIGIN = "the console"
BACK = re.compile(r"(?:console(?:/\w+)*|workspaces/\w+|quotas)(?:\?[\w.%=&+:~-]*)?", re.ASCII)
"""The pages of ours that a dialog may lead back to."""
HOME = "console/restrictions"
COUNT = re.compile("[0-9]{1,9}")
"""A text that is read as a number. Of thousands of digits Python makes an error, not a number."""
MAX_EXPORTED = 50_000
"""The most lines in one file. Arbitrary: some megabytes. Filters take the rest in parts."""
NEXT = "X-Next"
ENDPOINTS: Mapping[str, Endpoint] = {
    "stop": stop_workspaces,
    "move": move_workspaces,
    "extend": extend_workspaces,
    "message": message_users,
    **dict.fromkeys(MEASURES, make_restriction),
}
"""The endpoint of each dialog."""


class Dialog(NamedTuple):
    """The form of an act: its sentences, and its fields in addition to the reason."""

    title: str
    words: str
    fields: tuple[str, ...]
    button: str
    ends: bool = False


ACTS: Mapping[str, Dialog] = {
    "stop": Dialog("Stop workspaces", "Running kernels are lost; files stay.", ("ids", "now"), "Stop", ends=True),
    "move": Dialog(
        "Move workspaces",
        "Each ends, waits before later requests and starts again by itself, elsewhere where there is room.",
        ("ids", "now"),
        "Move",
        ends=True,
    ),
    "extend": Dialog(
        "Extend workspaces", "They run longer, beyond what their users can do.", ("ids", "until"), "Extend"
    ),
    "exempt": Dialog(
        "Exempt from idleness",
        "What is chosen, or all that a user runs, is not judged as idle until then.",
        ("ids", "user", "begins", "until"),
        "Exempt",
    ),
    "message": Dialog(
        "Send a message",
        "It stands on all pages of theirs and in JupyterLab until then, and stays in their inbox until it is read.",
        ("ids", "text", "until"),
        "Send it",
    ),
    "drain": Dialog(
        "Drain a node",
        "Nothing new starts there. Who runs there goes on, is told, and is offered a move.",
        ("node", "begins", "until"),
        "Drain",
    ),
    "quarantine": Dialog(
        "Put a GPU in quarantine",
        "It is given to nobody new. Who has it goes on, is told, and is offered a move.",
        ("gpu", "begins", "until"),
        "Put in quarantine",
    ),
    "pause": Dialog(
        "Pause grants",
        "Nobody is given one. Who waits keeps the place, and reads why.",
        ("kind", "begins", "until"),
        "Pause",
    ),
    "reserve": Dialog(
        "Reserve GPUs",
        "Only those they are reserved for get them, as they come free. GPUs they use already count. No workspace ends.",
        ("kind", "count", "user", "team", "begins", "until"),
        "Reserve",
    ),
}
"""The dialogs by their names in addresses."""


class ActPage(ConsolePage):
    """GET: the form of an act. POST ``step=look``: a dry run of it; ``step=do``: does it, and goes back."""

    here = "restrictions"

    async def get(self, name: str) -> None:
        """Answer the form, with the values of the address filled in."""
        ids = self.get_query_arguments("ids")
        typed = {one: self.get_query_argument(one, "") for one in ACTS[name].fields if one != "ids"}
        await self._show(name, ids, typed)

    async def post(self, name: str) -> None:
        """Do it, or show a dry run. If it can't be done, the form says why and keeps its values."""
        ids = self.get_body_arguments("ids")
        typed = {one: self.get_body_argument(one, "") for one in (*ACTS[name].fields, "reason") if one != "ids"}
        does = self.get_body_argument("step", "look") == "do"
        values = {**_values_of(name, ids, typed), "dry_run": not does}
        try:
            answer = await ENDPOINTS[name].act(Actor(self.parts, self.viewer(), ORIGIN), values=values)
        except RequestRefused as error:
            told = f"{error.remedy} Allowed: {error.limit}."
            await self._show(name, ids, typed, error.status, problem=told, errors={error.field: told})
        except Conflict as error:
            await self._show(name, ids, typed, 409, problem=str(error))
        else:
            if does:
                self.redirect(_back(self), status=303)
            else:
                await self._show(name, ids, typed, found=answer[0] if isinstance(answer, tuple) else answer)

    async def _show(
        self,
        name: str,
        ids: list[str],
        typed: Mapping[str, str],
        status: int = 200,
        *,
        problem: str = "",
        errors: Mapping[str, str] | None = None,
        found: BulkResult | RestrictionResult | None = None,
    ) -> None:
        parts = self.parts
        leases = [lease for one in dict.fromkeys(ids) if (lease := await parts.registry.find(one)) is not None]
        self.show(
            "console_act.html",
            status=status,
            name=name,
            dialog=ACTS[name],
            chosen=[{"id": lease.id, "name": lease_title(lease)} for lease in leases],
            typed=typed,
            problem=problem,
            errors=errors or {},
            found=found,
            back=_asked_back(self),
            kinds=[(kind, one.title) for kind, one in parts.catalog.gpus.items()],
            teams=[(team, team) for team in teams_of(parts.catalog.rules, None)],
            timezone=parts.catalog.rules.timezone,
            notice=_notice(leases),
            longest=LONGEST_CHARACTERS,
        )


def _values_of(name: str, ids: list[str], typed: Mapping[str, str]) -> dict[str, Any]:
    """Return the values of a form as the API takes them. Empty fields are left out."""
    values: dict[str, Any] = {key: value for key, value in typed.items() if value}
    if name in MEASURES:
        values["what"] = name
    if "now" in values:
        values["now"] = values["now"] == "1"
    if count := values.get("count"):
        values["count"] = int(count) if COUNT.fullmatch(count) else 0  # 0 is refused with the numbers that are allowed
    if ids and not (name == "exempt" and values.get("user")):
        values["ids"] = ids
    return values


def _asked_back(page: ConsolePage) -> str:
    """Return the page to go back to. An address that is not ours is ignored."""
    asked = page.get_argument("back", "")
    return asked if BACK.fullmatch(asked) else HOME


def _back(page: ConsolePage) -> str:
    """Return the address of that page."""
    return f"{page.parts.prefix.rstrip('/')}/{_asked_back(page)}"


def _notice(leases: list[Lease]) -> str:
    return "With notice, as the policy of each says" if len(leases) != 1 else "With notice, as its policy says"


# Restrictions


RESTRICTIONS = Table(
    "restrictions",
    (
        Column("title", "What"),
        Column("what", "Kind of act"),
        Column("state", "State"),
        Column("by", "By"),
        Column("since", "Made", "time"),
        Column("begins_at", "From", "time"),
        Column("until", "Until", "time", absent="until it is lifted"),
        Column("lifted_by", "Lifted by"),
        Column("lifted_at", "Lifted", "time", absent="not lifted"),
        Column("reason", "Reason", "words"),
        Column("lifted_reason", "Why it was lifted", "words"),
    ),
    (
        Filter("find", "On what, for whom, by whom", within=("title", "by")),
        Filter("what", "Kind of act", tuple((measure, measure) for measure in MEASURES)),
        Filter("state", "State", tuple((x, x) for x in ("in force", "to come", "over", "lifted"))),
    ),
    sort="-since",
)


class RestrictionsPage(ListPage):
    """GET: the restrictions in force, the acts that make more, and the list of all restrictions."""

    here, table = "restrictions", RESTRICTIONS

    async def rows(self) -> Sequence[Row]:
        """Return those that were made last."""
        found = await self.parts.restrictions.last(LISTED)
        lifted = [{"lifted_by": x.lifted_by, "lifted_at": x.lifted_at, "lifted_reason": x.lifted_why} for x in found]
        shown = [present_restriction(self.parts, one) for one in found]
        return [{**vars(one), **more} for one, more in zip(shown, lifted, strict=True)]

    def show_list(self, listing: Listing, **values: Any) -> None:
        """Answer the page. ``problem`` says why an act was refused."""
        self.show(
            "console_restrictions.html",
            listing=listing,
            live=[present_restriction(self.parts, one) for one in reversed(self.parts.restrictions.live())],
            acts=[(measure.value, ACTS[measure.value].title) for measure in RestrictionKind],
            **{"problem": "", **values},
        )


class LiftPage(RestrictionsPage):
    """POST: lift a restriction."""

    async def get(self, form: str) -> None:  # noqa: ARG002 - it is the name of one
        """Go to the page. A form was sent to this address."""
        self.redirect(f"{self.parts.prefix.rstrip('/')}/{HOME}")

    async def post(self, name: str) -> None:
        """Do it and go back. If it can't be done, the page says why."""
        actor = Actor(self.parts, self.viewer(), ORIGIN)
        try:
            await lift_restriction.act(actor, name, values={"reason": self.get_body_argument("reason", "")})
        except RequestRefused as error:
            await self._refuse(error.status, f"{error.remedy} Allowed: {error.limit}.")
        except Conflict as error:
            await self._refuse(409, str(error))
        else:
            self.redirect(_back(self), status=303)

    async def _refuse(self, status: int, problem: str) -> None:
        self.show_list(listed(await self.rows(), read_wanted(self.table, {})), status=status, problem=problem)


# Audit


class AuditPage(ConsolePage):
    """GET: the audit, its newest lines first."""

    here = "audit"

    async def get(self, form: str) -> None:
        """Answer it as a page, CSV or JSON. If a file does not hold all, its header X-Next says where to go on."""
        wanted = read_wanted(AUDIT, self.asked())
        filters, before = parse_filters(self.parts, wanted.filters), parse_cursor(wanted.kept.get(CURSOR, ""))
        entries, following = await find_entries(self.parts, filters, before, MAX_EXPORTED if form else PAGE_ROWS)
        rows = [vars(one) for one in entries]
        if form and following is not None:
            self.set_header(NEXT, str(following))
        if form == ".csv":
            text = await asyncio.to_thread(csv_text, AUDIT.columns, rows)
            self.set_header("Content-Type", "text/csv; charset=UTF-8")
            self.set_header("Content-Disposition", 'attachment; filename="audit.csv"')
            self.finish(text)
        elif form:
            self.answer({"audit": rows, "next": following, "now": self.parts.clock.now()})
        else:
            listing = Listing(wanted, tuple(rows), len(rows), len(rows))
            older = None if following is None else wanted.query(**{CURSOR: following})
            newest = wanted.query(**{CURSOR: ""}) if before is not None else None
            fresh = replace(listing, wanted=replace(wanted, kept={}))  # another filter begins with the newest
            self.show("console_audit.html", listing=listing, fresh=fresh, older=older, newest=newest)


ROUTES: list[Any] = [
    (rf"/console/audit{FORMS}", AuditPage),
    (rf"/console/restrictions{FORMS}", RestrictionsPage),
    (r"/console/restrictions/([^/]+)/lift", LiftPage),
    (rf"/console/act/({'|'.join(ACTS)})", ActPage),
]
