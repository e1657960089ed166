"""Sessions of users on GPUs, generated from a seed: the truth, and all traces of it that a culler may see.

Their parameters are in :mod:`gpuspawner.simulate.habits`. Times are in seconds since the workspace ran.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypeVar

from gpuspawner.simulate.habits import HOUR, MINUTE, Frontend, Habits, Sharing, Work
from gpuspawner.simulate.timeline import Span, Timeline, merged

_T = TypeVar("_T")

ENDING_START_SECONDS, ENDING_HELD_SECONDS = 1.0, 0.5
"""How long a process for one burst takes to start, and how long before the burst it opens the GPU. Arbitrary and short:
importing a framework takes seconds of CPU.
"""


@dataclass(frozen=True)
class SparseWork:
    """Rare bursts: their length, the mean time between two, each from and to, and the CPU time of one."""

    burst_seconds: tuple[float, float]
    apart_seconds: tuple[float, float]
    cpu_seconds: float


SPARSE = {
    Work.ENDPOINT: SparseWork((0.2, 0.6), (4 * MINUTE, 15 * MINUTE), 0.3),
    Work.SPACED: SparseWork((5.0, 20.0), (3 * MINUTE, 8 * MINUTE), 0.5),
}


@dataclass(frozen=True)
class Restart:
    """The hub and its service were away for ``seconds``; meanwhile the wall clock moved by ``step_seconds`` more."""

    at: float
    seconds: float
    step_seconds: float


@dataclass(frozen=True)
class Session:
    """One workspace from its start to the end that its user or its lifetime gave it."""

    seed: int
    work_kind: Work
    frontend: Frontend
    sharing: Sharing
    end: float
    work: tuple[Timeline, ...]
    """For each GPU, the percent of it that this workspace uses. The truth."""
    cpu: Timeline
    """Cores in use by its processes, above the idle ones."""
    held: Timeline
    """When a process has the GPU open."""
    holder_cpu: Timeline | None = None
    """Cores in use by the processes that hold the GPU; None where these use all of ``cpu``."""
    media: Timeline = field(default_factory=Timeline)
    """Percent of the encoder or decoder of its GPUs that this workspace uses. The truth, too."""
    has_unreadable: bool = False
    """One of its processes hides its open files, as ``ssh-agent`` does."""
    has_short_processes: bool = False
    """Each piece of its work has a process of its own, which ends with it."""
    is_hidden: bool = False
    """The process that uses the GPU is in another container of its pod. The probe does not see it."""
    twitches: bool = False
    """Half a second of CPU every ten minutes in the process that holds the GPU."""
    persistence: bool = True
    """Its GPUs have persistence mode, so reading an unused GPU does not wake it."""
    neighbours: Timeline = field(default_factory=Timeline)
    """Percent of a shared GPU that others use."""
    browser: Timeline = field(default_factory=Timeline)
    """Traffic through the hub's proxy."""
    kernel: Timeline = field(default_factory=Timeline)
    """A kernel says that it is busy."""
    terminal: Timeline = field(default_factory=Timeline)
    """A terminal of Jupyter prints, or is typed into."""
    connected: Timeline = field(default_factory=Timeline)
    """An SSH session or a desktop editor is connected."""
    lost: Timeline = field(default_factory=Timeline)
    """nvidia-smi fails."""
    faults: Timeline = field(default_factory=Timeline)
    """Neither the probe nor Jupyter's own API answers."""
    restarts: tuple[Restart, ...] = ()
    steps: tuple[tuple[float, float], ...] = ()
    """When the hub's wall clock was set, and by how many seconds."""

    @property
    def used(self) -> Timeline:
        """When any of its GPUs was at work for it."""
        return merged([*self.work, self.media])

    @property
    def hours(self) -> float:
        """The length of the session in hours."""
        return self.end / HOUR


def sessions(seed: int, hours: float, habits: Habits | None = None) -> Iterator[Session]:
    """Yield sessions until they add up to at least ``hours``. The same seed and habits give the same sessions."""
    number, drawn = 0, 0.0
    while drawn < hours:
        session = draw(seed * 1_000_003 + number, habits or Habits())
        yield session
        number, drawn = number + 1, drawn + session.hours


def draw(seed: int, habits: Habits) -> Session:
    """Return the session of a seed."""
    return _SessionGenerator(random.Random(seed), habits).session(seed)  # noqa: S311 - not for secrets


