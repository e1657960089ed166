"""Acquire, acknowledge, release: the lease protocol as the spawner speaks it, and the grants."""

from __future__ import annotations

import hashlib
import logging
import secrets
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from gpuspawner.catalog import Catalog, completed, resolve, without_lost_consent
from gpuspawner.catalog.file import InForce
from gpuspawner.core.errors import Conflict, Gone, RequestRefused
from gpuspawner.core.leases import endings, events
from gpuspawner.core.leases import lease as leases
from gpuspawner.core.leases.endings import ENDINGS, End, Reason, Return
from gpuspawner.core.leases.lease import HOLDING, JOINABLE, UP, WAITING, Key, Lease, Phase
from gpuspawner.core.leases.output import bounded
from gpuspawner.core.leases.release import storable
from gpuspawner.core.leases.request import Request
from gpuspawner.core.leases.times import earlier, last_moment
from gpuspawner.core.queue.snapshot import Claim
from gpuspawner.core.quotas.quotas import check_quotas
from gpuspawner.core.units import show_duration
from gpuspawner.schedulers.base import Offer, Scheduler
from gpuspawner.service.clock import Clock
from gpuspawner.service.leases.book import Book
from gpuspawner.service.leases.granting import Granting
from gpuspawner.service.leases.observed import Observed
from gpuspawner.service.leases.prospects import Prospects
from gpuspawner.service.leases.stoppers import Stoppers
from gpuspawner.service.leases.syncs import Syncs
from gpuspawner.service.rules.accounts import Accounting
from gpuspawner.service.rules.asking import Asking, options_of
from gpuspawner.service.rules.bounds import Bounds
from gpuspawner.service.rules.foretold import Foretold
from gpuspawner.service.rules.lost_time import LostTime
from gpuspawner.service.rules.policies import policy_of
from gpuspawner.service.settings import Settings
from gpuspawner.service.store import AuditLine, OutputRow
from gpuspawner.service.tell.sentences import gpus_asked

log = logging.getLogger("gpuspawner.allocator")

WORKSPACE_TOKEN_PREFIX = "gpuws-"  # noqa: S105 - it marks a kind of token, and is none


@dataclass(frozen=True)
class Ask:
    """One ``start()`` for ``user``: ``start_id`` is its own, ``boot_id`` the hub process that runs it.

    ``by`` is who asks, where that is somebody else.
    """

    key: Key
    user: str
    request: Request
    options: Mapping[str, Any]
    start_id: str
    boot_id: str
    by: str = ""


def hash_token(token: str) -> str:
    """Return what is stored of a workspace's token."""
    return hashlib.sha256(token.encode()).hexdigest()


