"""The first admin page: problems, the state of all GPUs, the queue, workspaces above their share, and the next ends."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass
from datetime import datetime, timedelta

from gpuspawner.core.errors import Unavailable
from gpuspawner.core.leases.lease import HOLDING, UP, WAITING, Lease, Phase
from gpuspawner.core.queue.fair_share import ShareUsage
from gpuspawner.service.administration.gpu_map import (
    CLASSES,
    ORDER,
    WORDS,
    KindCount,
    count_by_kind,
    count_foreign_holders,
)
from gpuspawner.service.administration.live_lists import kind_title, present_queue_rows
from gpuspawner.service.administration.problems import find_problems
from gpuspawner.service.administration.restriction_effects import lease_title
from gpuspawner.service.engine.sampling.gpu_states import ObservedGpu, observe_gpus
from gpuspawner.service.parts import Parts
from gpuspawner.service.store.usage_sums import UsageAmounts
from gpuspawner.service.web.admin_page import AdminPage
from gpuspawner.service.web.lists import Table, parse_list_state

SHOWN = 5
"""How many requests, workspaces above their share and next ends the page names. The lists have all."""
NAMES_SHOWN = 3
MAX_ENDED = 100
"""The number of the last ended workspaces that show whether a template fails."""
NO_LIST = Table("overview", ())


@dataclass(frozen=True)
class NextEnd:
    """A workspace that ends soon, when and why."""

    at: float
    page: str
    name: str
    gpus: str
    why: str


@dataclass(frozen=True)
class AboveShare:
    """A workspace above its share. ``times_share`` is use divided by share."""

    page: str
    name: str
    gpus: str
    times_share: float
    idle_seconds: float


@dataclass(frozen=True)
class Figures:
    """The numbers at the top. ``view_seconds`` is the age of the list of GPUs, None before it is read.

    ``reclaimed`` are the amounts of today, None while the database does not answer.
    """

    counts: dict[str, int]
    total: int
    idle_users: tuple[str, ...]
    reserved: str
    waiting: int
    longest_wait_seconds: float | None
    reclaimed: UsageAmounts | None
    disputes: int
    view_seconds: float | None

    @property
    def active_percent(self) -> float | None:
        """The part of all GPUs that is active, in percent."""
        return 100 * self.counts["busy"] / self.total if self.total else None


@dataclass(frozen=True)
class StoredFigures:
    """The values that the page reads from the database. They are empty while the database does not answer."""

    ended: tuple[Lease, ...] = ()
    disputed: tuple[Lease, ...] = ()
    reclaimed: UsageAmounts | None = None
    disputes: int = 0


async def read_stored(state: Parts, today: str) -> StoredFigures:
    """Return the values of the database. While it does not answer, the page shows the rest and says so."""
    store, zone = state.store, state.accounting.zone
    begin = datetime.fromisoformat(today).replace(tzinfo=zone)
    try:
        ended, disputed, sums, disputes = await asyncio.gather(
            store.read(store.leases.ended, None, MAX_ENDED),
            store.read(store.leases.disputed, None),
            store.read(store.usage_sums.of_days, "all", today, today, daily=True),
            store.read(store.audit_log.count_disputes, begin.timestamp(), (begin + timedelta(days=1)).timestamp()),
        )
    except Unavailable:
        return StoredFigures()
    amounts = sums[0].amounts if sums else UsageAmounts()
    return StoredFigures(tuple(ended), tuple(disputed), amounts, disputes)


def present_figures(state: Parts, seen: list[ObservedGpu], stored: StoredFigures) -> Figures:
    """Return the numbers at the top of the page."""
    counts, now, fleet = Counter(one.state for one in seen), state.clock.now(), state.scheduler.fleet
    idle = Counter(lease.user for one in seen if one.state == "idle" for lease in one.holders)
    waits = [now - lease.asked_at for lease in state.registry if lease.phase in WAITING]
    return Figures(
        {one: counts[one] for one in ORDER},
        len(seen),
        tuple(user for user, _ in idle.most_common()),
        "; ".join(filter(None, (offer.held for offer in state.queue.offers))),
        len(waits),
        max(waits, default=None),
        stored.reclaimed,
        stored.disputes,
        now - fleet.observed_at if fleet.complete else None,
    )


def find_next_ends(state: Parts) -> list[NextEnd]:
    """Return the workspaces that end next."""
    now, ends = state.clock.now(), []
    for lease in state.registry:
        if lease.phase not in UP:
            continue
        at, why = lease.deadline_at, "end of its run time"
        if lease.notice is not None:
            at = lease.notice.at
            announced = f"stopped by {lease.notice.by}: {lease.notice.why}"
            why = "for a request with priority" if lease.notice.preemption else announced
        elif lease.streak.grace_left_seconds is not None and lease.phase is Phase.RECLAIMING:
            at, why = (lease.sampled_at or now) + lease.streak.grace_left_seconds, "idle, unless it is used or kept"
        if at is not None:
            ends.append((at, lease.id, lease, why))
    ends.sort(key=lambda one: one[:2])
    return [
        NextEnd(at, f"{state.prefix}workspaces/{lease.id}", lease_title(lease), _gpus(state, lease), why)
        for at, _, lease, why in ends[:SHOWN]
    ]


def find_above_share(state: Parts) -> list[AboveShare]:
    """Return the workspaces that use more than the share of a soft quota. The one with the most of it comes first."""
    snapshot = state.allocator.observed.snapshot()
    standings = ShareUsage(snapshot)
    used = ((standings.used(lease), lease) for lease in snapshot.leases if lease.phase in HOLDING)
    above = [(part, lease) for part, lease in used if part is not None and part > 1]
    above.sort(key=lambda one: (-one[0], one[1].id))
    return [
        AboveShare(
            f"{state.prefix}workspaces/{lease.id}",
            lease_title(lease),
            _gpus(state, lease),
            float(part),
            lease.streak.idle_seconds,
        )
        for part, lease in above[:SHOWN]
    ]


def _gpus(state: Parts, lease: Lease) -> str:
    return f"{len(lease.slots)} × {kind_title(state.catalog, lease.kind)}" if lease.slots else "no GPU"


class OverviewPage(AdminPage):
    """GET: the page."""

    tab = "overview"

    async def get(self) -> None:
        """Answer the page."""
        state = self.parts
        parse_list_state(NO_LIST, self.arguments_of_address())
        stored = await read_stored(state, self.today())
        # From here on nothing is awaited, so the page shows one moment.
        seen = observe_gpus(state)
        kinds: list[KindCount] = count_by_kind(state, seen)
        waiting = [lease for lease in state.registry if lease.phase in WAITING]
        first = sorted(waiting, key=lambda lease: (state.queue.place(lease).number or len(waiting) + 1, lease.asked_at))
        self.show(
            "admin_overview.html",
            problems=find_problems(state, stored.ended, stored.disputed),
            figures=present_figures(state, seen, stored),
            kinds=kinds,
            key=[(CLASSES.get(x, x), WORDS[x].capitalize()) for x in ORDER],
            simulated=any(kind.simulated for kind in kinds),
            others=count_foreign_holders(seen, state.catalog.gpus)[:SHOWN],
            queue=present_queue_rows(state, first[:SHOWN]),
            above=state.queue.compute_seldom("above share", lambda: find_above_share(state)),
            ends=find_next_ends(state),
            running=sum(lease.phase in UP for lease in state.registry),
            names_shown=NAMES_SHOWN,
            catalog_version=state.in_force.version,
        )
