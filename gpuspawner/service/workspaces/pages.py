"""The pages: home, and one for each workspace."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from markupsafe import Markup

from gpuspawner.catalog import SSH, teams_of
from gpuspawner.core.administration import Notice
from gpuspawner.core.errors import Conflict, RequestRefused
from gpuspawner.core.leases.disputes import LONGEST_CHARACTERS
from gpuspawner.core.leases.lease import UP, WAITING, Lease, Phase
from gpuspawner.core.leases.lifetimes import deciding_since
from gpuspawner.core.leases.step_results import EVIDENCE_SECONDS
from gpuspawner.core.leases.transitions import stops_to_start_again
from gpuspawner.service.announcements.presenter import present_notice
from gpuspawner.service.parts import Parts
from gpuspawner.service.quotas.presenter import present_quota, present_usage_this_month
from gpuspawner.service.start.schedules import present_schedules_of
from gpuspawner.service.waiting.presenter import gpus_asked
from gpuspawner.service.web.base import PageHandler, templates
from gpuspawner.service.workspaces import story
from gpuspawner.service.workspaces.actions import act
from gpuspawner.service.workspaces.presenter import (
    extension_left_seconds,
    is_simulated,
    lease_view,
)
from gpuspawner.service.workspaces.records import audit_view, offer_view, output_view
from gpuspawner.service.workspaces.restarts import going_on_view, wait_words

NOTICES_SHOWN = 3


class Home(PageHandler):
    """GET: my workspaces, what is free, who waits: to administrators with names."""

    async def get(self) -> None:
        """Answer the page."""
        parts, person = self.parts, self.viewer()
        kinds, asker = (await self.offered()).gpus, await self.asker()
        ended = await parts.store.read(parts.store.leases.ended, person.owner, ENDED_READ)
        teams = teams_of(parts.catalog.rules, await self.groups_shown())
        ready = await present_schedules_of(parts, person.owner)
        use = await present_usage_this_month(parts, "kind", person.owner)
        # From here on nothing is awaited: all that the page says of what lives is of one moment.
        live = sorted(parts.registry, key=lambda x: (x.asked_at, x.id))
        mine = [x for x in live if person.owns(x)]
        quota = present_quota(parts, person.name, person.owner, teams)
        self.render_page(
            "home.html",
            mine=[self.card(x) for x in mine],
            quota=[*quota.limits, *quota.budgets],
            use=use,
            ready=ready,
            notices=[present_notice(parts, one) for one in self.inbox.notices if _is_news(one)][:NOTICES_SHOWN],
            ended=self._ended(ended, mine),
            offers=[offer_view(offer, parts) for offer in parts.queue.offers_to(asker) if offer.kind in kinds],
            currency=parts.catalog.rules.currency,
            queue=self._queue([x for x in live if x.phase in WAITING], kinds),
            queue_since=parts.queue.old_since,
        )

    def _ended(self, ended: list[Lease], live: list[Lease]) -> list[dict[str, Any]]:
        """Return what ended last, and the last of every server, with the way to start it again."""
        name = self.viewer().name
        shown = ended_shown((x for x in ended if not self.parts.registry.get(x.id)), {x.key.server for x in live})
        again = {x.id: story.start_again_links(self.hub_prefix, x, name)["same"] for x, newest in shown if newest}
        return [{**self.card(x), "again": again.get(x.id, "")} for x, _ in shown]

    def _queue(self, line: list[Lease], kinds: Collection[str]) -> Markup:
        """Return a row for each who waits. What all see alike is rendered once for all: it is most of the page.

        Who waits for what is not for who looks is left out: of ``kinds`` they know.
        """
        parts, person = self.parts, self.viewer()
        name = "named rows" if person.admin else "rows"
        rows = parts.queue.once_a_pass(name, lambda: {x.id: _row(parts, x, shown=person.admin) for x in line})

        def row(one: Lease) -> str:
            found = None if person.owns(one) else rows.get(one.id)
            return found or _row(parts, one, shown=person.admin or person.owns(one))

        known = {None, *kinds}
        seen = [x for x in line if person.admin or x.request.gpu in known or person.owns(x)]
        return Markup("".join(map(row, seen)))  # noqa: S704 - each is of a template

    def card(self, lease: Lease) -> dict[str, Any]:
        """Return what a list shows of a workspace."""
        view = lease_view(self.parts, lease)
        links = story.open_links(self.hub_prefix, lease, view["opens"]) if lease.phase in UP else []
        return {
            **view,
            **story.describe_request(self.parts, lease),
            "open": links[:1],
            "unasked": lease.unasked,
            "again": "",
        }


def _is_news(one: Notice) -> bool:
    """Whether home tells of a notice: of messages and ends it tells elsewhere."""
    return one.unread and one.kind != "message" and not one.ends


def _row(parts: Parts, lease: Lease, *, shown: bool) -> str:
    """Return who waits as a row of the table; ``shown``: with the name."""
    place, parts_html = parts.queue.place(lease), templates().get_template("_parts.html").module
    waiter = {
        "place": place.number,
        "gpus": gpus_asked(lease.request, parts.catalog, simulated=is_simulated(parts, lease)),
        "asked_at": lease.asked_at,
        "about_seconds": place.unchanged_seconds if place.likely_seconds is None else place.likely_seconds,
        "user": lease.user if shown else None,
        "page": f"{parts.prefix.rstrip('/')}/workspaces/{lease.id}" if shown else None,
    }
    row: str = parts_html.waiter(waiter, parts.clock.now())  # type: ignore[attr-defined]  # Jinja makes a macro's name one
    return row


class WorkspacePage(PageHandler):
    """GET: one workspace, while it waits, runs, and after its end. Looking changes nothing."""

    async def get(self, lease_id: str) -> None:
        """Answer the page."""
        await self.show(await self.own(lease_id))

    async def show(self, lease: Lease, problem: str = "", status: int = 200, typed: str = "") -> None:
        """Answer a lease's page; ``problem`` says why what was asked for was not done, ``typed`` what was written."""
        parts, person = self.parts, self.viewer()
        mine = person.owns(lease)
        rows = await parts.store.read(parts.store.readings.of_lease, lease.id)
        lines = await parts.store.read(parts.store.audit_log.latest, lease.id)
        output = await output_view(parts, lease, person)
        charged = await story.charged_gpu_hours(parts, lease)
        going = going_on_view(parts, lease)
        outlook = await wait_words(parts, lease, await self.groups_shown()) if going and not going["why"] else ""
        view = lease_view(parts, lease)
        self.render_page(
            "workspace.html",
            status,
            doc=view,
            about=story.describe_request(parts, lease),
            chart=story.chart_of(parts, lease, rows, lines),
            history=[{**audit_view(line), "words": story.history_words(line)} for line in lines],
            charged_gpu_hours=charged,
            policy=lease.request.policy,
            problem=problem,
            typed=typed,
            unasked=lease.unasked,
            longest_characters=LONGEST_CHARACTERS,
            deciding_since=deciding_since(lease, EVIDENCE_SECONDS) if lease.disputable else None,
            mine=mine,
            up=lease.phase in UP,
            starts_again=stops_to_start_again(lease),
            restarted=story.restarted_words(lease, mine=mine),
            waiting=lease.phase in WAITING,
            starting=lease.phase in {Phase.RESERVED, Phase.STARTING},
            open_links=story.open_links(self.hub_prefix, lease, view["opens"]),
            ssh=story.ssh_line(lease, self.address) if SSH in view["opens"] else "",
            start_link=story.server_link(self.hub_prefix, lease, "hub/spawn-pending").rstrip("/"),
            next_one=None if lease.live else parts.registry.of_key(lease.key),
            again=story.start_again_links(self.hub_prefix, lease, person.name if mine else lease.user),
            output=output,
            going_on_now=outlook,
            end=story.ended_view(lease, mine=mine) if lease.reason else None,
        )


