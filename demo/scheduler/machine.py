"""The decisions of the reference scheduler: claims, training jobs, grants and preemptions. No clock, network or chance.

The caller passes the time in seconds since the epoch. ``step`` advances everything to that time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from demo.scheduler import queue
from demo.scheduler.inventory import Gpu, Inventory, slots_of
from demo.scheduler.records import (
    RANKS,
    Claim,
    Document,
    Gone,
    Grant,
    Job,
    Preemption,
    Refused,
    Settings,
    from_time,
    many,
    reason,
    to_time,
)

Key = tuple[str, str]


class Machine:
    """A scheduler's whole memory. ``boot`` names this life of it, in its cursors."""

    def __init__(self, inventory: Inventory, settings: Settings, now: float, boot: str) -> None:
        self.inventory = inventory
        self.settings = settings
        self.boot = boot
        self.started_at = now
        self.claims: dict[Key, Claim] = {}
        self.jobs: dict[str, Job] = {}
        self.gone: dict[Key, Gone] = {}
        self.heard: dict[str, float] = {}
        self.change = 0
        self.forgotten = 0
        """Changes up to this one may be of claims that are remembered no more."""
        self._trained = now

    # Requests of hubs

    def hear(self, hub: str, now: float) -> None:
        """Note that a hub lives: what it waits for stays."""
        self.heard[hub] = now

    def put(self, hub: str, id: str, asked: Document, now: float) -> Document:  # noqa: A002 - as in the contract
        """Make or change a claim; return its state."""
        check_parts(asked)
        self.hear(hub, now)
        key = (hub, id)
        old = self.claims.get(key)
        self._refuse_older(key, old, asked)
        newer = old is None or asked["revision"] > old.revision
        if old is not None and not newer and Claim(hub, id, asked).fixed != old.fixed:
            raise Refused(409, "differs", f"Revision {old.revision} was asked otherwise. Ask with a newer one.")
        if asked["want"] != "wait" and asked["holds"] is None and (old is None or old.grant is None):
            raise Refused(409, "no_grant", "The claim has no grant. It expired or was never made. Wait for a grant.")
        if old is None and len(self.claims) >= self.settings.most_claims:
            raise Refused(503, "unavailable", f"It takes at most {self.settings.most_claims} claims. Ask again later.")
        claim = self.claims.setdefault(key, Claim(hub, id, asked))
        claim.asked = asked
        self.gone.pop(key, None)
        if asked["want"] != "wait":
            self._take(claim, asked["holds"], now)
        elif newer:
            claim.grant = claim.preemption = claim.place = None
            claim.refused = self.why_never(asked)
        return self._record(claim, now)

    def confirm(self, hub: str, id: str, revision: int, now: float) -> Document:  # noqa: A002
        """Take a grant."""
        claim = self._claim(hub, id, now)
        if revision != claim.revision:
            raise Refused(409, "older", f"Revision {revision} is not the newest, which is {claim.revision}.")
        if claim.grant is None or (claim.grant.expires_at or now) < now:
            raise Refused(409, "no_grant", "The claim has no grant. It expired or was never made. Wait for a grant.")
        self._take(claim, None, now)
        return self._record(claim, now)

    def extend(self, hub: str, id: str, until: str, now: float) -> Document:  # noqa: A002
        """Extend a workspace, or refuse with the reason."""
        claim = self._claim(hub, id, now)
        end = to_time(until)
        grant = claim.grant
        if grant is None or not claim.is_taken:
            raise Refused(409, "not_running", "It does not run, so that there is nothing to extend.")
        why = ""
        if claim.preemption is not None:
            why = f"It must end by {from_time(claim.preemption.deadline)}: {claim.preemption.words}"
        elif end <= now:
            why = f"{until} is over. Ask for a time to come."
        elif grant.latest_end is not None and end > grant.latest_end:
            why = f"Nobody runs beyond {from_time(grant.latest_end)} here. Ask for a time before that."
        elif jobs := [job for job in self.jobs.values() if not job.gpus and job.kind == grant.kind]:
            why = f"{many(len(jobs), 'training job')} for {grant.kind} must wait already."
        if why:
            raise Refused(409, "extension_refused", why)
        claim.asked = {**claim.asked, "ends_at": until}
        return self._record(claim, now)

    def acknowledge(self, hub: str, id: str, now: float) -> Document:  # noqa: A002
        """Note that a preemption was heard."""
        claim = self._claim(hub, id, now)
        if claim.preemption is None:
            raise Refused(409, "not_preempting", "Nothing preempts it, or not any more.")
        claim.preemption.acknowledged = True
        return self._record(claim, now)

    def release(self, hub: str, id: str, now: float) -> None:  # noqa: A002
        """Forget a claim, and free what it holds."""
        self.hear(hub, now)
        claim = self.claims.pop((hub, id), None)
        if claim is not None:
            self._let_go(claim, None, now, by_client=True)

    def since(self, hub: str, cursor: str | None) -> tuple[Document, bool]:
        """Return a hub's claims, or those that changed since a cursor; and whether there is any news."""
        here = f"{self.boot}-{self.change}"
        if cursor is None:
            all_of = [claim.told for claim in self.claims.values() if claim.hub == hub]
            return {"cursor": here, "complete": True, "claims": all_of}, True
        boot, _, text = cursor.rpartition("-")
        known = text.isascii() and text.isdigit() and len(text) < 19  # noqa: PLR2004 - as numbers of changes have
        if boot != self.boot or not known or not self.forgotten <= int(text) <= self.change:
            raise Refused(410, "gone", "This cursor is of another life of the scheduler, or too old. Ask without one.")
        found = [(one.changed, one.told) for one in self.claims.values() if one.hub == hub]
        found += [(one.changed, one.told) for (of, _), one in self.gone.items() if of == hub]
        changed = [told for number, told in sorted(found, key=lambda one: one[0]) if number > int(text)]
        return {"cursor": here, "complete": False, "claims": changed}, bool(changed)

    # Training jobs and administration

    def submit(self, job: Job) -> None:
        """Take a training job."""
        if job.count > self.inventory.largest(job.kind):
            raise Refused(400, "bad_request", f"No node has {job.count} {job.kind}.")
        self.jobs[job.id] = job

    def cancel(self, id: str) -> None:  # noqa: A002
        """End a training job, or take it back."""
        self.jobs.pop(id, None)

    # Steps

    def step(self, now: float) -> None:
        """Move on: what lapsed, what training ended or came, who gets what, who must give; and note what changed."""
        self._lapse(now)
        self._train(now)
        if now >= self.started_at + self.settings.settle_seconds:
            self._serve(now)
        for claim, place in zip(self.claims.values(), queue.places(self, now), strict=True):
            claim.place = place
            self._record(claim, now)

    def _lapse(self, now: float) -> None:
        for key, claim in list(self.claims.items()):
            if claim.grant is not None and claim.grant.expires_at is not None and claim.grant.expires_at <= now:
                claim.grant = None
            unheard = now - self.heard.get(claim.hub, self.started_at)
            if not claim.is_taken and unheard > claim.asked["ttl_seconds"]:
                words = f"The hub sent no request for {unheard:.0f} s, longer than it allowed."
                self._let_go(self.claims.pop(key), reason("not_heard", words), now)
        for key, gone in list(self.gone.items()):
            if now - gone.at > self.settings.gone_seconds:
                self.forgotten = max(self.forgotten, gone.changed)
                del self.gone[key]

    def _train(self, now: float) -> None:
        every = self.settings.training_every_seconds
        if every and now - self._trained >= every:
            kinds = self.inventory.kinds
            number = int(now // every)
            kind = kinds[number % len(kinds)]
            count = min(1 + number % 2, self.inventory.largest(kind))
            self.submit(Job(f"training-{number}", kind, count, 10, self.settings.training_lasts_seconds, now))
            self._trained = now
        for job in list(self.jobs.values()):
            if job.ends_at is not None and job.ends_at <= now:
                del self.jobs[job.id]
        for claim in self.claims.values():
            notice = claim.preemption
            waiting = notice is not None and notice.job in self.jobs and not self.jobs[notice.job].gpus
            if notice is not None and notice.job is not None and not waiting:
                claim.preemption = None  # its training found room elsewhere, or was taken back

    def _serve(self, now: float) -> None:
        used = set(self.used())
        blocked: set[tuple[str, str]] = set()
        """Kinds in clusters for which an entry waits."""
        for entry in queue.in_order(self):
            kinds = queue.kinds_of(entry)
            if isinstance(entry, Claim) and queue.not_before(entry) > now:
                continue
            accepted = {
                (kind, cluster)
                for kind in kinds
                for cluster in self.inventory.clusters
                if queue.accepts(entry, kind, cluster)
            }
            found = self.inventory.place(kinds, entry.count, used, accepted - blocked) if entry.count else []
            if found is None:
                blocked |= accepted
                if isinstance(entry, Job):
                    self._preempt_for(entry, now, used)
                continue
            used.update(gpu.id for gpu in found)
            if isinstance(entry, Job):
                entry.gpus, entry.ends_at = found, now + entry.lasts_seconds
            else:
                self._grant(entry, found, now)

    def _grant(self, claim: Claim, gpus: list[Gpu], now: float) -> None:
        cluster = gpus[0].cluster if gpus else next(iter(self.inventory.clusters))
        ids = frozenset(gpu.id for gpu in gpus)
        expires, latest = now + self.settings.hold_seconds, now + self.settings.longest_seconds
        claim.grant = Grant(gpus[0].kind if gpus else None, cluster, slots_of(gpus), ids, expires, latest)

    def _preempt_for(self, job: Job, now: float, used: set[str]) -> None:
        """Give notice to as few as will do, on the node where the fewest must go; those beyond their quota first."""
        choices: list[tuple[int, list[tuple[bool, float]], list[Claim]]] = []
        holders = {gpu: one for one in self.claims.values() if one.is_taken and one.grant for gpu in one.grant.gpus}
        for node in self.inventory.nodes(job.kind):
            ids = {gpu.id for gpu in node}
            free = len(ids - used)
            there = {claim.id: claim for gpu, claim in holders.items() if gpu in ids}.values()
            victims: list[Claim] = []
            for claim in sorted(there, key=lambda one: (one.preemption is None, *queue.weakest_first(self, one))):
                if free < job.count and claim.grant is not None:
                    victims.append(claim)
                    free += len(claim.grant.gpus & ids)
            fresh = [claim for claim in victims if claim.preemption is None]
            if free >= job.count:
                choices.append((len(fresh), [queue.weakest_first(self, claim) for claim in fresh], fresh))
        for claim in min(choices, key=lambda one: one[:2], default=(0, [], []))[2]:
            words = f"Training that goes first needs {job.count} {job.kind}."
            claim.preemption = Preemption(now + self.settings.notice_seconds, words, job.id)

    # GPUs in use

    def used(self) -> Iterator[str]:
        """The ids of all GPUs in use."""
        for claim in self.claims.values():
            if claim.grant is not None:
                yield from claim.grant.gpus
        for job in self.jobs.values():
            yield from (gpu.id for gpu in job.gpus)

    def _take(self, claim: Claim, holds: Document | None, now: float) -> None:
        grant = claim.grant
        if grant is not None and (holds is None or holds["slots"] == grant.slots):
            claim.grant = replace(grant, expires_at=None)
        elif holds is not None:
            self._adopt(claim, holds, now)

    def _adopt(self, claim: Claim, holds: Document, now: float) -> None:
        """Take as told what a workspace holds; who holds the same gives way, or else the claim is told to."""
        latest = claim.grant.latest_end if claim.grant is not None else None
        claim.grant = None
        used = set(self.used())
        ids: set[str] = set()
        for slot in holds["slots"]:
            if slot["gpus"] is not None:
                found = [self.inventory.find(slot["node"], name) for name in slot["gpus"]]
                ids.update(gpu.id for gpu in found if gpu is not None)
            else:
                there = [gpu for gpu in self.inventory.of(holds["kind"]) if gpu.node == slot["node"]]
                there.sort(key=lambda gpu: (gpu.id in used, gpu.cluster != holds["cluster"]))
                ids.update(gpu.id for gpu in there[: slot["count"]])
        for job in self.jobs.values():
            if ids & {gpu.id for gpu in job.gpus}:
                job.gpus, job.ends_at = [], None
        for other in self.claims.values():
            if other.grant is not None and ids & other.grant.gpus:
                if other.is_taken:
                    words = "Its GPUs were given to another while this scheduler did not know of it."
                    claim.preemption = Preemption(now + self.settings.notice_seconds, words, None)
                else:
                    other.grant = None
        cluster = holds["cluster"] or next((self.inventory.gpus[one].cluster for one in sorted(ids)), "unknown")
        claim.refused = None
        claim.grant = Grant(holds["kind"], cluster, holds["slots"], frozenset(ids), None, latest)

    def _let_go(self, claim: Claim, why: Document | None, now: float, *, by_client: bool = False) -> None:
        self.change += 1
        told = {
            **queue.state(self, replace(claim, grant=None, preemption=None, refused=why, place=None), now),
            "state": "released",
            "as_of": from_time(now),
        }
        self.gone[claim.hub, claim.id] = Gone(told, self.change, now, by_client)

    # States

    def why_never(self, asked: Document) -> Document | None:
        """Return why a claim is never granted, None where it may be."""
        kind, count = asked["kind"], asked["count"]
        if kind is None:
            return None
        if kind not in self.inventory.kinds:
            return reason("unknown_kind", f"This scheduler has no {kind}; it has {', '.join(self.inventory.kinds)}.")
        largest = max(map(self.inventory.largest, queue.allowed_kinds(asked)))
        if count > largest:
            return reason("too_many", f"No node has {count} {kind}: the largest has {largest}.")
        return None

    def _record(self, claim: Claim, now: float) -> Document:
        told = queue.state(self, claim, now)
        if told != {**claim.told, "as_of": told["as_of"]}:
            self.change += 1
            claim.told, claim.changed = told, self.change
        return claim.told

    def _claim(self, hub: str, id: str, now: float) -> Claim:  # noqa: A002
        self.hear(hub, now)
        if (hub, id) not in self.claims:
            raise Refused(404, "not_found", f"This scheduler has no claim {id}. Tell it by PUT.")
        return self.claims[hub, id]

    def _refuse_older(self, key: Key, old: Claim | None, asked: Document) -> None:
        gone = self.gone.get(key)
        if gone is not None and gone.by_client and asked["revision"] <= gone.told["revision"]:
            raise Refused(409, "older", f"It was released at revision {gone.told['revision']}. Ask with a newer one.")
        rank = (asked["revision"], RANKS[asked["want"]])
        if old is not None and rank < (old.revision, RANKS[old.asked["want"]]):
            before = f"{old.revision} that wants {old.asked['want']}"
            words = f"Revision {rank[0]} that wants {asked['want']} is behind what was asked before: {before}."
            raise Refused(409, "older", words)


def check_parts(asked: Document) -> None:
    """Refuse a day or an hour that there is not, and a claim whose parts contradict."""
    for name in ("not_before", "asked_at", "ends_at"):
        if asked[name] is not None:
            to_time(asked[name])
    if (asked["kind"] is None) != (asked["count"] == 0):
        raise Refused(400, "bad_request", "kind and count: null and 0 for no GPU, else a kind and at least 1.")
    if asked["want"] == "wait" and asked["holds"] is not None:
        raise Refused(400, "bad_request", "holds: what waits holds nothing; give null, or want hold or running.")
    for slot in (asked["holds"] or {"slots": ()})["slots"]:
        if slot["gpus"] is not None and len(slot["gpus"]) != slot["count"]:
            raise Refused(400, "bad_request", f"slots: {slot['count']} counted and {len(slot['gpus'])} named.")
