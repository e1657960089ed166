"""The dialogs of acts: a form, a preview of its effect, and the act itself. Each works as a page without JavaScript."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from gpuspawner.catalog import teams_of
from gpuspawner.catalog.requests.visibility import team_title
from gpuspawner.core.administration import LONGEST_CHARACTERS
from gpuspawner.core.errors import Conflict, RequestRefused
from gpuspawner.core.quotas.months import month_of, previous_month
from gpuspawner.core.rules import BudgetUnit
from gpuspawner.core.units import show_count, show_iso
from gpuspawner.service.administration.bulk_actions import (
    extend_workspaces,
    move_workspaces,
    reorder_request,
    stop_workspaces,
)
from gpuspawner.service.administration.models import MEASURES
from gpuspawner.service.administration.restriction_effects import lease_title, title_of
from gpuspawner.service.administration.restrictions import lift_restriction, make_restriction
from gpuspawner.service.announcements.api import message_users, send_message
from gpuspawner.service.parts import Parts
from gpuspawner.service.quota_requests.api import approve_request, decline_request
from gpuspawner.service.quota_requests.presenter import UNITS, request_words, sees
from gpuspawner.service.quotas.api import correct_usage, grant_quota, take_grant_back
from gpuspawner.service.quotas.moves import move_quota
from gpuspawner.service.quotas.presenter import present_grant
from gpuspawner.service.stored_data.api import forget_person
from gpuspawner.service.web.admin_page import TABS, AdminPage
from gpuspawner.service.web.endpoint import Endpoint
from gpuspawner.service.web.permissions import ACTS, Permission, Person

ORIGIN = "the console"
BACK = re.compile(r"(?:console(?:/(?!\.|%2[eE])[\w.%@-]+)*/?|workspaces/\w+)(?:\?[\w.%=&+:~-]*)?", re.ASCII)
"""Our pages that a dialog may lead back to. No segment begins with a dot, so that it can't leave the folder."""
DEFAULT_BACK = "console/restrictions"
COUNT = re.compile("[0-9]{1,9}")
"""A text that is read as a number. Of thousands of digits Python makes an error, not a number."""
FIT = re.compile(r"([0-9]{1,6}) ([0-9]{1,12}(?:\.[0-9]{1,6})?) ([0-9]{1,12}(?:\.[0-9]{1,6})?)")
"""The choice of a reservation that fits: the number of GPUs, and both times."""
BUDGETS = tuple(UNITS[unit.value] for unit in BudgetUnit)
LIMITS = tuple(one for one in UNITS.values() if one not in BUDGETS)
OF_BUDGETS = frozenset({"correct", "move-hours"})
"""The dialogs whose amounts are hours or money."""
FORM_FIELDS = {"for whom": "user", "what": "number", "amount": "number", "to": "name"}
"""The form field that shows the error of an API field, if the names differ."""
SECOND_FIELDS = {"whom": "name", "number": "unit"}
"""A second field that a form shows with a field."""
RESTRICTION_TIMES = ("begins", "until")
EFFECT_ICONS = {"good": ("check", "gs-good"), "warn": ("alert", "gs-warn"), "info": ("info", "")}
"""Icon and class of each kind of effect of extra quota."""


class Dialog(NamedTuple):
    """The form of an act.

    Args:
        title: the heading. ``{}`` is the number of selected workspaces.
        words: the effect of the act.
        fields: the fields in addition to the reason.
        reason: the field of the reason, "" without one.
        is_danger: whether the act stops workspaces.
        previews: whether the act has a dry run.
        needs_end: whether ``until`` is required.
        path_field: the field that is a part of the endpoint's path, "" without one.
        needs_reason: whether the reason is required.
    """

    endpoint: Endpoint
    title: str
    words: str
    fields: tuple[str, ...]
    button: str
    reason: str = "reason"
    is_danger: bool = False
    previews: bool = True
    needs_end: bool = True
    path_field: str = ""
    reason_label: str = "Reason"
    needs_reason: bool = True

    def title_for(self, count: int) -> str:
        """Return the heading for a number of selected workspaces."""
        return self.title.replace("{}", show_count(count) if count else "a workspace")

    def button_for(self, found: Any) -> str:
        """Return the words of the button after a preview."""
        count = len(found.affected) if found is not None and "ids" in self.fields else 0
        if not count or self.reason == "" or "place" in self.fields:
            return self.button
        return f"{self.button} {show_count(count)}"