class Act(WorkspacePage):
    """POST: one of ACTIONS, from a form of the page. A GET only shows the page, which asks."""

    async def get(self, lease_id: str, _action: str = "") -> None:
        """Go to the page: this address is where a form was sent to."""
        self.redirect(self._page(await self.own(lease_id)))

    async def post(self, lease_id: str, action: str) -> None:
        """Do it and return to the page; where it can't be done the page says why."""
        lease, sentence = await self.own(lease_id), self.get_body_argument("sentence", "")
        said = self.get_body_arguments("substitutes") if action == "consent" else sentence
        left = self.get_body_argument("left", "")
        if action == "extend" and left not in {"", str(extension_left_seconds(self.parts, lease))}:
            self.redirect(self._page(lease), status=303)  # a second click on the same button: it is extended
            return
        try:
            await act(self.parts, self.viewer(), lease, action, "its page", said)
        except Conflict as error:
            await self.show(await self.own(lease_id), str(error), 409)
        except RequestRefused as error:
            await self.show(await self.own(lease_id), str(error), error.status, sentence)
        else:
            self.redirect(self._page(lease), status=303)

    def _page(self, lease: Lease) -> str:
        return f"{self.parts.prefix.rstrip('/')}/workspaces/{lease.id}"


ENDED_READ = 50
"""The last workspace of each server is found among these. Arbitrary: more servers than people have."""
ENDED_SHOWN = 5
SERVERS_SHOWN = 20


def ended_shown(ended: Iterable[Lease], live: Collection[str]) -> list[tuple[Lease, bool]]:
    """Return the workspaces that ended last, and the last of every other server, with whether each can start again.

    ``ended`` is the newest first. ``live`` are the names of the servers that run now.
    """
    seen: set[str] = set(live)
    found: list[tuple[Lease, bool]] = []
    for number, lease in enumerate(ended):
        newest = lease.key.server not in seen
        seen.add(lease.key.server)
        if number < ENDED_SHOWN or (newest and len(found) < SERVERS_SHOWN):
            found.append((lease, newest))
    return found
