"""The hub's own pages: their templates, and the service's numbers of this moment."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

from jupyterhub.utils import isoformat

from gpuspawner.catalog import Catalog, resolve_all, what_is_wrong
from gpuspawner.core.authentication import NONCE_HEADER, new_nonce, sign_ticket
from gpuspawner.core.errors import Unavailable, split_sentences
from gpuspawner.core.units import ordinal, show_bytes, show_cpu, show_duration, show_time
from gpuspawner.look import LOOK
from gpuspawner.spawner.client import ask_service
from gpuspawner.spawner.hub.service import SERVICE
from gpuspawner.version import describe_version

ANSWER_SECONDS = 2.0
"""How long a page waits for the service, which answers in milliseconds. Arbitrary: a page must not seem dead."""
ENDED_SHOWN = 5
"""Number of requested ended workspaces. The last one of each of a few servers is among them."""


@dataclass(frozen=True)
class LiveAnswers:
    """The service's answers that a form shows, read once (see ``service.workspaces.presenter``).

    ``offers`` is by kind. ``sentence`` says what Start would do, or, where ``refused``, why it would not. ``quota`` is
    a line for each limit that binds the user. ``team`` is charged if they name none; it is "" if they must name one.
    By kind, ``substitutes`` says what accepting it brings now. By option, ``wrong`` says what is not possible, and
    ``understood`` how a size or time was understood. ``cost`` says what the whole start costs and leaves of budgets.
    """

    offers: Mapping[str, Mapping[str, Any]]
    sentence: str
    refused: bool = False
    quota: tuple[str, ...] = ()
    team: str = ""
    substitutes: Mapping[str, str] = field(default_factory=dict)
    wrong: Mapping[str, str] = field(default_factory=dict)
    understood: Mapping[str, str] = field(default_factory=dict)
    cost: tuple[str, ...] = ()
    starts_now: bool = False


@dataclass(frozen=True)
class ServiceView:
    """The service at ``url`` (with its prefix), asked for one user, by ticket. None always means: no answer.

    An answer that does not prove by ``secret`` to come from this hub's service counts as no answer.
    """

    url: str
    ticket: str
    secret: bytes = field(repr=False)

    async def live(self, options: Mapping[str, Any], server: str) -> LiveAnswers | None:
        """Return all that a form shows."""
        offers, check = await asyncio.gather(self._ask("offers"), self._ask("check", {**options, "server": server}))
        if offers is None or check is None or "error" in offers:
            return None
        error = check.get("error")
        told = error or check
        sentence = error.get("sentence", error["message"]) if error else check["sentence"]
        by_kind = {offer["kind"]: offer for offer in offers["offers"]}
        return LiveAnswers(
            by_kind,
            sentence,
            refused=bool(error),
            quota=tuple(line["words"] for line in check.get("quota", offers["quota"])),
            team=offers["team"] or "",
            substitutes={one["kind"]: one["words"] for one in check.get("substitutes", ())},
            wrong={one["field"]: one["words"] for one in told.get("fields", ())},
            understood=told.get("understood", {}),
            cost=tuple(check.get("cost", {}).get("words", ())),
            starts_now=bool(check.get("starts_now")),
        )

    async def workspaces(self) -> tuple[Mapping[str, Any], ...] | None:
        """Return the user's live workspaces, then those that ended last."""
        answer = await self._ask(f"workspaces?ended={ENDED_SHOWN}")
        return None if answer is None or "error" in answer else tuple(answer["workspaces"])

    async def output(self, lease: str) -> str:
        """Return the last output of the server of a failed workspace. Return "" if it is unknown."""
        answer = await self._ask(f"workspaces/{lease}/output") or {}
        return str(answer.get("text") or "")

    async def _ask(self, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any] | None:
        """Return the answer, a refusal (4xx) too. Return None without an answer."""
        nonce, url = new_nonce(), f"{self.url}/api/v1/{path}"
        method, sent = ("GET", None) if body is None else ("POST", json.dumps(body))
        headers = {"Authorization": f"ticket {self.ticket}", NONCE_HEADER: nonce}
        try:
            response = await ask_service(self.secret, method, url, nonce, headers, sent, ANSWER_SECONDS)
        except Unavailable:
            return None
        return json.loads(response.body) if response.code < HTTPStatus.INTERNAL_SERVER_ERROR else None


def judge_offline(catalog: Catalog, chosen: Mapping[str, Any], user: str, otherwise: str) -> LiveAnswers:
    """Judge choices by the catalog alone, while the service does not answer.

    Args:
        catalog: what the user may choose.
        chosen: the choices.
        user: the user whose server starts.
        otherwise: the sentence, if nothing is wrong with the choices.
    """
    found = resolve_all(catalog, chosen, user)
    return LiveAnswers(
        {},
        what_is_wrong(found.refused) if found.refused else otherwise,
        refused=bool(found.refused),
        wrong={one.field: one.details for one in found.refused},
        understood=found.understood,
    )


def of_server(workspaces: tuple[Mapping[str, Any], ...] | None, server: str) -> Mapping[str, Any] | None:
    """Return the workspace of a server: the live one, else the one that ended last, else None."""
    own = [w for w in workspaces or () if w["server"] == server]
    return next((w for w in own if w["end"] is None), own[0] if own else None)


