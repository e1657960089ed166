"""The dialog of each act, a page without JavaScript: asked, shown by a dry run, then done; and what is lifted."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from tornado.web import HTTPError

from gpuspawner.catalog import teams_of
from gpuspawner.core.administering.restrictions import Measure
from gpuspawner.core.errors import Conflict, RequestRefused
from gpuspawner.core.inbox.messages import LONGEST_CHARACTERS
from gpuspawner.core.leases.lease import Lease
from gpuspawner.service.administering.asking import Act
from gpuspawner.service.administering.restricting import FIELDS as OF_MEASURES
from gpuspawner.service.administering.restricting import Restricting
from gpuspawner.service.administering.telling import tell
from gpuspawner.service.administering.views import name_of, restriction_view
from gpuspawner.service.administering.workspaces import FIELDS as OF_WORKSPACES
from gpuspawner.service.administering.workspaces import Workspaces
from gpuspawner.service.api.administering import LISTED, note_refusal
from gpuspawner.service.tell.console.listing import Listing, Row, listed, read_wanted
from gpuspawner.service.tell.console.ruled import RESTRICTIONS, restriction_rows
from gpuspawner.service.web.console.base import ConsolePage, ListPage

WHERE = "the console"
BACK = re.compile(r"(?:console(?:/\w+)*|workspaces/\w+|quotas)(?:\?[\w.%=&+:~-]*)?", re.ASCII)
"""Where a dialog may lead back to: pages of ours."""
HOME = "console/restrictions"
COUNT = re.compile("[0-9]{1,9}")
"""How many are read as a number: of thousands of digits Python makes none, but an error."""


class Dialog(NamedTuple):
    """What is said of an act before it is done, and which fields its form has beside the reason."""

    title: str
    words: str
    fields: tuple[str, ...]
    button: str
    ends: bool = False


ACTS: Mapping[str, Dialog] = {
    "stop": Dialog("Stop workspaces", "Running kernels are lost; files stay.", ("ids", "now"), "Stop", ends=True),
    "move": Dialog(
        "Move workspaces",
        "Each ends, waits at its old place and starts again by itself, elsewhere where there is room.",
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
"""By their names in addresses."""


class ActPage(ConsolePage):
    """GET: the form of an act. POST ``step=look``: what it would do; ``step=do``: does it, and goes back."""

    here = "restrictions"

    async def get(self, name: str) -> None:
        """Answer the form, with what the address names filled in."""
        ids = self.get_query_arguments("ids")
        typed = {one: self.get_query_argument(one, "") for one in ACTS[name].fields if one != "ids"}
        await self._show(name, ids, typed)

    async def post(self, name: str) -> None:
        """Say what it would do, or do it; where it can't be done, the form says why and is kept."""
        ids = self.get_body_arguments("ids")
        typed = {one: self.get_body_argument(one, "") for one in (*ACTS[name].fields, "reason") if one != "ids"}
        does = self.get_body_argument("step", "look") == "do"
        act = Act(self.parts, self.viewer(), WHERE)
        try:
            found = await self._carry_out(act, name, ids, typed, dry_run=not does)
        except RequestRefused as error:
            told = f"{error.remedy} Allowed: {error.limit}."
            await note_refusal(act, name, error)
            await self._show(name, ids, typed, error.status, problem=told, errors={error.field: told})
        except Conflict as error:
            await note_refusal(act, name, error)
            await self._show(name, ids, typed, 409, problem=str(error))
        else:
            if does:
                self.redirect(_back(self), status=303)
            else:
                await self._show(name, ids, typed, found=found)

    async def _carry_out(
        self, act: Act, name: str, ids: list[str], typed: Mapping[str, str], *, dry_run: bool
    ) -> dict[str, Any]:
        body: dict[str, Any] = {key: value for key, value in typed.items() if value} | {"dry_run": dry_run}
        if "now" in body:
            body["now"] = body["now"] == "1"
        if COUNT.fullmatch(body.get("count", "")):
            body["count"] = int(body["count"])
        if ids and not (name == "exempt" and body.get("user")):
            body["ids"] = ids
        if name in OF_WORKSPACES:
            return await Workspaces(act).do(name, body)
        if name == "message":
            return await tell(act, body)
        return await Restricting(act).make({"what": name, **body})

    async def _show(
        self,
        name: str,
        ids: list[str],
        typed: Mapping[str, str],
        status: int = 200,
        *,
        problem: str = "",
        errors: Mapping[str, str] | None = None,
        found: Mapping[str, Any] | None = None,
    ) -> None:
        parts = self.parts
        leases = [lease for one in dict.fromkeys(ids) if (lease := await parts.book.find(one)) is not None]
        self.show(
            "console_act.html",
            status=status,
            name=name,
            dialog=ACTS[name],
            chosen=[{"id": lease.id, "name": name_of(lease)} for lease in leases],
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


def _asked_back(page: ConsolePage) -> str:
    """Return the page to go back to: one of ours, whatever the address says."""
    asked = page.get_argument("back", "")
    return asked if BACK.fullmatch(asked) else HOME


def _back(page: ConsolePage) -> str:
    """Return the address of that page."""
    return f"{page.parts.prefix.rstrip('/')}/{_asked_back(page)}"


def _notice(leases: list[Lease]) -> str:
    return "With notice, as the policy of each says" if len(leases) != 1 else "With notice, as its policy says"


class RestrictionsPage(ListPage):
    """GET: what is kept from being given or judged, where to make more, and the list of all there were."""

    here, table = "restrictions", RESTRICTIONS

    async def rows(self) -> Sequence[Row]:
        """Return those that were made last."""
        return restriction_rows(restriction_view(self.parts, one) for one in await self.parts.restrictions.last(LISTED))

    def show_list(self, listing: Listing, **values: Any) -> None:
        """Answer the page; its ``problem`` says why what was asked for was not done."""
        self.show(
            "console_restrictions.html",
            listing=listing,
            live=[restriction_view(self.parts, one) for one in reversed(self.parts.restrictions.live())],
            acts=[(measure.value, ACTS[measure.value].title) for measure in Measure if measure in OF_MEASURES],
            **{"problem": "", **values},
        )


class LiftHere(RestrictionsPage):
    """POST: lift a restriction."""

    async def get(self, form: str) -> None:  # noqa: ARG002 - it is the name of one
        """Go to the page: this address is where a form was sent to."""
        self.redirect(f"{self.parts.prefix.rstrip('/')}/{HOME}")

    async def _refuse(self, status: int, problem: str) -> None:
        self.show_list(listed(await self.rows(), read_wanted(self.table, {})), status=status, problem=problem)

    async def post(self, name: str) -> None:
        """Do it and go back; where it can't be done the page says why."""
        one = await self.parts.restrictions.get(name)
        if one is None:
            raise HTTPError(404, reason="There is no such restriction.")
        act = Act(self.parts, self.viewer(), WHERE)
        try:
            await Restricting(act).lift(one, {"reason": self.get_body_argument("reason", "")})
        except RequestRefused as error:
            await note_refusal(act, "lift", error)
            await self._refuse(error.status, f"{error.remedy} Allowed: {error.limit}.")
        except Conflict as error:
            await note_refusal(act, "lift", error)
            await self._refuse(409, str(error))
        else:
            self.redirect(_back(self), status=303)