DIALOGS: Mapping[str, Dialog] = {
    "stop": Dialog(
        stop_workspaces,
        "Stop {}",
        "Users lose running kernels and GPU memory. Files stay.",
        ("ids", "now"),
        "Stop",
        is_danger=True,
    ),
    "move": Dialog(
        move_workspaces,
        "Move {}",
        "Each workspace stops, keeps its place in line and starts again, on another node if one is free.",
        ("ids", "now"),
        "Move",
        is_danger=True,
    ),
    "reorder": Dialog(
        reorder_request,
        "Move a request in the queue",
        "It goes before the requests behind its new place, by any rule. No workspace stops for it.",
        ("ids", "place"),
        "Move request",
    ),
    "extend": Dialog(
        extend_workspaces, "Extend {}", "They run longer, beyond what their users can do.", ("ids", "until"), "Extend"
    ),
    "exempt": Dialog(
        make_restriction,
        "Exempt from idle stops",
        "The selected workspaces, or all workspaces of a user, are not stopped as idle until then.",
        ("ids", "user", *RESTRICTION_TIMES),
        "Exempt",
    ),
    "message": Dialog(
        message_users,
        "Message the users of {}",
        "They see it on every page and in JupyterLab until the time below. It stays in their Inbox until it is read.",
        ("ids", "text", "until"),
        "Send",
        reason="",
    ),
    "announce": Dialog(
        send_message,
        "Announce",
        "Users see it on every page and in JupyterLab until the time below. It stays in their Inbox until it is read.",
        ("whom", "text", "until"),
        "Send",
        reason="",
    ),
    "drain": Dialog(
        make_restriction,
        "Drain a node",
        "No new workspace starts there. Running workspaces go on. Their users are told, and can move. "
        "Before a maintenance to come, workspaces that start there end in time.",
        ("node", *RESTRICTION_TIMES, "every", "replaces"),
        "Drain",
        needs_end=False,
    ),
    "quarantine": Dialog(
        make_restriction,
        "Put a GPU in quarantine",
        "No new workspace gets it. A workspace that has it goes on. Its user is told, and can move.",
        ("gpu", *RESTRICTION_TIMES),
        "Put in quarantine",
        needs_end=False,
    ),
    "pause": Dialog(
        make_restriction,
        "Pause starts",
        "No waiting request gets a GPU of this kind. The queue keeps its order, and users read the reason.",
        ("kind", *RESTRICTION_TIMES),
        "Pause",
        needs_end=False,
    ),
    "reserve": Dialog(
        make_restriction,
        "Reserve GPUs",
        "Only this user, team or class gets them as they become free. GPUs that they use already count. "
        "No workspace stops.",
        ("kind", "count", "node", "user", "team", "group", *RESTRICTION_TIMES, "every", "replaces"),
        "Reserve",
    ),
    "lift": Dialog(
        lift_restriction,
        "End a restriction",
        "The restriction ends at once. Waiting requests get the GPUs that become available.",
        (),
        "End it",
        previews=False,
        path_field="restriction",
    ),
    "grant": Dialog(
        grant_quota,
        "Give extra quota",
        "It raises the share and the limit, or sets the limit. It is for a user, for a user within one team, or for a "
        "whole team.",
        ("user", "team", "everybody", "number", "as_limit", "since", "until"),
        "Give extra quota",
        reason="why",
    ),
    "move-hours": Dialog(
        move_quota,
        "Move hours between members",
        "One member has less of a budget, and another one as much more. The budgets of the team stay.",
        ("source", "user", "team", "number", "until"),
        "Move",
        reason="why",
        needs_end=False,
    ),
    "take-back": Dialog(
        take_grant_back,
        "Take extra quota back",
        "Running workspaces go on to their end. Nothing new starts or is extended with it.",
        (),
        "Take back",
        reason="why",
        previews=False,
        path_field="grant",
    ),
    "approve": Dialog(
        approve_request,
        "Approve a request for more",
        "The extra quota begins and ends by itself. The user is told in the Inbox, and by mail if mail is set up.",
        (),
        "Approve",
        reason="why",
        previews=False,
        path_field="request",
        reason_label="Note to the user",
        needs_reason=False,
    ),
    "change-request": Dialog(
        approve_request,
        "Change and approve a request for more",
        "Empty fields keep what was requested. The user is told in the Inbox, and by mail if mail is set up.",
        ("number", "since", "until"),
        "Approve with changes",
        reason="why",
        needs_end=False,
        path_field="request",
        reason_label="Message to the user",
    ),
    "decline": Dialog(
        decline_request,
        "Decline a request for more",
        "Say why, and what the user can do instead.",
        (),
        "Decline request",
        reason="why",
        is_danger=True,
        previews=False,
        path_field="request",
        reason_label="Message to the user",
    ),
    "correct": Dialog(
        correct_usage,
        "Correct charges",
        "It adds an entry. Earlier entries stay. A closed month never changes. "
        "A correction of hours leaves the cost as it was.",
        ("user", "team", "number", "month"),
        "Correct",
        reason="why",
    ),
    "forget": Dialog(
        forget_person,
        "Forget a person",
        "Presets, schedules, tokens and notices are deleted. Sums of usage stay under a pseudonym.",
        ("user", "how"),
        "Forget",
        reason="why",
        is_danger=True,
    ),
}
"""The dialogs by their names in addresses."""


