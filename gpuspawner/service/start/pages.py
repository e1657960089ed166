"""The page of a schedule, and the forms of schedules on other pages."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

from tornado.web import HTTPError

from gpuspawner.catalog import LINKED
from gpuspawner.catalog.requests.visibility import gpu_title
from gpuspawner.core.errors import Conflict, RequestRefused
from gpuspawner.core.schedules import MOST_MISSED, Schedule
from gpuspawner.service.rules.policies import policy_now
from gpuspawner.service.start.schedules import (
    change_schedule,
    find_schedule,
    present_schedule,
    remove_schedule,
    times_of,
)
from gpuspawner.service.start.secret_values import delete_secret, list_secrets, save_secret
from gpuspawner.service.web.actor import Actor
from gpuspawner.service.web.base import PageHandler
from gpuspawner.service.workspaces.api import start_workspace

ORIGIN, SECRETS_ORIGIN = "the page of a schedule", "the page Secrets"
MAX_SHOWN = 100
NOT_FOUND, CONFLICT = 404, 409
TIMES_SHOWN = 5


class SchedulePage(PageHandler):
    """GET: a schedule with its next days. Looking changes nothing."""

    async def get(self, name: str) -> None:
        """Answer the page."""
        await self.show(name)

    async def show(self, name: str, problem: str = "", status: int = 200) -> None:
        """Answer the page. ``problem`` says why a form was refused."""
        state, person = self.parts, self.viewer()
        one = await find_schedule(state, person.owner, name)
        if one is None:
            raise HTTPError(NOT_FOUND, reason=f"You have no schedule with the id {name[:40]}.")
        shown = await present_schedule(state, person.owner, one)
        linked = {f"opt-{key}": value for key, value in one.options.items() if key in LINKED and value}
        self.render_page(
            "schedule.html",
            status,
            one=shown,
            what=self._words(one),
            times=[] if shown.paused else times_of(state, one, TIMES_SHOWN),
            form_link=f"{self.hub_prefix}spawn?{urlencode(linked)}",
            claim_seconds=self._claim_seconds(one),
            most_missed=MOST_MISSED,
            problem=problem,
        )

    def _words(self, one: Schedule) -> str:
        """Return the workspace of a schedule in a few words."""
        catalog, options = self.parts.catalog, one.options
        template = catalog.templates.get(str(options.get("template", "")))
        gpu = options.get("gpu")
        gpus = (
            ""
            if not gpu
            else "no GPU"
            if gpu == "none"
            else f"{options.get('count') or 1} {gpu_title(str(gpu), catalog)}"
        )
        sizes = [f"{options[key]} {unit}" for key, unit in (("cpu", "cores"), ("memory", "memory")) if options.get(key)]
        run_time = [f"for {options['lifetime']}"] if options.get("lifetime") else []
        return ", ".join(filter(None, [template.title if template else "", gpus, *sizes, *run_time]))

    def _claim_seconds(self, one: Schedule) -> float:
        template = self.parts.catalog.templates.get(str(one.options.get("template", "")))
        if template is None or one.options.get("gpu") == "none":
            return 0.0
        return policy_now(self.parts.catalog, template.policy, self.parts.clock.now()).policy.claim_seconds


class ScheduleForms(SchedulePage):
    """POST: change, pause, resume, start or remove a schedule. A GET only goes to the page Workspaces."""

    async def get(self, name: str = "") -> None:
        """Go to Workspaces. A form was sent to this address."""
        self.viewer()
        self.redirect(f"{self.parts.prefix}{name}")

    async def post(self) -> None:
        """Do it and go back. A schedule that is gone already is no error."""
        actor = self.actor(ORIGIN)
        name, act = self.get_body_argument("id", ""), self.get_body_argument("act", "")
        try:
            if act == "start":
                await self._start(actor, name)
                return
            endpoint, values = (remove_schedule, {}) if act == "remove" else (change_schedule, self._values(act))
            await endpoint.act(actor, name, values=values)
        except HTTPError as error:
            if error.status_code != NOT_FOUND:
                raise
        except RequestRefused as error:
            await self.show(name, f"{error.remedy} Allowed: {error.limit}.", error.status)
            return
        except Conflict as error:
            await self.show(name, str(error), CONFLICT)
            return
        stays = act == "change" or self.get_body_argument("back", "") == name
        self.go_to(f"ready/{name}" if stays else "")

    async def _start(self, actor: Actor, name: str) -> None:
        """Start the workspace of a schedule now, in addition to its times."""
        one = await find_schedule(self.parts, actor.person.owner, name)
        if one is None:
            raise HTTPError(NOT_FOUND, reason="This schedule is gone.")
        answer = await start_workspace.act(actor, values={**one.options, "server": one.server})
        self.go_to(f"workspaces/{answer.id}")

    def _values(self, act: str) -> dict[str, Any]:
        if act == "change":
            return {"at": self.get_body_argument("at", ""), "on": ",".join(self.get_body_arguments("on"))}
        return {"paused": act == "pause"}


class SecretsPage(PageHandler):
    """GET: the names of one's secrets. POST: save one, or delete one. No page has a value."""

    async def get(self) -> None:
        """Answer the page."""
        await self.show()

    async def show(self, problem: str = "", typed: str = "", status: int = 200) -> None:
        """Answer the page. ``problem`` says why a form was refused, ``typed`` is the name that came with it."""
        found = await list_secrets.act(self.actor(SECRETS_ORIGIN))
        self.render_page("secrets.html", status, secrets=found.secrets, problem=problem, typed=typed)

    async def post(self) -> None:
        """Do it and go back. A secret that is gone already is no error."""
        actor, deleted = self.actor(SECRETS_ORIGIN), self.get_body_argument("delete", "")
        name, value = self.get_body_argument("name", ""), self.get_body_argument("value", "", strip=False)
        try:
            if deleted:
                await delete_secret.act(actor, deleted)
            else:
                await save_secret.act(actor, values={"name": name, "value": value})
        except HTTPError as error:
            if error.status_code != NOT_FOUND:
                raise
        except RequestRefused as error:
            await self.show(str(error), name[:MAX_SHOWN], error.status)
            return
        self.go_to("secrets")


ROUTES: list[Any] = [
    (r"/ready", ScheduleForms),
    (r"/ready/([^/]+)", SchedulePage),
    (r"/secrets", SecretsPage),
]
