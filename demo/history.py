"""Some weeks of usage before the demo's first run, marked *demo*: without any there is nothing to simulate or report.

Drawn by the generator of ``bench/idleness``, sampled and thinned by the service's own code: what a service would have
recorded that only observed. Made once; what people then do comes on top.
"""

from __future__ import annotations

import random
import sys
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from heapq import merge
from pathlib import Path
from zoneinfo import ZoneInfo

from gpuspawner.catalog import Catalog, load_catalog
from gpuspawner.core.events import Stopped
from gpuspawner.core.gpus.fleet import Slot
from gpuspawner.core.idle.evidence import read_evidence
from gpuspawner.core.idle.policies import LifecyclePolicy
from gpuspawner.core.leases.exits import ExitReason
from gpuspawner.core.leases.lease import Key, Lease, Phase
from gpuspawner.core.leases.request import Request
from gpuspawner.core.quotas.ledger import LedgerLine, ledger_lines_of_step, rate_of
from gpuspawner.service.engine.sampling.sampler import reading_rows
from gpuspawner.service.rules.accounting import parts_of_lines, parts_of_step
from gpuspawner.service.store import AuditLine, ReadingRow, Store
from gpuspawner.service.store.usage_sums import UsagePart
from gpuspawner.simulate.habits import Habits, Sharing, Work
from gpuspawner.simulate.probe import GeneratedSampler
from gpuspawner.simulate.sessions import Session, sessions

WEEKS = 3
HOLDS = {"grace-demo": ("a100", 2), "heidi-demo": ("h100", 1), "erin-demo": ("t4", 2), "frank-demo": ("a100", 1)}
"""The GPUs of one person: kind and number."""
TEAMS = {"grace-demo": "vision", "heidi-demo": "speech", "erin-demo": "speech", "frank-demo": "vision"}
DAYS_OFF = (5, 6)
MORNING_HOURS = (8.0, 11.0)
HOUR, DAY = 3600.0, 86400.0
HABITS = Habits(
    sharing=((Sharing.EXCLUSIVE, 1.0),),
    days=(0.9, 0.1),
    job_share=1.0,
    works=((Work.STEADY, 0.7), (Work.PHASES, 0.2), (Work.WAITING, 0.1)),
)
"""Published of notebooks on a cluster's GPUs (NotebookOS, ASPLOS'26): about 70 % of sessions never use theirs, 75 % use
them 5 % of the time at most, and reserved GPUs are idle over 81 % of the time. The generator's own habits give the
first two; these leave more jobs running, so that GPUs are at work for nearly the rest."""


def main(data: Path, catalog_path: str) -> None:
    """Write the history into a service's data folder that has no database yet."""
    path = data / "gpuspawner.sqlite"
    if path.exists():
        return
    catalog, now = load_catalog(catalog_path), time.time()
    zone = ZoneInfo(catalog.rules.timezone)
    data.mkdir(parents=True, exist_ok=True, mode=0o700)
    store = Store(f"sqlite:///{path}")
    try:
        store.open()
        everybody = (
            workspaces(catalog, user, kind, count, seed=seed, now=now)
            for seed, (user, (kind, count)) in enumerate(HOLDS.items())
        )
        # In the order of their ends, each kept no longer than it takes: the audit is told as it was written.
        for lease, rows in merge(*everybody, key=lambda one: one[0].phase_since):
            line = AuditLine(lease.phase_since, lease.id, lease.user, lease.user, Stopped("stopped", lease.message))
            charged = ledger_lines_of_step(replace(lease, phase=Phase.RUNNING), lease, zone)
            store.save([lease], [line], rows, charged, usage=used_of(lease, charged, rows, zone))
        while store.readings.thin(now):
            pass
    finally:
        store.close()


def workspaces(
    catalog: Catalog, user: str, kind: str, count: int, *, seed: int, now: float
) -> Iterator[tuple[Lease, list[ReadingRow]]]:
    """Yield a person's workspaces of the last weeks, each with its readings: about one a working day."""
    chance = random.Random(seed)
    policy = catalog.policies["default"]
    day = datetime.fromtimestamp(now).astimezone().replace(hour=0, minute=0, second=0, microsecond=0)
    ended_at = 0.0
    drawn = (one for one in sessions(seed, WEEKS * 40 * HOUR, HABITS) if len(one.work) <= count)
    for back in range(7 * WEEKS, 1, -1):
        morning = day - timedelta(days=back)
        start = morning.timestamp() + chance.uniform(*MORNING_HOURS) * HOUR
        if morning.weekday() in DAYS_OFF or start < ended_at:
            continue
        session = next(drawn)
        ended_at = start + session.end
        if ended_at > now - DAY:
            return
        rate = rate_of(catalog.gpus.get(kind), len(session.work))
        lease = replace(a_lease(user, kind, len(session.work), start, session.end, policy), rate=rate)
        yield lease, list(readings(lease, session, policy))


def used_of(
    lease: Lease, charged: Sequence[LedgerLine], rows: Iterable[ReadingRow], zone: ZoneInfo
) -> Iterator[UsagePart]:
    """Yield the usage sums that the service would have recorded: the charges, and the samples of each day."""

    def node_of(_gpu: str) -> str:
        return "demo"

    yield from parts_of_lines(charged, {lease.id: lease}, node_of)
    yield from parts_of_step(replace(lease, phase=Phase.RUNNING), lease, rows, zone, node_of)


def a_lease(user: str, kind: str, count: int, start: float, seconds: float, policy: LifecyclePolicy) -> Lease:
    """Return a lease that ran for the given time until its user stopped it."""
    request = Request(user, "pytorch", policy.name, kind, count, 2.0, 4 * 2**30, round(seconds), team=TEAMS[user])
    return Lease(
        id=uuid.uuid4().hex,
        key=Key("demo", f"{user} of the demo's history", ""),
        user=user,
        request=request,
        options={},
        asked_at=start,
        phase=Phase.ENDED,
        phase_since=start + seconds,
        slots=tuple(Slot(f"demo-{kind}-{number}") for number in range(count)),
        granted_at=start,
        running_at=start,
        reason=ExitReason.STOPPED,
        ended_by=user,
        message="Demo: its user stopped it.",
        hub_gone=True,
        ended_at=start + seconds,
    )


def readings(lease: Lease, session: Session, policy: LifecyclePolicy) -> Iterator[ReadingRow]:
    """Yield the samples of the session that the probe would have sent at the policy's period."""
    look = GeneratedSampler(session, policy.idle)
    names = dict(zip(look.gpus, (slot.gpu for slot in lease.slots), strict=True))
    while (step := look(policy.idle.sample_seconds)) is not None:
        gpus = tuple(replace(reading, gpu=names[reading.gpu]) for reading in step.sample.gpus)
        sample = replace(step.sample, gpus=gpus, leased=tuple(names.values()))
        evidence = read_evidence(sample, policy.idle)
        yield from reading_rows(lease, sample, evidence, policy.idle, (lease.running_at or 0.0) + step.at)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