class DialogPage(AdminPage):
    """GET: the form of an act. POST ``step=look``: a preview of it. POST ``step=do``: does it, and goes back."""

    tab = "restrictions"

    @property
    def permission(self) -> Permission:
        """The permission of the act."""
        return ACTS[self.path_args[0]]

    async def get(self, name: str) -> None:
        """Answer the form, with the values of the address filled in."""
        await self._show(name, self.get_query_arguments("ids"), self._typed(name, self.get_query_argument))

    async def post(self, name: str) -> None:
        """Do it, or show a preview. If it can't be done, the form says why and keeps its values."""
        dialog, ids = DIALOGS[name], self.get_body_arguments("ids")
        typed = self._typed(name, self.get_body_argument)
        does = not dialog.previews or self.get_body_argument("step", "look") == "do"
        values = _values_of(name, ids, typed)
        if dialog.previews:
            values["dry_run"] = not does
        path = (typed[dialog.path_field],) if dialog.path_field else ()
        try:
            answer = await dialog.endpoint.act(self.actor(ORIGIN), *path, values=values)
        except RequestRefused as error:
            words = f"{error.remedy} Allowed: {error.limit}."
            errors = {FORM_FIELDS.get(error.field, error.field): words}
            await self._show(name, ids, typed, error.status, problem=words, errors=errors)
        except Conflict as error:
            await self._show(name, ids, typed, 409, problem=str(error))
        else:
            if does:
                self.redirect(f"{self.parts.prefix.rstrip('/')}/{self._back()}", status=303)
            else:
                await self._show(name, ids, typed, found=answer[0] if isinstance(answer, tuple) else answer)

    def _typed(self, name: str, read: Any) -> dict[str, str]:
        dialog = DIALOGS[name]
        more = (SECOND_FIELDS[one] for one in dialog.fields if one in SECOND_FIELDS)
        fields = (*dialog.fields, *more, dialog.reason, dialog.path_field)
        typed = {one: read(one, "") for one in fields if one not in {"", "ids"}}
        if "count" in dialog.fields and (fit := FIT.fullmatch(read("fit", ""))):
            count, begins_at, until = fit.groups()
            now, zone = self.parts.clock.now(), self.parts.accounting.zone
            begins = show_iso(float(begins_at), zone) if float(begins_at) > now else ""
            typed |= {"count": count, "begins": begins, "until": show_iso(float(until), zone)}
        return typed

    def _back(self) -> str:
        """Return the page to go back to. An address that is not ours is ignored."""
        asked = self.get_argument("back", "")
        return asked if BACK.fullmatch(asked) else DEFAULT_BACK

    async def _show(
        self,
        name: str,
        ids: list[str],
        typed: Mapping[str, str],
        status: int = 200,
        *,
        problem: str = "",
        errors: Mapping[str, str] | None = None,
        found: Any = None,
    ) -> None:
        state, catalog, fleet = self.parts, self.parts.catalog, self.parts.scheduler.fleet
        self.tab = next((one.name for one in reversed(TABS) if self._back().startswith(one.path)), self.tab)
        leases = [lease for one in dict.fromkeys(ids) if (lease := await state.registry.find(one)) is not None]
        kinds = [(kind, one.title) for kind, one in catalog.gpus.items()]
        units = [*LIMITS, *((kind, f"{title} at once") for kind, title in kinds), *BUDGETS]
        self.show(
            "admin_act.html",
            status,
            name=name,
            dialog=DIALOGS[name],
            chosen=[{"id": lease.id, "name": lease_title(lease)} for lease in leases],
            subject=await _subject(state, self.viewer(), name, typed),
            typed=typed,
            problem=problem,
            errors=errors or {},
            found=found,
            back=self._back(),
            nodes=[(node, node) for node in sorted({gpu.node for gpu in fleet.gpus if not gpu.is_coming})],
            gpus=[f"{gpu.node}/{gpu.index}" for gpu in fleet.gpus if gpu.group is None],
            kinds=kinds,
            teams=[(team, team_title(catalog, team) or team) for team in teams_of(catalog.rules, None)],
            units=list(BUDGETS) if name in OF_BUDGETS else units,
            number_hint="A minus credits, for example -3." if name == "correct" else "",
            timezone=catalog.rules.timezone,
            last_month=previous_month(month_of(self.today())),
            longest=LONGEST_CHARACTERS,
            icons=EFFECT_ICONS,
        )


