"""The habits of users on GPUs, from which sessions are generated.

Published figures are named where they are used. All other parameters are our own choices, called arbitrary here. The
sensitivity table of ``bench/idleness`` varies them.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

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
    """Bursts of seconds between work on the CPU, for example a simulation."""
    WAITING = "waiting"
    """Bursts of seconds between waits for a remote system. Neither GPU nor CPU shows the wait."""
    ENDING = "ending"
    """The same bursts, each in a process that ends with it: a loop in a shell, a queue of small jobs."""
    ENDPOINT = "endpoint"
    """A server under test: requests of a fraction of a second, minutes apart."""
    SPACED = "spaced"
    """Kernels of some seconds, minutes apart, that are waited for without CPU."""
    LOW = "low"
    """In use all the time, below a policy's threshold: by the policy it is idle."""


class Sharing(str, Enum):
    """The kind of GPU that a session holds."""

    EXCLUSIVE = "exclusive"
    SHARED = "shared"
    """Time-slicing or MPS: every reading shows the neighbours' work too."""
    MIG = "mig"
    """nvidia-smi prints ``[N/A]`` for its utilization."""


class Frontend(str, Enum):
    """The interface that a user works in, which decides what an activity culler sees."""

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
    """The parameters of sessions. Shares are 0 to 1. Medians are of log-normal distributions."""

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
    """The shortest and the longest burst. Arbitrary."""
    works: tuple[tuple[Work, float], ...] = (
        (Work.STEADY, 0.4),
        (Work.PHASES, 0.4),
        (Work.COMPUTING, 0.1),
        (Work.WAITING, 0.05),
        (Work.ENDING, 0.05),
    )
    """Of sessions that use their GPU. Arbitrary."""
    frontends: tuple[tuple[Frontend, float], ...] = (
        (Frontend.NOTEBOOK, 0.5),
        (Frontend.TERMINAL, 0.15),
        (Frontend.DETACHED, 0.15),
        (Frontend.SSH, 0.2),
    )
    """Arbitrary."""
    attended_seconds: float = 3 * HOUR
    """Median of a stretch of work at the keyboard. Arbitrary."""
    pause_share: float = 0.1
    """Of gaps between tasks, a pause: lunch, a breakpoint, a paper. Arbitrary."""
    pause_seconds: float = 45 * MINUTE
    """Median of a pause. Arbitrary: longer than any sensible idle time."""
    job_share: float = 0.7
    """Of departures from a session that uses its GPU, with a job left running. Arbitrary."""
    job_seconds: float = 8 * HOUR
    """Median of a job that is left running. Arbitrary."""
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
    persistence_share: float = 0.8
    """Of machines, whose GPUs have persistence mode on: four of the five captures of GPUs for servers have
    (``data/nvidia-smi``). Without it, reading a GPU that no process holds wakes it."""
    neighbour_share: float = 0.4
    """Share of the time in which a neighbour on a shared GPU computes. Arbitrary."""
    loss_hours: float = 200.0
    """Session hours between losses of NVML: nvidia-smi fails, jobs go on (nvidia-container-toolkit#48). Arbitrary."""
    fault_hours: float = 50.0
    """Session hours between times in which nothing in the workspace answers. Arbitrary."""
    fault_seconds: float = 8 * MINUTE
    """Median of a fault. Arbitrary."""
    restart_hours: float = 100.0
    """Session hours between restarts of hub and service. Arbitrary: about twice a week."""
    away_seconds: float = 60.0
    """Median that a restart takes. Arbitrary."""
    step_hours: float = 500.0
    """Session hours between steps of the hub's wall clock by an hour, either way. Arbitrary."""
