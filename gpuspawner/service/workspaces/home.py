"""The page Workspaces: one's workspaces and schedules, what ended lately, quota and available GPUs."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from gpuspawner.catalog import Catalog, Template, teams_of
from gpuspawner.catalog.requests.visibility import gpu_title
from gpuspawner.core.administration import Notice
from gpuspawner.core.leases.lease import UP, Lease
from gpuspawner.core.units import show_money
from gpuspawner.schedulers.base import Offer
from gpuspawner.service.announcements.inboxes import present_notice
from gpuspawner.service.quotas.models import Bound
from gpuspawner.service.quotas.presenter import present_quota
from gpuspawner.service.start.offers import present_offer
from gpuspawner.service.start.schedules import present_schedules_of
from gpuspawner.service.web.base import PageHandler
from gpuspawner.service.workspaces.cards import HOUR_SECONDS, Card, points_of, sooner_options, summary_of
from gpuspawner.service.workspaces.links import open_links, ssh_line, start_again_links
from gpuspawner.service.workspaces.models import Workspace
from gpuspawner.service.workspaces.presenter import present_workspace

NOTICES_SHOWN = 3
ENDED_READ = 50
"""The last workspace of each server is found among these. Arbitrary: more servers than people have."""
ENDED_SHOWN, ENDED_SHOWN_FIRST = 5, 4
SERVERS_SHOWN = 20
CHOICES_SHOWN = 3


class Meter(NamedTuple):
    """A limit or budget as a meter: words on both sides, parts of the bar in percent, and a sentence below."""

    title: str
    value: str
    rest: str
    parts: tuple[tuple[float, str], ...]
    share: float | None
    note: str
    rule: str


class Choice(NamedTuple):
    """A template that a new user can start with one click, and when it starts."""

    icon: str
    title: str
    text: str
    href: str


class EndedRow(NamedTuple):
    """A workspace that ended, and the link to the form that starts it again, "" without one."""

    shown: Workspace
    again: str


class Home(PageHandler):
    """GET: the page. Looking changes nothing."""

    async def get(self) -> None:
        """Answer the page."""
        state, person = self.parts, self.viewer()
        actor, store = self.actor("the page Workspaces"), state.store
        catalog, asker = await actor.visible_catalog(), await actor.asker()
        ended = await store.read(store.leases.ended, person.owner, ENDED_READ)
        teams = teams_of(state.catalog.rules, await actor.groups_shown())
        schedules = await present_schedules_of(state, person.owner)
        up = [x.id for x in state.registry if person.owns(x) and x.phase in UP and x.slots]
        minutes = await store.read(store.readings.use_by_minute, up, actor.now - HOUR_SECONDS) if up else {}
        # From here on nothing is awaited: the page shows one moment.
        mine = sorted((x for x in state.registry if person.owns(x)), key=lambda x: (x.asked_at, x.id))
        cards = self._cards(mine, minutes)
        quota = present_quota(state, person.name, person.owner, teams)
        offers = [one for one in state.queue.offers_to(asker) if one.kind in catalog.gpus]
        is_new = not cards and not schedules and not ended
        self.render_page(
            "home.html",
            cards=cards,
            schedules=schedules,
            counts=_counts(cards, len(schedules)),
            ended=self._ended(ended, mine),
            ended_first=ENDED_SHOWN_FIRST,
            notices=[present_notice(state, one) for one in self.inbox.notices if _is_news(one)][:NOTICES_SHOWN],
            meters=[meter_of(one) for one in (*quota.limits, *quota.budgets)],
            offers=[present_offer(one, state) for one in offers],
            choices=first_choices(catalog, offers, self.hub_prefix) if is_new else [],
            templates=_templates_shown(state.catalog, cards, catalog if is_new else None),
            currency=state.catalog.rules.currency,
            policy=state.catalog.policies["default"],
        )

    def _cards(self, mine: list[Lease], minutes: Mapping[str, list[tuple[float, float]]]) -> list[Card]:
        state, person = self.parts, self.viewer()
        shown = {x.id: present_workspace(state, x, person) for x in mine}
        return [
            Card(
                shown=shown[x.id],
                summary=summary_of(shown[x.id]),
                opens=open_links(self.hub_prefix, x, shown[x.id]) if x.phase in UP else [],
                points=points_of(minutes.get(x.id, ()), state.clock.now()),
                sooner=sooner_options(shown[x.id], (shown[y.id] for y in mine if y.id != x.id)),
                ssh=ssh_line(x, self.address) if x.phase in UP and "ssh" in shown[x.id].opens else "",
            )
            for x in mine
        ]

    def _ended(self, ended: list[Lease], live: list[Lease]) -> list[EndedRow]:
        """Return the last workspaces that ended, and the last one of every server, with links to start it again."""
        state, person = self.parts, self.viewer()
        over = (x for x in ended if not state.registry.get(x.id))
        return [
            EndedRow(
                present_workspace(state, x, person),
                start_again_links(self.hub_prefix, x, person.name)["same"] if newest else "",
            )
            for x, newest in ended_shown(over, {x.key.server for x in live})
        ]


def _is_news(one: Notice) -> bool:
    """Return whether the page shows a notice. It shows announcements and ends elsewhere."""
    return one.unread and one.kind != "message" and not one.ends


def _counts(cards: Iterable[Card], schedules: int) -> str:
    """Return ``2 running, 1 waiting, 1 scheduled``."""
    phases = [card.shown.phase for card in cards]
    running = sum(phase in {one.value for one in UP} for phase in phases)
    waiting = sum(phase in {"queued", "parked"} for phase in phases)
    other = len(phases) - running - waiting
    counts = ((running, "running"), (waiting, "waiting"), (other, "starting or stopping"), (schedules, "scheduled"))
    return ", ".join(f"{number} {words}" for number, words in counts if number)


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


def meter_of(bound: Bound) -> Meter:
    """Return a limit or budget as a meter. Values that it does not have are left out."""
    most = bound.hard if bound.hard is not None else bound.soft
    pending = getattr(bound, "waiting", 0.0) or getattr(bound, "set_aside", 0.0)

    def percent(amount: float) -> float:
        return round(min(100.0, max(0.0, 100 * amount / most)), 1) if most else 0.0

    used = percent(bound.used)
    parts = ((used, "gpu"), (min(percent(pending), 100 - used), "asked"))
    reset, share, is_budget = bound.text("renews_at"), bound.text("soft"), bound.text("renews_at") != ""
    is_own = bound.whose.startswith("you")
    value, rest = bound.text("used"), ""
    if bound.hard is not None and is_budget:
        value, rest = bound.text("left"), f" of {bound.text('hard')} left"
    elif most is not None:
        rest = f" of {bound.text('hard') or share}"
    shares = f"Your share is {share}. Above it, you use what is free." if is_own else f"The share is {share}."
    notes = [
        f"{bound.text('waiting')} more requested." if bound.text("waiting") else "",
        f"{bound.text('used')} used, {bound.text('set_aside') or 0} reserved." if is_budget else "",
        shares if share and bound.hard is not None else "",
        f"Resets {reset}." if reset else "",
    ]
    tick = percent(bound.soft) if bound.soft is not None and bound.hard is not None else None
    return Meter(meter_title(bound), value, rest, parts, tick, " ".join(filter(None, notes)), bound.rule)


_PERIODS = {"a day": "today", "a week": "this week", "a month": "this month", "at once": "now"}


def meter_title(bound: Bound) -> str:
    """Return the title of a meter: ``GPUs now``, ``Your GPU hours this week``, ``Team Vision: GPU hours today``."""
    what = bound.what.replace("GPU h ", "GPU hours ")
    for per, period in _PERIODS.items():
        what = what.replace(per, period)
    whose, _, team = bound.whose.partition(" in ")
    if whose != "you":
        return f"{bound.whose[:1].upper()}{bound.whose[1:]}: {what}"
    return f"{'' if what.endswith(' now') else 'Your '}{what}{f' in {team}' if team else ''}"


def _templates_shown(catalog: Catalog, cards: Iterable[Card], offered: Catalog | None) -> list[Template]:
    """Return the templates whose icons the page shows: those of its cards, or of the first choices."""
    if offered is not None:
        return list(offered.templates.values())[:CHOICES_SHOWN]
    names = {card.shown.request.template for card in cards}
    return [one for name, one in catalog.templates.items() if name in names]


def first_choices(catalog: Catalog, offers: Iterable[Offer], hub_prefix: str) -> list[Choice]:
    """Return the first templates of the catalog with their usual GPU, for users who have started nothing yet."""
    free = {offer.kind: offer.free for offer in offers}
    return [_choice(catalog, one, free, hub_prefix) for one in list(catalog.templates.values())[:CHOICES_SHOWN]]


def _choice(catalog: Catalog, template: Template, free: Mapping[str, int | None], hub_prefix: str) -> Choice:
    href = f"{hub_prefix}spawn?opt-template={template.name}"
    kind = template.default.gpu or next(iter(template.gpus), None)
    if kind is None or kind == "none" or kind not in catalog.gpus:
        return Choice(template.shown_icon, template.title, "Starts now, without a GPU", href)
    count = template.default.count or template.gpus.get(kind, (1, 1))[0]
    price = catalog.gpus[kind].price_per_hour
    cost = "" if price is None else f", {show_money(price * count, catalog.rules.currency)} per hour"
    starts = "Starts now" if (free.get(kind) or 0) >= count else "Waits in line"
    return Choice(
        template.shown_icon, f"{template.title} on {count} × {gpu_title(kind, catalog)}", f"{starts}{cost}", href
    )