class _SessionGenerator:
    """One session while it is drawn: what happens is appended in order of time."""

    def __init__(self, chance: random.Random, habits: Habits) -> None:
        self.chance, self.habits = chance, habits
        self.now = 0.0
        self.gpu: list[Span] = []
        self.cpu: list[Span] = []
        self.browser: list[Span] = []
        self.kernel: list[Span] = []
        self.terminal: list[Span] = []
        self.connected: list[Span] = []
        self.sharing = self.pick(habits.sharing)
        self.frontend = self.pick(habits.frontends)
        never = chance.random() < habits.never_share
        self.kind = Work.NEVER if never else self.pick(habits.works)

    def session(self, seed: int) -> Session:
        days = self.chance.choices(range(len(self.habits.days)), self.habits.days)[0]
        for day in range(days + 1):
            self.attended()
            last = day == days
            if self.leaves(tidy=last and self.chance.random() < self.habits.tidy_share):
                break
        work = Timeline(self.gpu)
        gpus = self.chance.choice((2, 4, 8)) if self.chance.random() < self.habits.several_share else 1
        if self.sharing is not Sharing.EXCLUSIVE:
            gpus = 1
        one = self.chance.random() < self.habits.one_of_several_share
        return Session(
            seed=seed,
            work_kind=self.kind,
            frontend=self.frontend,
            sharing=self.sharing,
            end=self.now,
            work=tuple(work if not one or number == gpus - 1 else Timeline() for number in range(gpus)),
            cpu=Timeline(self.cpu),
            held=self.held(work),
            has_short_processes=self.kind is Work.ENDING,
            twitches=self.chance.random() < self.habits.twitch_share,
            neighbours=self.neighbours() if self.sharing is Sharing.SHARED else Timeline(),
            browser=Timeline(self.browser),
            kernel=Timeline(self.kernel),
            terminal=Timeline(self.terminal),
            connected=Timeline(self.connected),
            lost=self.lost(),
            faults=self.faults(),
            restarts=tuple(self.restarts()),
            steps=tuple((at, self.step()) for at in self.arrivals(self.habits.step_hours)),
            persistence=self.chance.random() < self.habits.persistence_share,
        )

    def held(self, work: Timeline) -> Timeline:
        """A process that opened the GPU keeps it, but for those that end with their burst."""
        if self.kind is Work.ENDING:
            return Timeline((begin - ENDING_HELD_SECONDS, end, 1.0) for begin, end, _ in work.spans)
        # A third of those who never use the GPU import a framework that opens it all the same. Arbitrary.
        begin = work.next_begin(0.0) if work else (60.0 if self.chance.random() < 1 / 3 else None)
        return Timeline() if begin is None or begin >= self.now else Timeline([(begin, self.now, 1.0)])

    # Chance

    def pick(self, weighted: tuple[tuple[_T, float], ...]) -> _T:
        return self.chance.choices([value for value, _ in weighted], [weight for _, weight in weighted])[0]

    def around(self, median: float, spread: float = 1.0) -> float:
        """Draw log-normally; ``spread`` is the standard deviation of the logarithm (1.0 is arbitrary)."""
        return median * math.exp(self.chance.gauss(0.0, spread))

    def arrivals(self, mean_hours: float) -> Iterator[float]:
        at = self.chance.expovariate(1.0) * mean_hours * HOUR
        while at < self.now:
            yield at
            at += self.chance.expovariate(1.0) * mean_hours * HOUR

    def step(self) -> float:
        return self.chance.choice((-HOUR, HOUR))

    # The user

    def attended(self) -> None:
        """Work at the keyboard: tasks, gaps and pauses."""
        begin = self.now
        end = begin + min(self.around(self.habits.attended_seconds, 0.6), 10 * HOUR)
        self.now += min(self.around(3 * MINUTE), HOUR)
        while self.now < end:
            self.task(self.task_seconds(), self.frontend)
            if self.chance.random() < self.habits.pause_share:
                self.pause(min(self.around(self.habits.pause_seconds, 0.5), 3 * HOUR))
            else:
                self.gap(min(self.around(self.habits.gap_seconds), HOUR))
        self.trace(begin, self.now)

    def trace(self, begin: float, end: float) -> None:
        """Add the traffic or the connection of a present user."""
        (self.connected if self.frontend is Frontend.SSH else self.browser).append((begin, end, 1.0))

    def task_seconds(self) -> float:
        median, quartile = self.habits.task_seconds
        return min(self.around(median, math.log(quartile / median) / 0.6745), 12 * HOUR)  # 0.6745: the normal quartile

    def gap(self, seconds: float) -> None:
        """Think, type, run small cells."""
        if self.frontend is Frontend.NOTEBOOK:
            self.kernel.append((self.now, self.now + min(2.0, seconds), 1.0))
        elif self.frontend is Frontend.TERMINAL:
            self.terminal.append((self.now, self.now + min(2.0, seconds), 1.0))
        self.cpu.append((self.now, self.now + seconds, 0.03))
        self.now += seconds

    def pause(self, seconds: float) -> None:
        """Do nothing. Half of the notebooks are at a breakpoint, and their kernel is busy."""
        if self.frontend is Frontend.NOTEBOOK and self.chance.random() < 0.5:  # noqa: PLR2004
            self.kernel.append((self.now, self.now + seconds, 1.0))
        self.now += seconds

    def leaves(self, *, tidy: bool) -> bool:
        """Go home, perhaps with a job left running. Returns whether the workspace was stopped."""
        begin = self.now
        if self.kind is not Work.NEVER and self.chance.random() < self.habits.job_share:
            self.task(min(self.around(self.habits.job_seconds, 0.7), 24 * HOUR), self.frontend)
        if tidy:
            return True
        self.now = max(self.now, begin + self.chance.uniform(12 * HOUR, 16 * HOUR))
        if self.chance.random() < self.habits.tab_share:
            self.trace(begin, self.now)
        return False

    def task(self, seconds: float, frontend: Frontend) -> None:
        """Compute, on the GPU unless the session never does."""
        begin, end = self.now, self.now + seconds
        if self.kind is Work.NEVER:
            self.cpu.append((begin, end, 1.0))
        elif self.kind is Work.STEADY:
            self.gpu.append((begin, end, self.chance.uniform(20, 100)))
            self.cpu.append((begin, end, 1.0))
        elif self.kind is Work.PHASES:
            self.phases(end)
        elif self.kind is Work.LOW:
            self.gpu.append((begin, end, self.chance.uniform(1, 4)))
            self.cpu.append((begin, end, 0.01))
        elif self.kind in SPARSE:
            self.sparse(end, SPARSE[self.kind])
        else:
            self.bursts(end)
        if frontend is Frontend.NOTEBOOK:
            self.kernel.append((begin, end, 1.0))
        elif frontend is Frontend.TERMINAL:
            self.terminal.append((begin, end, 1.0))
        self.now = end

    def phases(self, end: float) -> None:
        at, percent = self.now, self.chance.uniform(20, 100)
        while at < end:
            until = min(end, at + self.around(40.0))
            self.gpu.append((at, until, percent))
            self.cpu.append((at, until, 1.0))
            median = self.habits.loading_seconds[self.chance.random() < self.habits.long_loading_share]
            at = min(end, until + min(self.around(median, 0.7), 2 * HOUR))
            self.cpu.append((until, at, self.chance.uniform(1.0, 8.0)))

    def bursts(self, end: float) -> None:
        at, duty = self.now, self.chance.choice(self.habits.duty_share)
        cores = 1.0 if self.kind is Work.COMPUTING else 0.01
        start_seconds = ENDING_START_SECONDS if self.kind is Work.ENDING else 0.0
        while at < end:
            begin = min(end, at + start_seconds)
            until = min(end, begin + self.chance.uniform(*self.habits.burst_seconds))
            self.gpu.append((begin, until, self.chance.uniform(20, 100)))
            self.cpu.append((at, until, 1.0))
            at = min(end, until + (until - begin) * (1 / duty - 1) * self.chance.uniform(0.5, 1.5))
            self.cpu.append((until, at, cores))

    def sparse(self, end: float, how: SparseWork) -> None:
        """Answer requests that come by chance (exponentially), at a rate of this task's own."""
        at, apart = self.now, self.chance.uniform(*how.apart_seconds)
        while (at := at + self.chance.expovariate(1.0) * apart) < end:
            until = min(end, at + self.chance.uniform(*how.burst_seconds))
            if until > at:
                self.gpu.append((at, until, self.chance.uniform(20, 100)))
                self.cpu.append((at, until, min(1.0, how.cpu_seconds / (until - at))))
            at = until

    # Events

    def neighbours(self) -> Timeline:
        spans, at = [], 0.0
        while at < self.now:
            busy = self.around(20 * MINUTE)
            spans.append((at, at + busy, self.chance.uniform(20, 100)))
            at += busy + self.around(20 * MINUTE * (1 / self.habits.neighbour_share - 1))
        return Timeline(spans)

    def lost(self) -> Timeline:
        """Half of the losses last until the container ends, the others some hours. Arbitrary."""
        at = next(self.arrivals(self.habits.loss_hours), None)
        if at is None:
            return Timeline()
        forever = self.chance.random() < 0.5  # noqa: PLR2004
        return Timeline([(at, self.now if forever else at + self.around(2 * HOUR), 1.0)])

    def faults(self) -> Timeline:
        return merged(
            [
                Timeline([(at, at + self.around(self.habits.fault_seconds), 1.0)])
                for at in self.arrivals(self.habits.fault_hours)
            ]
        )

    def restarts(self) -> Iterator[Restart]:
        """Every tenth comes with a step of the wall clock, as a virtual machine that was moved has. Arbitrary."""
        free_from = 0.0
        for at in self.arrivals(self.habits.restart_hours):
            if at < free_from:
                continue
            seconds = min(self.around(self.habits.away_seconds), 2 * HOUR)
            step = self.step() if self.chance.random() < 0.1 else 0.0  # noqa: PLR2004
            yield Restart(at, seconds, step)
            free_from = at + seconds
