"""A remote scheduler, simulated in memory. It answers late or twice, loses answers, forgets claims, or is away."""

import asyncio
from dataclasses import replace

from gpuspawner.core.errors import Unavailable
from gpuspawner.core.queue.decisions import decide
from gpuspawner.core.queue.estimates import queue_positions
from gpuspawner.core.queue.snapshot import claim_of
from gpuspawner.schedulers.base import Answer, Capabilities, Grant, Preempted, Refusal
from gpuspawner.schedulers.own_queue import InMemoryScheduler


class LateScheduler(InMemoryScheduler):
    """Keeps a grant until its claim is gone, holds GPUs, or changes."""

    capabilities = Capabilities(owns_queue=True, answers_at_once=False, substitutes=True)

    def __init__(self, backend, kinds):
        super().__init__(backend, kinds)
        self.granted: dict[str, Grant] = {}
        self.refuses: dict[str, str] = {}
        """Why it never grants to the claim of a lease, by lease id."""
        self.preempts: tuple[Preempted, ...] = ()
        self.answers: list[Answer] = []
        self.held_seconds: float | None = None
        self.mode = "well"
        """well; away: does not answer; lost: decides, and the answer is lost; old: gives its first answer again."""
        self.gate = asyncio.Event()
        self.gate.set()
        """Answers wait for it."""
        self.at_once = 0
        self.most_at_once = 0

    def forget(self):
        """Restart without any state."""
        self.granted.clear()

    async def sync(self, seen):
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            return await self._sync(seen)
        finally:
            self.at_once -= 1

    async def _sync(self, seen):
        if self.mode == "away":
            raise Unavailable("The batch scheduler does not answer.")
        answer = self._decide(seen)
        await self.gate.wait()
        if self.mode == "lost":
            raise Unavailable("The answer is lost.")
        self.answers.append(answer)
        return self.answers[0] if self.mode == "old" else answer

    def _decide(self, seen):
        revisions = {claim.id: claim.revision for claim in seen.claims}
        kept = {
            name: grant
            for name, grant in self.granted.items()
            if revisions.get(name) == grant.claim.revision and (grant.expires_at or seen.now + 1) > seen.now
        }
        held = tuple(slot for grant in kept.values() for slot in grant.slots)
        waiting = tuple(x for x in seen.leases if x.id not in kept and x.id not in self.refuses)
        until = None if self.held_seconds is None else seen.now + self.held_seconds
        for one in decide(replace(seen, leases=waiting, others=(*seen.others, *held))).grants:
            kept[one.claim.id] = Grant(one.claim, one.slots, until, one.substitute)
        self.granted = kept
        refused = tuple(Refusal(claim_of(x), self.refuses[x.id]) for x in seen.leases if x.id in self.refuses)
        return Answer(
            seen.now,
            lambda: tuple(kept.values()),
            lambda: queue_positions(seen),
            dict,
            refused,
            preempted=self.preempts,
        )
