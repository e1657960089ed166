"""Families of sessions that people have and the generator does not draw: each with its own pattern of work.

A session of a family works in its pattern for some hours and then lies idle until its end. So each family shows both:
stops of work that is in use, and GPU hours that are won back.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from gpuspawner.simulate.habits import HOUR, MINUTE, Frontend, Sharing, Work
from gpuspawner.simulate.sessions import Session
from gpuspawner.simulate.timeline import Span, Timeline

IDLE_HOURS = 6.0
"""How long a session lies idle after its work."""


@dataclass
class Draft:
    """One session while it is written: spans are appended in order of time."""

    chance: random.Random
    now: float = 0.0
    gpu: list[Span] = field(default_factory=list)
    media: list[Span] = field(default_factory=list)
    holder_cpu: list[Span] = field(default_factory=list)
    cpu: list[Span] = field(default_factory=list)
    held: list[Span] = field(default_factory=list)
    lives: bool = True
    """One process holds the GPU from its first use to the end. False: each piece of work has a process of its own."""

    def work(self, seconds: float, cores: float = 1.0, percent: float | None = None) -> None:
        """Use the GPU with a process that also uses ``cpu`` cores."""
        until = self.now + seconds
        self.gpu.append((self.now, until, self.chance.uniform(30, 100) if percent is None else percent))
        self.holder_cpu.append((self.now, until, cores))
        self.cpu.append((self.now, until, cores))
        if not self.lives:
            self.held.append((self.now - 0.5, until, 1.0))
        self.now = until

    def wait(self, seconds: float, cores: float = 0.0, others: float = 0.0) -> None:
        """Leave the GPU unused. The process that holds it and other processes use the given CPU."""
        until = self.now + seconds
        self.holder_cpu.append((self.now, until, cores))
        self.cpu.append((self.now, until, cores + others))
        self.now = until

    def between(self, low: float, high: float) -> float:
        """Return a number between the two."""
        return self.chance.uniform(low, high)


@dataclass(frozen=True)
class Family:
    """How sessions of one family work: ``step`` appends one round of work and waiting."""

    step: Callable[[Draft], None]
    hours: tuple[float, float] = (4.0, 8.0)
    """How long they work."""
    lives: bool = True
    more: Mapping[str, object] = field(default_factory=dict)
    """Further fields of the sessions."""
    neighbour_share: float = 0.0
    """Fraction of the time in which neighbours compute on the same GPU."""
    gpus: int = 1
    """How many GPUs they have. The last one works."""

    def session(self, seed: int) -> Session:
        """Return the session of a seed."""
        draft = Draft(random.Random(seed), lives=self.lives)
        draft.wait(draft.between(20.0, 300.0), others=0.2)
        begin, until = draft.now, draft.between(*self.hours) * HOUR
        while draft.now < until:
            self.step(draft)
        end = draft.now + IDLE_HOURS * HOUR
        if self.lives and draft.gpu:
            draft.held = [(draft.gpu[0][0] - 1.0, end, 1.0)]
        elif self.lives and draft.media:
            draft.held = [(begin, end, 1.0)]
        neighbours = Timeline()
        if self.neighbour_share:
            neighbours = Timeline(_bouts(draft.chance, end, self.neighbour_share))
        plain = Session(
            seed=seed,
            work_kind=Work.STEADY,
            frontend=Frontend.DETACHED,
            sharing=Sharing.EXCLUSIVE,
            end=end,
            work=(*(Timeline() for _ in range(self.gpus - 1)), Timeline(draft.gpu)),
            cpu=Timeline(draft.cpu),
            held=Timeline(draft.held),
            holder_cpu=Timeline(draft.holder_cpu),
            media=Timeline(draft.media),
            has_short_processes=not self.lives,
            neighbours=neighbours,
        )
        return replace(plain, **self.more)  # type: ignore[arg-type]


def _bouts(chance: random.Random, end: float, share: float) -> Iterator[Span]:
    """Yield when neighbours compute: for 20 minutes in the middle, for the given fraction of the time."""
    at = 0.0
    while at < end:
        busy = 20 * MINUTE * chance.lognormvariate(0.0, 1.0)
        yield at, at + busy, chance.uniform(20, 100)
        at += busy + 20 * MINUTE * (1 / share - 1) * chance.lognormvariate(0.0, 1.0)


def sessions_of(family: Family, seed: int, count: int) -> Iterator[Session]:
    """Yield ``count`` sessions. The same seed gives the same sessions."""
    return (family.session(seed * 1_000_003 + number) for number in range(count))


# Rounds of work


def _bursts(
    low: float, high: float, apart: tuple[float, float], cores: float = 1.0, between: float = 0.0
) -> Callable[[Draft], None]:
    """Return a round: one burst of ``low`` to ``high`` seconds, then a pause from a range of seconds."""

    def step(draft: Draft) -> None:
        draft.work(draft.between(low, high), cores)
        draft.wait(draft.between(*apart), between)

    return step


def _phases(gpu: tuple[float, float], cpu: tuple[float, float], cores: float, others: float) -> Callable[[Draft], None]:
    """Return a round: minutes on the GPU, then minutes on the CPU by the holder and by other processes."""

    def step(draft: Draft) -> None:
        draft.work(draft.between(*gpu) * MINUTE)
        draft.wait(draft.between(*cpu) * MINUTE, cores, others)

    return step


def _stream(percent: float, media: float, cores: float) -> Callable[[Draft], None]:
    """Return a round: ten minutes of video with little other work, and a short pause."""

    def step(draft: Draft) -> None:
        begin = draft.now
        draft.work(10 * MINUTE, cores, percent)
        draft.media.append((begin, draft.now, media * draft.between(0.7, 1.3)))
        draft.wait(draft.between(1.0, 60.0))

    return step


def _requests(draft: Draft) -> None:
    """Answer some requests of a demonstration close together, then wait for the next visitor."""
    for _ in range(draft.chance.randint(1, 6)):
        draft.work(draft.between(0.2, 0.6), 0.8)
        draft.wait(draft.between(2.0, 40.0))
    draft.wait(draft.between(6 * MINUTE, 34 * MINUTE))


def _small_steps(draft: Draft) -> None:
    """Learn from a simulation on the CPU: a step of a twentieth of a second every ten seconds."""
    for _ in range(60):
        draft.work(0.05)
        draft.wait(draft.between(8.0, 12.0), 1.0)


def _graphs(draft: Draft) -> None:
    """Replay CUDA graphs at 1 % without CPU, with a burst of some seconds now and then."""
    draft.work(draft.between(2 * MINUTE, 20 * MINUTE), 0.01, 1.0)
    draft.work(draft.between(1.0, 5.0), 0.01)


def _debugging(draft: Draft) -> None:
    """Run a cell, then wait at a breakpoint or read."""
    for _ in range(draft.chance.randint(2, 6)):
        draft.work(draft.between(2.0, 90.0))
        draft.wait(draft.between(20.0, 6 * MINUTE), others=0.03)
    draft.wait(draft.between(15 * MINUTE, 37 * MINUTE))


SHARED = {"sharing": Sharing.SHARED}
MIG = {"sharing": Sharing.MIG}
UNREADABLE = {"has_unreadable": True}
HIDDEN = {"is_hidden": True, "cpu": Timeline(), "holder_cpu": Timeline()}
NOISY = {"cpu": Timeline([(0.0, 1e9, 0.05)]), "holder_cpu": Timeline([(0.0, 1e9, 0.05)])}
SPINNING = {"cpu": Timeline([(0.0, 1e9, 1.0)]), "holder_cpu": Timeline([(0.0, 1e9, 1.0)])}
MIN = MINUTE

FAMILIES: dict[str, Family] = {
    "endpoint, requests 4 to 15 min apart": Family(_bursts(0.2, 0.6, (4 * MIN, 15 * MIN), 0.7)),
    "endpoint, visitors 6 to 34 min apart": Family(_requests),
    "sweep with CPU stages of 10 to 35 min": Family(_phases((4, 15), (10, 35), 4.0, 0.0)),
    "sweep whose CPU stages run elsewhere": Family(_phases((4, 15), (10, 35), 0.02, 6.0)),
    "job every 5 min, 1 to 3 s": Family(_bursts(1.0, 3.0, (4.8 * MIN, 5.1 * MIN))),
    "job every 15 min, 1 to 3 s": Family(_bursts(1.0, 3.0, (14.8 * MIN, 15.1 * MIN))),
    "job every 29 min, 5 to 9 s": Family(_bursts(5.0, 9.0, (28.8 * MIN, 29.1 * MIN))),
    "job every 35 min, 10 to 30 s": Family(_bursts(10.0, 30.0, (34.5 * MIN, 35.0 * MIN))),
    "cron job every 10 min, a process each": Family(_bursts(3.0, 6.0, (9.5 * MIN, 10.0 * MIN)), lives=False),
    "cron job every 25 min, a process each": Family(_bursts(8.0, 20.0, (24.0 * MIN, 26.0 * MIN)), lives=False),
    "loop in a shell, a process each, shared": Family(
        _bursts(1.5, 4.0, (40.0, 300.0)), lives=False, more=SHARED, neighbour_share=0.4
    ),
    "loop in a shell, a process each, MIG": Family(_bursts(1.5, 4.0, (40.0, 300.0)), lives=False, more=MIG),
    "loop in a shell, a process each": Family(_bursts(1.5, 4.0, (40.0, 100.0)), lives=False),
    "federated client": Family(_bursts(20.0, 90.0, (8 * MIN, 33 * MIN))),
    "federated client that polls": Family(_bursts(5.0, 20.0, (8 * MIN, 33 * MIN), between=0.04)),
    "calls of a remote model between bursts": Family(_bursts(1.0, 4.0, (3 * MIN, 14 * MIN))),
    "video encoding": Family(_stream(3.0, 60.0, 0.08)),
    "video decoding": Family(_stream(2.0, 30.0, 0.3)),
    "video decoding, no kernels": Family(_stream(0.0, 25.0, 0.05)),
    "in use at 1 to 4 %": Family(lambda draft: draft.work(10 * MIN, 0.01, draft.between(1.0, 4.0))),
    "steps of a simulation, 0.05 s each": Family(_small_steps),
    "compile for 10 to 37 min, then run": Family(_phases((2, 8), (10, 37), 0.0, 8.0)),
    "download for 10 to 37 min, then run": Family(_phases((2, 8), (10, 37), 0.0, 0.3)),
    "breakpoint": Family(_debugging),
    "debugger, a model in memory, 20 to 39 min": Family(_phases((0.1, 2), (20, 39), 0.0, 0.0)),
    "training that waits for storage, 15 to 25 min": Family(_phases((5, 30), (15, 25), 0.0, 0.0)),
    "CUDA graphs at 1 %, with bursts": Family(_graphs),
    "tiny kernels, in use at 0.1 to 0.4 %": Family(lambda draft: draft.work(10 * MIN, 1.0, draft.between(0.1, 0.4))),
    "cell of 2 s every 45 min": Family(_bursts(2.0, 2.0, (45 * MIN, 45 * MIN))),
    "one of four GPUs, bursts 10 min apart": Family(_bursts(1.0, 5.0, (8 * MIN, 12 * MIN)), gpus=4),
    "lunch": Family(_phases((20, 60), (20, 38), 0.0, 0.0)),
    "side container, bursts 1 to 3 min apart": Family(_bursts(1.0, 4.0, (60.0, 180.0)), more=HIDDEN),
    "side container, bursts 10 min apart": Family(_bursts(4.0, 10.0, (8 * MIN, 12 * MIN)), more=HIDDEN),
    "unreadable process, bursts 10 min apart": Family(_bursts(1.0, 5.0, (8 * MIN, 12 * MIN)), more=UNREADABLE),
    "unreadable process, training": Family(_phases((10, 30), (1, 8), 2.0, 0.0), more=UNREADABLE),
    "MIG, training": Family(_phases((10, 30), (1, 8), 2.0, 0.0), more=MIG),
    "MIG, bursts 10 min apart": Family(_bursts(1.0, 5.0, (8 * MIN, 12 * MIN)), more=MIG),
    "MIG, kernels without CPU": Family(_bursts(5.0, 20.0, (3 * MIN, 8 * MIN), 0.04), more=MIG),
    "MIG, unreadable process, bursts": Family(_bursts(1.0, 5.0, (8 * MIN, 12 * MIN)), more={**MIG, **UNREADABLE}),
    "shared, training": Family(_phases((10, 30), (1, 8), 2.0, 0.0), more=SHARED, neighbour_share=0.4),
    "shared, bursts 10 min apart": Family(_bursts(1.0, 5.0, (8 * MIN, 12 * MIN)), more=SHARED, neighbour_share=0.4),
    "shared, kernels without CPU": Family(
        _bursts(5.0, 20.0, (3 * MIN, 8 * MIN), 0.04), more=SHARED, neighbour_share=0.4
    ),
    "shared, long kernels without CPU": Family(
        _bursts(300.0, 900.0, (60.0, 300.0), 0.005), more=SHARED, neighbour_share=0.4
    ),
    "idle, a process holds memory": Family(_bursts(60.0, 300.0, (1.0, 2.0)), hours=(0.2, 0.5)),
    "idle, its process uses 5 % of a core": Family(_bursts(60.0, 300.0, (1.0, 2.0)), hours=(0.2, 0.5), more=NOISY),
    "idle, its process uses a core": Family(_bursts(60.0, 300.0, (1.0, 2.0)), hours=(0.2, 0.5), more=SPINNING),
    "idle, MIG, its process uses a core": Family(
        _bursts(60.0, 300.0, (1.0, 2.0)), hours=(0.2, 0.5), more={**MIG, **SPINNING}
    ),
    "idle, never used": Family(lambda draft: draft.wait(MIN, others=0.03), hours=(0.2, 0.5), lives=False),
    "idle, unreadable process": Family(_bursts(60.0, 300.0, (1.0, 2.0)), hours=(0.2, 0.5), more=UNREADABLE),
    "idle, MIG, unreadable process": Family(
        _bursts(60.0, 300.0, (1.0, 2.0)), hours=(0.2, 0.5), more={**MIG, **UNREADABLE}
    ),
    "idle, shared with neighbours": Family(
        _bursts(60.0, 300.0, (1.0, 2.0)), hours=(0.2, 0.5), more=SHARED, neighbour_share=0.4
    ),
}
