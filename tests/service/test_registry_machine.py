"""Changes, failures and crashes in any order: the registry is as the store is, and what was told is never lost."""

import asyncio
import contextlib
import shutil
import tempfile
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import hypothesis.strategies as st
from databases import Database
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from lease_builders import a_lease, slots
from service_world import Killed, Life, a_catalog

from gpuspawner.core.errors import Conflict, Unavailable
from gpuspawner.core.leases.exits import ExitReason
from gpuspawner.core.leases.lease import Key, Phase
from gpuspawner.core.rules import Rate
from gpuspawner.service.engine.registry import LeaseRegistry
from gpuspawner.service.fake import HandClock
from gpuspawner.service.rules.accounting import Accounting

KEYS = [Key("hub", f"user{number} born", "") for number in range(3)]
WHICH = st.integers(0, len(KEYS) - 1)
CATALOG = a_catalog()


class Writer(RuleBasedStateMachine):
    """One registry after another on the same store, which fails or kills when told to."""

    def __init__(self):
        super().__init__()
        self.folder, self.clock, self.number = Path(tempfile.mkdtemp()), HandClock(), 0
        self.loop = asyncio.new_event_loop()
        self.told, self.pending = {}, []
        self.store = self.registry = None
        self.start()

    def start(self):
        self.store, self.life, self.fails = Database.sqlite(self.folder / "s.sqlite").store(), Life(), []
        self.store.open()
        save = self.store.save

        def written(*some):
            if self.fails and self.fails.pop(0):
                raise Unavailable("The disk is full.")
            self.life.effect(lambda: save(*some))

        self.store.save = written
        self.registry = LeaseRegistry(self.store)
        self.accounting = Accounting(self.registry, self.clock, lambda: CATALOG, lambda _gpu: "")
        self.loop.run_until_complete(self.load())

    async def load(self):
        await self.registry.load()
        await self.accounting.load()

    def save(self, *leases):
        """Change leases, and go on at once."""

        async def begin():
            self.pending.append((leases, self.registry.save(*leases)))

        with contextlib.suppress(Conflict):
            self.loop.run_until_complete(begin())

    def numbered(self, lease, **changes):
        self.number += 1
        self.clock.advance(60)
        return replace(lease, start_id=str(self.number), phase_since=self.clock.now(), **changes)

    @rule(which=WHICH)
    def one_is_asked_for(self, which):
        lease = a_lease(f"lease {self.number}", Phase.RUNNING, held=slots("a100-0"), running_at=self.clock.now())
        self.save(self.numbered(lease, key=KEYS[which], rate=Rate(Fraction(1), Fraction(2))))

    @rule(which=WHICH)
    def one_changes(self, which):
        if (lease := self.registry.of_key(KEYS[which])) is not None:
            self.save(self.numbered(lease))

    @rule(which=WHICH, again=st.booleans())
    def one_ends(self, which, again):
        if (lease := self.registry.of_key(KEYS[which])) is not None:
            ended = self.numbered(lease, phase=Phase.ENDED, ended_at=self.clock.now(), reason=ExitReason.STOPPED)
            next_one = self.numbered(replace(lease, id=f"lease {self.number}", running_at=self.clock.now()))
            self.save(*([ended, next_one] if again else [ended]))

    @rule(seconds=st.integers(1, 4000))
    def time_passes(self, seconds):
        self.clock.advance(seconds)

    @rule(fails=st.lists(st.booleans(), min_size=1, max_size=2))
    def the_store_fails(self, fails):
        self.fails = fails

    @rule(which=WHICH, again=st.booleans())
    def one_ends_and_that_can_not_be_stored(self, which, again):
        self.all_is_written()
        self.fails = [True]
        self.one_ends(which, again)
        self.all_is_written()

    @rule(half=st.booleans(), effects=st.integers(0, 2))
    def the_service_is_killed_soon(self, half, effects):
        self.life.left, self.life.half = effects, half

    @rule()
    def the_loop_goes_round(self):
        self.loop.run_until_complete(asyncio.sleep(0))

    @rule()
    def all_is_written(self):
        self.loop.run_until_complete(self.registry.settled())
        self.loop.run_until_complete(asyncio.sleep(0))
        self.note_told()
        if self.life.over:
            self.the_service_starts_again()
        elif not self.fails:
            self.is_as_stored()

    @rule()
    def the_service_starts_again(self):
        """Whatever was on its way: what is told is there, as it was told or as it was changed later."""
        self.note_told()
        self.life.over = True
        self.loop.run_until_complete(self.registry.settled())
        self.note_told()
        self.store.close()
        self.start()
        for name, number in self.told.items():
            stored = self.store.leases.get(name)
            assert stored is not None
            assert int(stored.start_id) >= number
        self.is_as_stored()

    def note_told(self):
        rest = []
        for leases, done in self.pending:
            if not done.done():
                rest.append((leases, done))
            elif done.exception() is None:
                self.told.update({lease.id: int(lease.start_id) for lease in leases})
            else:
                assert isinstance(done.exception(), (Unavailable, Killed))
        self.pending = rest

    def is_as_stored(self):
        assert {lease.id: lease for lease in self.registry} == {lease.id: lease for lease in self.store.leases.live()}
        assert self.accounting.accounts.charged == self.read_anew().accounts.charged

    def read_anew(self):
        other = Accounting(LeaseRegistry(self.store), self.clock, lambda: CATALOG, lambda _gpu: "")
        self.loop.run_until_complete(other.load())
        return other

    @invariant()
    def a_key_has_one_live_lease(self):
        keys = [lease.key for lease in self.registry]
        assert len(set(keys)) == len(keys)
        assert all(self.registry.of_key(key) in list(self.registry) for key in keys)
        stored = [lease.key for lease in self.store.leases.live()]
        assert len(set(stored)) == len(stored)

    def teardown(self):
        """In the end all is written, or the service starts again."""
        self.fails = []
        self.all_is_written()
        self.store.close()
        self.loop.close()
        shutil.rmtree(self.folder)


Writer.TestCase.settings = settings(stateful_step_count=30)
TestWriter = Writer.TestCase