TEMPLATES = Path(__file__).parent / "templates"


def template_paths() -> list[str]:
    """Return the folders for ``c.JupyterHub.template_paths``. The administrator's own templates come first."""
    return [str(TEMPLATES), str(LOOK)]


def page_variables(catalog: Catalog, service_prefix: str, service_url: str, secret_file: Path) -> dict[str, Any]:
    """Return the variables for ``c.JupyterHub.template_vars``.

    ``gpuspawner`` is the visitor's PageView: the hub calls it at each rendering, so that every page has a fresh
    ticket. ``gpuspawner_prefix`` is where browsers find the service, for pages without a signed-in user;
    ``gpuspawner_service`` is what the hub calls it. ``gpuspawner_zone`` is the zone in which pages show times.
    """
    return {
        "gpuspawner": make_page_view(catalog, service_prefix, service_url, secret_file),
        "gpuspawner_prefix": service_prefix,
        "gpuspawner_service": SERVICE,
        "gpuspawner_version": describe_version(),
        "gpuspawner_zone": catalog.rules.timezone,
    }


def make_page_view(
    catalog: Catalog, service_prefix: str, service_url: str, secret_file: Path
) -> Callable[[Any], PageView | None]:
    """Return the function that makes the PageView of a hub's user. It returns None without a user."""
    zone = ZoneInfo(catalog.rules.timezone)

    def view(user: Any) -> PageView | None:
        if user is None:
            return None
        secret = bytes.fromhex(secret_file.read_text(encoding="ascii").strip())
        ticket = sign_ticket(secret, user.name, isoformat(user.orm_user.created), time.time())
        return PageView(user.name, service_prefix, catalog.fast, ServiceView(service_url, ticket, secret), zone)

    return view


@dataclass(frozen=True)
class PageView:
    """The data of the templates. Methods ask the service. Jinja awaits them in the hub's asynchronous rendering."""

    user: str
    prefix: str
    fast: float | None
    service: ServiceView
    zone: ZoneInfo
    """The catalog's, in which every page shows times."""
    _answers: list[tuple[Mapping[str, Any], ...] | None] = field(default_factory=list, repr=False)

    @property
    def ticket(self) -> str:
        """The ticket by which the page's JavaScript asks the service."""
        return self.service.ticket

    async def workspaces(self) -> tuple[Mapping[str, Any], ...] | None:
        """Return the user's workspaces, live ones first, None if the service does not answer. A page asks once."""
        if not self._answers:
            self._answers.append(await self.service.workspaces())
        return self._answers[0]

    async def output(self, own: Mapping[str, Any]) -> str:
        """Return the last output of the user's own failed workspace; "" without output."""
        failed = own["end"] is not None and own["end"]["reason"] == "failed"
        return await self.service.output(own["id"]) if failed else ""

    of_server = staticmethod(of_server)
    sentences = staticmethod(split_sentences)

    def unread(self, workspaces: tuple[Mapping[str, Any], ...] | None) -> Mapping[str, Any] | None:
        """Return the last ended workspace, if its user did not end it and has not read the reason."""
        last = next((w for w in workspaces or () if w["end"] is not None), None)
        if last is None or last["end"]["seen"] or last["end"]["by"] == self.user or last["end"]["dispute"]:
            return None  # for a reported end, the banner shows the answer
        return last

    def describe(self, own: Mapping[str, Any]) -> str:
        """Return the sizes, the team and the time of a request: ``4 × A100, 16 cores for 12 h · Team Vision ...``."""
        request = own["request"]
        sizes = [
            _cores(request["cpu_cores"]) if request["cpu_cores"] else "",
            show_bytes(request["memory_bytes"]) + " memory" if request["memory_bytes"] else "",
        ]
        gpus = request["words"].replace(" ", " \N{MULTIPLICATION SIGN} ", 1) if request["gpu"] else "No GPU"
        asked = f"{', '.join(filter(None, [gpus, *sizes]))} for {show_duration(request['lifetime_seconds'])}"
        team = f"Team {request['team_title']}" if request["team_title"] else ""
        return " · ".join(filter(None, [asked, team, f"requested {self.clock(own['asked_at'])}"]))

    @staticmethod
    def place(queue: Mapping[str, Any]) -> str:
        """Return the position of a waiting request: ``You are 1st of 2 in line``."""
        number = "" if queue["place"] is None else f"{ordinal(queue['place'])} "
        of = f"of {queue['of']} " if number and queue["of"] else ""
        return f"You are {number}{of}in line"

    @staticmethod
    def wait_words(queue: Mapping[str, Any]) -> str:
        """Return what a request waits for, without its position, which stands above."""
        sentence: str = queue["sentence"]
        number = queue["place"]
        return sentence if number is None else sentence.replace(f" You are {ordinal(number)} in line.", "", 1)

    def clock(self, at: float) -> str:
        """Return a time as every page shows it: ``18:30``."""
        return show_time(at, time.time(), self.zone)


def _cores(count: float) -> str:
    return f"{show_cpu(count)} {'core' if count == 1 else 'cores'}"
