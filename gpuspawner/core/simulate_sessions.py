"""Sessions of people on GPUs, drawn from a seed: what they really did, and every trace of it that a culler may see.

Published figures are named beside what is drawn from them. All other parameters are our own choices, called arbitrary
here, and varied in the sensitivity table of ``bench/idleness``. Times are in seconds since the workspace ran.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import TypeVar

from gpuspawner.core.timeline import Span, Timeline, merged

_T = TypeVar("_T")

MINUTE, HOUR = 60.0, 3600.0


class Work(str, Enum):
    """How a session uses its GPUs."""

    NEVER = "never"
    """Notebooks on the CPU: the GPU is held and never used."""
    STEADY = "steady"
    """The GPU is in use as long as the task runs."""
    PHASES = "phases"
    """Training whose data loading or evaluation leaves the GPU at 0 for seconds to many minutes, on the CPU."""
    COMPUTING = "computing"
    """Bursts of seconds between computing on the CPU, such as simulation."""
    WAITING = "waiting"
    """Bursts of seconds between waiting for something far away: neither GPU nor CPU shows the wait."""


class Sharing(str, Enum):
    """What kind of GPU a session holds."""

    EXCLUSIVE = "exclusive"
    SHARED = "shared"
    """Time-slicing or MPS: every reading shows the neighbours' work too."""
    MIG = "mig"
    """nvidia-smi prints ``[N/A]`` for its utilization."""


class Door(str, Enum):
    """How its user works in it: what an activity culler sees."""

    NOTEBOOK = "notebook"
    """Cells: the kernel says that it is busy."""
    TERMINAL = "terminal"
    """A terminal in the browser that prints as the task runs."""
    DETACHED = "detached"
    """``nohup``, ``tmux``: nothing of Jupyter shows the task."""
    SSH = "ssh"
    """SSH or a desktop editor: no kernel, no terminal, no browser."""


@dataclass(frozen=True)
class Habits:
    """What sessions are drawn from. Shares are 0 to 1; medians are of log-normal distributions."""

    never_share: float = 0.70
    """Of sessions, never use their GPU. NotebookOS (ASPLOS'26): about 70 %."""
    task_seconds: tuple[float, float] = (2 * MINUTE, 5 * MINUTE)
    """Median and upper quartile of a GPU task. NotebookOS: p50 at most 2 min, p75 at most 5 min."""
    gap_seconds: float = 5 * MINUTE
    """Median between tasks while their user is there. NotebookOS: 5 min."""
    duty_share: tuple[float, ...] = (0.03, 0.05, 0.10)
    """GPU use of a task in bursts: the cases of the notes that one reading a minute misses 40, 21 and 4 % of the
    time."""
    burst_seconds: tuple[float, float] = (1.0, 5.0)
    """Of one burst, from and to. Arbitrary: "bursts of seconds"."""
    works: tuple[tuple[Work, float], ...] = (
        (Work.STEADY, 0.4),
        (Work.PHASES, 0.4),
        (Work.COMPUTING, 0.1),
        (Work.WAITING, 0.1),
    )
    """Of sessions that use their GPU. Arbitrary."""
    doors: tuple[tuple[Door, float], ...] = (
        (Door.NOTEBOOK, 0.5),
        (Door.TERMINAL, 0.15),
        (Door.DETACHED, 0.15),
        (Door.SSH, 0.2),
    )
    """Arbitrary."""
    attended_seconds: float = 3 * HOUR
    """Median of a stretch of work at the keyboard. Arbitrary."""
    pause_share: float = 0.1
    """Of gaps between tasks, a pause: lunch, a breakpoint, a paper. Arbitrary."""
    pause_seconds: float = 45 * MINUTE
    """Median of such a pause. Arbitrary: longer than any sensible idle time."""
    job_share: float = 0.7
    """Of departures from a session that uses its GPU, with a job left running. Arbitrary."""
    job_seconds: float = 8 * HOUR
    """Median of such a job. Arbitrary."""
    loading_seconds: tuple[float, float] = (20.0, 8 * MINUTE)
    """Medians of a short and of a long CPU phase. Arbitrary."""
    long_loading_share: float = 0.1
    """Of CPU phases, long. Arbitrary."""
    twitch_share: float = 0.3
    """Of sessions, a background thread of the kernel that takes half a second of CPU every ten minutes. Arbitrary."""
    tidy_share: float = 0.3
    """Of departures, with the workspace stopped by its user. Arbitrary."""
    tab_share: float = 0.4
    """Of departures, with the browser's tab left open, or the editor connected. Arbitrary (2i2c#2232 reports both)."""
    days: tuple[float, ...] = (0.6, 0.3, 0.1)
    """How many days a session lasts, from one on. Arbitrary."""
    several_share: float = 0.25
    """Of sessions, with more than one GPU. Arbitrary."""
    one_of_several_share: float = 0.5
    """Of these, using only one of them. Arbitrary."""
    sharing: tuple[tuple[Sharing, float], ...] = (
        (Sharing.EXCLUSIVE, 0.7),
        (Sharing.SHARED, 0.2),
        (Sharing.MIG, 0.1),
    )
    """Arbitrary."""
    neighbour_share: float = 0.4
    """Of the time, a neighbour on a shared GPU computes. Arbitrary."""
    loss_hours: float = 200.0
    """Session hours between losses of NVML: nvidia-smi fails, jobs go on (nvidia-container-toolkit#48). Arbitrary."""
    fault_hours: float = 50.0
    """Session hours between stretches in which nothing in the workspace can be asked. Arbitrary."""
    fault_seconds: float = 8 * MINUTE
    """Median of such a stretch. Arbitrary."""
    restart_hours: float = 100.0
    """Session hours between restarts of hub and service. Arbitrary: about twice a week."""
    away_seconds: float = 60.0
    """Median that a restart takes. Arbitrary."""
    step_hours: float = 500.0
    """Session hours between steps of the hub's wall clock by an hour, either way. Arbitrary."""


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
    door: Door
    sharing: Sharing
    end: float
    work: tuple[Timeline, ...]
    """For each GPU, the percent of it that this workspace uses. The truth."""
    cpu: Timeline
    """Cores in use by its processes, above the idle ones."""
    held_from: float | None
    """When a process first opened the GPU; none closes it."""
    twitches: bool = False
    """Half a second of CPU every ten minutes in the process that holds the GPU."""
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
    """Nothing inside can be asked: neither the probe nor Jupyter's own API answers."""
    restarts: tuple[Restart, ...] = ()
    steps: tuple[tuple[float, float], ...] = ()
    """When the hub's wall clock was set, and by how many seconds."""

    @property
    def used(self) -> Timeline:
        """When any of its GPUs was at work for it."""
        return merged(self.work)

    @property
    def hours(self) -> float:
        """Its length."""
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
    return _Drawn(random.Random(seed), habits).session(seed)  # noqa: S311 - not for secrets


