"""Outages: which part does not answer, and since when."""

from __future__ import annotations

from dataclasses import dataclass

from gpuspawner.core.units import show_time

DATABASE, HUB, API_SERVER = "The service's database", "The hub", "The Kubernetes API server"
ETCD = "The database of the Kubernetes API server (etcd)"
GPU_SOURCE = "The source of the list of GPUs"
"""The part in an outage of a backend that does not name one."""


@dataclass(frozen=True)
class Outage:
    """A part that does not answer. ``since`` is its last answer, in seconds since the epoch.

    ``part`` begins a sentence. ``why`` is for administrators.
    """

    part: str
    since: float
    why: str = ""

    def words(self, now: float) -> str:
        """Return a sentence with the part and the time."""
        return f"{self.part} has not answered since {show_time(self.since, now)}."

    def waiting_words(self, now: float) -> str:
        """Return the sentences for a request that waits during the outage."""
        return f"{self.words(now)} Nothing new starts until it answers."