async def _subject(state: Parts, reader: Person, name: str, typed: Mapping[str, str]) -> str:
    """Return the words of the restriction or extra quota that ends, or of the request, "" for another act."""
    if name == "lift":
        restriction = await state.restrictions.get(typed["restriction"])
        return "" if restriction is None else f"{title_of(state, restriction)}."
    if old := typed.get("replaces"):
        replaced = next((one for one in state.restrictions.live() if one.id == old), None)
        return "It has ended already." if replaced is None else f"Instead of: {title_of(state, replaced)}."
    if name == "take-back":
        grant = next((one for one in state.accounting.all_grants() if one.id == typed["grant"]), None)
        return "" if grant is None else f"{present_grant(state, grant).words}."
    if DIALOGS[name].path_field == "request":
        request = state.quota_requests.get(typed["request"])
        is_seen = request is not None and sees(reader, request, state)
        return f"{request_words(state, request)}: “{request.why}”" if request is not None and is_seen else ""
    return ""


def _values_of(name: str, ids: list[str], typed: Mapping[str, str]) -> dict[str, Any]:
    """Return the values of a form as the API takes them. Empty fields are left out."""
    dialog = DIALOGS[name]
    values: dict[str, Any] = {key: value for key, value in typed.items() if value and key != dialog.path_field}
    if name in MEASURES:
        values["what"] = name
    if "now" in values:
        values["now"] = values["now"] == "1"
    for field in {"count", "place"} & values.keys():
        text = values[field]
        values[field] = int(text) if COUNT.fullmatch(text) else 0  # 0 is refused, with the allowed numbers
    for field in {"everybody", "as_limit"} & values.keys():
        values[field] = True
    if "number" in dialog.fields:
        number, unit = values.pop("number", ""), values.pop("unit", "")
        amount = f"{number}GiB" if unit == "GiB" else f"{number} {unit}"
        values["amount" if name == "correct" else "what"] = amount
    if "whom" in dialog.fields:
        whom, target = values.pop("whom", "all"), values.pop("name", "")
        values["to"] = whom if whom == "all" else f"{whom}:{target}"
    if ids and not (name == "exempt" and values.get("user")):
        values["ids"] = ids
    return values


ROUTES: list[Any] = [(rf"/console/act/({'|'.join(DIALOGS)})", DialogPage)]
