"""Runs rules over sessions."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from peers import Peer

from gpuspawner.core.idle.policies import IdlePolicy
from gpuspawner.simulate.probe import Exporter, GeneratedSampler, Monitor, Probe
from gpuspawner.simulate.replay import SessionResult, Totals, judged, simulate, totals
from gpuspawner.simulate.sessions import Session

POLICY = IdlePolicy()
OURS: dict[str, tuple[str, Probe]] = {
    "gpuspawner": ("nvidia-smi, CPU time", Probe()),
    "gpuspawner with DCGM": ("and DCGM's engine activity", Probe(exporter=Exporter.ENGINE)),
    "gpuspawner with the monitor": ("and the monitor", Probe(monitor=Monitor.UTILIZATION)),
}
"""Ours, by the sources that it has."""


@dataclass(frozen=True)
class Row:
    """One rule's figures."""

    name: str
    signal: str
    totals: Totals

    @property
    def at_most(self) -> float:
        """Upper limit of the 95 % confidence interval of wrong stops per 100,000 hours if no wrong stop was seen."""
        return 3e5 / self.totals.session_hours  # the rule of three

    def cells(self) -> tuple[str, ...]:
        wrong, freed = self.totals.wrong_per_100k_hours, [self.totals.freed_after(share) for share in (0.5, 0.95)]
        return (
            self.name,
            self.signal,
            f"{wrong:,.0f}" if wrong else f"0 (< {self.at_most:.0f})",
            f"{100 * self.totals.recovered_share:.1f} %",
            *("-" if seconds is None else f"{seconds / 60:.0f} min" for seconds in freed),
        )


HEAD = ("rule", "looks at", "stopped in use", "recovered", "freed: median", "95 %")


def ours(session: Session, policy: IdlePolicy = POLICY, probe: Probe | None = None) -> SessionResult:
    """Judge one session by the live service's own function."""
    return simulate(GeneratedSampler(session, policy, probe), session.used, len(session.work), session.end, policy)[0]


def theirs(session: Session, peer: Peer) -> SessionResult:
    """Judge one session by a peer's rule."""
    return judged(
        lambda begin: (peer.rule(session, begin), None), session.used, len(session.work), session.end, peer.policy
    )


def figures(sessions: Iterable[Session], peers: Iterable[Peer]) -> list[Row]:
    """Return a row for ours with each source, and one for each peer, over the same sessions."""
    peers = tuple(peers)
    rows: list[list[tuple[SessionResult, float]]] = [[] for _ in range(len(OURS) + len(peers))]
    for session in sessions:
        for row, (_, probe) in zip(rows, OURS.values(), strict=False):
            row.append((ours(session, probe=probe), session.end))
        for row, peer in zip(rows[len(OURS) :], peers, strict=True):
            row.append((theirs(session, peer), session.end))
    names = [*((name, signal) for name, (signal, _) in OURS.items()), *((peer.name, peer.signal) for peer in peers)]
    return [Row(*name, totals(row)) for name, row in zip(names, rows, strict=True)]


def table(rows: Iterable[tuple[str, ...]], head: tuple[str, ...] = HEAD) -> str:
    """Return rows as text, numbers to the right."""
    lines = [head, *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if column < 2 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        for line in lines
    )


def markdown(rows: Iterable[tuple[str, ...]], head: tuple[str, ...] = HEAD) -> str:
    """Return rows as a table for docs/."""
    ruler = tuple("---" if column < 2 else "--:" for column in range(len(head)))
    return "\n".join(f"| {' | '.join(line)} |" for line in (head, ruler, *rows))