class Allocator:
    """The one place that makes leases and gives GPUs."""

    def __init__(self, book: Book, scheduler: Scheduler, in_force: InForce, clock: Clock, settings: Settings) -> None:
        """Serve from ``scheduler``. Nothing is granted before the reconciler has told what runs."""
        self.book, self.scheduler, self.clock, self.settings = book, scheduler, clock, settings
        self._in_force = in_force
        self.accounting = Accounting(book, clock, lambda: self.catalog)
        self.bounds = Bounds(book, clock, lambda: self.catalog, self.accounting)
        self.lost_time = LostTime(book, scheduler, clock)
        self.asking = Asking(book, in_force, self.dismiss)
        self.prospects = Prospects(book, scheduler, in_force, clock, self.finish)
        self.observed = Observed(book, scheduler, lambda: self.catalog, self.accounting, clock, settings)
        self.foretold = Foretold(book, clock)
        self.granting = Granting(
            book, self.observed, self.bounds, self.foretold, lambda: self.catalog, clock, self.finish
        )
        self.syncs = Syncs(scheduler, self.observed.snapshot, self.granting.take)
        self.stoppers = Stoppers(book, clock)

    @property
    def catalog(self) -> Catalog:
        """The catalog in force."""
        return self._in_force.catalog

    def resume(self, known_at: float = 0.0) -> float:
        """After a restart: nobody is known to wait until heard again, and the silence of a start counts from now.

        A waiter may have died with its hub: its GPU would be reserved for nobody, until that lapses as a failed start.
        Where the wall clock went back meanwhile, what is remembered moves back with it: deadlines stay as far ahead as
        they were, and nobody who comes now was there before those who wait.
        Return by how many seconds it went back, as leases and ``known_at``, another moment that was, tell.
        """
        now = self.clock.now()
        ahead_seconds = max([known_at, now, *map(last_moment, self.book)]) - now
        if ahead_seconds > 0:
            log.warning("the clock went back by %s or more since the last service", show_duration(ahead_seconds))
            self.book.save(*(earlier(lease, ahead_seconds) for lease in self.book))
        self.accounting.forget()
        self.lost_time.resume()
        self.end_what_is_not_offered()
        for lease in self.book:
            whole = completed(self.catalog, lease.request) if lease.phase in JOINABLE else lease.request
            if whole != lease.request:
                lease = replace(lease, request=whole)  # noqa: PLW2901 - the one that goes on
                self.book.save(lease)
            if lease.phase in HOLDING and lease.rate is None:  # an older version granted it
                lease = self.bounds.rated(lease)  # noqa: PLW2901 - as above
                self.book.save(lease)
            if lease.phase is Phase.QUEUED:
                self.book.save(leases.park(lease, now))
            else:
                self.book.note_heard(lease.id, now)
        return ahead_seconds

    def end_what_is_not_offered(self) -> None:
        """End waiting requests that the present catalog never grants: also those that came back to their place.

        Consent to what may no longer be given instead is dropped, and the place kept.
        """
        for lease in self.book:
            if lease.phase not in WAITING:
                continue
            request = without_lost_consent(self.catalog, lease.request)
            if request != lease.request:
                options = {**lease.options, "substitutes": ",".join(request.substitutes)}
                lease = replace(lease, request=request, options=options)  # noqa: PLW2901 - the one that goes on
                self.book.save(lease)
            if why := self.offered_no_more(lease):
                self.finish(lease, endings.not_offered(why))

    def offered_no_more(self, lease: Lease) -> str:
        """Return why a request can never be granted by the present catalog; "" where it can.

        Whether its user may have it is checked at its grant.
        """
        options = {**options_of(lease), "team": ""}
        try:
            resolve(self.catalog, options, lease.user, groups=None)  # as its start will
        except RequestRefused as error:
            return str(error)
        return ""

    def acquire(self, ask: Ask) -> Lease:
        """Return the lease of this start: a new one, or the live one of its key with a new attempt. Idempotent.

        Raises:
            RequestRefused: over the hard quota, more than a budget leaves, or more than the fleet or its cluster's
                limits could ever give.
            Conflict: an earlier workspace of this key still ends; ask again in a second.
        """
        now = self.clock.now()
        lease = self.book.of_key(ask.key)
        if lease is None or lease.phase not in JOINABLE or lease.request != ask.request:
            self._check(ask.request, ask.key)  # what has its place keeps it, also when its last node goes
        if lease is None:
            lease = Lease(
                uuid.uuid4().hex,
                ask.key,
                ask.user,
                ask.request,
                ask.options,
                asked_at=now,
                phase_since=now,
                start_id=ask.start_id,
                boot_id=ask.boot_id,
                heard_at=now,
            )
            self.book.save(lease, audit=[self.line(lease, ask.by or ask.user, events.Asked(self._asked(ask.request)))])
        elif lease.phase in JOINABLE:
            joined = leases.join(lease, ask.request, ask.options, start_id=ask.start_id, boot_id=ask.boot_id, now=now)
            self.book.save(joined)
            if joined.phase not in HOLDING:
                self.observed.give_back(lease)
        else:
            if lease.phase in UP and lease.start_id != ask.start_id:
                # The hub starts it anew, so it knows no server of it any more: what runs was lost sight of.
                self.finish(lease, endings.STARTED_AGAIN, gone=True)
            raise Conflict("Your previous workspace is still ending; this start waits for it.")
        self.give()
        return self.book.of_key(ask.key) or lease

    def check(self, request: Request, key: Key) -> None:
        """Raise what :meth:`acquire` would raise for this request, without asking for anything."""
        self._check(request, key)

    def _check(self, request: Request, key: Key) -> None:
        lease = self.book.of_key(key)
        claim = Claim("" if lease is None else lease.id, key.user_created, request, self.clock.now(), user=request.user)
        check_quotas(claim, self.observed.snapshot())
        self.bounds.check(request, key)
        self.prospects.check(request, self._offers())

    def look_ahead(self) -> None:
        """Tell who waits for what can't be had as things are, and what can be had again; note first estimates."""
        self.prospects.look(self._offers())
        if self.foretold.is_due() and (answer := self.syncs.standing(self.observed.snapshot())) is not None:
            self.foretold.note(answer.places())

    def _offers(self) -> list[Offer]:
        return self.scheduler.stock(self.observed.snapshot())

    def _offer(self, request: Request) -> Offer | None:
        return next((o for o in self._offers() if o.kind == request.gpu), None)

    def _asked(self, request: Request) -> str:
        offer, template = self._offer(request), self.catalog.templates[request.template].title
        gpus = gpus_asked(request, self.catalog, simulated=offer is not None and offer.simulated)
        return f"{template}, {gpus}, {show_duration(request.lifetime_seconds)}"

    def give(self) -> None:
        """Have every grant made that is possible now."""
        self.syncs.ask()

    def lapse_expired(self) -> None:
        """Have those wait again whose grant expired before a start took it."""
        self.granting.lapse_expired()

    def current(self, lease_id: str, attempt: int) -> Lease:
        """Return the live lease for a message of ``attempt``.

        Raises:
            Gone: it ends or has ended, or a newer attempt took over: the sender must stop.
        """
        lease = self.book.get(lease_id)
        if lease is None:
            ended = self.book.store.lease(lease_id)
            raise Gone(ended.message if ended is not None and ended.message else "This start is over.")
        if attempt != lease.attempt:
            raise Gone("A newer start took this one over.")
        if lease.phase is Phase.STOPPING:
            raise Gone(lease.message)
        return lease

    def hear(self, lease_id: str, attempt: int) -> Lease:
        """Note that the sender of this attempt lives."""
        lease = self.current(lease_id, attempt)
        now = self.clock.now()
        heard = leases.heard(lease, now) if lease.phase in JOINABLE else lease
        if heard.phase is not lease.phase or heard.unattended != lease.unattended:
            self.book.save(heard)
            self.give()
        else:
            self.book.note_heard(lease_id, now)
        return self.book.get(lease_id) or lease

    def acknowledge(self, lease_id: str, attempt: int) -> tuple[Lease, str]:
        """Reserved → starting. Return the lease and a fresh token for its workspace, which is stored hashed."""
        token = WORKSPACE_TOKEN_PREFIX + secrets.token_urlsafe(32)
        self.lapse_expired()
        lease = leases.acknowledge(self.current(lease_id, attempt), hash_token(token), self.clock.now())
        self.book.save(lease)
        return lease, token

    def park(self, lease_id: str, attempt: int) -> Lease:
        """The waiter leaves, the place stays. A grant that crossed it on the way stands until it lapses."""
        lease = self.current(lease_id, attempt)
        if lease.phase in WAITING:
            lease = leases.park(lease, self.clock.now())
            self.book.save(lease)
        return lease

    def requeue(self, lease_id: str, attempt: int, why: str, node: str = "") -> Lease:
        """A start whose grant could not be had goes back to its place, and others pass for a while.

        Nothing of it may be left where it was to run. ``node`` is where it found no room; "" where that has no part.

        Raises:
            Gone: as :meth:`current` does.
            Conflict: it is not starting.
        """
        lease = self.current(lease_id, attempt)
        back = leases.requeue(lease, storable(why), self.settings.no_room_wait_seconds, self.clock.now(), node)
        self.book.save(back, audit=[self.line(lease, "gpuspawner", events.Requeued(back.message))])
        self.observed.give_back(lease)
        return back

    def release(self, lease_id: str, attempt: int, outcome: str, message: str, output: str = "") -> None:
        """The spawner tells how a start or a server ended. An older attempt is ignored, a repeated message harmless.

        ``outcome`` is one of ``core.leases.release.OUTCOMES``; ``output`` the last that its server wrote.
        """
        lease = self.book.get(lease_id)
        if lease is None or lease.attempt != attempt:
            return
        now = self.clock.now()
        if output:
            self.book.store.outputs.keep(OutputRow(lease.id, now, bounded(output)))
        if outcome == "cancelled" and lease.phase in JOINABLE and self.observed.stopped_lately(lease.key):
            # Our stop was meant for the workspace before; it hit this start. It goes back to its place.
            parked = leases.park(lease, now) if lease.phase is not Phase.STARTING else leases.drop_start(lease, now)
            self.book.save(replace(parked, not_before=now))
            self.observed.give_back(lease)
            return
        up = lease.phase in UP
        stopper = self.stoppers.take(lease) if outcome == "stopped" and up else ""
        how = endings.released(outcome, user=lease.user, up=up, disruption=lease.disruption, stopper=stopper)
        self.finish(lease, replace(how, message=storable(message) or how.message), gone=True)
        self.give()

    def forget(self, key: Key) -> None:
        """The hub deletes the server of a key, or its user, or cancels a start: what waits, waits for nobody now."""
        lease = self.book.of_key(key)
        if lease is None or lease.phase not in WAITING | {Phase.RESERVED}:
            return
        self.finish(lease, endings.FORGOTTEN, gone=True)
        self.give()

    def finish(self, lease: Lease, how: End, *, gone: bool = False) -> Lease:
        """Begin or make an end, as ``leases.finish``, and record it: whoever decides one calls this."""
        finished = leases.finish(lease, how, self.clock.now(), gone=gone)
        stopped = self.line(lease, how.by, events.Stopped(how.reason.value, how.message))
        self.book.save(finished, audit=[] if lease.phase is Phase.STOPPING else [stopped])
        if not finished.live:
            self.observed.give_back(lease)
        return finished

    def dismiss(self, lease: Lease, how: End, *, gone: bool = False) -> None:
        """End a lease as :meth:`finish` does, and give what it held to who waits."""
        self.finish(lease, how, gone=gone)
        self.give()

    def returns(self, lease: Lease) -> bool:
        """Whether a workspace goes back in the queue: by the reason of its end, or if the backend ended it now.

        By its policy, and where the catalog still offers what it had.
        """
        returns = ENDINGS[lease.reason or Reason.PREEMPTED].returns
        if returns is Return.BY_POLICY and not policy_of(self.catalog, lease, self.clock.now()).back_in_queue:
            return False
        return returns is not Return.NEVER and bool(lease.request.template) and not self.offered_no_more(lease)

    def line(self, lease: Lease, actor: str, event: events.Event) -> AuditLine:
        """Return an audit line of now."""
        return AuditLine(self.clock.now(), lease.id, lease.user, actor, event)