class _Drawn:
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
        self.door = self.pick(habits.doors)
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
            door=self.door,
            sharing=self.sharing,
            end=self.now,
            work=tuple(work if not one or number == gpus - 1 else Timeline() for number in range(gpus)),
            cpu=Timeline(self.cpu),
            # A third of those who never use the GPU import a framework that opens it all the same. Arbitrary.
            held_from=work.next_begin(0.0) if work else (60.0 if self.chance.random() < 1 / 3 else None),
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
        )

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

    # What its user does

    def attended(self) -> None:
        """Work at the keyboard: tasks, gaps and pauses."""
        begin = self.now
        end = begin + min(self.around(self.habits.attended_seconds, 0.6), 10 * HOUR)
        self.now += min(self.around(3 * MINUTE), HOUR)
        while self.now < end:
            self.task(self.task_seconds(), self.door)
            if self.chance.random() < self.habits.pause_share:
                self.pause(min(self.around(self.habits.pause_seconds, 0.5), 3 * HOUR))
            else:
                self.gap(min(self.around(self.habits.gap_seconds), HOUR))
        self.trace(begin, self.now)

    def trace(self, begin: float, end: float) -> None:
        """Leave what a present user leaves: traffic, or a connection."""
        (self.connected if self.door is Door.SSH else self.browser).append((begin, end, 1.0))

    def task_seconds(self) -> float:
        median, quartile = self.habits.task_seconds
        return min(self.around(median, math.log(quartile / median) / 0.6745), 12 * HOUR)  # 0.6745: the normal quartile

    def gap(self, seconds: float) -> None:
        """Think, type, run small cells."""
        if self.door is Door.NOTEBOOK:
            self.kernel.append((self.now, self.now + min(2.0, seconds), 1.0))
        elif self.door is Door.TERMINAL:
            self.terminal.append((self.now, self.now + min(2.0, seconds), 1.0))
        self.cpu.append((self.now, self.now + seconds, 0.03))
        self.now += seconds

    def pause(self, seconds: float) -> None:
        """Hold still: half of the notebooks stand at a breakpoint, whose kernel is busy."""
        if self.door is Door.NOTEBOOK and self.chance.random() < 0.5:  # noqa: PLR2004
            self.kernel.append((self.now, self.now + seconds, 1.0))
        self.now += seconds

    def leaves(self, *, tidy: bool) -> bool:
        """Go home, perhaps with a job left running. Returns whether the workspace was stopped."""
        begin = self.now
        if self.kind is not Work.NEVER and self.chance.random() < self.habits.job_share:
            self.task(min(self.around(self.habits.job_seconds, 0.7), 24 * HOUR), self.door)
        if tidy:
            return True
        self.now = max(self.now, begin + self.chance.uniform(12 * HOUR, 16 * HOUR))
        if self.chance.random() < self.habits.tab_share:
            self.trace(begin, self.now)
        return False

    def task(self, seconds: float, door: Door) -> None:
        """Compute, on the GPU unless the session never does."""
        begin, end = self.now, self.now + seconds
        if self.kind is Work.NEVER:
            self.cpu.append((begin, end, 1.0))
        elif self.kind is Work.STEADY:
            self.gpu.append((begin, end, self.chance.uniform(20, 100)))
            self.cpu.append((begin, end, 1.0))
        elif self.kind is Work.PHASES:
            self.phases(end)
        else:
            self.bursts(end)
        if door is Door.NOTEBOOK:
            self.kernel.append((begin, end, 1.0))
        elif door is Door.TERMINAL:
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
        while at < end:
            until = min(end, at + self.chance.uniform(*self.habits.burst_seconds))
            self.gpu.append((at, until, self.chance.uniform(20, 100)))
            self.cpu.append((at, until, 1.0))
            at = min(end, until + (until - at) * (1 / duty - 1) * self.chance.uniform(0.5, 1.5))
            self.cpu.append((until, at, cores))

    # What happens to it

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
