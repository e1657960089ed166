"""What the scheduler last said of our claims, and how ours are numbered for it."""

from __future__ import annotations

from collections.abc import Collection

from gpuspawner.core.queue.snapshot import Claim
from gpuspawner.schedulers.http.claims import natural_revision
from gpuspawner.schedulers.http.models import Claims, Stands, State


class Mirror:
    """States by claim id, as far as ``cursor``. An older one never replaces a newer."""

    def __init__(self) -> None:
        """Know nothing: the first question is for all."""
        self.cursor: str | None = None
        self.states: dict[str, State] = {}
        self.changes = 0
        """How many times a state changed."""
        self.counted = False
        """Whether it says of which node and how many GPUs are, and the node picks which."""
        self._numbers: dict[str, tuple[str, int]] = {}

    def take(self, told: Claims) -> None:
        """Take in an answer; one that is complete says also what is not there."""
        self.cursor = told.cursor
        if told.complete:
            for name in self.states.keys() - {state.id for state in told.claims}:
                self.gone(name)
        for state in told.claims:
            self.put(state)

    def put(self, state: State) -> None:
        """Take in one state."""
        if state.state is Stands.RELEASED:
            self.gone(state.id)
            return
        if state.grant is not None and state.grant.slots:
            self.counted = state.grant.slots[0].gpus is None
        if self.states.get(state.id) != state:
            self.states[state.id] = state
            self.changes += 1

    def gone(self, name: str) -> None:
        """Note that the scheduler has no such claim."""
        if self.states.pop(name, None) is not None:
            self.changes += 1

    def number(self, claim: Claim) -> int:
        """Return the revision of a claim as the scheduler counts: the same for the same, and higher for a newer.

        It is made of the claim alone, so that it survives our restart. Where the scheduler is ahead of that, because
        our clock went back or it turned a number down, it goes on from there.
        """
        ours, known = claim.revision, self._numbers.get(claim.id)
        if known is not None and known[0] == ours:
            return known[1]
        state = self.states.get(claim.id)
        least = 0 if state is None else state.revision
        if known is not None:
            least = max(least, known[1]) + 1
        natural = natural_revision(claim)
        number = natural if natural >= least else least + (known is None)
        self._numbers[claim.id] = ours, number
        return number

    def outnumber(self, claim: Claim) -> None:
        """Have a claim told anew under a higher number: what the scheduler has under the present one is void."""
        state = self.states.get(claim.id)
        theirs = 0 if state is None else state.revision
        self._numbers[claim.id] = claim.revision, max(self.number(claim), theirs) + 1

    def keep(self, names: Collection[str]) -> None:
        """Forget the numbers of what is gone on both sides."""
        for name in self._numbers.keys() - set(names) - self.states.keys():
            del self._numbers[name]
